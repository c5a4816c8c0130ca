"""Entries of memories in PostgreSQL: rows of `memory_entries`, read and written many at a time.

Of which change they are is the journal's business.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg

from crabtalk.memory import Entry, Kind, News, Position, crmem

from .database import Connection, Database, Rows

# Bytes that are sent at once when a whole memory is written, so that the loop is soon free again;
# and what an entry has beside its texts.
SLICE = 1024 * 1024
OVERHEAD = 64

COLUMNS = ("id", "created_at", "kind", "name", "content", "aliases")

ALL = """
SELECT m.id AS memory, m.seq, m.next_id,
    e.id, e.created_at, e.kind, e.name, e.content, e.aliases
FROM memories m LEFT JOIN memory_entries e ON e.memory = m.id WHERE m.name = $1 ORDER BY e.id
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """News as they came. Made readable in a thread: they may be many."""

    position: Position
    next_id: int = 1
    rows: Rows | tuple[()] = ()
    is_all: bool = False

    def news(self) -> News:
        if self.is_all:
            found = {row["id"]: entry_of(row) for row in self.rows if row["id"] is not None}
        else:
            found = {row["entry"]: entry_of(row) for row in self.rows}
        return News(self.position, found, self.next_id, self.is_all)

    def encode(self) -> bytes:
        news = self.news()
        return crmem.encode(filter(None, news.entries.values()), news.next_id)


async def read_all(database: Database, name: str) -> Answer:
    rows = await database.fetch(ALL, name)
    if not rows:
        return Answer(Position(), is_all=True)
    first = rows[0]
    return Answer(Position(first["memory"], first["seq"]), first["next_id"], rows, is_all=True)


async def copy_all(connection: Connection, memory: int, entries: Iterable[Entry]) -> None:
    """Into a memory that has none."""
    for rows in slices(entries):
        records = [(memory, *row) for row in rows]
        await connection.copy_records_to_table(
            "memory_entries", records=records, columns=("memory", *COLUMNS)
        )


def slices(entries: Iterable[Entry]) -> Iterator[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in map(row_of, entries):
        rows.append(row)
        size += OVERHEAD + len(row[3]) + len(row[4])
        if size >= SLICE:
            yield rows
            rows, size = [], 0
    yield rows


def row_of(entry: Entry) -> tuple[Any, ...]:
    aliases = [alias.encode() for alias in entry.aliases]
    kind = int(entry.kind)
    return entry.id, entry.created_at, kind, entry.name.encode(), entry.content.encode(), aliases


def entry_of(row: asyncpg.Record) -> Entry | None:
    if row["id"] is None:
        return None
    aliases = tuple(alias.decode() for alias in row["aliases"])
    name, content = row["name"].decode(), row["content"].decode()
    return Entry(row["id"], int(row["created_at"]), Kind(row["kind"]), name, content, aliases)
