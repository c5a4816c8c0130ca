"""Scribe: the one thread that appends to logs, and flushes many of them at once.

Whatever waits when it comes back from the disk goes out together, however many conversations it
belongs to: few files are flushed one by one, many with a single flush of their file system.
"""

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from . import log as logs
from .checksums import seal_lines
from .errors import StorageError

log = logging.getLogger(__name__)

# From here on one flush of everything is cheaper than one of each.
MANY = 8
# Logs whose last checksum is remembered; that of another one is read from its end.
REMEMBERED = 4096


class Append(msgspec.Struct, eq=False):
    """Lines for one log, and who waits for them."""

    name: str
    data: bytes
    create: bool
    done: asyncio.Future[None]
    seal: bool = False
    suffix: str = ".jsonl"
    durable: bool = True  # False: written, and flushed with whatever is flushed next
    error: Exception | None = None


class Scribe:
    """Started by its first append. `flush` False leaves it to the system when to write."""

    def __init__(self, directory: Path, *, flush: bool = True) -> None:
        self._directory = directory
        self._flush = flush
        self._waiting: deque[Append] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        # By log: its size, and the checksum of its last line. Used by the thread alone.
        self._last_sums: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self.appends = 0
        self.flushes = 0

    def append(
        self,
        name: str,
        data: bytes,
        *,
        create: bool = False,
        seal: bool = False,
        suffix: str = ".jsonl",
        durable: bool = True,
    ) -> asyncio.Future[None]:
        """The future is done when the lines are kept; it raises StorageError when they are not.

        With `seal` each line, which is a JSON object then, gets its checksums.
        """
        loop = asyncio.get_running_loop()
        job = Append(name, data, create, loop.create_future(), seal, suffix, durable)
        with self._wake:
            if self._closing:
                job.done.set_exception(StorageError("storage is closed"))
                return job.done
            self._waiting.append(job)
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="scribe", daemon=True)
            self._thread.start()
        return job.done

    async def close(self) -> None:
        """What was given before is kept."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # ── In the thread ───────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                if not self._waiting:
                    return
                jobs = list(self._waiting)
                self._waiting.clear()
            try:
                self._write(jobs)
            except BaseException as error:
                # Nobody may wait for ever, whatever happened here.
                log.exception("the scribe failed")
                for job in jobs:
                    job.error = job.error or failed(job.name, error)
            self._report(jobs)

    def _write(self, jobs: list[Append]) -> None:
        logs: dict[str, list[Append]] = {}
        for job in jobs:
            group = logs.setdefault(job.name, [])
            if job.create and group:
                fail([job], FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))
            else:
                group.append(job)
        written: list[tuple[int, int, list[Append]]] = []  # descriptor, size before, jobs
        try:
            for name, group in logs.items():
                try:
                    written.append(self._append(name, group))
                except OSError as error:
                    fail(group, error)
            self.appends += len(jobs)
            if self._flush:
                self._flush_all(written)
        finally:
            for descriptor, _, _ in written:
                os.close(descriptor)

    def _append(self, name: str, group: list[Append]) -> tuple[int, int, list[Append]]:
        path = self._directory / f"{name}{group[0].suffix}"
        create = group[0].create
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        if create:
            self._make_directory()
            flags |= os.O_CREAT | os.O_EXCL
        descriptor = os.open(path, flags, 0o600)
        before = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, self._sealed(name, path, before, group))
            if create and self._flush:
                flush_directory(self._directory)
        except OSError:
            self._last_sums.pop(name, None)
            undo(descriptor, before)
            os.close(descriptor)
            if create:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        return descriptor, before, group

    def _sealed(self, name: str, path: Path, before: int, group: list[Append]) -> bytes:
        """The data of all jobs, each line with its checksums where a job asks for them."""
        if not any(job.seal for job in group):
            return b"".join(job.data for job in group)
        size, last = self._last_sums.pop(name, (-1, b""))
        if size != before:  # not remembered, or somebody else changed the log
            last = logs.last_link(path, before) if before else b""
        pieces: list[bytes] = []
        for job in group:
            data = job.data
            if job.seal:
                data, last = seal_lines(data, last)
            pieces.append(data)
        sealed = b"".join(pieces)
        if all(job.seal for job in group):
            self._last_sums[name] = (before + len(sealed), last)
            if len(self._last_sums) > REMEMBERED:
                self._last_sums.popitem(last=False)
        return sealed

    def _make_directory(self) -> None:
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._flush:
                flush_directory(self._directory.parent)

    def _flush_all(self, written: list[tuple[int, int, list[Append]]]) -> None:
        written = [entry for entry in written if any(job.durable for job in entry[2])]
        if len(written) >= MANY and (flush := file_system_flush()) is not None:
            try:
                flush(written[0][0])
                self.flushes += 1
                return
            except OSError as error:
                log.warning("one flush for all failed (%s); flushing one by one", error.strerror)
        for descriptor, before, group in written:
            try:
                os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)
                self.flushes += 1
            except OSError as error:
                self._last_sums.pop(group[0].name, None)
                undo(descriptor, before)
                fail(group, error)

    def _report(self, jobs: list[Append]) -> None:
        """One call into each loop, however many wait there."""
        loops: dict[asyncio.AbstractEventLoop, list[Append]] = {}
        for job in jobs:
            loops.setdefault(job.done.get_loop(), []).append(job)
        for loop, waiting in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, waiting)


def settle(jobs: list[Append]) -> None:
    for job in jobs:
        if job.done.done():
            continue  # whoever waited was cancelled
        if job.error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(job.error)


def fail(group: list[Append], error: OSError) -> None:
    for job in group:
        job.error = failed(job.name, error)


def failed(name: str, error: BaseException) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return StorageError(f"the log {name} is gone; say it again to begin a new one")
    reason = getattr(error, "strerror", None) or error
    return StorageError(f"cannot write to the log {name}: {reason}; nothing of it was kept")


def write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def undo(descriptor: int, size: int) -> None:
    """Takes back what was written of lines that could not be kept."""
    with contextlib.suppress(OSError):  # then the half line is cut when the log is next opened
        os.ftruncate(descriptor, size)


def flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system_flush() -> Callable[[int], None] | None:
    """Linux's syncfs, which the standard library does not offer; None elsewhere."""
    import ctypes  # late: a daemon with few conversations at once never gets here

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return None

    def flush(descriptor: int) -> None:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return flush
