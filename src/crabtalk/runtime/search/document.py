"""Document: what of a message, a title or a summary can be found, and how much it counts."""

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from crabtalk.model.messages import Message

# RFC 0185: field weights.
USER = 1.5
ASSISTANT = 1.0
TOOL_USE = 1.3
# Those that a message may have.
MESSAGES = (USER, TOOL_USE, ASSISTANT)
TITLE = 2.0
SUMMARY = 3.0


def searchable(message: Message, *, tool_results: bool) -> tuple[str, float]:
    """Its text and its weight; no text when it is not to be found.

    What tools answer may hold secrets nobody chose to say, so it counts only where it is allowed.
    """
    match message.role:
        case "user":
            return message.text, USER
        case "assistant" if message.tool_calls:
            calls = [f"{call.name} {spoken(call.arguments)}" for call in message.tool_calls]
            return "\n".join([message.text, *calls]), TOOL_USE
        case "assistant":
            return message.text, ASSISTANT
        case "tool" if tool_results:
            return message.text, TOOL_USE
    return "", 0.0


def spoken(arguments: str) -> str:
    """The words in a call's arguments: escapes in JSON would run into them."""
    try:
        return " ".join(strings(msgspec.json.decode(arguments)))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return arguments


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, item in value.items():
                yield name
                yield from strings(item)
        case list():
            for item in value:
                yield from strings(item)
        case _:
            yield str(value)


def milliseconds(at: str) -> int:
    """Since 1970; 0 for what is no time."""
    try:
        return max(0, int(in_utc(datetime.fromisoformat(at)).timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def in_utc(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def key_of(name: str) -> int:
    """A name as the number it is filtered by. Whoever filters by it compares the names too."""
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
