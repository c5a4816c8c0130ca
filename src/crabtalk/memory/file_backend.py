"""FileMemoryBackend: a memory in a CRMEM file, with a journal until the next checkpoint."""

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

# A checkpoint folds the journal into the snapshot when the journal is longer than this and than
# half the snapshot: rarely enough that a write costs only as much as its entry.
MIN_CHECKPOINT_BYTES = 64 * 1024


class FileMemoryBackend:
    """A PersistenceBackend for one process: there are never changes by others."""

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
        """Open and recover a memory. Damaged files are backed up before they are overwritten."""
        with convert_os_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal = JournalFile(snapshot_file.journal_path(path), flush=flush)
            try:
                data, lines = snapshot_file.read_file(path), journal.read()
                recovery = recover_memory(
                    data, lines, snapshot_file.read_file(snapshot_file.checksums_path(path))
                )
                log_faults(path, recovery)
                if recovery.is_torn:
                    log.warning("%s ended in half a line, which is cut", journal.path.name)
                if recovery.snapshot_faults or recovery.is_mismatched:
                    snapshot_file.back_up_damaged(path, data, now())
                if recovery.journal_faults:
                    snapshot_file.back_up_damaged(journal.path, lines, now())
                snapshot_file.temporary_path(path).unlink(missing_ok=True)
                snapshot_file.temporary_path(snapshot_file.checksums_path(path)).unlink(
                    missing_ok=True
                )
                journal.truncate(recovery.journal_end)
            except BaseException:
                journal.close(remove=False)
                raise
        return cls(path, journal, recovery.base, hash_snapshot(data), recovery.suspects), recovery

    def append(self, change: EntryChange) -> RemoteChanges | None:
        self._journal.append([change], base=self._base)
        return None

    def accept(self, changes: RemoteChanges) -> bool:
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
        """When the checkpoint fails, nothing is lost: the journal only grows."""
        size = self._journal.size
        if last and not size:
            return True
        if not last and self._base.size and size <= max(MIN_CHECKPOINT_BYTES, self._base.size // 2):
            return False
        return self._checkpoint_if_possible(table)

    def repair(self, table: EntryTable) -> None:
        """Write intact files after damage, if that is possible."""
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
        """Write a new snapshot and empty the journal.

        The journal names the new snapshot before it is in place. Whichever snapshot a crash leaves,
        the lines after the one that names it are the changes it lacks.
        """
        data = crmem.encode_memory(table, table.next_id)
        base, snapshot_sum = snapshot_file.identify_snapshot(data), hash_snapshot(data)
        sums = encode_checksums(table, snapshot_sum, self._snapshot_hash, self._suspects)
        temporary = snapshot_file.write_temporary(self._path, data)
        try:
            self._journal.append([base], base=self._base)
            replace_checksums(self._path, sums)
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)
        self._base, self._snapshot_hash = base, snapshot_sum
        self._checkpoints += 1
        try:
            snapshot_file.flush_directory(self._path.parent)
            self._journal.clear()
        except OSError as error:
            # A journal that is longer than necessary does no harm.
            log.warning("the journal of %s could not be emptied: %s", self._path.name, error)


def recover_files(path: Path) -> MemoryRecovery:
    """Recover a memory as it is now, even while another process writes it."""
    with convert_os_errors(path):
        recovery = recover_memory(*snapshot_file.read_files(path))
    log_faults(path, recovery)
    return recovery


def verify_memory(path: Path) -> list[MemoryDamage]:
    """Find the damage in a memory's files, even while another process writes them.

    Writes nothing and logs nothing. Raises MemoryStoreError.
    """
    with convert_os_errors(path):
        recovery = recover_memory(*snapshot_file.read_files(path))
    faults = [MemoryDamage("unreadable", fault) for fault in recovery.snapshot_faults]
    faults += [
        MemoryDamage("journal", f"its journal: {fault}") for fault in recovery.journal_faults
    ]
    return faults + recovery.damage


def create_files(path: Path, data: bytes) -> None:
    """Create a memory from the bytes of its file. Raises NameTakenError when it exists."""
    with convert_os_errors(path):
        if any(os.path.lexists(file) for file in (path, snapshot_file.journal_path(path))):
            raise NameTakenError(f"{path.name} is there already; remove it first, or keep it")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = snapshot_file.write_temporary(path, data)
        replace_checksums(
            path, encode_checksums(crmem.decode_memory(data).entries, hash_snapshot(data))
        )
        temporary.replace(path)
        snapshot_file.flush_directory(path.parent)


def replace_checksums(path: Path, sums: bytes) -> None:
    """Replace the checksums, before their snapshot is written.

    They are on disk when this returns, so that after a power cut no snapshot is without checksums.
    """
    target = snapshot_file.checksums_path(path)
    temporary = snapshot_file.write_temporary(target, sums)
    try:
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    snapshot_file.flush_directory(path.parent)


def log_faults(path: Path, recovery: MemoryRecovery) -> None:
    if recovery.snapshot_faults:
        log.error(
            "%s is damaged (%s); %d entries could be read",
            path.name,
            "; ".join(recovery.snapshot_faults[:5]),
            len(recovery.entries),
        )
    if recovery.damage:
        log.error("%s", describe_damage(path.name, recovery.damage))
    for fault in recovery.journal_faults:
        log.error("the journal of %s is damaged: %s", path.name, fault)


@contextmanager
def convert_os_errors(path: Path) -> Iterator[None]:
    """Convert OSError to MemoryStoreError."""
    try:
        yield
    except OSError as error:
        raise MemoryStoreError(
            f"cannot use {error.filename or path}: {error.strerror or error}; see that it is a "
            "plain file of yours, in a directory you may write"
        ) from None
