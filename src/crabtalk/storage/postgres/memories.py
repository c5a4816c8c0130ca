"""PostgresMemories: what agents remember, in tables that all daemons of a fleet share.

Each daemon has the memories it uses in RAM too, and asks for news before it uses one. A write says
what it knows of: one statement carries it out, or nothing because others were faster. Their news
are taken in then, and it is decided anew.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import asyncpg

from crabtalk.memory import (
    Change,
    Entry,
    Kind,
    Memory,
    NameTakenError,
    News,
    Position,
    Put,
    Sizes,
    StoreError,
    StoreUnavailableError,
    Table,
    UnknownEntryError,
    crmem,
)
from crabtalk.storage.errors import StorageError, StorageUnavailableError

from .database import Connection, Database, Rows

log = logging.getLogger(__name__)
X = TypeVar("X")
T = TypeVar("T")

# How long a thread waits for the loop, longer than the database has for a statement; and for a
# whole memory.
WAIT = 30.0
WAIT_FOR_ALL = 300.0
# Changes that are told one by one; whoever missed more reads the whole memory. Pruned now and then.
KEPT = 1000
PRUNED_EVERY = 100
# Bytes that are sent at once when a whole memory is written, so that the loop is soon free again;
# and what an entry has beside its texts.
SLICE = 1024 * 1024
OVERHEAD = 64

TABLES = """
-- A name may go to another memory, so everything else goes by the id.
CREATE TABLE memories (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    seq bigint NOT NULL,
    next_id bigint NOT NULL
);

-- Text is UTF-8 as bytes: no column for text can hold all of it.
CREATE TABLE memory_entries (
    memory bigint NOT NULL REFERENCES memories ON DELETE CASCADE,
    id bigint NOT NULL,
    created_at numeric(20) NOT NULL,
    kind smallint NOT NULL,
    name bytea NOT NULL,
    content bytea NOT NULL,
    aliases bytea[] NOT NULL,
    PRIMARY KEY (memory, id)
);

-- Which entry each change was about; all of them where there is none.
CREATE TABLE memory_journal (
    memory bigint NOT NULL REFERENCES memories ON DELETE CASCADE,
    seq bigint NOT NULL,
    entry bigint,
    PRIMARY KEY (memory, seq)
);
"""

COLUMNS = ("id", "created_at", "kind", "name", "content", "aliases")

# A memory comes with its first write. Of two daemons that both begin one, the second has news.
BEGUN = """
    INSERT INTO memories (name, seq, next_id) VALUES ($1, 1, $2)
    ON CONFLICT (name) DO NOTHING RETURNING id, seq
"""
CONTINUED = """
    UPDATE memories SET seq = seq + 1, next_id = greatest(next_id, $2)
    WHERE name = $1 AND id = {id} AND seq = {seq} RETURNING id, seq
"""
WRITE = """
WITH locked AS ({locked}), noted AS (
    INSERT INTO memory_journal (memory, seq, entry) SELECT id, seq, $3 FROM locked
), pruned AS (
    DELETE FROM memory_journal j USING locked l
    WHERE l.seq % {every} = 0 AND j.memory = l.id AND j.seq <= l.seq - {kept}
), changed AS ({changed})
SELECT id, seq FROM locked
"""
PUT = """
    INSERT INTO memory_entries (memory, id, created_at, kind, name, content, aliases)
    SELECT id, $3, $4, $5, $6, $7, $8 FROM locked
    ON CONFLICT (memory, id) DO UPDATE SET created_at = excluded.created_at,
        kind = excluded.kind, name = excluded.name, content = excluded.content,
        aliases = excluded.aliases
"""
DROP = "DELETE FROM memory_entries e USING locked l WHERE e.memory = l.id AND e.id = $3"

ALL = """
SELECT m.id AS memory, m.seq, m.next_id,
    e.id, e.created_at, e.kind, e.name, e.content, e.aliases
FROM memories m LEFT JOIN memory_entries e ON e.memory = m.id WHERE m.name = $1 ORDER BY e.id
"""
# Each entry that was changed since, once, as it is now. OFFSET 0 has it looked up by its id: a
# connection keeps the plan it made while the memory was small, which would be to read all of them.
SINCE = """
SELECT m.id AS memory, m.seq, m.next_id, j.entry, j.changes,
    e.id, e.created_at, e.kind, e.name, e.content, e.aliases
FROM memories m LEFT JOIN LATERAL (
    SELECT entry, count(*) AS changes FROM memory_journal
    WHERE memory = m.id AND memory = $2 AND seq > $3 GROUP BY entry
) j ON true LEFT JOIN LATERAL (
    SELECT * FROM memory_entries WHERE memory = m.id AND id = j.entry OFFSET 0
) e ON true WHERE m.name = $1
"""

REPLACE = """
INSERT INTO memories AS m (name, seq, next_id) VALUES ($1, 1, $2)
ON CONFLICT (name) DO UPDATE SET seq = m.seq + 1, next_id = excluded.next_id
RETURNING id, seq
"""

# The slash is what separates a sender's name; the character after it in ASCII is 0. What the new
# name has already is not written over.
RENAME_ONE = """
UPDATE memories SET name = $2
WHERE name = $1 AND NOT EXISTS (SELECT FROM memories WHERE name = $2)
"""
RENAME_MANY = """
UPDATE memories SET name = $2 || substr(name, length($1) + 1)
WHERE name >= $1 || '/' AND name < $1 || '0'
AND NOT EXISTS (SELECT FROM memories WHERE name >= $2 || '/' AND name < $2 || '0')
"""
NAMES_OF = """
SELECT name FROM memories
WHERE name = $1 OR name >= $1 || '/' AND name < $1 || '0' ORDER BY name
"""


def written(locked: str, changed: str) -> str:
    return WRITE.format(locked=locked, changed=changed, every=PRUNED_EVERY, kept=KEPT)


FIRST_PUT = written(BEGUN, PUT)
NEXT_PUT = written(CONTINUED.format(id="$9", seq="$10"), PUT)
NEXT_DROP = written(CONTINUED.format(id="$4", seq="$5"), DROP)


class PostgresMemories:
    """Used on one loop. Memories are named as their files would be."""

    def __init__(
        self, database: Database, *, wait: float = WAIT, now: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._wait = wait
        self._now = now
        self._journals: WeakKeyDictionary[Memory, PostgresJournal] = WeakKeyDictionary()

    async def open(self, name: str) -> Memory:
        """As it is now; one that is not there is empty. Raises StoreError."""
        with told():
            answer = await read_all(self._database, name)
        loop = asyncio.get_running_loop()
        journal = PostgresJournal(self._database, name, answer.position, loop, self._wait)
        memory = await asyncio.to_thread(self._made, name, answer, journal)
        self._journals[memory] = journal
        return memory

    def _made(self, name: str, answer: "Answer", journal: "PostgresJournal") -> Memory:
        news = answer.news()
        entries = [entry for entry in news.entries.values() if entry is not None]
        return Memory(Path(name), entries, news.next_id, journal, now=self._now)

    async def catch_up(self, memory: Memory) -> None:
        """Afterwards it has all that was written anywhere before this was called.

        Cancelled, it has it or not. Raises StoreError.
        """
        with told():
            answer = await self._journals[memory].ask()
        if answer is not None:
            await asyncio.to_thread(lambda: memory.take(answer.news()))

    async def rename(self, old: str, new: str) -> None:
        """The memory of an agent, and those it has for senders; what is there already stays there.
        Raises StorageError."""
        async with self._database.transaction() as connection:
            for statement in (RENAME_ONE, RENAME_MANY):
                await connection.execute(statement, old, new)
            left = await connection.fetch(NAMES_OF, old)
        for row in left:
            log.warning("%s remembers something already; %s stays as it is", new, row["name"])

    # ── Whole memories ──────────────────────────────────────────────────────────────────────

    async def names(self) -> list[str]:
        with told():
            rows = await self._database.fetch("SELECT name FROM memories ORDER BY name")
        return [row["name"] for row in rows]

    async def export_memory(self, name: str) -> bytes:
        """As a CRMEM file has it."""
        with told():
            answer = await read_all(self._database, name)
        if not answer.position.memory:
            raise UnknownEntryError(f"there is no memory called {name}")
        return await asyncio.to_thread(answer.encode)

    async def import_memory(self, name: str, data: bytes) -> None:
        """Exactly what the bytes of a CRMEM file say, ids too. Raises NameTakenError where there
        is a memory."""
        contents = await asyncio.to_thread(crmem.decode, data)
        with told():
            async with self._database.transaction() as connection:
                row = await connection.fetchrow(BEGUN, name, contents.next_id)
                if row is None:
                    raise NameTakenError(f"{name} remembers something already; remove that first")
                await write_all(connection, row["id"], row["seq"], contents.entries)


class PostgresJournal:
    """The Journal of one memory. Threads use it, and wait for the loop that has the database."""

    def __init__(
        self,
        database: Database,
        name: str,
        position: Position,
        loop: asyncio.AbstractEventLoop,
        wait: float,
    ) -> None:
        self._database = database
        self._name = name
        self._position = position
        self._loop = loop
        self._wait = wait

    # ── From threads ────────────────────────────────────────────────────────────────────────

    def append(self, change: Change) -> News | None:
        outcome = self._await(self._wait, self._append, change)
        if isinstance(outcome, Answer):
            return outcome.news()
        self._position = outcome
        return None

    def accept(self, news: News) -> bool:
        """Somebody else may have taken in as much while these were on their way."""
        known, new = self._position, news.position
        is_known = known.seq >= new.seq if known.memory == new.memory else not news.is_all
        if not is_known:
            self._position = new
        return not is_known

    def replace(self, table: Table) -> None:
        self._position = self._await(WAIT_FOR_ALL, self._replace, table)

    def settle(self, table: Table, *, last: bool = False) -> bool:
        return True

    def fold(self, table: Table) -> None:
        """There is nothing to fold: entries are written with every change."""

    def sizes(self) -> Sizes:
        return Sizes()

    def close(self, *, remove: bool) -> None:
        """There is nothing to let go of."""

    def _await(self, wait: float, act: Callable[[X], Coroutine[Any, Any, T]], given: X) -> T:
        refuse_loop(self._loop)
        work = act(given)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise StoreUnavailableError(f"{self._name} cannot be written: it is closed") from None
        with told():
            try:
                return future.result(wait)
            except (TimeoutError, CancelledError):
                future.cancel()
                raise StoreUnavailableError(
                    f"{self._name} could not be written within {wait:g} seconds; whether it was "
                    "kept shows when the database is back: look, then try again"
                ) from None

    # ── On the loop ─────────────────────────────────────────────────────────────────────────

    async def ask(self) -> "Answer | None":
        """What this does not know yet, in one statement unless it is too much."""
        known = self._position
        rows = await self._database.fetch(SINCE, self._name, *known)
        if not rows:
            return Answer(Position(), is_all=True) if known.memory else None
        position = Position(rows[0]["memory"], rows[0]["seq"])
        if position == known:
            return None
        changes = sum(row["changes"] or 0 for row in rows if row["entry"] is not None)
        if position.memory != known.memory or changes != position.seq - known.seq:
            return await read_all(self._database, self._name)
        return Answer(position, rows[0]["next_id"], rows)

    async def _append(self, change: Change) -> "Position | Answer":
        statement, values = self._statement(change)
        while True:
            rows = await self._database.change(statement, *values)
            if rows:
                return Position(*rows[0])
            answer = await self.ask()
            # None when what made it fail was undone meanwhile: the memory went away and came back.
            if answer is not None:
                return answer

    def _statement(self, change: Change) -> tuple[str, list[Any]]:
        known = self._position
        if not isinstance(change, Put):
            return NEXT_DROP, [self._name, 0, change.id, *known]
        entry = change.entry
        values = [self._name, entry.id + 1, *row_of(entry)]
        return (NEXT_PUT, [*values, *known]) if known.memory else (FIRST_PUT, values)

    async def _replace(self, table: Table) -> Position:
        async with self._database.transaction() as connection:
            (row,) = await connection.fetch(REPLACE, self._name, table.next_id)
            position = Position(*row)
            await connection.execute(
                "DELETE FROM memory_entries WHERE memory = $1", position.memory
            )
            await write_all(connection, *position, table)
        return position


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


async def write_all(
    connection: Connection, memory: int, seq: int, entries: Iterable[Entry]
) -> None:
    """Entries where there are none, and that all are new."""
    for rows in slices(entries):
        records = [(memory, *row) for row in rows]
        await connection.copy_records_to_table(
            "memory_entries", records=records, columns=("memory", *COLUMNS)
        )
    await connection.execute(
        "INSERT INTO memory_journal (memory, seq) VALUES ($1, $2)", memory, seq
    )
    await connection.execute(
        "DELETE FROM memory_journal WHERE memory = $1 AND seq <= $2", memory, seq - KEPT
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


def refuse_loop(loop: asyncio.AbstractEventLoop) -> None:
    """It would wait for itself."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise RuntimeError("a memory is written from a thread: await asyncio.to_thread(...)")


@contextmanager
def told() -> Iterator[None]:
    """What the database refuses, as a memory does."""
    try:
        yield
    except StorageUnavailableError as error:
        raise StoreUnavailableError(str(error)) from error
    except StorageError as error:
        raise StoreError(str(error)) from error
