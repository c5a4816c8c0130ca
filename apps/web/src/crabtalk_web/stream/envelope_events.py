"""The nine events an envelope can carry, as values. Which of them go where is for others to say.

What is absent is empty: an empty `title` and no title are the same. Keys that the protocol does not
have, and every reader of it strips, are those of `ADDED`.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

TurnStatus = Literal["completed", "failed", "cancelled"]
# JavaScript has one kind of number.
Number = int | float


class EnvelopeEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", rename="camel"):
    """One of those below."""


class TextEvent(EnvelopeEvent, frozen=True, tag="text"):
    """Markdown, said by whoever the envelope names."""

    text: str
    thinking: bool = False


class ServiceEvent(EnvelopeEvent, frozen=True, tag="service"):
    """A line about the conversation rather than of it. Markdown.

    `refused` is of a line about a person's message that was not acted on: `reason`, `localId`,
    and `chain` and `counter` where it has them.
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
    """`result` is what the tool gave back, cut to a bound; a failure is in there too."""

    call: str
    result: str = ""
    is_error: bool = False
    duration_ms: int = 0


class ImagePreview(msgspec.Struct, frozen=True):
    width: Number
    height: Number
    thumbhash: str


class FileEvent(EnvelopeEvent, frozen=True, tag="file"):
    """`ref` is where the sealed bytes are, `size` how many there are before sealing."""

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
    """The agent that the envelope's `subagent` stands for begins."""

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
# Event, key and type of what not every generation of the protocol knows. A reader that finds
# something else under such a key does as those that do not know it, and passes over it.
ADDED_KEYS: dict[str, dict[str, type]] = {
    "service": {"refused": dict},
    "tool-call-end": {"result": str, "isError": bool, "durationMs": int},
    "file": {"mimeType": str},
}
