"""LogQueue: the known logs that are longer than what the index store has read of them.

All logs are scanned once, and again when in doubt. Where storage is shared, it asks for changes by
other daemons since a cursor instead. It reads no log itself.
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
        recent: RecentMessages,
        thread: IndexThread,
        index_tool_results: Callable[[str], bool],
    ) -> None:
        self.is_scanned = False
        self.cursor = ""  # changes by others up to it are known; empty if storage cannot tell
        self.failed_logs: set[str] = set()  # logs that could not be read
        # Logs to read, in order, each with the number of its last `add`.
        self._pending: dict[str, int] = {}
        self._last_addition = 0
        self._warned: set[str] = set()  # logs with a logged warning
        self._storage = storage
        self._recent = recent
        self._thread = thread
        self._index_tool_results = index_tool_results
        self._poll_lock = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def has_any(self, handles: set[str]) -> bool:
        return not handles.isdisjoint(self._pending)

    def peek(self, number: int) -> dict[str, int]:
        """The first logs in the queue, to be passed to `remove` once they were read."""
        return dict(itertools.islice(self._pending.items(), number))

    def add(self, handles: Iterable[str]) -> None:
        self._last_addition += 1
        self._pending |= dict.fromkeys(handles, self._last_addition)

    def remove(self, read: Mapping[str, int]) -> None:
        """Remove logs that were read, except those added again meanwhile: they have grown."""
        for handle, addition in read.items():
            if self._pending.get(handle) == addition:
                del self._pending[handle]

    def mark_failed(self, handle: str, error: StorageError) -> None:
        """A log could not be read. The next scan finds it again."""
        self.failed_logs.add(handle)
        if handle not in self._warned:
            self._warned.add(handle)
            log.warning("the log %s cannot be searched: %s", handle, error)

    def mark_read(self, handle: str) -> None:
        self.failed_logs.discard(handle)
        self._warned.discard(handle)

    async def scan_all(self, store: IndexStore) -> None:
        """Queue the logs that changed, remove those that are gone. Raises StorageError."""
        self.is_scanned = True
        self.failed_logs.clear()
        since = await self._thread.run(store.manifest.load_cursor) if not self.cursor else ""
        if since and not await self._are_tool_results_current(store):
            since = ""
        # Before the scan: a change that happens meanwhile is then seen twice rather than never.
        changes = await self._storage.read_changes(since)
        if changes is not None:
            self.cursor = changes.cursor
            if changes.versions is not None:
                self.add(await self._find_unread(store, changes))
                return
        versions = await self._storage.read_versions()
        known = await self._thread.run(store.manifest.load_read_state)
        allowed = {agent: self._index_tool_results(agent) for _, agent, _ in known.values()}

        def is_read(handle: str, version: int) -> bool:
            seen, agent, tool_results = known.get(handle, (None, "", False))
            return seen == version and tool_results == allowed[agent]

        def compare() -> tuple[list[str], list[str]]:
            behind = [h for h, version in versions.items() if not is_read(h, version)]
            return behind, [handle for handle in known if handle not in versions]

        behind, deleted = await asyncio.to_thread(compare)
        self.add(behind)  # besides those that a search has queued meanwhile
        await self._thread.run(store.remove_all, deleted)

    async def _are_tool_results_current(self, store: IndexStore) -> bool:
        agents = await self._thread.run(store.manifest.list_agents)
        return all(self._index_tool_results(agent) == results for agent, results in agents)

    async def poll_changes(self, store: IndexStore) -> set[str]:
        """Queue what others changed, and return it. Raises StorageError."""
        async with self._poll_lock:
            changes = await self._storage.read_changes(self.cursor)
            if changes is None or changes.versions is None:
                self.is_scanned = False
                return set()
            behind = await self._find_unread(store, changes)
            self.cursor = changes.cursor
            self.add(behind)
        return set(behind)

    async def _find_unread(self, store: IndexStore, changes: LogChanges) -> list[str]:
        """The logs with records that are neither in the store nor among the recent messages."""
        if changes.deleted:
            await self._thread.run(store.remove_all, list(changes.deleted))
        recent_handles = {make_log_name(pair) for pair in self._recent.pairs()}
        versions = {h: v for h, v in (changes.versions or {}).items() if h not in recent_handles}
        return await self._thread.run(store.find_outdated, versions) if versions else []
