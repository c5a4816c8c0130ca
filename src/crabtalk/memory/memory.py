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

from . import crmem, file_backend
from .authors import ALL_ENTRIES, MemoryView, get_label
from .changes import plan_archive, plan_change, renumber_entries
from .checksums import MemoryDamage, describe_damage
from .entry import EntryKind, MemoryEntry
from .errors import MemoryStoreError, MemoryUnavailableError
from .file_backend import FileMemoryBackend, TimeFunction
from .journal_file import EntryChange, PutEntry
from .operations import MemoryOperation
from .persistence import BackendSizes, PersistenceBackend, RemoteChanges
from .recovery import MemoryRecovery
from .table import EntryTable, tokenize_entry
from .tokenizer import tokenize_text

# How often a write is decided anew because others were faster. One of all always is, so it takes
# very many of them to come to this.
MAX_WRITE_ATTEMPTS = 200


class MemoryHit(NamedTuple):
    entry: MemoryEntry
    score: float


class MemoryStatistics(NamedTuple):
    notes: int
    archives: int
    topics: int
    terms: int
    snapshot_bytes: int
    journal_bytes: int
    checkpoints: int


class Memory:
    """Made by `open` and `read`, or by whoever has a journal of another kind: `path` is what it is
    called there. Closed, the CRMEM file alone has it all."""

    def __init__(
        self,
        path: Path,
        entries: Iterable[MemoryEntry],
        next_id: int,
        journal: PersistenceBackend | None,
        *,
        now: TimeFunction = time.time,
        sizes: BackendSizes | None = None,
        found: MemoryRecovery | None = None,
    ) -> None:
        self.path = path
        self._backend = journal
        self._now = now
        self._sizes = sizes or BackendSizes()  # of what has no journal
        # Writers wait for each other with this one, and for the disk; nobody else takes it.
        self._write_lock = threading.Lock()
        # Held while RAM is read or changed, never while anything is written.
        self._state_lock = threading.Lock()
        self._table = EntryTable(entries, next_id)
        self._damage = found.damage if found is not None else []
        self._suspects = found.suspects if found is not None else {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, flush: bool = True, now: TimeFunction = time.time
    ) -> Self:
        """To read and write. What is not there is an empty memory, and its file comes with the
        first write. Damaged files are set aside, and what could be read of them is here.

        Without `flush` a write survives the process, but perhaps not a power cut.
        """
        path = Path(path)
        journal, found = FileMemoryBackend.open(path, flush=flush, now=now)
        try:
            entries = found.entries.values()
            memory = cls(path, entries, found.next_id, journal, now=now, found=found)
            if found.snapshot_faults or found.journal_faults:
                journal.repair(memory._table)
        except BaseException:
            journal.close(remove=False)
            raise
        return memory

    @classmethod
    def open_read_only(cls, path: str | os.PathLike[str]) -> Self:
        """As it is now, whoever writes it meanwhile. Nothing is written, and nothing can be."""
        path = Path(path)
        found = file_backend.recover_files(path)
        sizes = BackendSizes(found.base.size)
        entries = found.entries.values()
        return cls(path, entries, found.next_id, None, sizes=sizes, found=found)

    @staticmethod
    def create(path: str | os.PathLike[str], data: bytes) -> None:
        """From the bytes of a CRMEM file, exactly. Raises NameTakenError where there is one."""
        crmem.decode_memory(data)
        file_backend.create_files(Path(path), data)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def get(self, name: str) -> MemoryEntry | None:
        """The entry of that name; else the one with that alias."""
        with self._state_lock:
            return self._table.get(name)

    def search(self, query: str, limit: int = 5, view: MemoryView = ALL_ENTRIES) -> list[MemoryHit]:
        """Best first. Every entry that has any of the words counts; cutting off is the caller's."""
        asked = tokenize_text(query)
        with self._state_lock:
            return [
                MemoryHit(entry, score) for entry, score in self._table.search(asked, limit, view)
            ]

    def entries(self, view: MemoryView = ALL_ENTRIES) -> list[MemoryEntry]:
        """All that the view includes, by id."""
        with self._state_lock:
            entries = list(self._table)
        if view == ALL_ENTRIES:
            return entries
        accepts = view.build_label_filter()
        return [entry for entry in entries if accepts(get_label(entry))]

    def statistics(self) -> MemoryStatistics:
        with self._state_lock:
            return MemoryStatistics(
                self._table.count_kind(EntryKind.NOTE),
                self._table.count_kind(EntryKind.ARCHIVE),
                self._table.count_kind(EntryKind.TOPIC),
                self._table.index.term_count,
                *(self._backend.sizes() if self._backend is not None else self._sizes),
            )

    def find_damage(self) -> list[MemoryDamage]:
        """What was found on opening that differs from the checksums. An entry that was written
        again since is fine, and a new snapshot has a new header and new checksums."""
        is_folded = self._backend is not None and self._backend.sizes().checkpoints > 0
        with self._state_lock:
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
        return describe_damage(self.path.name, self.find_damage())

    def encode(self) -> bytes:
        """All of it, as a CRMEM file has it."""
        with self._state_lock:
            entries, next_id = list(self._table), self._table.next_id
        return crmem.encode_memory(entries, next_id)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    def apply(self, op: MemoryOperation) -> MemoryEntry:
        """The entry as the op left it, or as it was when it is removed.

        Kept when this returns. When it raises, nothing has changed, here or there; except that
        StoreUnavailableError leaves open what has changed there.
        """
        return self._write(lambda: plan_change(op, self._table, int(self._now())))

    def archive(self, name: str, content: str, created_at: int | None = None) -> MemoryEntry:
        """The archive of that name, added or replaced. Doing it again changes nothing."""
        at = int(self._now()) if created_at is None else created_at
        return self._write(lambda: plan_archive(name, content, at, self._table))

    def apply_remote(self, news: RemoteChanges) -> None:
        """What others wrote, into RAM."""
        with self._write_lock:
            self._apply_remote(news, self._require_backend())

    def checkpoint(self) -> None:
        """Folds the journal into the snapshot now."""
        with self._write_lock:
            self._require_backend().checkpoint(self._table)

    def close(self) -> None:
        """Folds the journal and lets go of the memory. Closing twice is closing once.

        When the disk refuses, the journal stays, and the next to open finds everything.
        """
        with self._write_lock:
            journal = self._backend
            if journal is None:
                return
            settled = journal.try_checkpoint(self._table, last=True)
            self._sizes, self._backend = journal.sizes(), None
            journal.close(remove=settled)

    def unload(self) -> None:
        """Lets go of what is in RAM, and holds up no other thread with that, as it would if it were
        left to the interpreter. For one that is closed and that nobody reads any more."""
        self._replace_table(EntryTable())

    # ── The tree of pages ───────────────────────────────────────────────────────────────────

    def dump(self, directory: str | os.PathLike[str]) -> None:
        """Writes the entries as a book of markdown pages, in place of those of an earlier dump."""
        from . import markdown_book  # late: few ever write a book

        markdown_book.write_book(self.entries(), Path(directory))

    def load(self, directory: str | os.PathLike[str]) -> None:
        """The pages of such a book instead of all there is. When it raises, nothing has changed."""
        self._require_backend()
        from . import markdown_book

        self.replace(markdown_book.read_book(Path(directory), int(self._now())))

    def replace(self, entries: Iterable[MemoryEntry], view: MemoryView = ALL_ENTRIES) -> None:
        """These instead of all that the view includes, numbered anew. When it raises, nothing has
        changed."""
        given = list(entries)
        with self._write_lock:
            journal = self._require_backend()
            for _ in range(MAX_WRITE_ATTEMPTS):
                kept = [] if view == ALL_ENTRIES else self._entries_outside(view)
                fresh = renumber_entries([*kept, *given])
                table = EntryTable(fresh, len(fresh) + 1)
                # What others wrote meanwhile counts only where something of theirs is kept.
                news = journal.replace(table, is_partial=view != ALL_ENTRIES)
                if news is None:
                    self._replace_table(table)
                    self._damage = []
                    return
                self._apply_remote(news, journal)
            raise self._busy_error()

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

    def _write(self, decide: Callable[[], EntryChange | MemoryEntry]) -> MemoryEntry:
        """The journal first, so that RAM never has what is not kept."""
        with self._write_lock:
            journal = self._require_backend()
            for _ in range(MAX_WRITE_ATTEMPTS):
                change = decide()
                if isinstance(change, MemoryEntry):
                    return change
                news = journal.append(change)
                if news is None:
                    entry = self._apply_change(change)
                    journal.try_checkpoint(self._table)
                    return entry
                self._apply_remote(news, journal)
            raise self._busy_error()

    def _busy_error(self) -> MemoryUnavailableError:
        return MemoryUnavailableError(
            f"others kept writing {self.path.name} first; nothing has changed, so try again"
        )

    def _entries_outside(self, view: MemoryView) -> list[MemoryEntry]:
        accepts = view.build_label_filter()
        return [entry for entry in self._table if not accepts(get_label(entry))]

    def _require_backend(self) -> PersistenceBackend:
        if self._backend is None:
            raise MemoryStoreError(
                f"{self.path.name} is closed or open to read only; open it to write"
            )
        return self._backend

    def _apply_change(self, change: EntryChange) -> MemoryEntry:
        if isinstance(change, PutEntry):
            entry = change.entry
            self._replace_entries({entry.id: entry})
        else:
            entry = self._table[change.id]
            self._replace_entries({entry.id: None})
        return entry

    def _apply_remote(self, news: RemoteChanges, journal: PersistenceBackend) -> None:
        if not journal.accept(news):
            return
        if news.is_complete:
            table = EntryTable((entry for entry in news.entries.values() if entry), news.next_id)
            self._replace_table(table)
        else:
            self._replace_entries(news.entries)
            self._table.next_id = max(self._table.next_id, news.next_id)

    def _replace_table(self, table: EntryTable) -> None:
        with self._state_lock:
            former, self._table = self._table, table
        former.clear()

    def _replace_entries(self, entries: Mapping[int, MemoryEntry | None]) -> None:
        """Terms are found first: a large entry takes a while, and searches must not wait for it."""
        known = {number: self._table.find(number) for number in entries}
        lost = [(before, tokenize_entry(before)) for before in known.values() if before is not None]
        found = [(after, tokenize_entry(after)) for after in entries.values() if after is not None]
        with self._state_lock:
            for entry, them in lost:
                self._table.drop(entry, them)
            for entry, them in found:
                self._table.put(entry, them)
