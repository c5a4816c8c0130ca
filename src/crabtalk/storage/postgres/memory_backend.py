"""PostgresMemoryBackend: writes one memory, and shares its changes through `memory_journal`.

A write names the position it knows. If another daemon has written since, the statement changes
nothing; the memory applies the other changes first and then decides again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, TypeVar

from crabtalk.memory import (
    BackendSizes,
    EntryChange,
    EntryTable,
    JournalPosition,
    MemoryEntry,
    MemoryStoreError,
    MemoryUnavailableError,
    PutEntry,
    RemoteChanges,
)
from crabtalk.storage.errors import StorageError, StorageUnavailableError

from .database import PostgresConnection, PostgresDatabase
from .memory_entries import FetchedEntries, copy_entries, read_memory, to_entry_row

Argument = TypeVar("Argument")
Result = TypeVar("Result")

# Seconds a thread waits for the loop while a whole memory is written.
REPLACE_TIMEOUT_SECONDS = 300.0
# Journal rows to keep; a daemon that missed more reads the whole memory. Pruned now and then.
MAX_JOURNAL_ROWS = 1000
PRUNED_EVERY = 100

# The first write creates the memory. If two daemons create it, the second gets the first's change.
BEGIN_MEMORY = """
    INSERT INTO memories (name, seq, next_id) VALUES ($1, 1, $2)
    ON CONFLICT (name) DO NOTHING RETURNING id, seq
"""
CONTINUE_MEMORY = """
    UPDATE memories SET seq = seq + 1, next_id = greatest(next_id, $2)
    WHERE name = $1 AND id = {id} AND seq = {seq} RETURNING id, seq
"""
WRITE_TEMPLATE = """
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

# Each entry changed since, once, as it is now. OFFSET 0 forces a lookup by id: a connection keeps
# the plan it made while the memory was small, which would read all entries.
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

# The same, if the position is still current.
REPLACE_CURRENT = """
UPDATE memories SET seq = seq + 1, next_id = $2
WHERE name = $1 AND id = $3 AND seq = $4 RETURNING id, seq
"""


def build_write_statement(locked: str, changed: str) -> str:
    return WRITE_TEMPLATE.format(
        locked=locked, changed=changed, every=PRUNED_EVERY, kept=MAX_JOURNAL_ROWS
    )


FIRST_PUT = build_write_statement(BEGIN_MEMORY, PUT)
NEXT_PUT = build_write_statement(CONTINUE_MEMORY.format(id="$9", seq="$10"), PUT)
NEXT_DROP = build_write_statement(CONTINUE_MEMORY.format(id="$4", seq="$5"), DROP)


class PostgresMemoryBackend:
    """The backend of one memory. Threads call it and wait for the loop that owns the database."""

    def __init__(
        self,
        database: PostgresDatabase,
        name: str,
        position: JournalPosition,
        loop: asyncio.AbstractEventLoop,
        wait: float,
    ) -> None:
        self._database = database
        self._name = name
        self._position = position
        self._loop = loop
        self._wait = wait

    # ── From threads ────────────────────────────────────────────────────────────────────────

    def append(self, change: EntryChange) -> RemoteChanges | None:
        outcome = self._run_on_loop(self._wait, self._append, change)
        if isinstance(outcome, FetchedEntries):
            return outcome.to_remote_changes()
        self._position = outcome
        return None

    def accept(self, changes: RemoteChanges) -> bool:
        """False if another thread has already applied these changes or newer ones."""
        current, received = self._position, changes.position
        is_known = (
            current.seq >= received.seq
            if current.memory == received.memory
            else not changes.is_complete
        )
        if not is_known:
            self._position = received
        return not is_known

    def replace(self, table: EntryTable, *, is_partial: bool = False) -> RemoteChanges | None:
        operation = self._replace_if_current if is_partial else self._replace
        outcome = self._run_on_loop(REPLACE_TIMEOUT_SECONDS, operation, table)
        if isinstance(outcome, FetchedEntries):
            return outcome.to_remote_changes()
        self._position = outcome
        return None

    def try_checkpoint(self, table: EntryTable, *, last: bool = False) -> bool:
        return True

    def checkpoint(self, table: EntryTable) -> None:
        """Nothing to do: entries are written with every change."""

    def sizes(self) -> BackendSizes:
        return BackendSizes()

    def close(self, *, remove: bool) -> None:
        """Nothing to close."""

    def _run_on_loop(
        self,
        timeout: float,
        operation: Callable[[Argument], Coroutine[Any, Any, Result]],
        argument: Argument,
    ) -> Result:
        refuse_loop(self._loop)
        work = operation(argument)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise MemoryUnavailableError(f"{self._name} cannot be written: it is closed") from None
        with translate_store_errors():
            try:
                return future.result(timeout)
            except (TimeoutError, CancelledError):
                future.cancel()
                raise MemoryUnavailableError(
                    f"{self._name} could not be written within {timeout:g} seconds; whether it was "
                    "kept shows when the database is back: look, then try again"
                ) from None

    # ── On the loop ─────────────────────────────────────────────────────────────────────────

    async def fetch_changes(self) -> FetchedEntries | None:
        """The changes since our position; the whole memory if the journal lacks some."""
        known = self._position
        rows = await self._database.fetch(SINCE, self._name, *known)
        if not rows:
            return FetchedEntries(JournalPosition(), is_complete=True) if known.memory else None
        position = JournalPosition(rows[0]["memory"], rows[0]["seq"])
        if position == known:
            return None
        changes = sum(row["changes"] or 0 for row in rows if row["entry"] is not None)
        if position.memory != known.memory or changes != position.seq - known.seq:
            return await read_memory(self._database, self._name)
        return FetchedEntries(position, rows[0]["next_id"], rows)

    async def _append(self, change: EntryChange) -> JournalPosition | FetchedEntries:
        statement, values = self._build_statement(change)
        while True:
            rows = await self._database.change(statement, *values)
            if rows:
                return JournalPosition(*rows[0])
            answer = await self.fetch_changes()
            # None if the conflict is gone again: the memory was deleted and created meanwhile.
            if answer is not None:
                return answer

    def _build_statement(self, change: EntryChange) -> tuple[str, list[Any]]:
        position = self._position
        if not isinstance(change, PutEntry):
            return NEXT_DROP, [self._name, 0, change.id, *position]
        entry = change.entry
        values = [self._name, entry.id + 1, *to_entry_row(entry)]
        return (NEXT_PUT, [*values, *position]) if position.memory else (FIRST_PUT, values)

    async def _replace(self, table: EntryTable) -> JournalPosition | FetchedEntries:
        async with self._database.transaction() as connection:
            (row,) = await connection.fetch(REPLACE, self._name, table.next_id)
            return await self._write_table(connection, JournalPosition(*row), table)

    async def _replace_if_current(self, table: EntryTable) -> JournalPosition | FetchedEntries:
        position = self._position
        while True:
            async with self._database.transaction() as connection:
                if position.memory:
                    values = [self._name, table.next_id, *position]
                    row = await connection.fetchrow(REPLACE_CURRENT, *values)
                else:
                    row = await connection.fetchrow(BEGIN_MEMORY, self._name, table.next_id)
                if row is not None:
                    return await self._write_table(connection, JournalPosition(*row), table)
            answer = await self.fetch_changes()
            if answer is not None:
                return answer

    async def _write_table(
        self, connection: PostgresConnection, position: JournalPosition, table: EntryTable
    ) -> JournalPosition:
        await connection.execute("DELETE FROM memory_entries WHERE memory = $1", position.memory)
        await write_memory(connection, *position, table)
        return position


async def write_memory(
    connection: PostgresConnection, memory: int, seq: int, entries: Iterable[MemoryEntry]
) -> None:
    """Write entries into an empty memory, with a journal row that all have changed."""
    await copy_entries(connection, memory, entries)
    await connection.execute(
        "INSERT INTO memory_journal (memory, seq) VALUES ($1, $2)", memory, seq
    )
    await connection.execute(
        "DELETE FROM memory_journal WHERE memory = $1 AND seq <= $2", memory, seq - MAX_JOURNAL_ROWS
    )


def refuse_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raises RuntimeError on the loop's own thread, which would wait for itself."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise RuntimeError("a memory is written from a thread: await asyncio.to_thread(...)")


@contextmanager
def translate_store_errors() -> Iterator[None]:
    """Raise StorageErrors as MemoryStoreErrors."""
    try:
        yield
    except StorageUnavailableError as error:
        raise MemoryUnavailableError(str(error)) from error
    except StorageError as error:
        raise MemoryStoreError(str(error)) from error
