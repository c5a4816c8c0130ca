"""What the records of a conversation say, in the words of the adapter. Pure."""

from collections.abc import Collection, Iterator

import msgspec

from crabtalk.protocol import wire
from crabtalk_web.adapter.happenings import (
    AnyHappening,
    Call,
    Called,
    Ended,
    Piece,
    Reason,
    Returned,
    SegmentOver,
)
from crabtalk_web.adapter.sources import REASONS

from .entries import Progress

NEVER_RUN = "the daemon ended before it came to this; say it again"


def said_by_person(message: wire.ConversationMessage) -> str:
    """In the person's own words, where a skill made another text of them."""
    return message.said or message.content


def run_of(message: wire.ConversationMessage) -> str:
    """The run that a message begins. Logs of earlier versions do not name it."""
    return message.run_id or f"message:{message.id}"


def assistant_happenings(
    message: wire.ConversationMessage, told: Progress
) -> Iterator[AnyHappening]:
    """All of a message but the characters that are told."""
    for text, size, thinking in (
        (message.reasoning, told.reasoning, True),
        (message.content, told.text, False),
    ):
        if rest := text[size:]:
            yield Piece(rest, thinking=thinking)
            yield SegmentOver()
    yield SegmentOver()
    if message.tool_calls:
        yield Called(tuple(Call(c.id, c.name, c.arguments) for c in message.tool_calls))


def tool_happenings(
    message: wire.ConversationMessage, returned: Collection[str]
) -> Iterator[AnyHappening]:
    """Nothing for a call of which it was heard already that it returned."""
    if message.call_id not in returned:
        yield Returned(message.call_id, message.content, message.is_error)


def after_message(message: wire.ConversationMessage, told: Progress) -> Progress:
    """How far the run is told with this message."""
    if message.role == "assistant" and message.tool_calls:
        return Progress(told.steps + 1, told.steers)
    if message.role == "assistant":
        return msgspec.structs.replace(told, is_told=True)
    if message.role == "user":
        return Progress(told.steps, told.steers + 1)
    return told


def read_run_end(end: wire.RunEndRecord) -> Ended:
    if end.interrupted:
        return Ended(Reason.ERROR, end.error or NEVER_RUN)
    return Ended(REASONS.get(end.stop_reason, Reason.UNKNOWN), end.error)
