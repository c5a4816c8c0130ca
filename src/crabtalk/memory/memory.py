"""Memory: the entries of one agent, in RAM and in a backend: a CRMEM file, unless another is given.

Synchronous. A write blocks until it is stored, so asyncio programs write from a thread. Reading and
searching never wait for the disk, and may go on during a write.
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

# How often a write is planned anew because other writers were faster. One of the writers always
# succeeds, so only a great many of them could exceed this.
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
    """Made by `open` and `open_read_only`, or with another backend; `path` is then its name there.

    After `close` the CRMEM file has everything, without a journal.
    """

    def __init__(
        self,
        path: Path,
        entries: Iterable[MemoryEntry],
        next_id: int,
        backend: PersistenceBackend | None,
        *,
        now: TimeFunction = time.time,
        sizes: BackendSizes | None = None,
        recovery: MemoryRecovery | None = None,
    ) -> None:
        self.path = path
        self._backend = backend
        self._now = now
        self._sizes = sizes or BackendSizes()  # used without a backend
        # Writers hold it while they write, disk I/O included; readers never take it.
        self._write_lock = threading.Lock()
        # Held while RAM is read or changed, never during I/O.
        self._state_lock = threading.Lock()
        self._table = EntryTable(entries, next_id)
        self._damage = recovery.damage if recovery is not None else []
        self._suspects = recovery.suspects if recovery is not None else {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, flush: bool = True, now: TimeFunction = time.time
    ) -> Self:
        """Open for reading and writing.

        A missing file is an empty memory, and is created by the first write. Damaged files are
        backed up, and their readable entries are loaded. Without `flush` a write survives the end
        of the process, but perhaps not a power cut.
        """
        path = Path(path)
        backend, recovery = FileMemoryBackend.open(path, flush=flush, now=now)
        try:
            entries = recovery.entries.values()
            memory = cls(path, entries, recovery.next_id, backend, now=now, recovery=recovery)
            if recovery.snapshot_faults or recovery.journal_faults:
                backend.repair(memory._table)
        except BaseException:
            backend.close(remove=False)
            raise
        return memory

    @classmethod
    def open_read_only(cls, path: str | os.PathLike[str]) -> Self:
        """Load a memory as it is now, even while another process writes it. Writes raise."""
        path = Path(path)
        recovery = file_backend.recover_files(path)
        sizes = BackendSizes(recovery.base.size)
        entries = recovery.entries.values()
        return cls(path, entries, recovery.next_id, None, sizes=sizes, recovery=recovery)

    @staticmethod
    def create(path: str | os.PathLike[str], data: bytes) -> None:
        """Create a memory with exactly these CRMEM bytes. Raises NameTakenError if it exists."""
        crmem.decode_memory(data)
        file_backend.create_files(Path(path), data)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def get(self, name: str) -> MemoryEntry | None:
        """The entry with that name, else the one with that alias."""
        with self._state_lock:
            return self._table.get(name)

    def search(self, query: str, limit: int = 5, view: MemoryView = ALL_ENTRIES) -> list[MemoryHit]:
        """Best first. Every entry with any of the words is ranked; `limit` cuts the list."""
        terms = tokenize_text(query)
        with self._state_lock:
            return [
                MemoryHit(entry, score) for entry, score in self._table.search(terms, limit, view)
            ]

    def entries(self, view: MemoryView = ALL_ENTRIES) -> list[MemoryEntry]:
        """All entries in the view, by id."""
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
        """The damage found on opening that is still there.

        An entry that was rewritten since is fine, and a new snapshot has a new header and
        checksums.
        """
        is_folded = self._backend is not None and self._backend.sizes().checkpoints > 0
        with self._state_lock:
            return [
                damage
                for damage in self._damage
                if (
                    self._table.find(damage.id) == self._suspects.get(damage.id)
                    if damage.id is not None
                    else not is_folded
                )
            ]

    @property
    def problem(self) -> str:
        """A sentence about damaged entries, and what to do; empty when there is no damage."""
        return describe_damage(self.path.name, self.find_damage())

    def encode(self) -> bytes:
        """Encode all of it as a CRMEM file."""
        with self._state_lock:
            entries, next_id = list(self._table), self._table.next_id
        return crmem.encode_memory(entries, next_id)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    def apply(self, operation: MemoryOperation) -> MemoryEntry:
        """Apply an operation. Returns the entry after it, or the removed entry.

        The change is stored when this returns. When it raises, nothing has changed in RAM or in the
        backend, except that MemoryUnavailableError leaves open whether the backend has the change.
        """
        return self._write(lambda: plan_change(operation, self._table, int(self._now())))

    def archive(self, name: str, content: str, created_at: int | None = None) -> MemoryEntry:
        """Add or replace the archive of that name. Repeating it changes nothing."""
        at = int(self._now()) if created_at is None else created_at
        return self._write(lambda: plan_archive(name, content, at, self._table))

    def apply_remote(self, changes: RemoteChanges) -> None:
        """Apply changes by other writers in RAM."""
        with self._write_lock:
            self._apply_remote(changes, self._require_backend())

    def checkpoint(self) -> None:
        """Fold the journal into the snapshot now."""
        with self._write_lock:
            self._require_backend().checkpoint(self._table)

    def close(self) -> None:
        """Fold the journal and release the memory. Closing again does nothing.

        When the disk refuses, the journal stays, and the next `open` reads it.
        """
        with self._write_lock:
            backend = self._backend
            if backend is None:
                return
            is_complete = backend.try_checkpoint(self._table, last=True)
            self._sizes, self._backend = backend.sizes(), None
            backend.close(remove=is_complete)

    def unload(self) -> None:
        """Release the entries in RAM without blocking other threads.

        Left to the interpreter, that would be one long step. Only for a closed memory that is not
        read any more.
        """
        self._replace_table(EntryTable())

    # ── The book of pages ───────────────────────────────────────────────────────────────────

    def dump(self, directory: str | os.PathLike[str]) -> None:
        """Write the entries as a book of markdown pages, replacing those of an earlier dump."""
        from . import markdown_book  # late: it is rarely needed

        markdown_book.write_book(self.entries(), Path(directory))

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Replace all entries by the pages of such a book. When it raises, nothing has changed."""
        self._require_backend()
        from . import markdown_book

        self.replace(markdown_book.read_book(Path(directory), int(self._now())))

    def replace(self, entries: Iterable[MemoryEntry], view: MemoryView = ALL_ENTRIES) -> None:
        """Replace all entries in the view by these; all ids are assigned anew.

        When it raises, nothing has changed.
        """
        new_entries = list(entries)
        with self._write_lock:
            backend = self._require_backend()
            for _ in range(MAX_WRITE_ATTEMPTS):
                others = [] if view == ALL_ENTRIES else self._entries_outside(view)
                numbered = renumber_entries([*others, *new_entries])
                table = EntryTable(numbered, len(numbered) + 1)
                # Changes by other writers matter only when some of the entries stay.
                changes = backend.replace(table, is_partial=view != ALL_ENTRIES)
                if changes is None:
                    self._replace_table(table)
                    self._damage = []
                    return
                self._apply_remote(changes, backend)
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

    # ── With the write lock held ────────────────────────────────────────────────────────────

    def _write(self, plan: Callable[[], EntryChange | MemoryEntry]) -> MemoryEntry:
        """Write to the backend first, so that RAM never has more than the backend."""
        with self._write_lock:
            backend = self._require_backend()
            for _ in range(MAX_WRITE_ATTEMPTS):
                change = plan()
                if isinstance(change, MemoryEntry):
                    return change
                changes = backend.append(change)
                if changes is None:
                    entry = self._apply_change(change)
                    backend.try_checkpoint(self._table)
                    return entry
                self._apply_remote(changes, backend)
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

    def _apply_remote(self, changes: RemoteChanges, backend: PersistenceBackend) -> None:
        if not backend.accept(changes):
            return
        if changes.is_complete:
            table = EntryTable(
                (entry for entry in changes.entries.values() if entry), changes.next_id
            )
            self._replace_table(table)
        else:
            self._replace_entries(changes.entries)
            self._table.next_id = max(self._table.next_id, changes.next_id)

    def _replace_table(self, table: EntryTable) -> None:
        with self._state_lock:
            old, self._table = self._table, table
        old.clear()

    def _replace_entries(self, entries: Mapping[int, MemoryEntry | None]) -> None:
        """Tokenize before locking: a large entry takes a while, and searches must not wait."""
        old_entries = (self._table.find(number) for number in entries)
        old = [(entry, tokenize_entry(entry)) for entry in old_entries if entry is not None]
        new = [(entry, tokenize_entry(entry)) for entry in entries.values() if entry is not None]
        with self._state_lock:
            for entry, terms in old:
                self._table.drop(entry, terms)
            for entry, terms in new:
                self._table.put(entry, terms)
