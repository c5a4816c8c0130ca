"""LogIndexer: brings the index store up to date with the logs, in the background.

A rebuild, recovery after a crash and new messages are the same to it: logs that are longer than
what was read of them. One asyncio task decides; one thread runs the blocking calls.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from crabtalk.storage import Pair, RecordSlice, Storage, StorageError, StorageUnavailableError

from .index_store import IndexStore, IndexView
from .index_thread import IndexThread, trim_malloc
from .log_queue import LogQueue
from .manifest import IndexedConversation
from .recent_messages import RecentMessages
from .tantivy_index import DamagedIndexError

log = logging.getLogger(__name__)

# A commit takes this many messages, or fewer after this many seconds.
COMMIT_MESSAGES = 256
COMMIT_SECONDS = 2.0
# While catching up: messages per commit, logs read at a time, and bytes read of each.
CATCH_UP_MESSAGES = 50_000
LOGS_PER_READ = 16
BYTES_PER_READ = 256 * 1024
# How long the first searches wait for messages that were not committed at the last close. Reading
# more than that is a rebuild, for which searches do not wait.
CATCH_UP_WAIT_SECONDS = 2.0
# The file that says that all logs were read at the last close.
COMPLETE_MARKER = "complete"
# How long `close` waits for uncommitted messages; they are in the logs anyway.
CLOSE_WAIT_SECONDS = 2.0
# After this time, logs that could not be read are tried again.
AGAIN_SECONDS = 60.0
# How often it polls for changes by other daemons, where storage is shared and no search asks.
POLL_SECONDS = 5.0
# Pauses after failures: each twice as long as the one before.
FIRST_PAUSE, LAST_PAUSE = 0.25, 60.0


class LogIndexer:
    def __init__(
        self,
        storage: Storage,
        directory: Path | None,
        recent: RecentMessages,
        index_tool_results: Callable[[str], bool],
    ) -> None:
        self.store: IndexStore | None = None
        self.view: IndexView | None = None
        self.error = ""  # why indexing does not progress
        self.commits = 0
        self.rebuilds = 0
        self.is_verified = False
        self._storage = storage
        self._directory = directory
        self._recent = recent
        self._index_tool_results = index_tool_results
        self._thread = IndexThread()
        self._queue = LogQueue(storage, recent, self._thread, index_tool_results)
        self._missing_logs: set[Pair] = set()  # pairs whose log was not found the last time
        self._stale_logs: set[str] = set()
        self._damage = ""
        self._needs_verification = False
        self._is_idle = False
        self._has_excess_memory = False  # after reading much at once
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()  # there is work
        self._commit_now = asyncio.Event()  # the work should not wait for more
        self._open_attempted = asyncio.Event()  # the store was opened, or failed to open
        self._progress = asyncio.Event()  # set and replaced each time there is progress
        self._caught_up = asyncio.Event()  # it caught up once since the store was opened
        self._has_read_everything = False  # all logs were read at the time of closing

    # ── Called by others ────────────────────────────────────────────────────────────────────

    @property
    def logs_behind(self) -> int:
        """Known logs that are still to be read."""
        return len(self._queue)

    @property
    def is_current(self) -> bool:
        """Whether the store has everything that is in the logs."""
        return self._is_idle and not self._has_work() and not self._queue.failed_logs

    def start(self) -> None:
        if self._task is None and not self._is_closing:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self, *, hurry: bool = False) -> None:
        """Call it when messages were added to the recent ones."""
        self.start()
        self._wake.set()
        if hurry or self._recent.messages >= COMMIT_MESSAGES or self._recent.overflowed:
            self._commit_now.set()

    def rescan(self) -> None:
        """Look through all logs again. If it has not started, it will do so anyway."""
        if self._task is not None:
            self._queue.is_scanned = False
            self.wake(hurry=True)

    def mark_stale(self, handle: str) -> None:
        """Report that the log differs from the index."""
        self._stale_logs.add(handle)
        self.wake()

    def report_failure(self, store: IndexStore, reason: str) -> None:
        """Report a failed search. It is then checked whether the store is damaged."""
        if self.store is store:
            log.error("a search failed: %s", reason)
            self._needs_verification = True
            self.wake(hurry=True)

    async def wait_until_open(self) -> None:
        """Wait until the store is open, or could not be opened."""
        self.start()
        await self._open_attempted.wait()

    async def wait_until_current(self) -> None:
        """Wait until store and recent messages together have everything, or indexing fails."""
        if not self._caught_up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_WAIT_SECONDS):
                    await self._caught_up.wait()
            self._caught_up.set()  # later searches do not wait again
        while self._recent.overflowed and not self.error and not self._is_closing:
            self._commit_now.set()
            await self._progress.wait()
        await self._wait_for_remote_changes()

    async def _wait_for_remote_changes(self) -> None:
        """Wait for changes by other daemons, for a bounded time."""
        if not self._queue.cursor or self.store is None:
            return
        try:
            behind = await self._poll_changes(self.store)
        except StorageError as error:
            log.info("changes by other daemons are not known: %s", error)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_WAIT_SECONDS):
                while self._queue.has_any(behind) and not self.error:
                    self.wake(hurry=True)
                    await self._progress.wait()

    async def _poll_changes(self, store: IndexStore) -> set[str]:
        """Queue what other daemons changed, and return it. Raises StorageError."""
        behind = await self._queue.poll_changes(store)
        if behind:
            self._wake.set()
        return behind

    async def close(self) -> None:
        """Commit what can be committed within a moment, then close."""
        self._is_closing = True
        self._wake.set()
        self._commit_now.set()
        self._caught_up.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_WAIT_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])
        self._signal_progress()
        try:
            await self._thread.close(self._close_store)
        except Exception as error:
            log.warning("the session index did not close as it should: %s", error)

    # ── The task ────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        failures, commits = 0, 0
        while not self._is_closing:
            try:
                store = await self._open()
                # Searches already use the store meanwhile.
                await self._back_off(failures)
                await self._follow_logs(store)
                return
            except DamagedIndexError as error:
                log.warning("the session index is made anew from the logs: %s", error)
                self.rebuilds += 1
                await self._thread.run(self._close_store)
                await self._thread.run(IndexStore.wipe, self._directory)
            except Exception as error:
                log.warning("the session index does not get on: %s", error)
                self.error = str(error) or type(error).__name__
                is_open = self.store is not None
                await self._thread.run(self._close_store)
                self._signal_progress()
                if not is_open:
                    await self._back_off(failures + 1)
            failures = failures + 1 if self.commits == commits else 0
            commits = self.commits

    async def _open(self) -> IndexStore:
        self.store = await self._thread.run(IndexStore, self._directory)
        self.view = self.store.view()
        was_complete = await self._thread.run(self._take_complete_marker)
        # Where storage is shared, other daemons have continued since.
        if was_complete and not await self._thread.run(self.store.manifest.load_cursor):
            self._caught_up.set()
        self._queue.is_scanned = False
        self._damage = ""
        self.is_verified = False
        self._signal_progress()
        return self.store

    def _close_store(self) -> None:
        store, self.store, self.view = self.store, None, None
        if store is not None:
            store.close()
            if self._has_read_everything and self._directory is not None:
                (self._directory / COMPLETE_MARKER).write_text("all logs were read\n")

    def _take_complete_marker(self) -> bool:
        """Whether all logs were read at the last close. Removes the file: from now on logs grow."""
        if self._directory is None:
            return False
        marker = self._directory / COMPLETE_MARKER
        was_complete = marker.exists()
        marker.unlink(missing_ok=True)
        return was_complete

    async def _back_off(self, failures: int) -> None:
        """Pause after repeated failures, longer each time; the first may be the only one."""
        seconds = min(FIRST_PAUSE * 2 ** min(failures, 9), LAST_PAUSE) if failures > 1 else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_closing:
                    self._wake.clear()
                    await self._wake.wait()

    async def _follow_logs(self, store: IndexStore) -> None:
        """Index new records until `close` is called."""
        verification: asyncio.Future[None] | None = None
        try:
            while True:
                if self._damage:
                    raise DamagedIndexError(self._damage)
                if not self._queue.is_scanned:
                    await self._queue.scan_all(store)
                # All changes up to this cursor are queued or in the recent messages, and are read
                # below.
                cursor = self._queue.cursor
                await self._commit_pending(store)
                is_current = self._queue.is_scanned and not self._queue
                if is_current and not self._queue.failed_logs and store.is_suspect:
                    await self._thread.run(store.mark_consistent)
                if self._is_closing:
                    self._has_read_everything = (
                        is_current and not self._queue.failed_logs and not self._recent
                    )
                    return
                if is_current:
                    self.error = ""
                    self._caught_up.set()
                if self._needs_verification:
                    self._needs_verification = False
                    await self._verify(store)
                elif not self._queue and self._queue.is_scanned:
                    if cursor and not self._queue.failed_logs:
                        await self._thread.run(store.manifest.set_cursor, cursor)
                    if verification is None:
                        verification = asyncio.ensure_future(self._verify(store))
                    await self._wait_for_work(store)
        finally:
            if verification is not None:
                verification.cancel()

    async def _wait_for_work(self, store: IndexStore) -> None:
        """Wait until there is work, and then until there is enough or some time has passed."""
        self._wake.clear()
        if not self._has_work():
            self._is_idle = True
            await self._wait_until_woken(store)
            self._is_idle = False
            if self._queue:
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._commit_now.wait()

    async def _wait_until_woken(self, store: IndexStore) -> None:
        try:
            async with asyncio.timeout(AGAIN_SECONDS if self._queue.failed_logs else None):
                if self._queue.cursor:
                    await self._poll_until_woken(store)
                else:
                    await self._wake.wait()
        except TimeoutError:
            self._queue.is_scanned = False

    async def _poll_until_woken(self, store: IndexStore) -> None:
        while not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
                    return
            with contextlib.suppress(StorageError):  # unavailable: the next poll may succeed
                await self._poll_changes(store)
            if self._queue:
                return

    def _has_work(self) -> bool:
        has_doubts = self._damage or self._needs_verification
        return bool(self._recent or self._stale_logs or has_doubts or not self._queue.is_scanned)

    async def _verify(self, store: IndexStore) -> None:
        """Find damage that opening does not notice: files whose content has changed."""
        try:
            await asyncio.to_thread(store.verify)
            self.is_verified = True
        except (DamagedIndexError, OSError) as error:
            if self.store is store:
                self._damage = str(error)
                self.wake(hurry=True)

    # ── Reading logs ────────────────────────────────────────────────────────────────────────

    async def _commit_pending(self, store: IndexStore) -> None:
        """Index deletions, recent messages and a part of the queue in one commit."""
        self._commit_now.clear()
        deleted, active = self._recent.begin_commit()
        stale, self._stale_logs = self._stale_logs, set()
        self._queue.add(stale)
        positions = await self._thread.run(store.plan_reads, list(deleted), list(stale), active)
        are_read = await self._read_logs(store, positions)
        while self._queue and store.uncommitted < CATCH_UP_MESSAGES:
            batch = self._queue.peek(LOGS_PER_READ)
            await self._read_logs(store, await self._thread.run(store.find_positions, list(batch)))
            self._queue.remove(batch)
            if self._commit_now.is_set():
                break
        rows: list[IndexedConversation] = []
        if store.is_dirty:
            self._has_excess_memory = (
                self._has_excess_memory or store.uncommitted >= CATCH_UP_MESSAGES
            )
            self.view, rows = await self._thread.run(store.commit)
            self.commits += 1
            self.error = ""
        self._recent.finish_commit(deleted, rows)
        self._signal_progress()
        await self._thread.run(store.release_old_files)
        if self._has_excess_memory and not self._queue:
            self._has_excess_memory = False
            await asyncio.to_thread(trim_malloc)
        if are_read:
            await self._drop_missing(store, active)

    async def _read_logs(self, store: IndexStore, positions: dict[str, int]) -> bool:
        """Read these logs, each from its position to its end. Returns False if one was unreadable.

        Raises StorageUnavailableError: then none can be read, and all are scanned again later.
        """
        are_read = True
        while positions:
            batch = [(handle, positions.pop(handle)) for handle in list(positions)[:LOGS_PER_READ]]
            slices: list[tuple[str, RecordSlice | None, bool]] = []
            results = await self._storage.read_new_records(batch, BYTES_PER_READ)
            for (handle, _), result in zip(batch, results, strict=True):
                if isinstance(result, StorageUnavailableError):
                    raise result
                if isinstance(result, StorageError):
                    self._queue.mark_failed(handle, result)
                    are_read = False
                    continue
                self._queue.mark_read(handle)
                agent = result.pair.agent if result is not None else ""
                slices.append((handle, result, self._index_tool_results(agent)))
            positions |= await self._thread.run(store.ingest_all, slices)
        return are_read

    async def _drop_missing(self, store: IndexStore, active: list[Pair]) -> None:
        """Drop recent messages that are in no log: their conversation was deleted by others.

        The first time, all logs are scanned instead, since a log may have an unexpected name.
        """
        uncovered = self._recent.find_uncovered(active)
        unknown = set(await self._thread.run(store.find_unknown, uncovered)) if uncovered else set()
        missing = unknown - self._missing_logs
        for pair in set(uncovered) - missing:
            self._recent.discard(pair)
        self._missing_logs = missing
        if missing:
            self._queue.is_scanned = False

    def _signal_progress(self) -> None:
        """Wake every task that waits for progress."""
        self._open_attempted.set()
        self._progress.set()
        self._progress = asyncio.Event()
