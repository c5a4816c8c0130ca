"""PostgresMemoryStore: agents' memories in tables that all daemons of a fleet share.

Each daemon also holds the memories it uses in RAM, and fetches changes before it uses one.
memory_backend.py handles concurrent writes.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from crabtalk.memory import Memory, NameTakenError, UnknownEntryError, crmem

from .database import PostgresDatabase
from .memory_backend import (
    BEGIN_MEMORY,
    PostgresMemoryBackend,
    translate_store_errors,
    write_memory,
)
from .memory_entries import FetchedEntries, read_memory

log = logging.getLogger(__name__)

# Seconds a thread waits for the loop: longer than the statement timeout of the database.
LOOP_TIMEOUT_SECONDS = 30.0

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

# Memories for senders are named AGENT/SENDER; the character after the slash in ASCII is 0. Existing
# memories of the new name are not overwritten.
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


class PostgresMemoryStore:
    """Must be used on one loop. Memories have the names that their files would have."""

    def __init__(
        self,
        database: PostgresDatabase,
        *,
        wait: float = LOOP_TIMEOUT_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._wait = wait
        self._now = now
        self._backends: WeakKeyDictionary[Memory, PostgresMemoryBackend] = WeakKeyDictionary()

    async def open(self, name: str) -> Memory:
        """The current memory; empty if there is none. Raises MemoryStoreError."""
        with translate_store_errors():
            answer = await read_memory(self._database, name)
        loop = asyncio.get_running_loop()
        backend = PostgresMemoryBackend(self._database, name, answer.position, loop, self._wait)
        memory = await asyncio.to_thread(self._build_memory, name, answer, backend)
        self._backends[memory] = backend
        return memory

    def _build_memory(
        self, name: str, answer: FetchedEntries, backend: PostgresMemoryBackend
    ) -> Memory:
        changes = answer.to_remote_changes()
        entries = [entry for entry in changes.entries.values() if entry is not None]
        return Memory(Path(name), entries, changes.next_id, backend, now=self._now)

    async def catch_up(self, memory: Memory) -> None:
        """Apply all changes that any daemon made before this call.

        Cancelled, they may be applied or not. Raises MemoryStoreError.
        """
        with translate_store_errors():
            answer = await self._backends[memory].fetch_changes()
        if answer is not None:
            await asyncio.to_thread(lambda: memory.apply_remote(answer.to_remote_changes()))

    async def rename(self, old: str, new: str) -> None:
        """Rename an agent's memory and its memories for senders. Existing memories of the new name
        are not overwritten. Raises StorageError."""
        async with self._database.transaction() as connection:
            for statement in (RENAME_ONE, RENAME_MANY):
                await connection.execute(statement, old, new)
            left = await connection.fetch(NAMES_OF, old)
        for row in left:
            log.warning("%s remembers something already; %s stays as it is", new, row["name"])

    # ── Whole memories ──────────────────────────────────────────────────────────────────────

    async def list_names(self) -> list[str]:
        with translate_store_errors():
            rows = await self._database.fetch("SELECT name FROM memories ORDER BY name")
        return [row["name"] for row in rows]

    async def export_memory(self, name: str) -> bytes:
        """The memory in the CRMEM file format."""
        with translate_store_errors():
            answer = await read_memory(self._database, name)
        if not answer.position.memory:
            raise UnknownEntryError(f"there is no memory called {name}")
        return await asyncio.to_thread(answer.encode)

    async def import_memory(self, name: str, data: bytes) -> None:
        """Create a memory from the bytes of a CRMEM file, with the same ids. Raises NameTakenError
        if there is a memory of that name."""
        contents = await asyncio.to_thread(crmem.decode_memory, data)
        with translate_store_errors():
            async with self._database.transaction() as connection:
                row = await connection.fetchrow(BEGIN_MEMORY, name, contents.next_id)
                if row is None:
                    raise NameTakenError(f"{name} remembers something already; remove that first")
                await write_memory(connection, row["id"], row["seq"], contents.entries)
