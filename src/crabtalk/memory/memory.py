"""Memory: the entries of one agent, in RAM, and wherever its journal keeps them: in a CRMEM file,
unless another one is given.

Synchronous. A write blocks until it is kept, so whoever has an event loop writes from a thread;
reading and searching never wait for that, and may go on meanwhile.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from . import crmem, files
from .authors import EVERYTHING, View, label_of
from .changes import archived, change_of, renumbered
from .entry import Entry, Kind
from .errors import StoreError, StoreUnavailableError
from .files import Clock, Files
from .journal import Change, Put
from .ops import Op
from .persistence import Journal, News, Sizes
from .recovery import Recovery
from .sums import Damage, describe_damage
from .table import Table, terms
from .tokens import tokens

# How often a write is decided anew because others were faster. One of all always is, so it takes
# very many of them to come to this.
ATTEMPTS = 200


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
    """Made by `open` and `read`, or by whoever has a journal of another kind: `path` is what it is
    called there. Closed, the CRMEM file alone has it all."""

    def __init__(
        self,
        path: Path,
        entries: Iterable[Entry],
        next_id: int,
        journal: Journal | None,
        *,
        now: Clock = time.time,
        sizes: Sizes | None = None,
        found: Recovery | None = None,
    ) -> None:
        self.path = path
        self._journal = journal
        self._now = now
        self._sizes = sizes or Sizes()  # of what has no journal
        # Writers wait for each other with this one, and for the disk; nobody else takes it.
        self._writing = threading.Lock()
        # Held while RAM is read or changed, never while anything is written.
        self._state = threading.Lock()
        self._table = Table(entries, next_id)
        self._damage = found.damage if found is not None else []
        self._suspects = found.suspects if found is not None else {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, flush: bool = True, now: Clock = time.time
    ) -> Self:
        """To read and write. What is not there is an empty memory, and its file comes with the
        first write. Damaged files are set aside, and what could be read of them is here.

        Without `flush` a write survives the process, but perhaps not a power cut.
        """
        path = Path(path)
        journal, found = Files.open(path, flush=flush, now=now)
        try:
            entries = found.entries.values()
            memory = cls(path, entries, found.next_id, journal, now=now, found=found)
            if found.snapshot_faults or found.journal_faults:
                journal.mend(memory._table)
        except BaseException:
            journal.close(remove=False)
            raise
        return memory

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """As it is now, whoever writes it meanwhile. Nothing is written, and nothing can be."""
        path = Path(path)
        found = files.read(path)
        sizes = Sizes(found.base.size)
        entries = found.entries.values()
        return cls(path, entries, found.next_id, None, sizes=sizes, found=found)

    @staticmethod
    def create(path: str | os.PathLike[str], data: bytes) -> None:
        """From the bytes of a CRMEM file, exactly. Raises NameTakenError where there is one."""
        crmem.decode(data)
        files.create(Path(path), data)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def get(self, name: str) -> Entry | None:
        """The entry of that name; else the one with that alias."""
        with self._state:
            return self._table.get(name)

    def search(self, query: str, limit: int = 5, view: View = EVERYTHING) -> list[Hit]:
        """Best first. Every entry that has any of the words counts; cutting off is the caller's."""
        asked = tokens(query)
        with self._state:
            return [Hit(entry, score) for entry, score in self._table.search(asked, limit, view)]

    def entries(self, view: View = EVERYTHING) -> list[Entry]:
        """All that the view includes, by id."""
        with self._state:
            entries = list(self._table)
        if view == EVERYTHING:
            return entries
        accepts = view.label_filter()
        return [entry for entry in entries if accepts(label_of(entry))]

    def statistics(self) -> Statistics:
        with self._state:
            return Statistics(
                self._table.count(Kind.NOTE),
                self._table.count(Kind.ARCHIVE),
                self._table.count(Kind.TOPIC),
                self._table.index.terms,
                *(self._journal.sizes() if self._journal is not None else self._sizes),
            )

    def damage(self) -> list[Damage]:
        """What was found on opening that differs from the checksums. An entry that was written
        again since is fine, and a new snapshot has a new header and new checksums."""
        is_folded = self._journal is not None and self._journal.sizes().folds > 0
        with self._state:
            return [
                one
                for one in self._damage
                if (
                    self._table.find(one.id) == self._suspects.get(one.id)
                    if one.id is not None
                    else not is_folded
                )
            ]

    @property
    def problem(self) -> str:
        """A sentence about damaged entries, and what to do; empty when nothing is wrong."""
        return describe_damage(self.path.name, self.damage())

    def encode(self) -> bytes:
        """All of it, as a CRMEM file has it."""
        with self._state:
            entries, next_id = list(self._table), self._table.next_id
        return crmem.encode(entries, next_id)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    def apply(self, op: Op) -> Entry:
        """The entry as the op left it, or as it was when it is removed.

        Kept when this returns. When it raises, nothing has changed, here or there; except that
        StoreUnavailableError leaves open what has changed there.
        """
        return self._write(lambda: change_of(op, self._table, int(self._now())))

    def archive(self, name: str, content: str, created_at: int | None = None) -> Entry:
        """The archive of that name, added or replaced. Doing it again changes nothing."""
        at = int(self._now()) if created_at is None else created_at
        return self._write(lambda: archived(name, content, at, self._table))

    def take(self, news: News) -> None:
        """What others wrote, into RAM."""
        with self._writing:
            self._take(news, self._writable())

    def checkpoint(self) -> None:
        """Folds the journal into the snapshot now."""
        with self._writing:
            self._writable().fold(self._table)

    def close(self) -> None:
        """Folds the journal and lets go of the memory. Closing twice is closing once.

        When the disk refuses, the journal stays, and the next to open finds everything.
        """
        with self._writing:
            journal = self._journal
            if journal is None:
                return
            settled = journal.settle(self._table, last=True)
            self._sizes, self._journal = journal.sizes(), None
            journal.close(remove=settled)

    def dissolve(self) -> None:
        """Lets go of what is in RAM, and holds up no other thread with that, as it would if it were
        left to the interpreter. For one that is closed and that nobody reads any more."""
        self._exchange_all(Table())

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

    def replace(self, entries: Iterable[Entry], view: View = EVERYTHING) -> None:
        """These instead of all that the view includes, numbered anew. When it raises, nothing has
        changed."""
        given = list(entries)
        with self._writing:
            journal = self._writable()
            for _ in range(ATTEMPTS):
                kept = [] if view == EVERYTHING else self._left_out(view)
                fresh = renumbered([*kept, *given])
                table = Table(fresh, len(fresh) + 1)
                # What others wrote meanwhile counts only where something of theirs is kept.
                news = journal.replace(table, is_partial=view != EVERYTHING)
                if news is None:
                    self._exchange_all(table)
                    self._damage = []
                    return
                self._take(news, journal)
            raise self._too_busy()

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

    def _write(self, decide: Callable[[], Change | Entry]) -> Entry:
        """The journal first, so that RAM never has what is not kept."""
        with self._writing:
            journal = self._writable()
            for _ in range(ATTEMPTS):
                change = decide()
                if isinstance(change, Entry):
                    return change
                news = journal.append(change)
                if news is None:
                    entry = self._make(change)
                    journal.settle(self._table)
                    return entry
                self._take(news, journal)
            raise self._too_busy()

    def _too_busy(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"others kept writing {self.path.name} first; nothing has changed, so try again"
        )

    def _left_out(self, view: View) -> list[Entry]:
        accepts = view.label_filter()
        return [entry for entry in self._table if not accepts(label_of(entry))]

    def _writable(self) -> Journal:
        if self._journal is None:
            raise StoreError(f"{self.path.name} is closed or open to read only; open it to write")
        return self._journal

    def _make(self, change: Change) -> Entry:
        if isinstance(change, Put):
            entry = change.entry
            self._exchange({entry.id: entry})
        else:
            entry = self._table[change.id]
            self._exchange({entry.id: None})
        return entry

    def _take(self, news: News, journal: Journal) -> None:
        if not journal.accept(news):
            return
        if news.is_all:
            table = Table((entry for entry in news.entries.values() if entry), news.next_id)
            self._exchange_all(table)
        else:
            self._exchange(news.entries)
            self._table.next_id = max(self._table.next_id, news.next_id)

    def _exchange_all(self, table: Table) -> None:
        with self._state:
            former, self._table = self._table, table
        former.dissolve()

    def _exchange(self, entries: Mapping[int, Entry | None]) -> None:
        """Terms are found first: a large entry takes a while, and searches must not wait for it."""
        known = {number: self._table.find(number) for number in entries}
        lost = [(before, terms(before)) for before in known.values() if before is not None]
        found = [(after, terms(after)) for after in entries.values() if after is not None]
        with self._state:
            for entry, them in lost:
                self._table.drop(entry, them)
            for entry, them in found:
                self._table.put(entry, them)
