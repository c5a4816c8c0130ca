"""Reads and writes rows of `memory_entries`, many at a time.

It does not know about changes and positions; those are in memory_backend.py.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg

from crabtalk.memory import EntryKind, JournalPosition, MemoryEntry, RemoteChanges, crmem

from .database import PostgresConnection, PostgresDatabase, Rows

# Bytes sent at once when a whole memory is written, so that the loop is not blocked for long; and
# bytes of an entry in addition to its texts.
MAX_SLICE_BYTES = 1024 * 1024
ENTRY_OVERHEAD_BYTES = 64

COLUMNS = ("id", "created_at", "kind", "name", "content", "aliases")

SELECT_ALL = """
SELECT m.id AS memory, m.seq, m.next_id,
    e.id, e.created_at, e.kind, e.name, e.content, e.aliases
FROM memories m LEFT JOIN memory_entries e ON e.memory = m.id WHERE m.name = $1 ORDER BY e.id
"""


@dataclass(frozen=True, slots=True)
class FetchedEntries:
    """Fetched rows, not yet decoded: that is done in a thread, because there may be many."""

    position: JournalPosition
    next_id: int = 1
    rows: Rows | tuple[()] = ()
    is_complete: bool = False

    def to_remote_changes(self) -> RemoteChanges:
        if self.is_complete:
            entries = {row["id"]: read_entry_row(row) for row in self.rows if row["id"] is not None}
        else:
            entries = {row["entry"]: read_entry_row(row) for row in self.rows}
        return RemoteChanges(self.position, entries, self.next_id, self.is_complete)

    def encode(self) -> bytes:
        changes = self.to_remote_changes()
        return crmem.encode_memory(filter(None, changes.entries.values()), changes.next_id)


async def read_memory(database: PostgresDatabase, name: str) -> FetchedEntries:
    rows = await database.fetch(SELECT_ALL, name)
    if not rows:
        return FetchedEntries(JournalPosition(), is_complete=True)
    first = rows[0]
    return FetchedEntries(
        JournalPosition(first["memory"], first["seq"]), first["next_id"], rows, is_complete=True
    )


async def copy_entries(
    connection: PostgresConnection, memory: int, entries: Iterable[MemoryEntry]
) -> None:
    """Insert entries into an empty memory."""
    for rows in split_rows(entries):
        records = [(memory, *row) for row in rows]
        await connection.copy_records_to_table(
            "memory_entries", records=records, columns=("memory", *COLUMNS)
        )


def split_rows(entries: Iterable[MemoryEntry]) -> Iterator[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in map(to_entry_row, entries):
        rows.append(row)
        size += ENTRY_OVERHEAD_BYTES + len(row[3]) + len(row[4])
        if size >= MAX_SLICE_BYTES:
            yield rows
            rows, size = [], 0
    yield rows


def to_entry_row(entry: MemoryEntry) -> tuple[Any, ...]:
    aliases = [alias.encode() for alias in entry.aliases]
    kind = int(entry.kind)
    return entry.id, entry.created_at, kind, entry.name.encode(), entry.content.encode(), aliases


def read_entry_row(row: asyncpg.Record) -> MemoryEntry | None:
    if row["id"] is None:
        return None
    aliases = tuple(alias.decode() for alias in row["aliases"])
    name, content = row["name"].decode(), row["content"].decode()
    return MemoryEntry(
        row["id"], int(row["created_at"]), EntryKind(row["kind"]), name, content, aliases
    )
