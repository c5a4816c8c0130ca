"""LogRows: conversations in a database, as a migration reads and writes them: many rows at a time,
past leases and tickets. Whoever uses it has the database to itself."""

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

# Entries of conversations that are read together.
MAX_ENTRIES_TOGETHER = 5_000

HANDLES = "SELECT handle FROM conversations WHERE last_seq > 0"
SELECT_ROWS = "SELECT * FROM conversations WHERE handle = ANY($1::text[])"
# The first one in any case, the others as long as all of them are not too large.
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
# Of one the index has them in order; those of a few are few, and are sorted.
CHUNK_OF_ONE = CHUNK_TEMPLATE.format(
    "conversation = ($1::bigint[])[1] AND seq > $3 AND $2::bigint IS NOT NULL"
)
CHUNK_OF_SEVERAL = CHUNK_TEMPLATE.format(
    "conversation = ANY($1::bigint[]) AND (conversation, seq) > ($2, $3)"
)
# Each row's approved tools are JSON: arrays of arrays must be of one length.
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
        return [one.digest for one in await self.read_headers(names)]

    async def read_headers(self, names: Sequence[str]) -> list[ConversationHeader]:
        """Their rows as they are: that they fit the entries is for the digest to show."""
        rows = await self._fetch_rows(names)
        read = {row["id"]: HeaderBuilder(row) for row in rows}
        async for piece in self._read_row_chunks(rows):
            for number, seq, line in piece:
                read[number].add(seq, line)
        found = {one.row["handle"]: one.build() for one in read.values()}
        return [found[name] for name in names]

    async def read_chunks(
        self, names: Sequence[str]
    ) -> AsyncIterator[list[tuple[str, MigrationEntry]]]:
        rows = await self._fetch_rows(names)
        handles = {row["id"]: row["handle"] for row in rows}
        async for piece in self._read_row_chunks(rows):
            yield [(handles[number], line) for number, _, line in piece if line is not None]

    async def _fetch_rows(self, names: Sequence[str]) -> list[Any]:
        rows = await self._database.fetch(SELECT_ROWS, list(names))
        if gone := set(names) - {row["handle"] for row in rows}:
            raise StorageError(f"{min(gone)} is gone from {self._database.name}; run it again")
        return rows

    async def _read_row_chunks(
        self, rows: Sequence[Any]
    ) -> AsyncIterator[list[tuple[int, int, MigrationEntry | None]]]:
        """With their conversations and places; None for what cannot be read."""
        names = {row["id"]: row["handle"] for row in rows}
        for ids in group_short_conversations(rows):
            statement = CHUNK_OF_ONE if len(ids) == 1 else CHUNK_OF_SEVERAL
            reached = (0, 0)
            while found := await self._database.fetch(
                statement, ids, *reached, MAX_CHUNK_ENTRIES, MAX_CHUNK_BYTES
            ):
                yield [(n, seq, parse_entry(names[n], body)) for n, seq, body in found]
                reached = (found[-1]["conversation"], found[-1]["seq"])

    async def add(self, names: Sequence[str], source: ConversationItems) -> None:
        waiting: list[ConversationHeader] = []
        for one in await source.read_headers(names):
            waiting.append(one)
            if sum(one.size for one in waiting) >= MAX_CHUNK_BYTES:
                await self._insert(waiting, source)
                waiting = []
        if waiting:
            await self._insert(waiting, source)

    async def _insert(
        self, conversations: Sequence[ConversationHeader], source: ConversationItems
    ) -> None:
        """All of them or none."""
        async with self._database.transaction() as connection:
            begun = await connection.fetch(
                INSERT_CONVERSATIONS, *to_conversation_columns(conversations)
            )
            ids = {row["handle"]: row["id"] for row in begun}

            seqs: Counter[str] = Counter()

            async def entries() -> AsyncIterator[tuple[Any, ...]]:
                async for piece in source.read_chunks(list(ids)):
                    for name, line in piece:
                        seqs[name] += 1
                        yield (ids[name], seqs[name], *to_entry_columns(line))

            await connection.copy_records_to_table(
                "entries", records=entries(), columns=ENTRY_COLUMNS
            )


class HeaderBuilder:
    """A conversation while its entries are read."""

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
        row, fold = self.row, self._entries
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
        name, entries = row["handle"], fold.entries_hash
        return ConversationHeader(
            name, self._pair, meta, fold.count, fold.size, self._marker, entries
        )


def group_short_conversations(rows: Sequence[Any]) -> Iterator[list[int]]:
    """Conversations that are short are read together."""
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
    metas = [one.meta for one in conversations]
    approved = [[encode_column(tool) for tool in meta.approved] for meta in metas]
    return (
        [make_pair_key(one.pair) for one in conversations],
        [one.handle for one in conversations],
        [encode_column(one.pair.agent) for one in conversations],
        [encode_column(one.pair.sender) for one in conversations],
        [encode_column(meta.created_at) for meta in metas],
        [encode_column(meta.updated_at) for meta in metas],
        [encode_column(meta.title) for meta in metas],
        [meta.message_count for meta in metas],
        [msgspec.json.encode(tools).decode() for tools in approved],
        [one.entry_count for one in conversations],
        [one.marker for one in conversations],
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
        # Nobody but a person could have written it.
        log.warning("an entry of %s cannot be read, and is left out", name)
        return None
