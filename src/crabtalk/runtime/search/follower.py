"""Follower: brings the library up to date with the logs, in the background.

A rebuild, what a crash left undone and what was said a second ago are the same to it: logs that
reach further than they were read. One task decides, one thread does what blocks.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from crabtalk.storage import Followed, Pair, Storage, StorageError, StorageUnavailableError

from .backlog import Backlog
from .library import Library, View
from .manifest import Row
from .shelf import DamagedError
from .tail import Tail
from .thread import IndexThread, give_back

log = logging.getLogger(__name__)

# Messages that are committed together, and seconds after which fewer are.
COMMIT_MESSAGES = 256
COMMIT_SECONDS = 2.0
# While it catches up: more at once, read from so many logs at a time, so much of each.
COMMIT_MANY = 50_000
LOGS = 16
LOG_BYTES = 256 * 1024
# How long the first searches wait for what was not committed when it was last closed. More than
# that is a rebuild, which nobody should wait for.
CATCHING_UP_SECONDS = 2.0
# The file that says that nothing was.
COMPLETE = "complete"
# How long `close` waits for what is not committed; the logs have it.
CLOSING_SECONDS = 2.0
# When a log that could not be read is tried again.
AGAIN_SECONDS = 60.0
# How often it looks for what others appended, where storage is shared, while nobody searches.
LOOK_SECONDS = 5.0
# Pauses after a failure: twice as long each time.
FIRST_PAUSE, LAST_PAUSE = 0.25, 60.0


class Follower:
    def __init__(
        self,
        storage: Storage,
        directory: Path | None,
        tail: Tail,
        index_tool_results: Callable[[str], bool],
    ) -> None:
        self.library: Library | None = None
        self.view: View | None = None
        self.error = ""  # why it does not get on
        self.commits = 0
        self.rebuilds = 0
        self.is_verified = False
        self._storage = storage
        self._directory = directory
        self._tail = tail
        self._index_tool_results = index_tool_results
        self._thread = IndexThread()
        self._backlog = Backlog(storage, tail, self._thread, index_tool_results)
        self._missing: set[Pair] = set()  # of whom no log was found, the last time
        self._stale: set[str] = set()
        self._damage = ""
        self._is_doubted = False
        self._is_resting = False
        self._is_swollen = False  # from much that was read at once
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()  # there is something to do
        self._hurry = asyncio.Event()  # and it should not wait for more
        self._tried = asyncio.Event()  # to open the library
        self._progress = asyncio.Event()  # another one each time there is some
        self._current = asyncio.Event()  # it was, once since it was opened
        self._is_complete = False  # when it was closed

    # ── What others say ─────────────────────────────────────────────────────────────────────

    @property
    def behind(self) -> int:
        """Logs still to be read, as far as is known."""
        return len(self._backlog)

    @property
    def is_current(self) -> bool:
        """Whether the library has all there is."""
        return self._is_resting and not self._is_needed() and not self._backlog.unread

    def start(self) -> None:
        if self._task is None and not self._closing:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def wake(self, *, hurry: bool = False) -> None:
        """There is something in the tail."""
        self.start()
        self._wake.set()
        if hurry or self._tail.messages >= COMMIT_MESSAGES or self._tail.overflowed:
            self._hurry.set()

    def survey(self) -> None:
        """Look through the logs again, if that has begun; if not, it will be done anyway."""
        if self._task is not None:
            self._backlog.is_surveyed = False
            self.wake(hurry=True)

    def is_stale(self, handle: str) -> None:
        """Its log does not say what the library says."""
        self._stale.add(handle)
        self.wake()

    def has_failed(self, library: Library, reason: str) -> None:
        """In a search. Whether that is the library's fault has to be seen."""
        if self.library is library:
            log.error("a search failed: %s", reason)
            self._is_doubted = True
            self.wake(hurry=True)

    async def opened(self) -> None:
        """Until there is a library, or a reason why not."""
        self.start()
        await self._tried.wait()

    async def caught_up(self) -> None:
        """Until the tail has all that the library does not, or there is no hope for it."""
        if not self._current.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCHING_UP_SECONDS):
                    await self._current.wait()
            self._current.set()  # the next one need not wait again
        while self._tail.overflowed and not self.error and not self._closing:
            self._hurry.set()
            await self._progress.wait()
        await self._read_others()

    async def _read_others(self) -> None:
        """What others appended by now, as far as that takes no longer than anybody would wait."""
        if not self._backlog.cursor or self.library is None:
            return
        try:
            behind = await self._look(self.library)
        except StorageError as error:
            log.info("what others said lately is not known: %s", error)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCHING_UP_SECONDS):
                while self._backlog.has_any(behind) and not self.error:
                    self.wake(hurry=True)
                    await self._progress.wait()

    async def _look(self, library: Library) -> set[str]:
        """What others have changed since: to be read. Raises StorageError."""
        behind = await self._backlog.look(library)
        if behind:
            self._wake.set()
        return behind

    async def close(self) -> None:
        """Keeps what it can within a moment."""
        self._closing = True
        self._wake.set()
        self._hurry.set()
        self._current.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])
        self._show_progress()
        try:
            await self._thread.close(self._close_library)
        except Exception as error:
            log.warning("the session index did not close as it should: %s", error)

    # ── The task ────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        failures, commits = 0, 0
        while not self._closing:
            try:
                library = await self._open()
                # What is there can be found meanwhile.
                await self._rest(failures)
                await self._keep_up(library)
                return
            except DamagedError as error:
                log.warning("the session index is made anew from the logs: %s", error)
                self.rebuilds += 1
                await self._thread.run(self._close_library)
                await self._thread.run(Library.wipe, self._directory)
            except Exception as error:
                log.warning("the session index does not get on: %s", error)
                self.error = str(error) or type(error).__name__
                is_open = self.library is not None
                await self._thread.run(self._close_library)
                self._show_progress()
                if not is_open:
                    await self._rest(failures + 1)
            failures = failures + 1 if self.commits == commits else 0
            commits = self.commits

    async def _open(self) -> Library:
        self.library = await self._thread.run(Library, self._directory)
        self.view = self.library.view()
        was_complete = await self._thread.run(self._was_complete)
        # Where storage is shared, others have gone on since.
        if was_complete and not await self._thread.run(self.library.manifest.cursor):
            self._current.set()
        self._backlog.is_surveyed = False
        self._damage = ""
        self.is_verified = False
        self._show_progress()
        return self.library

    def _close_library(self) -> None:
        library, self.library, self.view = self.library, None, None
        if library is not None:
            library.close()
            if self._is_complete and self._directory is not None:
                (self._directory / COMPLETE).write_text("all logs were read\n")

    def _was_complete(self) -> bool:
        """Whether all logs were read when it was last closed. Only once: from now on they grow."""
        if self._directory is None:
            return False
        mark = self._directory / COMPLETE
        was_complete = mark.exists()
        mark.unlink(missing_ok=True)
        return was_complete

    async def _rest(self, failures: int) -> None:
        """After some in a row, longer each time; not after the first, which may be the last."""
        seconds = min(FIRST_PAUSE * 2 ** min(failures, 9), LAST_PAUSE) if failures > 1 else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._closing:
                    self._wake.clear()
                    await self._wake.wait()

    async def _keep_up(self, library: Library) -> None:
        """Until it is closed."""
        verification: asyncio.Future[None] | None = None
        try:
            while True:
                if self._damage:
                    raise DamagedError(self._damage)
                if not self._backlog.is_surveyed:
                    await self._backlog.survey(library)
                # All changes up to it are in the backlog or in the tail by now, and read below.
                cursor = self._backlog.cursor
                await self._round(library)
                is_current = self._backlog.is_surveyed and not self._backlog
                if is_current and not self._backlog.unread and library.is_suspect:
                    await self._thread.run(library.trust)
                if self._closing:
                    self._is_complete = is_current and not self._backlog.unread and not self._tail
                    return
                if is_current:
                    self.error = ""
                    self._current.set()
                if self._is_doubted:
                    self._is_doubted = False
                    await self._verify(library)
                elif not self._backlog and self._backlog.is_surveyed:
                    if cursor and not self._backlog.unread:
                        await self._thread.run(library.manifest.set_cursor, cursor)
                    if verification is None:
                        verification = asyncio.ensure_future(self._verify(library))
                    await self._due(library)
        finally:
            if verification is not None:
                verification.cancel()

    async def _due(self, library: Library) -> None:
        """Until there is something to do, and then until it is enough."""
        self._wake.clear()
        if not self._is_needed():
            self._is_resting = True
            await self._rest_until_woken(library)
            self._is_resting = False
            if self._backlog:
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._hurry.wait()

    async def _rest_until_woken(self, library: Library) -> None:
        try:
            async with asyncio.timeout(AGAIN_SECONDS if self._backlog.unread else None):
                if self._backlog.cursor:
                    await self._look_until_woken(library)
                else:
                    await self._wake.wait()
        except TimeoutError:
            self._backlog.is_surveyed = False

    async def _look_until_woken(self, library: Library) -> None:
        while not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
                    return
            with contextlib.suppress(StorageError):  # it is away: the next look may find it
                await self._look(library)
            if self._backlog:
                return

    def _is_needed(self) -> bool:
        doubts = self._damage or self._is_doubted
        return bool(self._tail or self._stale or doubts or not self._backlog.is_surveyed)

    async def _verify(self, library: Library) -> None:
        """Sees what opening does not: a file whose inside is not what was written."""
        try:
            await asyncio.to_thread(library.verify)
            self.is_verified = True
        except (DamagedError, OSError) as error:
            if self.library is library:
                self._damage = str(error)
                self.wake(hurry=True)

    # ── Following ───────────────────────────────────────────────────────────────────────────

    async def _round(self, library: Library) -> None:
        """What was deleted, what was just said, and some of what is behind, in one commit."""
        self._hurry.clear()
        gone, said = self._tail.taken()
        stale, self._stale = self._stale, set()
        self._backlog.add(stale)
        places = await self._thread.run(library.places, list(gone), list(stale), said)
        are_read = await self._read(library, places)
        while self._backlog and library.uncommitted < COMMIT_MANY:
            some = self._backlog.first(LOGS)
            await self._read(library, await self._thread.run(library.positions, list(some)))
            self._backlog.remove(some)
            if self._hurry.is_set():
                break
        rows: list[Row] = []
        if library.is_dirty:
            self._is_swollen = self._is_swollen or library.uncommitted >= COMMIT_MANY
            self.view, rows = await self._thread.run(library.commit)
            self.commits += 1
            self.error = ""
        self._tail.committed(gone, rows)
        self._show_progress()
        await self._thread.run(library.let_go)
        if self._is_swollen and not self._backlog:
            self._is_swollen = False
            await asyncio.to_thread(give_back)
        if are_read:
            await self._settle(library, said)

    async def _read(self, library: Library, positions: dict[str, int]) -> bool:
        """These logs, each from its position to its end. False when one could not be read.

        Raises StorageUnavailableError: then none can, and all are looked at again later.
        """
        are_read = True
        while positions:
            some = [(handle, positions.pop(handle)) for handle in list(positions)[:LOGS]]
            taken: list[tuple[str, Followed | None, bool]] = []
            found = await self._storage.follow(some, LOG_BYTES)
            for (handle, _), followed in zip(some, found, strict=True):
                if isinstance(followed, StorageUnavailableError):
                    raise followed
                if isinstance(followed, StorageError):
                    self._backlog.put_off(handle, followed)
                    are_read = False
                    continue
                self._backlog.was_read(handle)
                agent = followed.pair.agent if followed is not None else ""
                taken.append((handle, followed, self._index_tool_results(agent)))
            positions |= await self._thread.run(library.take_all, taken)
        return are_read

    async def _settle(self, library: Library, said: list[Pair]) -> None:
        """What the tail has that no log has, after all were read: gone without our being told.

        First all logs are looked through, since one may be called otherwise than we thought.
        """
        left = self._tail.left(said)
        unknown = set(await self._thread.run(library.unknown, left)) if left else set()
        missing = unknown - self._missing
        for pair in set(left) - missing:
            self._tail.drop(pair)
        self._missing = missing
        if missing:
            self._backlog.is_surveyed = False

    def _show_progress(self) -> None:
        """To those who wait for any."""
        self._tried.set()
        self._progress.set()
        self._progress = asyncio.Event()
