"""The searchable text of a message, and the weights of messages, titles and summaries."""

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec

from crabtalk.model.messages import Message

# RFC 0185: field weights.
USER_WEIGHT = 1.5
ASSISTANT_WEIGHT = 1.0
TOOL_USE_WEIGHT = 1.3
# The weights that a message may have.
MESSAGE_WEIGHTS = (USER_WEIGHT, TOOL_USE_WEIGHT, ASSISTANT_WEIGHT)
TITLE_WEIGHT = 2.0
SUMMARY_WEIGHT = 3.0


def extract_text(message: Message, *, tool_results: bool) -> tuple[str, float]:
    """Return the text and the weight; the text is empty if it is not searchable.

    Tool results may hold secrets that no person chose to share, so they need to be allowed.
    """
    match message.role:
        case "user":
            return message.text, USER_WEIGHT
        case "assistant" if message.tool_calls:
            calls = [
                f"{call.name} {flatten_arguments(call.arguments)}" for call in message.tool_calls
            ]
            return "\n".join([message.text, *calls]), TOOL_USE_WEIGHT
        case "assistant":
            return message.text, ASSISTANT_WEIGHT
        case "tool" if tool_results:
            return message.text, TOOL_USE_WEIGHT
    return "", 0.0


def flatten_arguments(arguments: str) -> str:
    """Join the strings in a call's arguments: JSON escapes would run into the words."""
    try:
        return " ".join(iterate_strings(msgspec.json.decode(arguments)))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return arguments


def iterate_strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, item in value.items():
                yield name
                yield from iterate_strings(item)
        case list():
            for item in value:
                yield from iterate_strings(item)
        case _:
            yield str(value)


def parse_milliseconds(at: str) -> int:
    """Milliseconds since 1970; 0 if `at` is not a time."""
    try:
        return max(0, int(to_utc(datetime.fromisoformat(at)).timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def to_utc(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def hash_name(name: str) -> int:
    """Hash a name to a number for filters. Names may collide, so callers compare them too."""
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
