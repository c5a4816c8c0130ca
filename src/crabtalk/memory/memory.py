"""Memory: the entries of one agent, in RAM, in its CRMEM file and in the journal next to it.

Synchronous. A write blocks until it is on disk, so whoever has an event loop writes from a thread;
reading and searching never wait for the disk, and may go on meanwhile.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from . import crmem, snapshot
from .changes import archived, change_of, renumbered
from .entry import Entry, Kind
from .errors import StoreError
from .journal import Change, Journal, Put
from .ops import Op
from .recovery import Recovery, recover
from .table import Table, terms
from .tokens import tokens

log = logging.getLogger(__name__)
Clock = Callable[[], float]

# The journal is folded into the snapshot when it is longer than this and than half the snapshot:
# rarely enough that a write costs what its entry costs.
JOURNAL_BYTES = 64 * 1024


class Hit(NamedTuple):
    entry: Entry
    score: float


class Statistics(NamedTuple):
    notes: int
    archives: int
    topics: int
    terms: int
    snapshot_bytes: int
    journal_bytes: int
    folds: int


class Memory:
    """Made by `open` and `read`. Closed, the CRMEM file alone has it all."""

    def __init__(self, path: Path, found: Recovery, journal: Journal | None, now: Clock) -> None:
        self.path = path
        self._journal = journal
        self._now = now
        self._base = found.base
        self._folds = 0
        # Writers wait for each other with this one, and for the disk; nobody else takes it.
        self._writing = threading.Lock()
        # Held while RAM is read or changed, never while anything is written.
        self._state = threading.Lock()
        self._table = Table(found.entries.values(), found.next_id)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, flush: bool = True, now: Clock = time.time
    ) -> Self:
        """To read and write. What is not there is an empty memory, and its file comes with the
        first write. Damaged files are set aside, and what could be read of them is here.

        Without `flush` a write survives the process, but perhaps not a power cut.
        """
        path = Path(path)
        with told(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal = Journal(snapshot.journal_of(path), flush=flush)
            try:
                data, lines = snapshot.read_file(path), journal.read()
                found = recover(data, lines)
                report(path, found)
                if found.torn:
                    log.warning("%s ended in half a line, which is cut", journal.path.name)
                # Copies first, before anything is written over what is damaged.
                if found.snapshot_faults or found.is_exchanged:
                    snapshot.set_aside(path, data, now())
                if found.journal_faults:
                    snapshot.set_aside(journal.path, lines, now())
                snapshot.aside_of(path).unlink(missing_ok=True)
                journal.cut(found.whole)
                memory = cls(path, found, journal, now)
                if found.snapshot_faults or found.journal_faults:
                    memory._fold_if_possible(journal)
            except BaseException:
                journal.close(remove=False)
                raise
            return memory

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """As it is now, whoever writes it meanwhile. Nothing is written, and nothing can be."""
        path = Path(path)
        with told(path):
            found = recover(*snapshot.read_both(path))
        report(path, found)
        return cls(path, found, None, time.time)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def get(self, name: str) -> Entry | None:
        """The entry of that name; else the one with that alias."""
        with self._state:
            return self._table.get(name)

    def search(self, query: str, limit: int = 5) -> list[Hit]:
        """Best first. Every entry that has any of the words counts; cutting off is the caller's."""
        asked = tokens(query)
        with self._state:
            return [Hit(entry, score) for entry, score in self._table.search(asked, limit)]

    def entries(self) -> list[Entry]:
        """All, by id."""
        with self._state:
            return list(self._table)

    def statistics(self) -> Statistics:
        with self._state:
            return Statistics(
                notes=self._table.count(Kind.NOTE),
                archives=self._table.count(Kind.ARCHIVE),
                topics=self._table.count(Kind.TOPIC),
                terms=self._table.index.terms,
                snapshot_bytes=self._base.size,
                journal_bytes=self._journal.size if self._journal is not None else 0,
                folds=self._folds,
            )

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    def apply(self, op: Op) -> Entry:
        """The entry as the op left it, or as it was when it is removed.

        On disk when this returns. When it raises, nothing has changed, here or there.
        """
        with self._writing:
            journal = self._writable()
            change = change_of(op, self._table, int(self._now()))
            return self._make(change, journal)

    def archive(self, name: str, content: str, created_at: int | None = None) -> Entry:
        """The archive of that name, added or replaced. Doing it again changes nothing."""
        with self._writing:
            journal = self._writable()
            at = int(self._now()) if created_at is None else created_at
            change = archived(name, content, at, self._table)
            return change if isinstance(change, Entry) else self._make(change, journal)

    def checkpoint(self) -> None:
        """Folds the journal into the snapshot now."""
        with self._writing, told(self.path):
            self._fold(self._writable())

    def close(self) -> None:
        """Folds the journal and lets go of the memory. Closing twice is closing once.

        When the disk refuses, the journal stays, and the next to open finds everything.
        """
        with self._writing:
            journal, self._journal = self._journal, None
            if journal is None:
                return
            folded = not journal.size or self._fold_if_possible(journal)
            journal.close(remove=folded)

    # ── The tree of pages ───────────────────────────────────────────────────────────────────

    def dump(self, directory: str | os.PathLike[str]) -> None:
        """Writes the entries as a book of markdown pages, in place of those of an earlier dump."""
        from . import tree  # late: few ever write a book

        tree.dump(self.entries(), Path(directory))

    def load(self, directory: str | os.PathLike[str]) -> None:
        """The pages of such a book instead of all there is. When it raises, nothing has changed."""
        self._writable()
        from . import tree

        self.replace(tree.load(Path(directory), int(self._now())))

    def replace(self, entries: Iterable[Entry]) -> None:
        """These instead of all there is, numbered anew. When it raises, nothing has changed."""
        fresh = renumbered(entries)
        with self._writing, told(self.path):
            journal = self._writable()
            table = Table(fresh, len(fresh) + 1)
            self._fold(journal, table)
            with self._state:
                self._table = table

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ── With the write lock ─────────────────────────────────────────────────────────────────

    def _writable(self) -> Journal:
        if self._journal is None:
            raise StoreError(f"{self.path.name} is closed or open to read only; open it to write")
        return self._journal

    def _make(self, change: Change, journal: Journal) -> Entry:
        """Disk first, so that RAM never has what the disk has not."""
        journal.append([change], base=self._base)
        if isinstance(change, Put):
            entry = change.entry
            self._exchange(self._table.find(entry.id), entry)
        else:
            entry = self._table[change.id]
            self._exchange(entry, None)
        if not self._base.size or journal.size > max(JOURNAL_BYTES, self._base.size // 2):
            self._fold_if_possible(journal)
        return entry

    def _exchange(self, before: Entry | None, after: Entry | None) -> None:
        """Terms are found first: a large entry takes a while, and searches must not wait for it."""
        lost = terms(before) if before is not None else []
        found = terms(after) if after is not None else []
        with self._state:
            if before is not None:
                self._table.drop(before, lost)
            if after is not None:
                self._table.put(after, found)

    def _fold_if_possible(self, journal: Journal) -> bool:
        """Nothing is lost when it is not: the journal only grows."""
        try:
            self._fold(journal)
        except (OSError, StoreError) as error:
            log.warning("%s could not be folded, its journal stays: %s", self.path.name, error)
            return False
        return True

    def _fold(self, journal: Journal, table: Table | None = None) -> None:
        """A new snapshot, and a journal that is empty.

        The journal names the new snapshot before it is in place: whichever of the two a crash
        leaves there, what follows the line that names it is what it lacks.
        """
        table = self._table if table is None else table
        data = crmem.encode(table, table.next_id)
        base = snapshot.identity(data)
        aside = snapshot.write_aside(self.path, data)
        try:
            journal.append([base], base=self._base)
            aside.replace(self.path)
        finally:
            aside.unlink(missing_ok=True)
        self._base = base
        self._folds += 1
        try:
            snapshot.flush_directory(self.path.parent)
            journal.empty()
        except OSError as error:
            # A journal that is longer than it need be is only that.
            log.warning("the journal of %s could not be emptied: %s", self.path.name, error)


def report(path: Path, found: Recovery) -> None:
    if found.snapshot_faults:
        log.error(
            "%s is damaged (%s); %d entries could be read",
            path.name,
            "; ".join(found.snapshot_faults[:5]),
            len(found.entries),
        )
    for fault in found.journal_faults:
        log.error("the journal of %s is damaged: %s", path.name, fault)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What the file system refuses is a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot use {error.filename or path}: {error.strerror or error}; see that it is a "
            "plain file of yours, in a directory you may write"
        ) from None
