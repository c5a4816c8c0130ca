"""Backlog: which logs reach further than the library has read them, as far as is known.

All of them are looked through once, and again when there is doubt. Where others share the storage,
what they appended is asked for instead, from a cursor on. It reads no log itself.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping

from crabtalk.storage import Changes, Storage, StorageError, log_name

from .library import Library
from .tail import Tail
from .thread import IndexThread

log = logging.getLogger(__name__)


class Backlog:
    def __init__(
        self,
        storage: Storage,
        tail: Tail,
        thread: IndexThread,
        index_tool_results: Callable[[str], bool],
    ) -> None:
        self.is_surveyed = False
        self.cursor = ""  # up to which changes by others are known; empty where nobody can say
        self.unread: set[str] = set()  # logs that could not be read when it was their turn
        # Of logs to read, in order, and which addition the last of each was.
        self._handles: dict[str, int] = {}
        self._additions = 0
        self._complained: set[str] = set()  # of which that was said
        self._storage = storage
        self._tail = tail
        self._thread = thread
        self._index_tool_results = index_tool_results
        self._looking = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._handles)

    def has_any(self, handles: set[str]) -> bool:
        return not handles.isdisjoint(self._handles)

    def first(self, number: int) -> dict[str, int]:
        """For `remove`, once they were read."""
        return dict(itertools.islice(self._handles.items(), number))

    def add(self, handles: Iterable[str]) -> None:
        self._additions += 1
        self._handles |= dict.fromkeys(handles, self._additions)

    def remove(self, read: Mapping[str, int]) -> None:
        """Without those that were added again while they were read: they have grown since."""
        for handle, addition in read.items():
            if self._handles.get(handle) == addition:
                del self._handles[handle]

    def put_off(self, handle: str, error: StorageError) -> None:
        """One that could not be read. The next survey finds it again."""
        self.unread.add(handle)
        if handle not in self._complained:
            self._complained.add(handle)
            log.warning("the log %s cannot be searched: %s", handle, error)

    def was_read(self, handle: str) -> None:
        self.unread.discard(handle)
        self._complained.discard(handle)

    async def survey(self, library: Library) -> None:
        """Which logs are not as they were read, and which are gone. Raises StorageError."""
        self.is_surveyed = True
        self.unread.clear()
        since = await self._thread.run(library.manifest.cursor) if not self.cursor else ""
        if since and not await self._is_indexed_as_wanted(library):
            since = ""
        # Before all are looked at: what comes meanwhile is seen twice rather than not at all.
        changes = await self._storage.changes(since)
        if changes is not None:
            self.cursor = changes.cursor
            if changes.versions is not None:
                self.add(await self._others(library, changes))
                return
        versions = await self._storage.versions()
        known = await self._thread.run(library.manifest.read_so_far)
        allowed = {agent: self._index_tool_results(agent) for _, agent, _ in known.values()}

        def is_read(handle: str, version: int) -> bool:
            seen, agent, tool_results = known.get(handle, (None, "", False))
            return seen == version and tool_results == allowed[agent]

        def compare() -> tuple[list[str], list[str]]:
            behind = [handle for handle, each in versions.items() if not is_read(handle, each)]
            return behind, [handle for handle in known if handle not in versions]

        behind, gone = await asyncio.to_thread(compare)
        self.add(behind)  # beside what a search has found meanwhile
        await self._thread.run(library.remove_all, gone)

    async def _is_indexed_as_wanted(self, library: Library) -> bool:
        agents = await self._thread.run(library.manifest.agents)
        return all(self._index_tool_results(agent) == results for agent, results in agents)

    async def look(self, library: Library) -> set[str]:
        """What others have changed since: to be read. Raises StorageError."""
        async with self._looking:
            changes = await self._storage.changes(self.cursor)
            if changes is None or changes.versions is None:
                self.is_surveyed = False
                return set()
            behind = await self._others(library, changes)
            self.cursor = changes.cursor
            self.add(behind)
        return set(behind)

    async def _others(self, library: Library, changes: Changes) -> list[str]:
        """Which of these logs have something that neither the library nor the tail has."""
        if changes.gone:
            await self._thread.run(library.remove_all, list(changes.gone))
        said = {log_name(pair) for pair in self._tail.pairs()}
        versions = {h: v for h, v in (changes.versions or {}).items() if h not in said}
        return await self._thread.run(library.unread, versions) if versions else []
