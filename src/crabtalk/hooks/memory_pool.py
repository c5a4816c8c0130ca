"""Memories: those of all agents, each opened when it is first needed, a few at a time.

An agent has one, which its conversations share; one whose file says so has one for each sender.
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

MAX_OPEN = 32  # at a time, beside those in use


class MemoryStore(Protocol):
    """Where memories are, by the names that `name_of` gives. What raises is a StoreError."""

    async def open(self, name: str) -> "Memory": ...

    async def catch_up(self, memory: "Memory") -> None:
        """Takes in what others wrote since."""
        ...

    async def rename(self, old: str, new: str) -> None:
        """Of an agent, all of them. Raises OSError or StorageError too."""
        ...


class PooledMemory(msgspec.Struct, eq=False):
    """A memory somebody uses, or used lately."""

    memory: "Memory | None" = None
    users: int = 0
    lock: asyncio.Lock = msgspec.field(
        default_factory=asyncio.Lock
    )  # held while it opens or closes


class MemoryPool:
    def __init__(
        self, opener: Path | MemoryStore, *, flush: bool = True, most: int = MAX_OPEN
    ) -> None:
        """A directory keeps them in files, which `flush` is about."""
        self._store = FileMemoryStore(opener, flush=flush) if isinstance(opener, Path) else opener
        self._max_open = most
        self._pooled: OrderedDict[str, PooledMemory] = (
            OrderedDict()
        )  # by name, longest unused first
        self._problems: dict[str, str] = {}  # of those that were damaged when last in use

    @asynccontextmanager
    async def acquire(self, agent: str, sender: str = "") -> AsyncIterator["Memory"]:
        """The agent's memory, or with a `sender` the one for that sender alone.

        It has all that was written before, by whomever. Its methods block: writes belong in a
        thread. Raises StoreError when it cannot be opened.
        """
        name = build_memory_name(agent, sender)
        held = self._pooled.setdefault(name, PooledMemory())
        held.users += 1
        self._pooled.move_to_end(name)
        try:
            yield await self._load_current(name, held)
        finally:
            held.users -= 1
            await self._trim(self._max_open)

    async def _load_current(self, name: str, held: PooledMemory) -> "Memory":
        async with held.lock:
            if held.memory is None:
                held.memory = await self._store.open(name)
                self._update_problem(name, held.memory)
                return held.memory
            memory = held.memory
        # Outside, so that those who come while a database is slow wait side by side.
        await self._store.catch_up(memory)
        return memory

    async def rename(self, old: str, new: str) -> None:
        """What an agent remembers goes where its name goes; what is there already stays there."""
        await self._close_agent(old)
        await self._close_agent(new)
        await self._store.rename(old, new)

    async def close(self) -> None:
        await self._trim(0)

    @property
    def problems(self) -> list[str]:
        """A sentence for each memory with damaged entries, of those that were used."""
        for name in list(self._problems):
            held = self._pooled.get(name)
            if held is not None and held.memory is not None:
                self._update_problem(name, held.memory)
        return list(self._problems.values())

    def _update_problem(self, name: str, memory: "Memory") -> None:
        if problem := memory.problem:
            self._problems[name] = f"the memory {name}: {problem}"
        else:
            self._problems.pop(name, None)

    def statistics(self) -> dict[str, int]:
        return {
            "open": sum(held.memory is not None for held in self._pooled.values()),
            "used": sum(held.users for held in self._pooled.values()),
        }

    async def _trim(self, most: int) -> None:
        while len(self._pooled) > most:
            unused = [name for name, held in self._pooled.items() if not held.users]
            if not unused:
                return
            await self._close_pooled(unused[0])

    async def _close_agent(self, agent: str) -> None:
        for name in [name for name in self._pooled if name.partition("/")[0] == agent]:
            await self._close_pooled(name)

    async def _close_pooled(self, name: str) -> None:
        held = self._pooled[name]
        async with held.lock:
            memory, held.memory = held.memory, None
            if memory is not None:
                self._update_problem(name, memory)
                await asyncio.to_thread(memory.close)
                if not held.users:
                    await asyncio.to_thread(memory.unload)
        if not held.users and self._pooled.get(name) is held:
            del self._pooled[name]


class FileMemoryStore:
    """A directory of CRMEM files. This process is the only one that writes them."""

    def __init__(self, directory: Path, *, flush: bool = True) -> None:
        self._directory = directory
        self._flush = flush

    async def open(self, name: str) -> "Memory":
        return await asyncio.to_thread(open_memory_file, self._build_path(name), flush=self._flush)

    async def catch_up(self, memory: "Memory") -> None:
        """There are no others."""

    async def rename(self, old: str, new: str) -> None:
        await asyncio.to_thread(self._move_files, old, new)

    async def list_names(self) -> list[str]:
        """Of all there are, also those that a crash left unfolded."""
        return await asyncio.to_thread(self._list_names)

    async def export_memory(self, name: str) -> bytes:
        """As its file has it once all is folded in."""
        from crabtalk.memory import Memory

        if name not in await self.list_names():
            raise UnknownEntryError(f"there is no memory called {name}")
        return (await asyncio.to_thread(Memory.open_read_only, self._build_path(name))).encode()

    async def import_memory(self, name: str, data: bytes) -> None:
        """Exactly what the bytes of a CRMEM file say. Raises NameTakenError where there is one."""
        from crabtalk.memory import Memory

        await asyncio.to_thread(Memory.create, self._build_path(name), data)

    def _build_path(self, name: str) -> Path:
        return self._directory / f"{name}.crmem"

    def _list_names(self) -> list[str]:
        found = {
            str(file.relative_to(self._directory)).removesuffix(".journal").removesuffix(".crmem")
            for pattern in ("*.crmem", "*.crmem.journal")
            for file in self._directory.rglob(pattern)
            if file.is_file() and file.stat().st_size
        }
        return sorted(found)

    def _move_files(self, old: str, new: str) -> None:
        # The journal is there only if it could not be folded in.
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
        """The checksums go where the snapshot goes, and those that were left there are replaced."""
        source, target = (self._directory / f"{name}.crmem.sums" for name in (old, new))
        if source.exists():
            source.replace(target)
        else:
            target.unlink(missing_ok=True)


def open_memory_file(path: Path, *, flush: bool) -> "Memory":
    """Called in a thread, which also loads the store when the first memory is opened."""
    from crabtalk.memory import Memory

    return Memory.open(path, flush=flush)


def build_memory_name(agent: str, sender: str = "") -> str:
    """Of its file, without the ending. No agent's name can hold a slash.

    A sender's part does not name the agent, so that it still is that when the agent is renamed.
    """
    return f"{agent}/{make_log_name(Pair('', sender))}" if sender else agent
