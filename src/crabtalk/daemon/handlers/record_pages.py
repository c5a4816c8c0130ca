"""Converts a conversation's records to wire pages, for programs that mirror the log."""

from typing import Any

from crabtalk.daemon.events.stream_events import WIRE_STOP_REASONS, to_token_usage
from crabtalk.protocol import wire
from crabtalk.runtime import StopReason, read_usage
from crabtalk.storage import (
    EventRecord,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Record,
    RecordSlice,
)

from .wire_conversion import to_conversation_message

STOP_REASONS = {reason.value: WIRE_STOP_REASONS[reason] for reason in StopReason}


def to_record_page(
    record_slice: RecordSlice, requested_position: int, limit: int
) -> wire.RecordPage:
    """At most `limit` records. Records that only the daemon needs are skipped."""
    page = wire.RecordPage(
        next_position=record_slice.position,
        has_more=record_slice.has_more,
        log_id=record_slice.origin,
        restarted=record_slice.start != requested_position,
    )
    for position, record in record_slice.records:
        if len(page.records) >= limit:
            page.next_position = position
            page.has_more = True
            break
        if (answer := to_conversation_record(record)) is not None:
            answer.position = position
            page.records.append(answer)
    return page


def to_conversation_record(record: Record) -> wire.ConversationRecord | None:
    match record:
        case MessageRecord():
            message = to_conversation_message(record, with_runs=True)
            return wire.ConversationRecord(message=message)
        case EventRecord(event="done"):
            return wire.ConversationRecord(run_end=to_run_end(record))
        case MarkerRecord():
            return wire.ConversationRecord(compaction=to_compaction(record))
        case MetaRecord():
            return to_change(record)
    return None


def to_run_end(record: EventRecord) -> wire.RunEndRecord:
    data: dict[str, Any] = record.data
    word = str(data.get("stop_reason", ""))
    return wire.RunEndRecord(
        run_id=record.run,
        timestamp=record.at,
        agent=str(data.get("agent", "")),
        stop_reason=STOP_REASONS.get(word, wire.STOP_REASON_ERROR),
        error=str(data.get("error", "")),
        model=str(data.get("model", "")),
        usage=to_token_usage(read_usage(data.get("usage"))),
        interrupted=word == "interrupted",
    )


def to_compaction(record: MarkerRecord) -> wire.CompactionRecord:
    return wire.CompactionRecord(
        archive=wire.ArchiveInfo(
            name=record.archive_name,
            title=record.title,
            archived_at=record.archived_at,
            summary=record.summary,
            end_id=record.end_id,
        )
    )


def to_change(record: MetaRecord) -> wire.ConversationRecord | None:
    """A snapshot repeats the title, which is reported again."""
    if record.title is None and record.mode is None:
        return None
    return wire.ConversationRecord(change=wire.ChangeRecord(title=record.title, mode=record.mode))
