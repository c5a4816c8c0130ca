"""LogRows: conversations in a database, as a migration reads and writes them: many rows at a time,
past leases and tickets. Whoever uses it has the database to itself."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from crabtalk.storage import MessageRecord, StorageError
from crabtalk.storage.postgres.database import Database
from crabtalk.storage.postgres.pair import column, key_of, uncolumn
from crabtalk.storage.postgres.rows import KINDS, meta_of, pair_of
from crabtalk.storage.records import decode

from .migration import PIECE, ROWS, Conversation, Digest, Fold, Line, Logs

log = logging.getLogger(__name__)

# Entries of conversations that are read together.
TOGETHER = 5_000

HANDLES = "SELECT handle FROM conversations WHERE last_seq > 0"
ROWS_OF = "SELECT * FROM conversations WHERE handle = ANY($1::text[])"
# The first one in any case, the others as long as all of them are not too large.
PIECE_OF = """
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
OF_ONE = PIECE_OF.format("conversation = ($1::bigint[])[1] AND seq > $3 AND $2::bigint IS NOT NULL")
OF_FEW = PIECE_OF.format("conversation = ANY($1::bigint[]) AND (conversation, seq) > ($2, $3)")
# Each row's approved tools are JSON: arrays of arrays must be of one length.
BEGIN = """
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
COLUMNS = ("conversation", "seq", "message_id", "kind", "body")


class LogRows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def names(self) -> list[str]:
        return sorted(row["handle"] for row in await self._database.fetch(HANDLES))

    async def digests(self, names: Sequence[str]) -> list[Digest]:
        return [one.digest for one in await self.conversations(names)]

    async def conversations(self, names: Sequence[str]) -> list[Conversation]:
        """Their rows as they are: that they fit the entries is for the digest to show."""
        rows = await self._rows(names)
        read = {row["id"]: Reading(row) for row in rows}
        async for piece in self._pieces(rows):
            for number, seq, line in piece:
                read[number].add(seq, line)
        found = {one.row["handle"]: one.conversation() for one in read.values()}
        return [found[name] for name in names]

    async def pieces(self, names: Sequence[str]) -> AsyncIterator[list[tuple[str, Line]]]:
        rows = await self._rows(names)
        handles = {row["id"]: row["handle"] for row in rows}
        async for piece in self._pieces(rows):
            yield [(handles[number], line) for number, _, line in piece if line is not None]

    async def _rows(self, names: Sequence[str]) -> list[Any]:
        rows = await self._database.fetch(ROWS_OF, list(names))
        if gone := set(names) - {row["handle"] for row in rows}:
            raise StorageError(f"{min(gone)} is gone from {self._database.name}; run it again")
        return rows

    async def _pieces(
        self, rows: Sequence[Any]
    ) -> AsyncIterator[list[tuple[int, int, Line | None]]]:
        """With their conversations and places; None for what cannot be read."""
        names = {row["id"]: row["handle"] for row in rows}
        for ids in few_at_once(rows):
            statement = OF_ONE if len(ids) == 1 else OF_FEW
            reached = (0, 0)
            while found := await self._database.fetch(statement, ids, *reached, ROWS, PIECE):
                yield [(n, seq, read_body(names[n], body)) for n, seq, body in found]
                reached = (found[-1]["conversation"], found[-1]["seq"])

    async def add(self, names: Sequence[str], source: Logs) -> None:
        waiting: list[Conversation] = []
        for one in await source.conversations(names):
            waiting.append(one)
            if sum(one.size for one in waiting) >= PIECE:
                await self._add(waiting, source)
                waiting = []
        if waiting:
            await self._add(waiting, source)

    async def _add(self, conversations: Sequence[Conversation], source: Logs) -> None:
        """All of them or none."""
        async with self._database.transaction() as connection:
            begun = await connection.fetch(BEGIN, *columns_of(conversations))
            ids = {row["handle"]: row["id"] for row in begun}

            seqs: Counter[str] = Counter()

            async def entries() -> AsyncIterator[tuple[Any, ...]]:
                async for piece in source.pieces(list(ids)):
                    for name, line in piece:
                        seqs[name] += 1
                        yield (ids[name], seqs[name], *entry_of(line))

            await connection.copy_records_to_table("entries", records=entries(), columns=COLUMNS)


class Reading:
    """A conversation while its entries are read."""

    def __init__(self, row: Any) -> None:
        self.row = row
        self._pair = pair_of(row)
        self._fold = Fold(self._pair)
        self._marker: int | None = None
        self._last = 0

    def add(self, seq: int, line: Line | None) -> None:
        self._last = seq
        if line is not None:
            self._fold.add(line)
        if seq == self.row["marker_seq"]:
            self._marker = self._fold.count

    def conversation(self) -> Conversation:
        row, fold = self.row, self._fold
        if self._last != row["last_seq"]:
            raise StorageError(
                f"the conversation {row['handle']} in the database ends at entry {self._last}, "
                f"not {row['last_seq']}; restore it from a backup, or delete it"
            )
        meta = meta_of(row)
        meta = msgspec.structs.replace(
            meta, created_at=uncolumn(meta.created_at), updated_at=uncolumn(meta.updated_at)
        )
        name, entries = row["handle"], fold.of_entries
        return Conversation(name, self._pair, meta, fold.count, fold.size, self._marker, entries)


def few_at_once(rows: Sequence[Any]) -> Iterator[list[int]]:
    """Conversations that are short are read together."""
    ids: list[int] = []
    entries = 0
    for row in sorted(rows, key=itemgetter("last_seq")):
        if ids and entries + row["last_seq"] > TOGETHER:
            yield ids
            ids, entries = [], 0
        ids.append(row["id"])
        entries += row["last_seq"]
    if ids:
        yield ids


def columns_of(conversations: Sequence[Conversation]) -> tuple[list[Any], ...]:
    metas = [one.meta for one in conversations]
    approved = [[column(tool) for tool in meta.approved] for meta in metas]
    return (
        [key_of(one.pair) for one in conversations],
        [one.handle for one in conversations],
        [column(one.pair.agent) for one in conversations],
        [column(one.pair.sender) for one in conversations],
        [column(meta.created_at) for meta in metas],
        [column(meta.updated_at) for meta in metas],
        [column(meta.title) for meta in metas],
        [meta.message_count for meta in metas],
        [msgspec.json.encode(tools).decode() for tools in approved],
        [one.count for one in conversations],
        [one.marker for one in conversations],
    )


def entry_of(line: Line) -> tuple[int | None, str, str]:
    record = line.record
    number = record.id if isinstance(record, MessageRecord) else None
    return number, KINDS[type(record)], line.data.decode()


def read_body(name: str, body: str) -> Line | None:
    data = body.encode()
    try:
        return Line(data, decode(data))
    except ValueError:
        # Nobody but a person could have written it.
        log.warning("an entry of %s cannot be read, and is left out", name)
        return None
