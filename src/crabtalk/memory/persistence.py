"""PersistenceBackend: how `Memory` stores itself. Files are one backend, a database another.

Where several writers share a memory, a backend refuses a change that was planned without the
changes of the others, and returns those instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .entry import MemoryEntry
from .journal_file import EntryChange
from .table import EntryTable


class JournalPosition(NamedTuple):
    """How much of a shared memory's history a reader knows: up to change `seq`.

    `memory` tells memories of the same name apart. Nothing was written yet at 0.
    """

    memory: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class RemoteChanges:
    """Changes by other writers: the current entries by id, None for removed ones.

    `is_complete` means that there are no other entries. `position` is reached by applying them.
    """

    position: JournalPosition
    entries: Mapping[int, MemoryEntry | None] = field(default_factory=dict)
    next_id: int = 1
    is_complete: bool = False


class BackendSizes(NamedTuple):
    """Sizes of the files; a database leaves them at 0."""

    snapshot_bytes: int = 0
    journal_bytes: int = 0
    checkpoints: int = 0


class PersistenceBackend(Protocol):
    """Used by one thread at a time. Methods raise MemoryStoreError; nothing has changed then."""

    def append(self, change: EntryChange) -> RemoteChanges | None:
        """Store a change, or return changes by others: then it must be planned anew."""
        ...

    def accept(self, changes: RemoteChanges) -> bool:
        """Whether these changes are new. From now on they count as known."""
        ...

    def replace(self, table: EntryTable, *, is_partial: bool = False) -> RemoteChanges | None:
        """Replace everything by this table.

        With `is_partial`, a part of the table are existing entries: if others made changes,
        nothing is written and those are returned.
        """
        ...

    def try_checkpoint(self, table: EntryTable, *, last: bool = False) -> bool:
        """Store everything more compactly if worthwhile; with `last`, in any case.

        The table has all appended changes. Never raises: returns whether nothing is left to do.
        """
        ...

    def checkpoint(self, table: EntryTable) -> None:
        """The same now. Raises when it fails."""
        ...

    def sizes(self) -> BackendSizes: ...

    def close(self, *, remove: bool) -> None:
        """Release the memory. `remove` means that the last checkpoint has all changes."""
        ...
