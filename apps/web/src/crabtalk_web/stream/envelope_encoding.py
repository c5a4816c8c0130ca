"""The strict writer: emits only envelopes that every reader accepts, however strict.

`envelope_order` checks what must hold between envelopes.
"""

import re
from typing import Any

import msgspec
from msgspec import UnsetType

from .envelope import Envelope, EnvelopeError, EnvelopeUsage
from .envelope_events import (
    EVENTS,
    FileEvent,
    SubagentStart,
    SubagentStop,
    TextEvent,
    ToolCallEnd,
    ToolCallStart,
)
from .ids import is_own_id
from .json_values import clean_json_value

# Sealed and in base64, this fits into a frame of a million bytes, the limit of the most common
# relay.
MAX_ENVELOPE_BYTES = 700_000
# The largest integer that JavaScript represents exactly.
LAST_TIME = 2**53 - 1
TOOL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
USER_EVENTS = (TextEvent, FileEvent)


def encode_envelope(envelope: Envelope, *, is_compat: bool = False) -> bytes:
    """Encode to JSON. `is_compat` is for readers that draw certain tools by their own names for
    them and that expect token usage outside of turns. Raises EnvelopeError."""
    check_envelope(envelope, is_compat=is_compat)
    try:
        data = msgspec.json.encode(envelope)
    except UnicodeEncodeError:
        data = msgspec.json.encode(clean_json_value(msgspec.to_builtins(envelope)))
    if len(data) > MAX_ENVELOPE_BYTES:
        raise EnvelopeError(f"{len(data)} bytes are too many for one envelope; send it in pieces")
    return data


def check_envelope(envelope: Envelope, *, is_compat: bool = False) -> None:
    """Raises EnvelopeError."""
    try:
        msgspec.convert(msgspec.to_builtins(envelope), Envelope)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise EnvelopeError(f"this is no envelope: {error}") from None
    check_header(envelope, is_compat=is_compat)
    match envelope.ev:
        case ToolCallStart():
            check_tool(envelope.ev, is_compat=is_compat)
        case ToolCallEnd(duration_ms=duration):
            require_field(duration >= 0, "durationMs", "is negative")
        case FileEvent():
            check_file(envelope.ev)


def check_header(envelope: Envelope, *, is_compat: bool) -> None:
    tag = EVENTS_BY_TYPE[type(envelope.ev)]
    require_field(is_own_id(envelope.id), "id", "is no id of 24 characters")
    require_field(is_whole(envelope.time), "time", "is no whole number of milliseconds")
    require_field(envelope.time <= LAST_TIME, "time", "is too far away")
    for key in ("turn", "subagent"):
        value = getattr(envelope, key)
        require_field(not value or is_own_id(value), key, "is no id of 24 characters")
    if envelope.role == "user":
        require_field(
            isinstance(envelope.ev, USER_EVENTS), "role", f"is user, and {tag} is an agent's"
        )
        require_field(not envelope.subagent, "subagent", "is of a user")
    elif not (is_compat and envelope.is_bare_usage):
        require_field(bool(envelope.turn), "turn", "is missing")
    if isinstance(envelope.ev, SubagentStart | SubagentStop):
        require_field(
            bool(envelope.subagent), "subagent", f"is missing; {tag} says nothing without it"
        )
    if isinstance(envelope.usage, EnvelopeUsage):
        require_field(envelope.role == "agent", "usage", "is of a user")


def check_tool(event: ToolCallStart, *, is_compat: bool) -> None:
    require_field(bool(event.call), "ev.call", "is empty")
    is_fine = bool(event.name) if is_compat else TOOL_NAME.fullmatch(event.name) is not None
    require_field(is_fine, "ev.name", "is not in lower case with hyphens")
    for key in ("title", "description"):
        text = getattr(event, key)
        require_field(bool(text.strip()), f"ev.{key}", "is empty")
        require_field("\n" not in text, f"ev.{key}", "has more than one line")
    clean_json_value(event.args)


def check_file(event: FileEvent) -> None:
    require_field(bool(event.ref), "ev.ref", "is empty")
    require_field(is_whole(event.size), "ev.size", "is no whole number of bytes")
    if isinstance(event.image, UnsetType):
        return
    for key in ("width", "height"):
        value = getattr(event.image, key)
        require_field(is_whole(value) and value > 0, f"ev.image.{key}", "is no number of pixels")
    require_field(
        bool(event.image.thumbhash), "ev.image.thumbhash", "is empty; leave the image out"
    )


def is_whole(number: Any) -> bool:
    return type(number) is int and number >= 0


def require_field(holds: bool, key: str, complaint: str) -> None:
    if not holds:
        raise EnvelopeError(f"{key} {complaint}")


EVENTS_BY_TYPE = {event: tag for tag, event in EVENTS.items()}
