"""PostgresMemories: what agents remember, in tables that all daemons of a fleet share.

Each daemon has the memories it uses in RAM too, and asks for news before it uses one. How several
write the same one is the journal's business.
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

# How long a thread waits for the loop, longer than the database has for a statement.
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


class PostgresMemoryStore:
    """Used on one loop. Memories are named as their files would be."""

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
        """As it is now; one that is not there is empty. Raises StoreError."""
        with translate_store_errors():
            answer = await read_memory(self._database, name)
        loop = asyncio.get_running_loop()
        journal = PostgresMemoryBackend(self._database, name, answer.position, loop, self._wait)
        memory = await asyncio.to_thread(self._build_memory, name, answer, journal)
        self._backends[memory] = journal
        return memory

    def _build_memory(
        self, name: str, answer: FetchedEntries, journal: PostgresMemoryBackend
    ) -> Memory:
        news = answer.to_remote_changes()
        entries = [entry for entry in news.entries.values() if entry is not None]
        return Memory(Path(name), entries, news.next_id, journal, now=self._now)

    async def catch_up(self, memory: Memory) -> None:
        """Afterwards it has all that was written anywhere before this was called.

        Cancelled, it has it or not. Raises StoreError.
        """
        with translate_store_errors():
            answer = await self._backends[memory].fetch_changes()
        if answer is not None:
            await asyncio.to_thread(lambda: memory.apply_remote(answer.to_remote_changes()))

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

    async def list_names(self) -> list[str]:
        with translate_store_errors():
            rows = await self._database.fetch("SELECT name FROM memories ORDER BY name")
        return [row["name"] for row in rows]

    async def export_memory(self, name: str) -> bytes:
        """As a CRMEM file has it."""
        with translate_store_errors():
            answer = await read_memory(self._database, name)
        if not answer.position.memory:
            raise UnknownEntryError(f"there is no memory called {name}")
        return await asyncio.to_thread(answer.encode)

    async def import_memory(self, name: str, data: bytes) -> None:
        """Exactly what the bytes of a CRMEM file say, ids too. Raises NameTakenError where there
        is a memory."""
        contents = await asyncio.to_thread(crmem.decode_memory, data)
        with translate_store_errors():
            async with self._database.transaction() as connection:
                row = await connection.fetchrow(BEGIN_MEMORY, name, contents.next_id)
                if row is None:
                    raise NameTakenError(f"{name} remembers something already; remove that first")
                await write_memory(connection, row["id"], row["seq"], contents.entries)
