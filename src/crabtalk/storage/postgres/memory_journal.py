"""PostgresJournal: the changes of one memory, told in `memory_journal` to all that have it in RAM.

A write says what it knows of: one statement carries it out, or nothing because others were faster.
Their news are taken in then, and it is decided anew.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, TypeVar

from crabtalk.memory import (
    Change,
    Entry,
    News,
    Position,
    Put,
    Sizes,
    StoreError,
    StoreUnavailableError,
    Table,
)
from crabtalk.storage.errors import StorageError, StorageUnavailableError

from .database import Connection, Database
from .memory_entries import Answer, copy_all, read_all, row_of

X = TypeVar("X")
T = TypeVar("T")

# How long a thread waits for the loop while a whole memory is written.
WAIT_FOR_ALL = 300.0
# Changes that are told one by one; whoever missed more reads the whole memory. Pruned now and then.
KEPT = 1000
PRUNED_EVERY = 100

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

# The same for one who knows all that was written.
REPLACE_CURRENT = """
UPDATE memories SET seq = seq + 1, next_id = $2
WHERE name = $1 AND id = $3 AND seq = $4 RETURNING id, seq
"""


def written(locked: str, changed: str) -> str:
    return WRITE.format(locked=locked, changed=changed, every=PRUNED_EVERY, kept=KEPT)


FIRST_PUT = written(BEGUN, PUT)
NEXT_PUT = written(CONTINUED.format(id="$9", seq="$10"), PUT)
NEXT_DROP = written(CONTINUED.format(id="$4", seq="$5"), DROP)


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

    def replace(self, table: Table, *, is_partial: bool = False) -> News | None:
        act = self._replace_if_current if is_partial else self._replace
        outcome = self._await(WAIT_FOR_ALL, act, table)
        if isinstance(outcome, Answer):
            return outcome.news()
        self._position = outcome
        return None

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

    async def ask(self) -> Answer | None:
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

    async def _append(self, change: Change) -> Position | Answer:
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

    async def _replace(self, table: Table) -> Position | Answer:
        async with self._database.transaction() as connection:
            (row,) = await connection.fetch(REPLACE, self._name, table.next_id)
            return await self._write_table(connection, Position(*row), table)

    async def _replace_if_current(self, table: Table) -> Position | Answer:
        known = self._position
        while True:
            async with self._database.transaction() as connection:
                if known.memory:
                    values = [self._name, table.next_id, *known]
                    row = await connection.fetchrow(REPLACE_CURRENT, *values)
                else:
                    row = await connection.fetchrow(BEGUN, self._name, table.next_id)
                if row is not None:
                    return await self._write_table(connection, Position(*row), table)
            answer = await self.ask()
            if answer is not None:
                return answer

    async def _write_table(
        self, connection: Connection, position: Position, table: Table
    ) -> Position:
        await connection.execute("DELETE FROM memory_entries WHERE memory = $1", position.memory)
        await write_all(connection, *position, table)
        return position


async def write_all(
    connection: Connection, memory: int, seq: int, entries: Iterable[Entry]
) -> None:
    """Entries where there are none, and that all are new."""
    await copy_all(connection, memory, entries)
    await connection.execute(
        "INSERT INTO memory_journal (memory, seq) VALUES ($1, $2)", memory, seq
    )
    await connection.execute(
        "DELETE FROM memory_journal WHERE memory = $1 AND seq <= $2", memory, seq - KEPT
    )


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
