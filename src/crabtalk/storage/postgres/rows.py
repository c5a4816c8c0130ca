"""Rows: what PostgreSQL keeps of a conversation, as values, and records as it takes them."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from crabtalk.storage.acceptance import Accepted
from crabtalk.storage.records import (
    MOST_MESSAGES,
    EventRecord,
    MarkerRecord,
    MessageRecord,
    Meta,
    MetaRecord,
    Pair,
    Record,
    decode,
    encode_line,
    without_halves,
)

from .pair import column, uncolumn

log = logging.getLogger(__name__)

META = "agent, sender, created_at, title, updated_at, message_count, approved, mode"
KINDS: dict[type[Record], str] = {
    MessageRecord: "message",
    EventRecord: "event",
    MarkerRecord: "marker",
    MetaRecord: "meta",
}


class Patch(msgspec.Struct):
    """What records change in the row of their conversation; None leaves a column as it is."""

    created_at: str | None = None
    updated_at: str | None = None
    title: str | None = None
    message_count: int | None = None
    approved: list[str] | None = None
    marker: int | None = None  # which of the records is the last marker, counted from 1

    def add(self, place: int, record: Record) -> None:
        match record:
            case MessageRecord(id=number, at=at):
                self.message_count, self.updated_at = number + 1, at
            case MarkerRecord(archived_at=at):
                self.marker, self.updated_at = place, at
            case MetaRecord():
                self._add_meta(record)

    def _add_meta(self, record: MetaRecord) -> None:
        for name in ("created_at", "updated_at", "title", "message_count"):
            if (value := getattr(record, name)) is not None:
                setattr(self, name, column(value) if isinstance(value, str) else value)
        if record.approved is not None:
            self.approved = [column(tool) for tool in record.approved]


def values_of(records: Sequence[Record]) -> tuple[Any, ...]:
    """Arguments of crabtalk_append_runs: the patch, then the entries column by column."""
    patch = Patch()
    for place, record in enumerate(records, 1):
        patch.add(place, record)
    return (
        patch.created_at,
        patch.updated_at,
        patch.title,
        patch.message_count,
        patch.approved,
        patch.marker,
        [record.id if isinstance(record, MessageRecord) else None for record in records],
        [KINDS[type(record)] for record in records],
        [encode_line(record)[:-1].decode() for record in records],
        [run_of(record) for record in records],
        [key_of_message(record) for record in records],
    )


def run_of(record: Record) -> str | None:
    """The id of the run it belongs to, as a column holds it."""
    if isinstance(record, MessageRecord | EventRecord) and record.run:
        return column(record.run)
    return None


def key_of_message(record: Record) -> str | None:
    if isinstance(record, MessageRecord) and record.key and record.run:
        return column(record.key)
    return None


def body_of(entry: Accepted) -> str:
    """An accepted text as a column takes it."""
    try:
        return msgspec.json.encode(entry).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(without_halves(msgspec.to_builtins(entry))).decode()


def entries_of(bodies: Iterable[str]) -> list[Accepted]:
    return [msgspec.json.decode(body, type=Accepted) for body in bodies]


def meta_of(row: Any, summary: str = "") -> Meta:
    return Meta(
        agent=uncolumn(row["agent"]),
        created_by=uncolumn(row["sender"]),
        created_at=uncolumn(row["created_at"]),
        title=uncolumn(row["title"]),
        updated_at=uncolumn(row["updated_at"]),
        message_count=min(max(0, row["message_count"]), MOST_MESSAGES),
        summary=summary,
        approved=tuple(uncolumn(tool) for tool in row["approved"]),
        mode=row["mode"],
    )


def pair_of(row: Any) -> Pair:
    return Pair(uncolumn(row["agent"]), uncolumn(row["sender"]))


def records_of(bodies: Iterable[str]) -> list[Record]:
    """What cannot be read, which nobody but a person could have written, is told and left out."""
    found: list[Record] = []
    for body in bodies:
        try:
            found.append(decode(body.encode()))
        except ValueError as error:
            log.warning("an entry in the database cannot be read: %s", error)
    return found


def messages_of(bodies: Iterable[str]) -> tuple[MessageRecord, ...]:
    return tuple(record for record in records_of(bodies) if isinstance(record, MessageRecord))
