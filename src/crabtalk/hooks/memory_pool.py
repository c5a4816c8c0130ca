"""MemoryPool: opens the memories of all agents on first use and keeps a limited number open.

An agent has one memory for all its conversations, or one for each sender if its file says so.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from crabtalk.memory import UnknownEntryError
from crabtalk.storage import Pair, make_log_name

if TYPE_CHECKING:
    from crabtalk.memory import Memory

log = logging.getLogger(__name__)

MAX_OPEN = 32  # memories in the pool; more are open only while they are in use


class MemoryStore(Protocol):
    """Stores memories under the names that build_memory_name returns. All methods raise
    MemoryStoreError."""

    async def open(self, name: str) -> "Memory": ...

    async def catch_up(self, memory: "Memory") -> None:
        """Read what other processes have written since the last call."""
        ...

    async def rename(self, old: str, new: str) -> None:
        """Rename all memories of an agent. Also raises OSError or StorageError."""
        ...


class PooledMemory(msgspec.Struct, eq=False):
    """A memory that is in use or was used recently."""

    memory: "Memory | None" = None
    users: int = 0
    lock: asyncio.Lock = msgspec.field(
        default_factory=asyncio.Lock
    )  # held while it opens or closes


class MemoryPool:
    def __init__(
        self, opener: Path | MemoryStore, *, flush: bool = True, most: int = MAX_OPEN
    ) -> None:
        """With a directory the memories are files in it; `flush` says whether they are fsynced."""
        self._store = FileMemoryStore(opener, flush=flush) if isinstance(opener, Path) else opener
        self._max_open = most
        self._pooled: OrderedDict[str, PooledMemory] = (
            OrderedDict()
        )  # by name, longest unused first
        self._problems: dict[str, str] = {}  # by name, of memories that were damaged when last used

    @asynccontextmanager
    async def acquire(self, agent: str, sender: str = "") -> AsyncIterator["Memory"]:
        """Acquire the agent's memory, or the one for a `sender`.

        It includes all earlier writes, also those of other processes. Its methods block: call
        those that write in a thread. Raises MemoryStoreError if it cannot be opened.
        """
        name = build_memory_name(agent, sender)
        pooled = self._pooled.setdefault(name, PooledMemory())
        pooled.users += 1
        self._pooled.move_to_end(name)
        try:
            yield await self._load_current(name, pooled)
        finally:
            pooled.users -= 1
            await self._trim(self._max_open)

    async def _load_current(self, name: str, pooled: PooledMemory) -> "Memory":
        async with pooled.lock:
            if pooled.memory is None:
                pooled.memory = await self._store.open(name)
                self._update_problem(name, pooled.memory)
                return pooled.memory
            memory = pooled.memory
        # Outside the lock, so that calls during a slow database query wait in parallel.
        await self._store.catch_up(memory)
        return memory

    async def rename(self, old: str, new: str) -> None:
        """Rename an agent's memories. A memory that already has the new name is kept."""
        await self._close_agent(old)
        await self._close_agent(new)
        await self._store.rename(old, new)

    async def close(self) -> None:
        await self._trim(0)

    @property
    def problems(self) -> list[str]:
        """A sentence for each memory with damaged entries, among those used so far."""
        for name in list(self._problems):
            pooled = self._pooled.get(name)
            if pooled is not None and pooled.memory is not None:
                self._update_problem(name, pooled.memory)
        return list(self._problems.values())

    def _update_problem(self, name: str, memory: "Memory") -> None:
        if problem := memory.problem:
            self._problems[name] = f"the memory {name}: {problem}"
        else:
            self._problems.pop(name, None)

    def statistics(self) -> dict[str, int]:
        return {
            "open": sum(pooled.memory is not None for pooled in self._pooled.values()),
            "used": sum(pooled.users for pooled in self._pooled.values()),
        }

    async def _trim(self, most: int) -> None:
        while len(self._pooled) > most:
            unused = [name for name, pooled in self._pooled.items() if not pooled.users]
            if not unused:
                return
            await self._close_pooled(unused[0])

    async def _close_agent(self, agent: str) -> None:
        for name in [name for name in self._pooled if name.partition("/")[0] == agent]:
            await self._close_pooled(name)

    async def _close_pooled(self, name: str) -> None:
        pooled = self._pooled[name]
        async with pooled.lock:
            memory, pooled.memory = pooled.memory, None
            if memory is not None:
                self._update_problem(name, memory)
                await asyncio.to_thread(memory.close)
                if not pooled.users:
                    await asyncio.to_thread(memory.unload)
        if not pooled.users and self._pooled.get(name) is pooled:
            del self._pooled[name]


class FileMemoryStore:
    """A directory of CRMEM files. This process is the only one that writes them."""

    def __init__(self, directory: Path, *, flush: bool = True) -> None:
        self._directory = directory
        self._flush = flush

    async def open(self, name: str) -> "Memory":
        return await asyncio.to_thread(open_memory_file, self._build_path(name), flush=self._flush)

    async def catch_up(self, memory: "Memory") -> None:
        """Nothing to do: no other process writes these files."""

    async def rename(self, old: str, new: str) -> None:
        await asyncio.to_thread(self._move_files, old, new)

    async def list_names(self) -> list[str]:
        """Return the names of all memories, including those that have only a journal after a
        crash."""
        return await asyncio.to_thread(self._list_names)

    async def export_memory(self, name: str) -> bytes:
        """Return a memory as the bytes of a CRMEM file, with its journal merged in."""
        from crabtalk.memory import Memory

        if name not in await self.list_names():
            raise UnknownEntryError(f"there is no memory called {name}")
        return (await asyncio.to_thread(Memory.open_read_only, self._build_path(name))).encode()

    async def import_memory(self, name: str, data: bytes) -> None:
        """Create a memory from the bytes of a CRMEM file. Raises NameTakenError if it exists."""
        from crabtalk.memory import Memory

        await asyncio.to_thread(Memory.create, self._build_path(name), data)

    def _build_path(self, name: str) -> Path:
        return self._directory / f"{name}.crmem"

    def _list_names(self) -> list[str]:
        names = {
            str(file.relative_to(self._directory)).removesuffix(".journal").removesuffix(".crmem")
            for pattern in ("*.crmem", "*.crmem.journal")
            for file in self._directory.rglob(pattern)
            if file.is_file() and file.stat().st_size
        }
        return sorted(names)

    def _move_files(self, old: str, new: str) -> None:
        # The journal exists only if it could not be merged into the snapshot.
        for suffix in (".crmem", ".crmem.journal", ""):
            source, target = self._directory / f"{old}{suffix}", self._directory / f"{new}{suffix}"
            if not source.exists():
                continue
            if target.exists():
                log.warning("%s remembers something already; %s stays as it is", new, source.name)
            else:
                source.rename(target)
                if suffix == ".crmem":
                    self._move_checksums(old, new)

    def _move_checksums(self, old: str, new: str) -> None:
        """Move the checksums along with the snapshot, and replace stale ones at the target."""
        source, target = (self._directory / f"{name}.crmem.sums" for name in (old, new))
        if source.exists():
            source.replace(target)
        else:
            target.unlink(missing_ok=True)


def open_memory_file(path: Path, *, flush: bool) -> "Memory":
    """Open a memory. Call it in a thread: the first call also imports the memory store."""
    from crabtalk.memory import Memory

    return Memory.open(path, flush=flush)


def build_memory_name(agent: str, sender: str = "") -> str:
    """Return the name of a memory, which is its file name without the suffix.

    No agent's name can contain a slash. The sender's part does not include the agent's name, so it
    stays the same when the agent is renamed.
    """
    return f"{agent}/{make_log_name(Pair('', sender))}" if sender else agent
