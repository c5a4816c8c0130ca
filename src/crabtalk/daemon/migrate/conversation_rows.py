"""ConversationRows: reads and writes the conversations of a database for a migration.

It handles many rows at once and ignores leases and tickets, so no daemon may use the database
meanwhile.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from crabtalk.storage import MessageRecord, StorageError
from crabtalk.storage.postgres.column_encoding import decode_column, encode_column, make_pair_key
from crabtalk.storage.postgres.database import PostgresDatabase
from crabtalk.storage.postgres.row_conversion import RECORD_KINDS, read_meta_row, read_pair_row
from crabtalk.storage.records import decode_record

from .migration import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_ENTRIES,
    ConversationHeader,
    ConversationItems,
    EntryAccumulator,
    ItemDigest,
    MigrationEntry,
)

log = logging.getLogger(__name__)

# Total entries of conversations that are read together.
MAX_ENTRIES_TOGETHER = 5_000

HANDLES = "SELECT handle FROM conversations WHERE last_seq > 0"
SELECT_ROWS = "SELECT * FROM conversations WHERE handle = ANY($1::text[])"
# The first entry in any case, the others as long as their total size is within the limit.
CHUNK_TEMPLATE = """
SELECT conversation, seq, body FROM (
    SELECT conversation, seq, body,
        sum(octet_length(body)) OVER (ORDER BY conversation, seq) AS size,
        row_number() OVER (ORDER BY conversation, seq) AS place
    FROM (
        SELECT conversation, seq, body FROM entries WHERE {} ORDER BY conversation, seq LIMIT $4
    ) AS few
) AS piece WHERE place = 1 OR size <= $5 ORDER BY conversation, seq
"""
# For one conversation the index has the order; for several, the few entries are sorted.
CHUNK_OF_ONE = CHUNK_TEMPLATE.format(
    "conversation = ($1::bigint[])[1] AND seq > $3 AND $2::bigint IS NOT NULL"
)
CHUNK_OF_SEVERAL = CHUNK_TEMPLATE.format(
    "conversation = ANY($1::bigint[]) AND (conversation, seq) > ($2, $3)"
)
# The approved tools of each row are JSON, because PostgreSQL arrays must be rectangular.
INSERT_CONVERSATIONS = """
INSERT INTO conversations (key, handle, agent, sender, created_at, updated_at, title,
    message_count, approved, last_seq, marker_seq, changed)
SELECT key, handle, agent, sender, created_at, updated_at, title, message_count,
    ARRAY(SELECT tool FROM jsonb_array_elements_text(approved::jsonb) WITH ORDINALITY
        AS listed (tool, place) ORDER BY place),
    last_seq, marker_seq, pg_current_xact_id()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::bigint[], $9::text[], $10::bigint[], $11::bigint[])
    AS given (key, handle, agent, sender, created_at, updated_at, title, message_count, approved,
        last_seq, marker_seq)
RETURNING id, handle
"""
ENTRY_COLUMNS = ("conversation", "seq", "message_id", "kind", "body")


class ConversationRows:
    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def names(self) -> list[str]:
        return sorted(row["handle"] for row in await self._database.fetch(HANDLES))

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [header.digest for header in await self.read_headers(names)]

    async def read_headers(self, names: Sequence[str]) -> list[ConversationHeader]:
        """The rows as stored; comparing digests shows whether they match their entries."""
        rows = await self._fetch_rows(names)
        builders = {row["id"]: HeaderBuilder(row) for row in rows}
        async for chunk in self._read_row_chunks(rows):
            for conversation, seq, line in chunk:
                builders[conversation].add(seq, line)
        headers = {builder.row["handle"]: builder.build() for builder in builders.values()}
        return [headers[name] for name in names]

    async def read_chunks(
        self, names: Sequence[str]
    ) -> AsyncIterator[list[tuple[str, MigrationEntry]]]:
        rows = await self._fetch_rows(names)
        handles = {row["id"]: row["handle"] for row in rows}
        async for chunk in self._read_row_chunks(rows):
            yield [(handles[row_id], line) for row_id, _, line in chunk if line is not None]

    async def _fetch_rows(self, names: Sequence[str]) -> list[Any]:
        rows = await self._database.fetch(SELECT_ROWS, list(names))
        if missing := set(names) - {row["handle"] for row in rows}:
            raise StorageError(f"{min(missing)} is gone from {self._database.name}; run it again")
        return rows

    async def _read_row_chunks(
        self, rows: Sequence[Any]
    ) -> AsyncIterator[list[tuple[int, int, MigrationEntry | None]]]:
        """Entries with conversation id and position; None for those that cannot be parsed."""
        names = {row["id"]: row["handle"] for row in rows}
        for ids in group_short_conversations(rows):
            statement = CHUNK_OF_ONE if len(ids) == 1 else CHUNK_OF_SEVERAL
            position = (0, 0)
            while entries := await self._database.fetch(
                statement, ids, *position, MAX_CHUNK_ENTRIES, MAX_CHUNK_BYTES
            ):
                yield [(id_, seq, parse_entry(names[id_], body)) for id_, seq, body in entries]
                position = (entries[-1]["conversation"], entries[-1]["seq"])

    async def add(self, names: Sequence[str], source: ConversationItems) -> None:
        waiting: list[ConversationHeader] = []
        for header in await source.read_headers(names):
            waiting.append(header)
            if sum(header.size for header in waiting) >= MAX_CHUNK_BYTES:
                await self._insert(waiting, source)
                waiting = []
        if waiting:
            await self._insert(waiting, source)

    async def _insert(
        self, conversations: Sequence[ConversationHeader], source: ConversationItems
    ) -> None:
        """Insert all of them in one transaction."""
        async with self._database.transaction() as connection:
            inserted = await connection.fetch(
                INSERT_CONVERSATIONS, *to_conversation_columns(conversations)
            )
            ids = {row["handle"]: row["id"] for row in inserted}

            seqs: Counter[str] = Counter()

            async def entries() -> AsyncIterator[tuple[Any, ...]]:
                async for chunk in source.read_chunks(list(ids)):
                    for name, line in chunk:
                        seqs[name] += 1
                        yield (ids[name], seqs[name], *to_entry_columns(line))

            await connection.copy_records_to_table(
                "entries", records=entries(), columns=ENTRY_COLUMNS
            )


class HeaderBuilder:
    """Builds a conversation's header while its entries are read."""

    def __init__(self, row: Any) -> None:
        self.row = row
        self._pair = read_pair_row(row)
        self._entries = EntryAccumulator(self._pair)
        self._marker: int | None = None
        self._last_seq = 0

    def add(self, seq: int, line: MigrationEntry | None) -> None:
        self._last_seq = seq
        if line is not None:
            self._entries.add(line)
        if seq == self.row["marker_seq"]:
            self._marker = self._entries.count

    def build(self) -> ConversationHeader:
        row, accumulator = self.row, self._entries
        if self._last_seq != row["last_seq"]:
            raise StorageError(
                f"the conversation {row['handle']} in the database ends at entry {self._last_seq}, "
                f"not {row['last_seq']}; restore it from a backup, or delete it"
            )
        meta = read_meta_row(row)
        meta = msgspec.structs.replace(
            meta,
            created_at=decode_column(meta.created_at),
            updated_at=decode_column(meta.updated_at),
        )
        name, entries = row["handle"], accumulator.entries_hash
        return ConversationHeader(
            name, self._pair, meta, accumulator.count, accumulator.size, self._marker, entries
        )


def group_short_conversations(rows: Sequence[Any]) -> Iterator[list[int]]:
    """Group the ids of short conversations, to read them together."""
    ids: list[int] = []
    entries = 0
    for row in sorted(rows, key=itemgetter("last_seq")):
        if ids and entries + row["last_seq"] > MAX_ENTRIES_TOGETHER:
            yield ids
            ids, entries = [], 0
        ids.append(row["id"])
        entries += row["last_seq"]
    if ids:
        yield ids


def to_conversation_columns(conversations: Sequence[ConversationHeader]) -> tuple[list[Any], ...]:
    metas = [header.meta for header in conversations]
    approved = [[encode_column(tool) for tool in meta.approved] for meta in metas]
    return (
        [make_pair_key(header.pair) for header in conversations],
        [header.handle for header in conversations],
        [encode_column(header.pair.agent) for header in conversations],
        [encode_column(header.pair.sender) for header in conversations],
        [encode_column(meta.created_at) for meta in metas],
        [encode_column(meta.updated_at) for meta in metas],
        [encode_column(meta.title) for meta in metas],
        [meta.message_count for meta in metas],
        [msgspec.json.encode(tools).decode() for tools in approved],
        [header.entry_count for header in conversations],
        [header.marker for header in conversations],
    )


def to_entry_columns(line: MigrationEntry) -> tuple[int | None, str, str]:
    record = line.record
    number = record.id if isinstance(record, MessageRecord) else None
    return number, RECORD_KINDS[type(record)], line.data.decode()


def parse_entry(name: str, body: str) -> MigrationEntry | None:
    data = body.encode()
    try:
        return MigrationEntry(data, decode_record(data))
    except ValueError:
        # No daemon writes such entries; a person must have edited the row.
        log.warning("an entry of %s cannot be read, and is left out", name)
        return None
