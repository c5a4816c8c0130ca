"""The nine events an envelope can carry. This module does not say which event is allowed where.

Absent means empty: an empty `title` and no title are the same. `ADDED_KEYS` lists the keys that the
original protocol does not have and that its readers strip.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

TurnStatus = Literal["completed", "failed", "cancelled"]
# JavaScript has only one number type.
Number = int | float


class EnvelopeEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", rename="camel"):
    """Base class of the events below."""


class TextEvent(EnvelopeEvent, frozen=True, tag="text"):
    """Markdown, written by the envelope's role or subagent."""

    text: str
    thinking: bool = False


class ServiceEvent(EnvelopeEvent, frozen=True, tag="service"):
    """A line about the conversation rather than a part of it. Markdown.

    `refused` is set on a line about a person's message that was not acted on: `reason`, `localId`,
    and `chain` and `counter` if it has them.
    """

    text: str
    refused: dict[str, Any] | UnsetType = UNSET


class ToolCallStart(EnvelopeEvent, frozen=True, tag="tool-call-start"):
    """`title` and `description` are inline markdown."""

    call: str
    name: str
    title: str
    description: str
    args: dict[str, Any]


class ToolCallEnd(EnvelopeEvent, frozen=True, tag="tool-call-end"):
    """`result` is the tool's output, cut to a limit; an error is in there too."""

    call: str
    result: str = ""
    is_error: bool = False
    duration_ms: int = 0


class ImagePreview(msgspec.Struct, frozen=True):
    width: Number
    height: Number
    thumbhash: str


class FileEvent(EnvelopeEvent, frozen=True, tag="file"):
    """`ref` says where the sealed bytes are, `size` how many bytes there are before sealing."""

    ref: str
    name: str
    size: Number
    mime_type: str = ""
    image: ImagePreview | UnsetType = UNSET


class TurnStart(EnvelopeEvent, frozen=True, tag="turn-start"):
    pass


class TurnEnd(EnvelopeEvent, frozen=True, tag="turn-end"):
    status: TurnStatus


class SubagentStart(EnvelopeEvent, frozen=True, tag="start"):
    """The agent identified by the envelope's `subagent` starts."""

    title: str = ""


class SubagentStop(EnvelopeEvent, frozen=True, tag="stop"):
    pass


AnyEnvelopeEvent = (
    TextEvent
    | ServiceEvent
    | ToolCallStart
    | ToolCallEnd
    | FileEvent
    | TurnStart
    | TurnEnd
    | SubagentStart
    | SubagentStop
)
EVENTS: dict[str, type[EnvelopeEvent]] = {
    str(event.__struct_config__.tag): event
    for event in (
        TextEvent,
        ServiceEvent,
        ToolCallStart,
        ToolCallEnd,
        FileEvent,
        TurnStart,
        TurnEnd,
        SubagentStart,
        SubagentStop,
    )
}
# Event, key and type of the keys that not every generation of the protocol knows. A reader that
# finds another type under such a key skips it, as if it did not know the key.
ADDED_KEYS: dict[str, dict[str, type]] = {
    "service": {"refused": dict},
    "tool-call-end": {"result": str, "isError": bool, "durationMs": int},
    "file": {"mimeType": str},
}
