"""The strict writer: an envelope leaves only in a form that every reader takes, however strict.

What holds between envelopes is the matter of `order`.
"""

import re
from typing import Any

import msgspec
from msgspec import UnsetType

from .envelope import Envelope, EnvelopeError, Usage
from .events import EVENTS, File, Start, Stop, Text, ToolCallEnd, ToolCallStart
from .ids import is_own
from .plain import plain

# Sealed and in base64, this fits into a frame of a million bytes, where the most common relay ends.
LARGEST = 700_000
# The largest whole number that JavaScript tells from its neighbours.
LAST_TIME = 2**53 - 1
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
USERS = (Text, File)


def encode(envelope: Envelope, *, is_compat: bool = False) -> bytes:
    """JSON. `is_compat` is for readers that draw certain tools by names of their own, and that look
    for tokens outside of turns. Raises EnvelopeError."""
    check(envelope, is_compat=is_compat)
    try:
        data = msgspec.json.encode(envelope)
    except UnicodeEncodeError:
        data = msgspec.json.encode(plain(msgspec.to_builtins(envelope)))
    if len(data) > LARGEST:
        raise EnvelopeError(f"{len(data)} bytes are too many for one envelope; send it in pieces")
    return data


def check(envelope: Envelope, *, is_compat: bool = False) -> None:
    """Raises EnvelopeError."""
    try:
        msgspec.convert(msgspec.to_builtins(envelope), Envelope)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise EnvelopeError(f"this is no envelope: {error}") from None
    check_place(envelope, is_compat=is_compat)
    match envelope.ev:
        case ToolCallStart():
            check_tool(envelope.ev, is_compat=is_compat)
        case ToolCallEnd(duration_ms=took):
            require(took >= 0, "durationMs", "is negative")
        case File():
            check_file(envelope.ev)


def check_place(envelope: Envelope, *, is_compat: bool) -> None:
    tag = EVENTS_BY_TYPE[type(envelope.ev)]
    require(is_own(envelope.id), "id", "is no id of 24 characters")
    require(is_whole(envelope.time), "time", "is no whole number of milliseconds")
    require(envelope.time <= LAST_TIME, "time", "is too far away")
    for key in ("turn", "subagent"):
        value = getattr(envelope, key)
        require(not value or is_own(value), key, "is no id of 24 characters")
    if envelope.role == "user":
        require(isinstance(envelope.ev, USERS), "role", f"is user, and {tag} is an agent's")
        require(not envelope.subagent, "subagent", "is of a user")
    elif not (is_compat and envelope.is_bare_usage):
        require(bool(envelope.turn), "turn", "is missing")
    if isinstance(envelope.ev, Start | Stop):
        require(bool(envelope.subagent), "subagent", f"is missing; {tag} says nothing without it")
    if isinstance(envelope.usage, Usage):
        require(envelope.role == "agent", "usage", "is of a user")


def check_tool(event: ToolCallStart, *, is_compat: bool) -> None:
    require(bool(event.call), "ev.call", "is empty")
    is_fine = bool(event.name) if is_compat else NAME.fullmatch(event.name) is not None
    require(is_fine, "ev.name", "is not in lower case with hyphens")
    for key in ("title", "description"):
        words = getattr(event, key)
        require(bool(words.strip()), f"ev.{key}", "is empty")
        require("\n" not in words, f"ev.{key}", "has more than one line")
    plain(event.args)


def check_file(event: File) -> None:
    require(bool(event.ref), "ev.ref", "is empty")
    require(is_whole(event.size), "ev.size", "is no whole number of bytes")
    if isinstance(event.image, UnsetType):
        return
    for key in ("width", "height"):
        value = getattr(event.image, key)
        require(is_whole(value) and value > 0, f"ev.image.{key}", "is no number of pixels")
    require(bool(event.image.thumbhash), "ev.image.thumbhash", "is empty; leave the image out")


def is_whole(number: Any) -> bool:
    return type(number) is int and number >= 0


def require(holds: bool, key: str, complaint: str) -> None:
    if not holds:
        raise EnvelopeError(f"{key} {complaint}")


EVENTS_BY_TYPE = {event: tag for tag, event in EVENTS.items()}
