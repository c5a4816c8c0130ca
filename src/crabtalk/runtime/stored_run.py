"""Rebuilds the events of a finished run from its log records.

The result is a complete stream of events. It lacks what the log does not have: the deltas of texts,
questions to people, and the usage of single model calls.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from crabtalk.model.messages import Message, ToolCall, Usage
from crabtalk.storage import CUT_OFF, EventRecord, MessageRecord, Pair, Record, find_run_end

from .events import (
    Done,
    Event,
    Started,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolResult,
    ToolsComplete,
    ToolStart,
    UserSteered,
)

REASONS = {reason.value: reason for reason in StopReason}


def stored_done(pair: Pair, records: Sequence[Record]) -> Done:
    """How the run ended. A run without an end was interrupted by the death of its process."""
    end = find_run_end(records)
    data: dict[str, Any] = end.data if end is not None else {}
    messages = [r.message for r in records if isinstance(r, MessageRecord)]
    texts = [m.text for m in messages if m.role == "assistant" and m.text]
    reason = REASONS.get(str(data.get("stop_reason", "")), StopReason.ERROR)
    error = str(data.get("error", "")) or (CUT_OFF if reason is StopReason.ERROR else "")
    return Done(
        agent=str(data.get("agent") or find_speaker(messages) or pair.agent),
        reason=reason,
        text=texts[-1] if texts else "",
        error=error if reason is StopReason.ERROR else "",
        model=str(data.get("model", "")),
        usage=read_usage(data.get("usage")),
        steps=data.get("iterations", 0) if isinstance(data.get("iterations"), int) else 0,
    )


def stored_events(pair: Pair, run: str, records: Sequence[Record]) -> Iterator[Event]:
    """All events of the run, from Started to Done."""
    done = stored_done(pair, records)
    end = find_run_end(records)
    mode = str(end.data.get("mode", "")) if end is not None else ""
    yield Started(done.agent, run, mode, is_stored=True)
    yield from message_events(done.agent, records)
    yield done


def dropped_events(started: Started, records: Sequence[Record], count: int) -> Iterator[Event]:
    """The events of a run in flight for its first `count` messages. They begin with Started, at
    which a reader discards the events it already has."""
    messages = [record for record in records if isinstance(record, MessageRecord)][:count]
    events = [record for record in records if isinstance(record, EventRecord)]
    yield started
    yield from message_events(started.agent, [*messages, *events])


def message_events(speaker: str, records: Sequence[Record]) -> Iterator[Event]:
    """The events of the agent's messages, tool results and steering messages."""
    durations = {
        record.data.get("call_id"): record.data.get("duration_ms", 0)
        for record in records
        if isinstance(record, EventRecord) and record.event == "tool_result"
    }
    unanswered: set[str] = set()
    for record in records:
        if not isinstance(record, MessageRecord):
            continue
        message = record.message
        if message.role == "user" and record.steer:
            yield UserSteered(message.text)
        elif message.role == "assistant":
            yield from spoken_events(speaker, message)
            unanswered = {call.id for call in message.tool_calls}
        elif message.role == "tool":
            duration = durations.get(message.call_id, 0)
            yield ToolResult(
                message.call_id,
                message.text,
                duration if isinstance(duration, int) else 0,
                message.is_error,
                message.images,
            )
            unanswered.discard(message.call_id)
            if not unanswered:
                yield ToolsComplete()


def spoken_events(speaker: str, message: Message) -> Iterator[Event]:
    if message.reasoning:
        yield ThinkingStart(speaker)
        yield ThinkingDelta(message.reasoning)
        yield ThinkingEnd(speaker)
    if message.text:
        yield TextStart(speaker)
        yield TextDelta(message.text)
        yield TextEnd(speaker)
    if message.tool_calls:
        yield ToolStart(tuple(ToolCall(c.id, c.name) for c in message.tool_calls), early=True)
        yield ToolStart(message.tool_calls)


def find_speaker(messages: Sequence[Message]) -> str:
    return next((message.agent for message in messages if message.agent), "")


def read_usage(data: object) -> Usage | None:
    try:
        return msgspec.convert(data, Usage) if data is not None else None
    except msgspec.ValidationError:
        return None
