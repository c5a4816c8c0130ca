"""Backlog: which logs reach further than the library has read them, as far as is known.

All of them are looked through once, and again when there is doubt. Where others share the storage,
what they appended is asked for instead, from a cursor on. It reads no log itself.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping

from crabtalk.storage import LogChanges, Storage, StorageError, make_log_name

from .index_store import IndexStore
from .index_thread import IndexThread
from .recent_messages import RecentMessages

log = logging.getLogger(__name__)


class LogQueue:
    def __init__(
        self,
        storage: Storage,
        tail: RecentMessages,
        thread: IndexThread,
        index_tool_results: Callable[[str], bool],
    ) -> None:
        self.is_scanned = False
        self.cursor = ""  # up to which changes by others are known; empty where nobody can say
        self.failed_logs: set[str] = set()  # logs that could not be read when it was their turn
        # Of logs to read, in order, and which addition the last of each was.
        self._pending: dict[str, int] = {}
        self._last_addition = 0
        self._warned: set[str] = set()  # of which that was said
        self._storage = storage
        self._recent = tail
        self._thread = thread
        self._index_tool_results = index_tool_results
        self._poll_lock = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def has_any(self, handles: set[str]) -> bool:
        return not handles.isdisjoint(self._pending)

    def peek(self, number: int) -> dict[str, int]:
        """For `remove`, once they were read."""
        return dict(itertools.islice(self._pending.items(), number))

    def add(self, handles: Iterable[str]) -> None:
        self._last_addition += 1
        self._pending |= dict.fromkeys(handles, self._last_addition)

    def remove(self, read: Mapping[str, int]) -> None:
        """Without those that were added again while they were read: they have grown since."""
        for handle, addition in read.items():
            if self._pending.get(handle) == addition:
                del self._pending[handle]

    def mark_failed(self, handle: str, error: StorageError) -> None:
        """One that could not be read. The next survey finds it again."""
        self.failed_logs.add(handle)
        if handle not in self._warned:
            self._warned.add(handle)
            log.warning("the log %s cannot be searched: %s", handle, error)

    def mark_read(self, handle: str) -> None:
        self.failed_logs.discard(handle)
        self._warned.discard(handle)

    async def scan_all(self, library: IndexStore) -> None:
        """Which logs are not as they were read, and which are gone. Raises StorageError."""
        self.is_scanned = True
        self.failed_logs.clear()
        since = await self._thread.run(library.manifest.load_cursor) if not self.cursor else ""
        if since and not await self._are_tool_results_current(library):
            since = ""
        # Before all are looked at: what comes meanwhile is seen twice rather than not at all.
        changes = await self._storage.read_changes(since)
        if changes is not None:
            self.cursor = changes.cursor
            if changes.versions is not None:
                self.add(await self._find_unread(library, changes))
                return
        versions = await self._storage.read_versions()
        known = await self._thread.run(library.manifest.load_read_state)
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

    async def _are_tool_results_current(self, library: IndexStore) -> bool:
        agents = await self._thread.run(library.manifest.list_agents)
        return all(self._index_tool_results(agent) == results for agent, results in agents)

    async def poll_changes(self, library: IndexStore) -> set[str]:
        """What others have changed since: to be read. Raises StorageError."""
        async with self._poll_lock:
            changes = await self._storage.read_changes(self.cursor)
            if changes is None or changes.versions is None:
                self.is_scanned = False
                return set()
            behind = await self._find_unread(library, changes)
            self.cursor = changes.cursor
            self.add(behind)
        return set(behind)

    async def _find_unread(self, library: IndexStore, changes: LogChanges) -> list[str]:
        """Which of these logs have something that neither the library nor the tail has."""
        if changes.deleted:
            await self._thread.run(library.remove_all, list(changes.deleted))
        said = {make_log_name(pair) for pair in self._recent.pairs()}
        versions = {h: v for h, v in (changes.versions or {}).items() if h not in said}
        return await self._thread.run(library.find_outdated, versions) if versions else []
