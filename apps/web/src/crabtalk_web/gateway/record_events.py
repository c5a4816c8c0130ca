"""What the records of a conversation say, in the words of the adapter. Pure."""

from collections.abc import Collection, Iterator

import msgspec

from crabtalk.protocol import wire
from crabtalk_web.adapter.event_parsing import END_REASONS
from crabtalk_web.adapter.run_events import (
    AnyRunEvent,
    EndReason,
    RunEnded,
    SegmentEnded,
    TextPiece,
    ToolCallRequest,
    ToolReturned,
    ToolsCalled,
)

from .journal_entries import RunProgress

NEVER_RUN = "the daemon ended before it came to this; say it again"


def person_text(message: wire.ConversationMessage) -> str:
    """In the person's own words, where a skill made another text of them."""
    return message.said or message.content


def message_run_id(message: wire.ConversationMessage) -> str:
    """The run that a message begins. Logs of earlier versions do not name it."""
    return message.run_id or f"message:{message.id}"


def build_assistant_events(
    message: wire.ConversationMessage, told: RunProgress
) -> Iterator[AnyRunEvent]:
    """All of a message but the characters that are told."""
    for text, size, thinking in (
        (message.reasoning, told.reasoning, True),
        (message.content, told.text, False),
    ):
        if rest := text[size:]:
            yield TextPiece(rest, thinking=thinking)
            yield SegmentEnded()
    yield SegmentEnded()
    if message.tool_calls:
        yield ToolsCalled(
            tuple(ToolCallRequest(c.id, c.name, c.arguments) for c in message.tool_calls)
        )


def build_tool_events(
    message: wire.ConversationMessage, returned: Collection[str]
) -> Iterator[AnyRunEvent]:
    """Nothing for a call of which it was heard already that it returned."""
    if message.call_id not in returned:
        yield ToolReturned(message.call_id, message.content, message.is_error)


def advance_progress(message: wire.ConversationMessage, told: RunProgress) -> RunProgress:
    """How far the run is told with this message."""
    if message.role == "assistant" and message.tool_calls:
        return RunProgress(told.steps + 1, told.steers)
    if message.role == "assistant":
        return msgspec.structs.replace(told, is_told=True)
    if message.role == "user":
        return RunProgress(told.steps, told.steers + 1)
    return told


def parse_run_end(end: wire.RunEndRecord) -> RunEnded:
    if end.interrupted:
        return RunEnded(EndReason.ERROR, end.error or NEVER_RUN)
    return RunEnded(END_REASONS.get(end.stop_reason, EndReason.UNKNOWN), end.error)
