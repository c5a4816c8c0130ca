"""Format events of agents, one line each; `crabtalkd events` prints the same lines."""

from typing import TYPE_CHECKING, Any

from crabtalk.service.command_line import escape_controls

if TYPE_CHECKING:
    from crabtalk.protocol import wire


def event_to_json(event: "wire.AgentEventMsg") -> dict[str, Any]:
    """Convert an event. `kind` is always included: 0 is a valid kind, and protobuf omits zeros."""
    from google.protobuf.json_format import MessageToDict

    from crabtalk.protocol import wire

    fields = MessageToDict(event, preserving_proto_field_name=True)
    return {**fields, "kind": wire.AgentEventKind.Name(event.kind)}


class EventFormatter:
    """Formats events. Text that comes in pieces is collected, and formatted when it is complete."""

    def __init__(self) -> None:
        self._unfinished_text: dict[str, list[str]] = {}  # by run

    def format_event(self, event: "wire.AgentEventMsg") -> str:
        """Return the line for an event; empty if the event has no line of its own."""
        from crabtalk.protocol import wire

        label = wire.AgentEventKind.Name(event.kind).lower().replace("_", " ")
        content = event.content
        match event.kind:
            case wire.TEXT_DELTA | wire.THINKING_DELTA:
                self._unfinished_text.setdefault(event.run_id, []).append(content)
                return ""
            case wire.TEXT_START | wire.THINKING_START | wire.TOOLS_COMPLETE | wire.CONTEXT_USAGE:
                return ""
            case wire.TURN_START | wire.USER_STEERED:
                label, content = "hears", " ".join(content.split())
            case wire.TEXT_END | wire.THINKING_END:
                label = "says" if event.kind == wire.TEXT_END else "thinks"
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
        return escape_controls(f"{head}: {label} {content}{missed}".rstrip())
