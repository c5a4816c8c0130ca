"""Files: a memory as its CRMEM file, and the journal next to it until that is folded in."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import crmem, snapshot_file
from .checksums import MemoryDamage, describe_damage, encode_checksums, hash_snapshot
from .entry import MemoryEntry
from .errors import MemoryStoreError, NameTakenError
from .journal_file import EntryChange, JournalFile, SnapshotReference
from .persistence import BackendSizes, RemoteChanges
from .recovery import MemoryRecovery, recover_memory
from .table import EntryTable

log = logging.getLogger(__name__)
TimeFunction = Callable[[], float]

# The journal is folded into the snapshot when it is longer than this and than half the snapshot:
# rarely enough that a write costs what its entry costs.
MIN_CHECKPOINT_BYTES = 64 * 1024


class FileMemoryBackend:
    """A Journal that one process has for itself: there are never any news."""

    def __init__(
        self,
        path: Path,
        journal: JournalFile,
        base: SnapshotReference,
        snapshot_sum: str = "",
        suspects: dict[int, MemoryEntry | None] | None = None,
    ) -> None:
        self._path = path
        self._journal = journal
        self._base = base
        self._snapshot_hash = snapshot_sum
        self._suspects = suspects or {}
        self._checkpoints = 0

    @classmethod
    def open(
        cls, path: Path, *, flush: bool, now: TimeFunction
    ) -> tuple["FileMemoryBackend", MemoryRecovery]:
        """What is damaged is set aside, before anything is written over it."""
        with convert_os_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal = JournalFile(snapshot_file.journal_path(path), flush=flush)
            try:
                data, lines = snapshot_file.read_file(path), journal.read()
                found = recover_memory(
                    data, lines, snapshot_file.read_file(snapshot_file.checksums_path(path))
                )
                log_faults(path, found)
                if found.is_torn:
                    log.warning("%s ended in half a line, which is cut", journal.path.name)
                if found.snapshot_faults or found.is_mismatched:
                    snapshot_file.back_up_damaged(path, data, now())
                if found.journal_faults:
                    snapshot_file.back_up_damaged(journal.path, lines, now())
                snapshot_file.temporary_path(path).unlink(missing_ok=True)
                snapshot_file.temporary_path(snapshot_file.checksums_path(path)).unlink(
                    missing_ok=True
                )
                journal.truncate(found.journal_end)
            except BaseException:
                journal.close(remove=False)
                raise
        return cls(path, journal, found.base, hash_snapshot(data), found.suspects), found

    def append(self, change: EntryChange) -> RemoteChanges | None:
        self._journal.append([change], base=self._base)
        return None

    def accept(self, news: RemoteChanges) -> bool:
        return False

    def replace(self, table: EntryTable, *, is_partial: bool = False) -> RemoteChanges | None:
        suspects, self._suspects = self._suspects, {}
        try:
            self.checkpoint(table)
        except BaseException:
            self._suspects = suspects
            raise
        return None

    def try_checkpoint(self, table: EntryTable, *, last: bool = False) -> bool:
        """Nothing is lost when it cannot be folded: the journal only grows."""
        size = self._journal.size
        if last and not size:
            return True
        if not last and self._base.size and size <= max(MIN_CHECKPOINT_BYTES, self._base.size // 2):
            return False
        return self._checkpoint_if_possible(table)

    def repair(self, table: EntryTable) -> None:
        """After damage: files that are whole, if that can be."""
        self._checkpoint_if_possible(table)

    def checkpoint(self, table: EntryTable) -> None:
        with convert_os_errors(self._path):
            self._write_checkpoint(table)

    def sizes(self) -> BackendSizes:
        return BackendSizes(self._base.size, self._journal.size, self._checkpoints)

    def close(self, *, remove: bool) -> None:
        self._journal.close(remove=remove)

    def _checkpoint_if_possible(self, table: EntryTable) -> bool:
        try:
            self._write_checkpoint(table)
        except (OSError, MemoryStoreError) as error:
            log.warning("%s could not be folded, its journal stays: %s", self._path.name, error)
            return False
        return True

    def _write_checkpoint(self, table: EntryTable) -> None:
        """A new snapshot, and a journal that is empty.

        The journal names the new snapshot before it is in place: whichever of the two a crash
        leaves there, what follows the line that names it is what it lacks.
        """
        data = crmem.encode_memory(table, table.next_id)
        base, snapshot_sum = snapshot_file.identify_snapshot(data), hash_snapshot(data)
        sums = encode_checksums(table, snapshot_sum, self._snapshot_hash, self._suspects)
        aside = snapshot_file.write_temporary(self._path, data)
        try:
            self._journal.append([base], base=self._base)
            replace_checksums(self._path, sums)
            aside.replace(self._path)
        finally:
            aside.unlink(missing_ok=True)
        self._base, self._snapshot_hash = base, snapshot_sum
        self._checkpoints += 1
        try:
            snapshot_file.flush_directory(self._path.parent)
            self._journal.clear()
        except OSError as error:
            # A journal that is longer than it need be is only that.
            log.warning("the journal of %s could not be emptied: %s", self._path.name, error)


def recover_files(path: Path) -> MemoryRecovery:
    """As it is now, whoever writes it meanwhile."""
    with convert_os_errors(path):
        found = recover_memory(*snapshot_file.read_files(path))
    log_faults(path, found)
    return found


def verify_memory(path: Path) -> list[MemoryDamage]:
    """What is wrong with a memory's files, whoever writes them meanwhile. Writes nothing and logs
    nothing. Raises StoreError."""
    with convert_os_errors(path):
        found = recover_memory(*snapshot_file.read_files(path))
    faults = [MemoryDamage("unreadable", fault) for fault in found.snapshot_faults]
    faults += [MemoryDamage("journal", f"its journal: {fault}") for fault in found.journal_faults]
    return faults + found.damage


def create_files(path: Path, data: bytes) -> None:
    """A memory from the bytes of its file. Raises NameTakenError where there is one."""
    with convert_os_errors(path):
        if any(os.path.lexists(file) for file in (path, snapshot_file.journal_path(path))):
            raise NameTakenError(f"{path.name} is there already; remove it first, or keep it")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = snapshot_file.write_temporary(path, data)
        replace_checksums(
            path, encode_checksums(crmem.decode_memory(data).entries, hash_snapshot(data))
        )
        aside.replace(path)
        snapshot_file.flush_directory(path.parent)


def replace_checksums(path: Path, sums: bytes) -> None:
    """The checksums of the snapshot that comes next. On disk when this returns: after a power cut
    there is no snapshot that they do not know."""
    target = snapshot_file.checksums_path(path)
    aside = snapshot_file.write_temporary(target, sums)
    try:
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    snapshot_file.flush_directory(path.parent)


def log_faults(path: Path, found: MemoryRecovery) -> None:
    if found.snapshot_faults:
        log.error(
            "%s is damaged (%s); %d entries could be read",
            path.name,
            "; ".join(found.snapshot_faults[:5]),
            len(found.entries),
        )
    if found.damage:
        log.error("%s", describe_damage(path.name, found.damage))
    for fault in found.journal_faults:
        log.error("the journal of %s is damaged: %s", path.name, fault)


@contextmanager
def convert_os_errors(path: Path) -> Iterator[None]:
    """What the file system refuses is a StoreError."""
    try:
        yield
    except OSError as error:
        raise MemoryStoreError(
            f"cannot use {error.filename or path}: {error.strerror or error}; see that it is a "
            "plain file of yours, in a directory you may write"
        ) from None
