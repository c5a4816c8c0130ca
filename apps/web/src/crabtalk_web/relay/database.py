"""The database: one SQLite file in WAL mode, one writer thread and a few reader threads.

All jobs that wait while the writer flushes share the next transaction, so that many clients share
one flush. Each job is applied completely or not at all, and answered only after the commit.
"""

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from .errors import RelayConfigError, RelayError
from .schema import migrate_database

P = ParamSpec("P")
T = TypeVar("T")

READER_THREADS = 2
# Limits how long other jobs wait, and how much a crash undoes.
MAX_BATCH = 256
BUSY_MS = 5000
# 32 MB: a checkpoint costs two more flushes, and every waiting job waits for them.
CHECKPOINT_PAGES = 8000

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class WriteJob:
    function: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class WriteStatistics:
    jobs: int = 0
    transactions: int = 0
    waiting: int = 0


class RelayDatabase:
    """The constructor opens the file, and raises RelayConfigError."""

    def __init__(self, path: Path, *, flush: bool = True) -> None:
        self._path = path
        self._flush = flush
        self._jobs: deque[WriteJob] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.statistics = WriteStatistics()
        self._thread_local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its WAL file the same permissions.
            path.touch(mode=0o600)
            path.chmod(0o600)
            self._writer = self._connect()
            migrate_database(self._writer)
        except (OSError, sqlite3.Error) as error:
            raise RelayConfigError(
                f"cannot open {path}: {error}; check the folder, or restore a copy"
            ) from None
        self._pool = ThreadPoolExecutor(READER_THREADS, "relay-read")
        self._thread = threading.Thread(target=self._run_writer, name="relay-write", daemon=True)
        self._thread.start()

    async def write(
        self,
        operation: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return the result of `operation` after its commit. Results are delivered in commit order.
        Cancellation does not stop the job."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = WriteJob(lambda db: operation(db, *args, **kwargs), future)
        with self._wake:
            if self._closing:
                raise RelayError(503, "the relay is stopping; try again in a moment")
            self._jobs.append(job)
            self._wake.notify()
        return await future

    async def read(
        self,
        operation: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return the result of `operation`, which sees all earlier commits."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: self._read(operation, *args, **kwargs)
        )

    async def close(self) -> None:
        """Finish all queued jobs and close the database."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._pool.shutdown)
        for reader in self._readers:
            reader.close()
        self._writer.close()

    # ── In threads ──────────────────────────────────────────────────────────────────────────

    def _connect(self) -> sqlite3.Connection:
        # Closed by the loop's thread, once the other threads have ended.
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if self._flush else 'NORMAL'}")
        db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        db.execute("PRAGMA foreign_keys = ON")
        db.row_factory = sqlite3.Row
        return db

    def _read(
        self,
        operation: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        db: sqlite3.Connection | None = getattr(self._thread_local, "db", None)
        if db is None:
            db = self._thread_local.db = self._connect()
            db.execute("PRAGMA query_only = ON")
            self._readers.append(db)
        return operation(db, *args, **kwargs)

    def _run_writer(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._closing:
                    self._wake.wait()
                if not self._jobs:
                    return
                count = min(len(self._jobs), MAX_BATCH)
                jobs = [self._jobs.popleft() for _ in range(count)]
                self.statistics.waiting = len(self._jobs)
            self._run_batch(jobs)
            report_results(jobs)

    def _run_batch(self, jobs: list[WriteJob]) -> None:
        self.statistics.jobs += len(jobs)
        self.statistics.transactions += 1
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._run_job(job)
            self._writer.execute("COMMIT")
        except Exception:
            log.exception("nothing could be kept")
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            for job in jobs:
                job.error = RelayError(
                    507, "the relay cannot write its database; look at its disk, then try again"
                )

    def _run_job(self, job: WriteJob) -> None:
        self._writer.execute("SAVEPOINT work")
        try:
            job.result = job.function(self._writer)
        except Exception as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # a failure of the disk, not of the job
            job.error = error
            self._writer.execute("ROLLBACK TO work")
        self._writer.execute("RELEASE work")


def report_results(jobs: list[WriteJob]) -> None:
    """Call into the loop once for the whole batch."""
    with suppress(RuntimeError):  # the loop is closed
        jobs[0].future.get_loop().call_soon_threadsafe(resolve_futures, jobs)


def resolve_futures(jobs: list[WriteJob]) -> None:
    for job in jobs:
        if job.future.done():
            continue  # the waiting task was cancelled
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
