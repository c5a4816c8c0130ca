"""Print a turn as it happens: the agent's words on stdout, its actions on stderr."""

import json
import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import click

from crabtalk.service.command_line import escape_controls, print_json, to_one_line

if TYPE_CHECKING:
    from crabtalk.client import Event
    from crabtalk.protocol import wire

LINE_LENGTH = 76  # characters of a line on stderr


class TurnOutput(Protocol):
    """A context manager that gets the events; leaving it early completes an open line."""

    def write_event(self, event: "Event") -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class JsonTurnOutput(nullcontext[None]):
    """One JSON object an event, named by `event`; the last is `end`."""

    def __init__(self) -> None:
        from crabtalk.protocol import wire

        super().__init__()
        events = wire.StreamEvent.DESCRIPTOR.fields
        self._event_names = {event.message_type: event.name for event in events}

    def write_event(self, event: "Event") -> None:
        from .wire_json import message_to_dict

        print_json({"event": self._event_names[event.DESCRIPTOR], **message_to_dict(event)})


class TextTurnOutput:
    """Prints the answer on stdout and a short line for each action on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_terminal = sys.stdout.isatty()
        self._is_line_open = False  # the last line of the answer has no newline yet
        self._thinking: list[str] = []
        self._tool_names: dict[str, str] = {}  # names by id

    def __enter__(self) -> object:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_line()

    def write_event(self, event: "Event") -> None:
        from crabtalk.protocol import wire

        match event:
            case wire.StreamChunk():
                self._write_answer(event.content)
            case wire.TextEndEvent() | wire.StreamEnd():
                self._close_line()
            case wire.StreamThinking():
                self._thinking.append(event.content)
            case wire.ThinkingEndEvent():
                self.write_side_line(f"thinks: {''.join(self._thinking)}")
                self._thinking.clear()
            case wire.ToolStartEvent() if not event.early:
                for call in event.calls:
                    self._tool_names[call.id] = call.name
                    self.write_side_line(format_call(call))
            case wire.ToolResultEvent() if event.is_error:
                self.write_side_line(
                    f"{self._tool_names.get(event.call_id, 'a call')} failed: {event.output}"
                )

    def write_side_line(self, line: str) -> None:
        """Print a line on stderr that is not part of the answer."""
        if not self._quiet:
            self._close_line()
            line = to_one_line(line, LINE_LENGTH)
            click.echo(click.style(line, dim=True) if has_colour() else line, err=True)

    def _write_answer(self, text: str) -> None:
        if text:
            self._is_line_open = not text.endswith("\n")
            text = escape_controls(text, layout=True) if self._is_terminal else text
            click.echo(text.encode(), nl=False)

    def _close_line(self) -> None:
        if self._is_line_open:
            self._is_line_open = False
            click.echo()


def format_call(call: "wire.ToolCallInfo") -> str:
    """Format a call as `bash: make test`; arguments that are no JSON object are shown unchanged."""
    try:
        arguments: Any = json.loads(call.arguments)
    except ValueError:
        arguments = call.arguments
    if isinstance(arguments, dict):
        arguments = ", ".join(
            value if isinstance(value, str) else json.dumps(value) for value in arguments.values()
        )
    return f"{call.name}: {arguments}" if arguments else call.name


def has_colour() -> bool:
    return (
        sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
