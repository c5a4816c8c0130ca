"""Converts records of a conversation's log into events for the adapter. Pure."""

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
    """Return the person's own text, if a skill replaced it with another."""
    return message.said or message.content


def message_run_id(message: wire.ConversationMessage) -> str:
    """Return the run that a message begins. Logs of earlier versions do not name it."""
    return message.run_id or f"message:{message.id}"


def build_assistant_events(
    message: wire.ConversationMessage, progress: RunProgress
) -> Iterator[AnyRunEvent]:
    """Yield the events of a message, without the characters that are written already."""
    for text, size, thinking in (
        (message.reasoning, progress.reasoning, True),
        (message.content, progress.text, False),
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
    """Yield nothing for a call whose result was received already."""
    if message.call_id not in returned:
        yield ToolReturned(message.call_id, message.content, message.is_error)


def advance_progress(message: wire.ConversationMessage, progress: RunProgress) -> RunProgress:
    """Return the progress of the run after this message."""
    if message.role == "assistant" and message.tool_calls:
        return RunProgress(progress.steps + 1, progress.steers)
    if message.role == "assistant":
        return msgspec.structs.replace(progress, is_told=True)
    if message.role == "user":
        return RunProgress(progress.steps, progress.steers + 1)
    return progress


def parse_run_end(end: wire.RunEndRecord) -> RunEnded:
    if end.interrupted:
        return RunEnded(EndReason.ERROR, end.error or NEVER_RUN)
    return RunEnded(END_REASONS.get(end.stop_reason, EndReason.UNKNOWN), end.error)
