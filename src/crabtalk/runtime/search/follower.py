"""Follower: brings the library up to date with the logs, in the background.

A rebuild, what a crash left undone and what was said a second ago are the same to it: logs that
reach further than they were read. One task decides, one thread does what blocks.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from crabtalk.storage import Followed, Pair, Storage

from .library import Library, View
from .manifest import Row
from .shelf import DamagedError
from .tail import Tail

log = logging.getLogger(__name__)
T = TypeVar("T")

# Messages that are committed together, and seconds after which fewer are.
COMMIT_MESSAGES = 256
COMMIT_SECONDS = 2.0
# While it catches up: more at once, of so many logs side by side, so much of each.
COMMIT_MANY = 20_000
LOGS = 16
LOG_BYTES = 256 * 1024
# How long `close` waits for what is not committed; the logs have it.
CLOSING_SECONDS = 2.0
# Pauses after a failure: twice as long each time.
FIRST_PAUSE, LAST_PAUSE = 0.5, 60.0


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
        self._storage = storage
        self._directory = directory
        self._tail = tail
        self._index_tool_results = index_tool_results
        self._backlog: dict[str, None] = {}  # handles of logs to read, in order
        self._is_surveyed = False
        self._missing: set[Pair] = set()  # of whom no log was found, the last time
        self._stale: set[str] = set()
        self._damage = ""
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._wake = asyncio.Event()  # there is something to do
        self._hurry = asyncio.Event()  # and it should not wait for more
        self._tried = asyncio.Event()  # to open the library
        self._progress = asyncio.Event()  # another one each time there is some

    # ── What others say ─────────────────────────────────────────────────────────────────────

    @property
    def behind(self) -> int:
        """Logs still to be read, as far as is known."""
        return len(self._backlog)

    def start(self) -> None:
        if self._task is None and not self._closing:
            self._task = asyncio.ensure_future(self._work())

    def wake(self, *, hurry: bool = False) -> None:
        """There is something in the tail."""
        self.start()
        self._wake.set()
        if hurry or self._tail.messages >= COMMIT_MESSAGES or self._tail.overflowed:
            self._hurry.set()

    def survey(self) -> None:
        """Look through the logs again."""
        self._is_surveyed = False
        self.wake(hurry=True)

    def is_stale(self, handle: str) -> None:
        """Its log does not say what the library says."""
        self._stale.add(handle)
        self.wake()

    def is_damaged(self, library: Library, reason: str) -> None:
        if self.library is library:
            self._damage = reason
            self.wake(hurry=True)

    async def opened(self) -> None:
        """Until there is a library, or a reason why not."""
        self.start()
        await self._tried.wait()

    async def caught_up(self) -> None:
        """Until the tail has all that the library does not, or there is no hope for it."""
        while self._tail.overflowed and not self.error and not self._closing:
            self._hurry.set()
            await self._progress.wait()

    async def close(self) -> None:
        """Keeps what it can within a moment."""
        self._closing = True
        self._wake.set()
        self._hurry.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task])
        self._show_progress()
        if self._thread is not None:
            self._thread.submit(self._close_library)
            await asyncio.to_thread(self._thread.shutdown)

    # ── The task ────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        pause = FIRST_PAUSE
        while not self._closing:
            commits = self.commits
            try:
                await self._keep_up(await self._open())
                return
            except DamagedError as error:
                log.warning("the session index is made anew from the logs: %s", error)
                self.rebuilds += 1
                await self._in_thread(self._close_library)
                await self._in_thread(Library.wipe, self._directory)
            except Exception as error:
                log.warning("the session index does not get on: %s", error)
                self.error = str(error) or type(error).__name__
                await self._in_thread(self._close_library)
                self._show_progress()
            pause = FIRST_PAUSE if self.commits > commits else min(2 * pause, LAST_PAUSE)
            if self.error or pause > 2 * FIRST_PAUSE:
                await self._rest(pause)

    async def _open(self) -> Library:
        self.library = await self._in_thread(Library, self._directory)
        self.view = self.library.view()
        self._is_surveyed = False
        self._damage = ""
        self._show_progress()
        return self.library

    def _close_library(self) -> None:
        library, self.library, self.view = self.library, None, None
        if library is not None:
            library.close()

    async def _rest(self, seconds: float) -> None:
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
                if not self._is_surveyed:
                    await self._survey(library)
                await self._round(library)
                if self._closing:
                    return
                if not self._backlog and self._is_surveyed:
                    if verification is None:
                        verification = asyncio.ensure_future(self._verify(library))
                    await self._due()
        finally:
            if verification is not None:
                verification.cancel()

    async def _due(self) -> None:
        """Until there is something to do, and then until it is enough."""
        self._wake.clear()
        if not (self._tail or self._stale or self._damage):
            await self._wake.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._hurry.wait()
        self._hurry.clear()

    async def _verify(self, library: Library) -> None:
        """Sees what opening does not: a file whose inside is not what was written."""
        try:
            await asyncio.to_thread(library.verify)
        except (DamagedError, OSError) as error:
            self.is_damaged(library, str(error))

    # ── Following ───────────────────────────────────────────────────────────────────────────

    async def _survey(self, library: Library) -> None:
        """Which logs reach further than they were read, and which are gone."""
        self._is_surveyed = True
        ends = await self._storage.ends()
        known = await self._in_thread(library.manifest.read_so_far)
        allowed = {agent: self._index_tool_results(agent) for _, agent, _ in known.values()}

        def is_read(handle: str, end: int) -> bool:
            position, agent, tool_results = known.get(handle, (-1, "", False))
            return position == end and tool_results == allowed[agent]

        def compare() -> tuple[list[str], list[str]]:
            behind = [handle for handle, end in ends.items() if not is_read(handle, end)]
            return behind, [handle for handle in known if handle not in ends]

        behind, gone = await asyncio.to_thread(compare)
        self._backlog = dict.fromkeys(behind)
        await self._in_thread(library.remove_all, gone)

    async def _round(self, library: Library) -> None:
        """What was deleted, what was just said, and some of what is behind, in one commit."""
        gone, said = self._tail.taken()
        stale, self._stale = self._stale, set()
        self._backlog |= dict.fromkeys(stale)
        places = await self._in_thread(library.places, list(gone), list(stale), said)
        are_read = await self._read(library, places)
        while self._backlog and library.uncommitted < COMMIT_MANY and not self._hurry.is_set():
            some = list(self._backlog)[:LOGS]
            await self._read(library, await self._in_thread(library.positions, some))
            for handle in some:
                self._backlog.pop(handle, None)
        rows: list[Row] = []
        if library.is_dirty:
            self.view, rows = await self._in_thread(library.commit)
            self.commits += 1
            self.error = ""
        self._tail.committed(gone, rows)
        self._show_progress()
        if are_read:
            await self._settle(library, said)

    async def _read(self, library: Library, positions: dict[str, int]) -> bool:
        """These logs, each from its position to its end. False when one could not be read."""
        are_read = True
        while positions:
            some = [(handle, positions.pop(handle)) for handle in list(positions)[:LOGS]]
            found = await asyncio.gather(
                *(self._storage.follow(handle, at, LOG_BYTES) for handle, at in some),
                return_exceptions=True,
            )
            taken: list[tuple[str, Followed | None, bool]] = []
            for (handle, _), followed in zip(some, found, strict=True):
                if isinstance(followed, BaseException):
                    log.warning("the log %s cannot be searched: %s", handle, followed)
                    are_read = False
                    continue
                agent = followed.pair.agent if followed is not None else ""
                taken.append((handle, followed, self._index_tool_results(agent)))
            positions |= await self._in_thread(library.take_all, taken)
        return are_read

    async def _settle(self, library: Library, said: list[Pair]) -> None:
        """What the tail has that no log has, after all were read: gone without our being told.

        First all logs are looked through, since one may be called otherwise than we thought.
        """
        left = self._tail.left(said)
        unknown = set(await self._in_thread(library.unknown, left)) if left else set()
        missing = unknown - self._missing
        for pair in set(left) - missing:
            self._tail.drop(pair)
        self._missing = missing
        if missing:
            self._is_surveyed = False

    # ── Threads ─────────────────────────────────────────────────────────────────────────────

    def _in_thread(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """All that writes runs there, one after the other."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-index")
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _show_progress(self) -> None:
        """To those who wait for any."""
        self._tried.set()
        self._progress.set()
        self._progress = asyncio.Event()
