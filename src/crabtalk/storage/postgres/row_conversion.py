"""Converts conversation rows to values, and records to statement arguments."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from crabtalk.storage.accepted_messages import AcceptedMessage
from crabtalk.storage.records import (
    MAX_MESSAGES,
    ConversationMeta,
    EventRecord,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    decode_record,
    encode_line,
    replace_surrogates,
)

from .column_encoding import decode_column, encode_column

log = logging.getLogger(__name__)

META_COLUMNS = "agent, sender, created_at, title, updated_at, message_count, approved, mode"
RECORD_KINDS: dict[type[Record], str] = {
    MessageRecord: "message",
    EventRecord: "event",
    MarkerRecord: "marker",
    MetaRecord: "meta",
}


class ConversationPatch(msgspec.Struct):
    """Changes to a conversation's row by records; None keeps the column."""

    created_at: str | None = None
    updated_at: str | None = None
    title: str | None = None
    message_count: int | None = None
    approved: list[str] | None = None
    marker: int | None = None  # position of the last marker among the records, from 1

    def add(self, position: int, record: Record) -> None:
        match record:
            case MessageRecord(id=number, at=at):
                self.message_count, self.updated_at = number + 1, at
            case MarkerRecord(archived_at=at):
                self.marker, self.updated_at = position, at
            case MetaRecord():
                self._add_meta(record)

    def _add_meta(self, record: MetaRecord) -> None:
        for name in ("created_at", "updated_at", "title", "message_count"):
            if (value := getattr(record, name)) is not None:
                setattr(self, name, encode_column(value) if isinstance(value, str) else value)
        if record.approved is not None:
            self.approved = [encode_column(tool) for tool in record.approved]


def to_append_arguments(records: Sequence[Record]) -> tuple[Any, ...]:
    """Arguments of crabtalk_append_runs: the patch, then the entries column by column."""
    patch = ConversationPatch()
    for position, record in enumerate(records, 1):
        patch.add(position, record)
    return (
        patch.created_at,
        patch.updated_at,
        patch.title,
        patch.message_count,
        patch.approved,
        patch.marker,
        [record.id if isinstance(record, MessageRecord) else None for record in records],
        [RECORD_KINDS[type(record)] for record in records],
        [encode_line(record)[:-1].decode() for record in records],
        [get_run_column(record) for record in records],
        [get_key_column(record) for record in records],
    )


def get_run_column(record: Record) -> str | None:
    """The encoded id of the record's run, if it has one."""
    if isinstance(record, MessageRecord | EventRecord) and record.run:
        return encode_column(record.run)
    return None


def get_key_column(record: Record) -> str | None:
    if isinstance(record, MessageRecord) and record.key and record.run:
        return encode_column(record.key)
    return None


def encode_accepted(entry: AcceptedMessage) -> str:
    """An accepted message as JSON, with lone surrogates replaced."""
    try:
        return msgspec.json.encode(entry).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(msgspec.to_builtins(entry))).decode()


def decode_accepted(bodies: Iterable[str]) -> list[AcceptedMessage]:
    return [msgspec.json.decode(body, type=AcceptedMessage) for body in bodies]


def read_meta_row(row: Any, summary: str = "") -> ConversationMeta:
    return ConversationMeta(
        agent=decode_column(row["agent"]),
        created_by=decode_column(row["sender"]),
        created_at=decode_column(row["created_at"]),
        title=decode_column(row["title"]),
        updated_at=decode_column(row["updated_at"]),
        message_count=min(max(0, row["message_count"]), MAX_MESSAGES),
        summary=summary,
        approved=tuple(decode_column(tool) for tool in row["approved"]),
        mode=row["mode"],
    )


def read_pair_row(row: Any) -> Pair:
    return Pair(decode_column(row["agent"]), decode_column(row["sender"]))


def decode_records(bodies: Iterable[str]) -> list[Record]:
    """Invalid entries are logged and left out. No daemon writes such; a person must have."""
    records: list[Record] = []
    for body in bodies:
        try:
            records.append(decode_record(body.encode()))
        except ValueError as error:
            log.warning("an entry in the database cannot be read: %s", error)
    return records


def decode_messages(bodies: Iterable[str]) -> tuple[MessageRecord, ...]:
    return tuple(record for record in decode_records(bodies) if isinstance(record, MessageRecord))
