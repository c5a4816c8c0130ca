"""Files: a memory as its CRMEM file, and the journal next to it until that is folded in."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import crmem, snapshot
from .entry import Entry
from .errors import NameTakenError, StoreError
from .journal import Base, Change, JournalFile
from .persistence import News, Sizes
from .recovery import Recovery, recover
from .sums import Damage, describe_damage, encode_sums, snapshot_hash
from .table import Table

log = logging.getLogger(__name__)
Clock = Callable[[], float]

# The journal is folded into the snapshot when it is longer than this and than half the snapshot:
# rarely enough that a write costs what its entry costs.
JOURNAL_BYTES = 64 * 1024


class Files:
    """A Journal that one process has for itself: there are never any news."""

    def __init__(
        self,
        path: Path,
        journal: JournalFile,
        base: Base,
        snapshot_sum: str = "",
        suspects: dict[int, Entry | None] | None = None,
    ) -> None:
        self._path = path
        self._journal = journal
        self._base = base
        self._snapshot_sum = snapshot_sum
        self._suspects = suspects or {}
        self._folds = 0

    @classmethod
    def open(cls, path: Path, *, flush: bool, now: Clock) -> tuple["Files", Recovery]:
        """What is damaged is set aside, before anything is written over it."""
        with told(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            journal = JournalFile(snapshot.journal_of(path), flush=flush)
            try:
                data, lines = snapshot.read_file(path), journal.read()
                found = recover(data, lines, snapshot.read_file(snapshot.sums_of(path)))
                report(path, found)
                if found.torn:
                    log.warning("%s ended in half a line, which is cut", journal.path.name)
                if found.snapshot_faults or found.is_exchanged:
                    snapshot.set_aside(path, data, now())
                if found.journal_faults:
                    snapshot.set_aside(journal.path, lines, now())
                snapshot.aside_of(path).unlink(missing_ok=True)
                snapshot.aside_of(snapshot.sums_of(path)).unlink(missing_ok=True)
                journal.cut(found.whole)
            except BaseException:
                journal.close(remove=False)
                raise
        return cls(path, journal, found.base, snapshot_hash(data), found.suspects), found

    def append(self, change: Change) -> News | None:
        self._journal.append([change], base=self._base)
        return None

    def accept(self, news: News) -> bool:
        return False

    def replace(self, table: Table, *, is_partial: bool = False) -> News | None:
        suspects, self._suspects = self._suspects, {}
        try:
            self.fold(table)
        except BaseException:
            self._suspects = suspects
            raise
        return None

    def settle(self, table: Table, *, last: bool = False) -> bool:
        """Nothing is lost when it cannot be folded: the journal only grows."""
        size = self._journal.size
        if last and not size:
            return True
        if not last and self._base.size and size <= max(JOURNAL_BYTES, self._base.size // 2):
            return False
        return self._fold_if_possible(table)

    def mend(self, table: Table) -> None:
        """After damage: files that are whole, if that can be."""
        self._fold_if_possible(table)

    def fold(self, table: Table) -> None:
        with told(self._path):
            self._fold(table)

    def sizes(self) -> Sizes:
        return Sizes(self._base.size, self._journal.size, self._folds)

    def close(self, *, remove: bool) -> None:
        self._journal.close(remove=remove)

    def _fold_if_possible(self, table: Table) -> bool:
        try:
            self._fold(table)
        except (OSError, StoreError) as error:
            log.warning("%s could not be folded, its journal stays: %s", self._path.name, error)
            return False
        return True

    def _fold(self, table: Table) -> None:
        """A new snapshot, and a journal that is empty.

        The journal names the new snapshot before it is in place: whichever of the two a crash
        leaves there, what follows the line that names it is what it lacks.
        """
        data = crmem.encode(table, table.next_id)
        base, snapshot_sum = snapshot.identity(data), snapshot_hash(data)
        sums = encode_sums(table, snapshot_sum, self._snapshot_sum, self._suspects)
        aside = snapshot.write_aside(self._path, data)
        try:
            self._journal.append([base], base=self._base)
            replace_sums(self._path, sums)
            aside.replace(self._path)
        finally:
            aside.unlink(missing_ok=True)
        self._base, self._snapshot_sum = base, snapshot_sum
        self._folds += 1
        try:
            snapshot.flush_directory(self._path.parent)
            self._journal.empty()
        except OSError as error:
            # A journal that is longer than it need be is only that.
            log.warning("the journal of %s could not be emptied: %s", self._path.name, error)


def read(path: Path) -> Recovery:
    """As it is now, whoever writes it meanwhile."""
    with told(path):
        found = recover(*snapshot.read_all(path))
    report(path, found)
    return found


def verify_memory(path: Path) -> list[Damage]:
    """What is wrong with a memory's files, whoever writes them meanwhile. Writes nothing and logs
    nothing. Raises StoreError."""
    with told(path):
        found = recover(*snapshot.read_all(path))
    faults = [Damage("unreadable", fault) for fault in found.snapshot_faults]
    faults += [Damage("journal", f"its journal: {fault}") for fault in found.journal_faults]
    return faults + found.damage


def create(path: Path, data: bytes) -> None:
    """A memory from the bytes of its file. Raises NameTakenError where there is one."""
    with told(path):
        if any(os.path.lexists(file) for file in (path, snapshot.journal_of(path))):
            raise NameTakenError(f"{path.name} is there already; remove it first, or keep it")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = snapshot.write_aside(path, data)
        replace_sums(path, encode_sums(crmem.decode(data).entries, snapshot_hash(data)))
        aside.replace(path)
        snapshot.flush_directory(path.parent)


def replace_sums(path: Path, sums: bytes) -> None:
    """The checksums of the snapshot that comes next. On disk when this returns: after a power cut
    there is no snapshot that they do not know."""
    target = snapshot.sums_of(path)
    aside = snapshot.write_aside(target, sums)
    try:
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    snapshot.flush_directory(path.parent)


def report(path: Path, found: Recovery) -> None:
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
def told(path: Path) -> Iterator[None]:
    """What the file system refuses is a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot use {error.filename or path}: {error.strerror or error}; see that it is a "
            "plain file of yours, in a directory you may write"
        ) from None
