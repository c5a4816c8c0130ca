"""LogWriter: the one thread that appends to logs, with group commit.

All jobs that wait when a write ends are written together, whatever conversations they belong to.
Few files are flushed one by one, many with a single flush of their file system.
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

from . import log_file as logs
from .checksums import seal_lines
from .errors import StorageError

log = logging.getLogger(__name__)

# From so many files on, one flush of the file system is cheaper than one per file.
MIN_FOR_SHARED_FLUSH = 8
# How many logs' last checksums are remembered; others are read from the end of the log.
MAX_REMEMBERED_SUMS = 4096


class AppendJob(msgspec.Struct, eq=False):
    """Lines for one log, and the future that reports their result."""

    name: str
    data: bytes
    create: bool
    done: asyncio.Future[None]
    seal: bool = False
    suffix: str = ".jsonl"
    durable: bool = True  # False: written, and flushed with whatever is flushed next
    error: Exception | None = None


class LogWriter:
    """The first append starts the thread. Without `flush`, the system decides when to write."""

    def __init__(self, directory: Path, *, flush: bool = True) -> None:
        self._directory = directory
        self._flush = flush
        self._jobs: deque[AppendJob] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        # By log: its size, and the checksum of its last line. Only the thread uses it.
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
        """Returns a future that is done when the lines are durable, or has a StorageError when they
        could not be written.

        With `seal` each line, which must be a JSON object, gets its checksums.
        """
        loop = asyncio.get_running_loop()
        job = AppendJob(name, data, create, loop.create_future(), seal, suffix, durable)
        with self._wake:
            if self._is_closing:
                job.done.set_exception(StorageError("storage is closed"))
                return job.done
            self._jobs.append(job)
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name="log-writer", daemon=True)
            self._thread.start()
        return job.done

    async def close(self) -> None:
        """Waits until all jobs so far are written."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # ── In the thread ───────────────────────────────────────────────────────────────────────

    def _run_thread(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._is_closing:
                    self._wake.wait()
                if not self._jobs:
                    return
                jobs = list(self._jobs)
                self._jobs.clear()
            try:
                self._write(jobs)
            except BaseException as error:
                # Every job needs a result, or its caller would wait forever.
                log.exception("the log writer failed")
                for job in jobs:
                    job.error = job.error or to_write_error(job.name, error)
            self._report_results(jobs)

    def _write(self, jobs: list[AppendJob]) -> None:
        logs: dict[str, list[AppendJob]] = {}
        for job in jobs:
            group = logs.setdefault(job.name, [])
            if job.create and group:
                fail_jobs([job], FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))
            else:
                group.append(job)
        written: list[tuple[int, int, list[AppendJob]]] = []  # descriptor, size before, jobs
        try:
            for name, group in logs.items():
                try:
                    written.append(self._append(name, group))
                except OSError as error:
                    fail_jobs(group, error)
            self.appends += len(jobs)
            if self._flush:
                self._flush_all(written)
        finally:
            for descriptor, _, _ in written:
                os.close(descriptor)

    def _append(self, name: str, group: list[AppendJob]) -> tuple[int, int, list[AppendJob]]:
        path = self._directory / f"{name}{group[0].suffix}"
        create = group[0].create
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        if create:
            self._make_directory()
            flags |= os.O_CREAT | os.O_EXCL
        descriptor = os.open(path, flags, 0o600)
        before = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, self._seal_jobs(name, path, before, group))
            if create and self._flush:
                flush_directory(self._directory)
        except OSError:
            self._last_sums.pop(name, None)
            truncate_back(descriptor, before)
            os.close(descriptor)
            if create:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        return descriptor, before, group

    def _seal_jobs(self, name: str, path: Path, before: int, group: list[AppendJob]) -> bytes:
        """The data of all jobs, each line with its checksums where a job asks for them."""
        if not any(job.seal for job in group):
            return b"".join(job.data for job in group)
        size, last = self._last_sums.pop(name, (-1, b""))
        if size != before:  # not remembered, or another program changed the log
            last = logs.read_last_link(path, before) if before else b""
        pieces: list[bytes] = []
        for job in group:
            data = job.data
            if job.seal:
                data, last = seal_lines(data, last)
            pieces.append(data)
        sealed = b"".join(pieces)
        if all(job.seal for job in group):
            self._last_sums[name] = (before + len(sealed), last)
            if len(self._last_sums) > MAX_REMEMBERED_SUMS:
                self._last_sums.popitem(last=False)
        return sealed

    def _make_directory(self) -> None:
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._flush:
                flush_directory(self._directory.parent)

    def _flush_all(self, written: list[tuple[int, int, list[AppendJob]]]) -> None:
        written = [entry for entry in written if any(job.durable for job in entry[2])]
        if len(written) >= MIN_FOR_SHARED_FLUSH and (flush := file_system_flush()) is not None:
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
                truncate_back(descriptor, before)
                fail_jobs(group, error)

    def _report_results(self, jobs: list[AppendJob]) -> None:
        """Resolves the futures with one call per event loop."""
        loops: dict[asyncio.AbstractEventLoop, list[AppendJob]] = {}
        for job in jobs:
            loops.setdefault(job.done.get_loop(), []).append(job)
        for loop, waiting in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(resolve_jobs, waiting)


def resolve_jobs(jobs: list[AppendJob]) -> None:
    for job in jobs:
        if job.done.done():
            continue  # the caller was cancelled
        if job.error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(job.error)


def fail_jobs(group: list[AppendJob], error: OSError) -> None:
    for job in group:
        job.error = to_write_error(job.name, error)


def to_write_error(name: str, error: BaseException) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return StorageError(f"the log {name} is gone; say it again to begin a new one")
    reason = getattr(error, "strerror", None) or error
    return StorageError(f"cannot write to the log {name}: {reason}; nothing of it was kept")


def write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def truncate_back(descriptor: int, size: int) -> None:
    """Removes the written part of lines that could not be stored."""
    with contextlib.suppress(OSError):  # the next repair removes an incomplete line
        os.ftruncate(descriptor, size)


def flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system_flush() -> Callable[[int], None] | None:
    """Linux's syncfs, which the standard library does not offer; None elsewhere."""
    import ctypes  # imported late: a daemon with few active conversations never gets here

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return None

    def flush(descriptor: int) -> None:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return flush
