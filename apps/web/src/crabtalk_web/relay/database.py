"""The database: one SQLite file in WAL mode, one thread that writes, a few that read.

Whatever waits when the writer comes back from the disk goes into one transaction: however many
clients send, they share the flush. Each piece of work is whole or not at all, and is answered only
once it is kept.
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
# The others shall not wait for a queue of any length, nor a crash undo one.
MAX_BATCH = 256
BUSY_MS = 5000
# 32 MB: folding the log into the file costs two more flushes, which all who wait then wait for.
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
    """Opened by its constructor, which raises RelayConfigError."""

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
            # SQLite gives its log the permissions it finds here.
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
        do: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **given: P.kwargs,
    ) -> T:
        """What `do` returns, once it is kept. Those who are told of it are told in the order in
        which it happened. When cancelled, the work is done all the same."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        work = WriteJob(lambda db: do(db, *args, **given), future)
        with self._wake:
            if self._closing:
                raise RelayError(503, "the relay is stopping; try again in a moment")
            self._jobs.append(work)
            self._wake.notify()
        return await future

    async def read(
        self,
        do: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **given: P.kwargs,
    ) -> T:
        """What `do` returns; it sees whatever was kept before."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: self._read(do, *args, **given))

    async def close(self) -> None:
        """What was given before is kept."""
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
        # Closed by the loop's thread, once the others have ended.
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
        do: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **given: P.kwargs,
    ) -> T:
        db: sqlite3.Connection | None = getattr(self._thread_local, "db", None)
        if db is None:
            db = self._thread_local.db = self._connect()
            db.execute("PRAGMA query_only = ON")
            self._readers.append(db)
        return do(db, *args, **given)

    def _run_writer(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._closing:
                    self._wake.wait()
                if not self._jobs:
                    return
                count = min(len(self._jobs), MAX_BATCH)
                works = [self._jobs.popleft() for _ in range(count)]
                self.statistics.waiting = len(self._jobs)
            self._run_batch(works)
            report_results(works)

    def _run_batch(self, works: list[WriteJob]) -> None:
        self.statistics.jobs += len(works)
        self.statistics.transactions += 1
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for work in works:
                self._run_job(work)
            self._writer.execute("COMMIT")
        except Exception:
            log.exception("nothing could be kept")
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            for work in works:
                work.error = RelayError(
                    507, "the relay cannot write its database; look at its disk, then try again"
                )

    def _run_job(self, work: WriteJob) -> None:
        self._writer.execute("SAVEPOINT work")
        try:
            work.result = work.function(self._writer)
        except Exception as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # the disk, not the work
            work.error = error
            self._writer.execute("ROLLBACK TO work")
        self._writer.execute("RELEASE work")


def report_results(works: list[WriteJob]) -> None:
    """One call into the loop, however many wait there."""
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        works[0].future.get_loop().call_soon_threadsafe(resolve_futures, works)


def resolve_futures(works: list[WriteJob]) -> None:
    for work in works:
        if work.future.done():
            continue  # whoever waited was cancelled
        if work.error is None:
            work.future.set_result(work.result)
        else:
            work.future.set_exception(work.error)
