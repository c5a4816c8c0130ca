"""Follower: brings the library up to date with the logs, in the background.

A rebuild, what a crash left undone and what was said a second ago are the same to it: logs that
reach further than they were read. One task decides, one thread does what blocks.
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

# Messages that are committed together, and seconds after which fewer are.
COMMIT_MESSAGES = 256
COMMIT_SECONDS = 2.0
# While it catches up: more at once, read from so many logs at a time, so much of each.
CATCH_UP_MESSAGES = 50_000
LOGS_PER_READ = 16
BYTES_PER_READ = 256 * 1024
# How long the first searches wait for what was not committed when it was last closed. More than
# that is a rebuild, which nobody should wait for.
CATCH_UP_WAIT_SECONDS = 2.0
# The file that says that nothing was.
COMPLETE_MARKER = "complete"
# How long `close` waits for what is not committed; the logs have it.
CLOSE_WAIT_SECONDS = 2.0
# When a log that could not be read is tried again.
AGAIN_SECONDS = 60.0
# How often it looks for what others appended, where storage is shared, while nobody searches.
POLL_SECONDS = 5.0
# Pauses after a failure: twice as long each time.
FIRST_PAUSE, LAST_PAUSE = 0.25, 60.0


class LogIndexer:
    def __init__(
        self,
        storage: Storage,
        directory: Path | None,
        tail: RecentMessages,
        index_tool_results: Callable[[str], bool],
    ) -> None:
        self.store: IndexStore | None = None
        self.view: IndexView | None = None
        self.error = ""  # why it does not get on
        self.commits = 0
        self.rebuilds = 0
        self.is_verified = False
        self._storage = storage
        self._directory = directory
        self._recent = tail
        self._index_tool_results = index_tool_results
        self._thread = IndexThread()
        self._queue = LogQueue(storage, tail, self._thread, index_tool_results)
        self._missing_logs: set[Pair] = set()  # of whom no log was found, the last time
        self._stale_logs: set[str] = set()
        self._damage = ""
        self._needs_verification = False
        self._is_idle = False
        self._has_excess_memory = False  # from much that was read at once
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()  # there is something to do
        self._commit_now = asyncio.Event()  # and it should not wait for more
        self._open_attempted = asyncio.Event()  # to open the library
        self._progress = asyncio.Event()  # another one each time there is some
        self._caught_up = asyncio.Event()  # it was, once since it was opened
        self._has_read_everything = False  # when it was closed

    # ── What others say ─────────────────────────────────────────────────────────────────────

    @property
    def logs_behind(self) -> int:
        """Logs still to be read, as far as is known."""
        return len(self._queue)

    @property
    def is_current(self) -> bool:
        """Whether the library has all there is."""
        return self._is_idle and not self._has_work() and not self._queue.failed_logs

    def start(self) -> None:
        if self._task is None and not self._is_closing:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self, *, hurry: bool = False) -> None:
        """There is something in the tail."""
        self.start()
        self._wake.set()
        if hurry or self._recent.messages >= COMMIT_MESSAGES or self._recent.overflowed:
            self._commit_now.set()

    def rescan(self) -> None:
        """Look through the logs again, if that has begun; if not, it will be done anyway."""
        if self._task is not None:
            self._queue.is_scanned = False
            self.wake(hurry=True)

    def mark_stale(self, handle: str) -> None:
        """Its log does not say what the library says."""
        self._stale_logs.add(handle)
        self.wake()

    def report_failure(self, library: IndexStore, reason: str) -> None:
        """In a search. Whether that is the library's fault has to be seen."""
        if self.store is library:
            log.error("a search failed: %s", reason)
            self._needs_verification = True
            self.wake(hurry=True)

    async def wait_until_open(self) -> None:
        """Until there is a library, or a reason why not."""
        self.start()
        await self._open_attempted.wait()

    async def wait_until_current(self) -> None:
        """Until the tail has all that the library does not, or there is no hope for it."""
        if not self._caught_up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_WAIT_SECONDS):
                    await self._caught_up.wait()
            self._caught_up.set()  # the next one need not wait again
        while self._recent.overflowed and not self.error and not self._is_closing:
            self._commit_now.set()
            await self._progress.wait()
        await self._wait_for_remote_changes()

    async def _wait_for_remote_changes(self) -> None:
        """What others appended by now, as far as that takes no longer than anybody would wait."""
        if not self._queue.cursor or self.store is None:
            return
        try:
            behind = await self._poll_changes(self.store)
        except StorageError as error:
            log.info("what others said lately is not known: %s", error)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_WAIT_SECONDS):
                while self._queue.has_any(behind) and not self.error:
                    self.wake(hurry=True)
                    await self._progress.wait()

    async def _poll_changes(self, library: IndexStore) -> set[str]:
        """What others have changed since: to be read. Raises StorageError."""
        behind = await self._queue.poll_changes(library)
        if behind:
            self._wake.set()
        return behind

    async def close(self) -> None:
        """Keeps what it can within a moment."""
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
                library = await self._open()
                # What is there can be found meanwhile.
                await self._back_off(failures)
                await self._follow_logs(library)
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
        # Where storage is shared, others have gone on since.
        if was_complete and not await self._thread.run(self.store.manifest.load_cursor):
            self._caught_up.set()
        self._queue.is_scanned = False
        self._damage = ""
        self.is_verified = False
        self._signal_progress()
        return self.store

    def _close_store(self) -> None:
        library, self.store, self.view = self.store, None, None
        if library is not None:
            library.close()
            if self._has_read_everything and self._directory is not None:
                (self._directory / COMPLETE_MARKER).write_text("all logs were read\n")

    def _take_complete_marker(self) -> bool:
        """Whether all logs were read when it was last closed. Only once: from now on they grow."""
        if self._directory is None:
            return False
        mark = self._directory / COMPLETE_MARKER
        was_complete = mark.exists()
        mark.unlink(missing_ok=True)
        return was_complete

    async def _back_off(self, failures: int) -> None:
        """After some in a row, longer each time; not after the first, which may be the last."""
        seconds = min(FIRST_PAUSE * 2 ** min(failures, 9), LAST_PAUSE) if failures > 1 else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_closing:
                    self._wake.clear()
                    await self._wake.wait()

    async def _follow_logs(self, library: IndexStore) -> None:
        """Until it is closed."""
        verification: asyncio.Future[None] | None = None
        try:
            while True:
                if self._damage:
                    raise DamagedIndexError(self._damage)
                if not self._queue.is_scanned:
                    await self._queue.scan_all(library)
                # All changes up to it are in the backlog or in the tail by now, and read below.
                cursor = self._queue.cursor
                await self._commit_pending(library)
                is_current = self._queue.is_scanned and not self._queue
                if is_current and not self._queue.failed_logs and library.is_suspect:
                    await self._thread.run(library.mark_consistent)
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
                    await self._verify(library)
                elif not self._queue and self._queue.is_scanned:
                    if cursor and not self._queue.failed_logs:
                        await self._thread.run(library.manifest.set_cursor, cursor)
                    if verification is None:
                        verification = asyncio.ensure_future(self._verify(library))
                    await self._wait_for_work(library)
        finally:
            if verification is not None:
                verification.cancel()

    async def _wait_for_work(self, library: IndexStore) -> None:
        """Until there is something to do, and then until it is enough."""
        self._wake.clear()
        if not self._has_work():
            self._is_idle = True
            await self._wait_until_woken(library)
            self._is_idle = False
            if self._queue:
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._commit_now.wait()

    async def _wait_until_woken(self, library: IndexStore) -> None:
        try:
            async with asyncio.timeout(AGAIN_SECONDS if self._queue.failed_logs else None):
                if self._queue.cursor:
                    await self._poll_until_woken(library)
                else:
                    await self._wake.wait()
        except TimeoutError:
            self._queue.is_scanned = False

    async def _poll_until_woken(self, library: IndexStore) -> None:
        while not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
                    return
            with contextlib.suppress(StorageError):  # it is away: the next look may find it
                await self._poll_changes(library)
            if self._queue:
                return

    def _has_work(self) -> bool:
        doubts = self._damage or self._needs_verification
        return bool(self._recent or self._stale_logs or doubts or not self._queue.is_scanned)

    async def _verify(self, library: IndexStore) -> None:
        """Sees what opening does not: a file whose inside is not what was written."""
        try:
            await asyncio.to_thread(library.verify)
            self.is_verified = True
        except (DamagedIndexError, OSError) as error:
            if self.store is library:
                self._damage = str(error)
                self.wake(hurry=True)

    # ── Following ───────────────────────────────────────────────────────────────────────────

    async def _commit_pending(self, library: IndexStore) -> None:
        """What was deleted, what was just said, and some of what is behind, in one commit."""
        self._commit_now.clear()
        gone, said = self._recent.begin_commit()
        stale, self._stale_logs = self._stale_logs, set()
        self._queue.add(stale)
        places = await self._thread.run(library.plan_reads, list(gone), list(stale), said)
        are_read = await self._read_logs(library, places)
        while self._queue and library.uncommitted < CATCH_UP_MESSAGES:
            some = self._queue.peek(LOGS_PER_READ)
            await self._read_logs(
                library, await self._thread.run(library.find_positions, list(some))
            )
            self._queue.remove(some)
            if self._commit_now.is_set():
                break
        rows: list[IndexedConversation] = []
        if library.is_dirty:
            self._has_excess_memory = (
                self._has_excess_memory or library.uncommitted >= CATCH_UP_MESSAGES
            )
            self.view, rows = await self._thread.run(library.commit)
            self.commits += 1
            self.error = ""
        self._recent.finish_commit(gone, rows)
        self._signal_progress()
        await self._thread.run(library.release_old_files)
        if self._has_excess_memory and not self._queue:
            self._has_excess_memory = False
            await asyncio.to_thread(trim_malloc)
        if are_read:
            await self._drop_missing(library, said)

    async def _read_logs(self, library: IndexStore, positions: dict[str, int]) -> bool:
        """These logs, each from its position to its end. False when one could not be read.

        Raises StorageUnavailableError: then none can, and all are looked at again later.
        """
        are_read = True
        while positions:
            some = [(handle, positions.pop(handle)) for handle in list(positions)[:LOGS_PER_READ]]
            taken: list[tuple[str, RecordSlice | None, bool]] = []
            found = await self._storage.read_new_records(some, BYTES_PER_READ)
            for (handle, _), followed in zip(some, found, strict=True):
                if isinstance(followed, StorageUnavailableError):
                    raise followed
                if isinstance(followed, StorageError):
                    self._queue.mark_failed(handle, followed)
                    are_read = False
                    continue
                self._queue.mark_read(handle)
                agent = followed.pair.agent if followed is not None else ""
                taken.append((handle, followed, self._index_tool_results(agent)))
            positions |= await self._thread.run(library.ingest_all, taken)
        return are_read

    async def _drop_missing(self, library: IndexStore, said: list[Pair]) -> None:
        """What the tail has that no log has, after all were read: gone without our being told.

        First all logs are looked through, since one may be called otherwise than we thought.
        """
        left = self._recent.find_uncovered(said)
        unknown = set(await self._thread.run(library.find_unknown, left)) if left else set()
        missing = unknown - self._missing_logs
        for pair in set(left) - missing:
            self._recent.discard(pair)
        self._missing_logs = missing
        if missing:
            self._queue.is_scanned = False

    def _signal_progress(self) -> None:
        """To those who wait for any."""
        self._open_attempted.set()
        self._progress.set()
        self._progress = asyncio.Event()
