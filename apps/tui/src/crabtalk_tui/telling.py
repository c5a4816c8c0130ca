"""Telling: a turn as it happens. What the agent says is for stdout, what it does for stderr."""

import json
import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import click

from crabtalk.component.command import document, one_line, visible

if TYPE_CHECKING:
    from crabtalk.client import Event
    from crabtalk.protocol import wire

SHOWN = 76  # characters of a line on stderr


class Telling(Protocol):
    """Left before the last event, it leaves nothing half printed."""

    def tell(self, event: "Event") -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class Objects(nullcontext[None]):
    """One JSON object an event, named by `event`; the last is `end`."""

    def __init__(self) -> None:
        from crabtalk.protocol import wire

        super().__init__()
        events = wire.StreamEvent.DESCRIPTOR.fields
        self._names = {event.message_type: event.name for event in events}

    def tell(self, event: "Event") -> None:
        from .objects import as_object

        document({"event": self._names[event.DESCRIPTOR], **as_object(event)})


class Text:
    """The words of the answer, and beside them a short line for each thing that is done."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_terminal = sys.stdout.isatty()
        self._is_open = False  # a line of the answer has no end yet
        self._thought: list[str] = []
        self._calls: dict[str, str] = {}  # names by id

    def __enter__(self) -> object:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_line()

    def tell(self, event: "Event") -> None:
        from crabtalk.protocol import wire

        match event:
            case wire.StreamChunk():
                self._say(event.content)
            case wire.TextEndEvent() | wire.StreamEnd():
                self._close_line()
            case wire.StreamThinking():
                self._thought.append(event.content)
            case wire.ThinkingEndEvent():
                self.beside(f"thinks: {''.join(self._thought)}")
                self._thought.clear()
            case wire.ToolStartEvent() if not event.early:
                for call in event.calls:
                    self._calls[call.id] = call.name
                    self.beside(called(call))
            case wire.ToolResultEvent() if event.is_error:
                self.beside(f"{self._calls.get(event.call_id, 'a call')} failed: {event.output}")

    def beside(self, line: str) -> None:
        """What is no part of the answer."""
        if not self._quiet:
            self._close_line()
            line = one_line(line, SHOWN)
            click.echo(click.style(line, dim=True) if has_colour() else line, err=True)

    def _say(self, text: str) -> None:
        if text:
            self._is_open = not text.endswith("\n")
            text = visible(text, layout=True) if self._is_terminal else text
            click.echo(text.encode(), nl=False)

    def _close_line(self) -> None:
        if self._is_open:
            self._is_open = False
            click.echo()


def called(call: "wire.ToolCallInfo") -> str:
    """`bash: make test`, or the arguments as they are."""
    try:
        given: Any = json.loads(call.arguments)
    except ValueError:
        given = call.arguments
    if isinstance(given, dict):
        given = ", ".join(
            value if isinstance(value, str) else json.dumps(value) for value in given.values()
        )
    return f"{call.name}: {given}" if given else call.name


def has_colour() -> bool:
    return (
        sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
