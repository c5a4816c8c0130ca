"""Event lines: what agents do, a line a thing, as `crabtalkd events` has them too."""

from typing import TYPE_CHECKING, Any

from crabtalk.service.command_line import escape_controls

if TYPE_CHECKING:
    from crabtalk.protocol import wire


def event_to_json(event: "wire.AgentEventMsg") -> dict[str, Any]:
    """With its kind always there: its zero means something, and protobuf leaves zeros out."""
    from google.protobuf.json_format import MessageToDict

    from crabtalk.protocol import wire

    known = MessageToDict(event, preserving_proto_field_name=True)
    return {**known, "kind": wire.AgentEventKind.Name(event.kind)}


class EventFormatter:
    """Pieces of text are put together, and shown when they are complete."""

    def __init__(self) -> None:
        self._unfinished_text: dict[str, list[str]] = {}  # by run

    def format_event(self, event: "wire.AgentEventMsg") -> str:
        """Empty for what is no line of its own."""
        from crabtalk.protocol import wire

        what = wire.AgentEventKind.Name(event.kind).lower().replace("_", " ")
        content = event.content
        match event.kind:
            case wire.TEXT_DELTA | wire.THINKING_DELTA:
                self._unfinished_text.setdefault(event.run_id, []).append(content)
                return ""
            case wire.TEXT_START | wire.THINKING_START | wire.TOOLS_COMPLETE | wire.CONTEXT_USAGE:
                return ""
            case wire.TURN_START | wire.USER_STEERED:
                what, content = "hears", " ".join(content.split())
            case wire.TEXT_END | wire.THINKING_END:
                what = "says" if event.kind == wire.TEXT_END else "thinks"
                content = " ".join("".join(self._unfinished_text.pop(event.run_id, ())).split())
            case wire.TOOL_RESULT:
                first = next(iter(event.tool_output.splitlines()), "")
                failed = "failed: " if event.tool_is_error else ""
                content = f"{content} {failed}{first}".rstrip()
            case wire.DONE:
                self._unfinished_text.pop(event.run_id, None)
                content = f"{content} {event.error}".strip()
        missed = f" (after {event.missed} missed)" if event.missed else ""
        head = f"{event.timestamp[11:19]} {event.guest or event.agent} with {event.sender}"
        return escape_controls(f"{head}: {what} {content}{missed}".rstrip())
