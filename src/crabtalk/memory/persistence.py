"""Persistence: how a memory is kept, as `Memory` sees it. Files are one way, a database another.

Where others write the same memory, a journal refuses what was decided without knowing what they
wrote, and tells the news instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .entry import MemoryEntry
from .journal_file import EntryChange
from .table import EntryTable


class JournalPosition(NamedTuple):
    """How much of what was ever written one knows: up to which change, and of which memory, since
    a name may have had several. Nothing was written yet at 0."""

    memory: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class RemoteChanges:
    """What others wrote: entries as they are now, by id; None for one that is gone. `is_all` says
    that there are no others. `position` is that of whoever has heard it."""

    position: JournalPosition
    entries: Mapping[int, MemoryEntry | None] = field(default_factory=dict)
    next_id: int = 1
    is_complete: bool = False


class BackendSizes(NamedTuple):
    """Of files; a database has its own ways to tell."""

    snapshot_bytes: int = 0
    journal_bytes: int = 0
    checkpoints: int = 0


class PersistenceBackend(Protocol):
    """Used by one thread at a time. What raises is a StoreError, and nothing has changed then."""

    def append(self, change: EntryChange) -> RemoteChanges | None:
        """Kept when this returns; unless there are news, which the change has to be decided anew
        with."""
        ...

    def accept(self, news: RemoteChanges) -> bool:
        """Whether they are news still. From here on they are known."""
        ...

    def replace(self, table: EntryTable, *, is_partial: bool = False) -> RemoteChanges | None:
        """Keeps this instead of all there is. With `is_partial` a part of the table is what was
        there: if there are news, nothing is written and they are returned."""
        ...

    def try_checkpoint(self, table: EntryTable, *, last: bool = False) -> bool:
        """The table has all that was appended, and may be kept in a shorter way; with `last` it
        should be. Never raises: returns whether nothing is left to do."""
        ...

    def checkpoint(self, table: EntryTable) -> None:
        """The same, now, and with a word when it cannot be done."""
        ...

    def sizes(self) -> BackendSizes: ...

    def close(self, *, remove: bool) -> None:
        """Lets go of the memory. `remove` says that all is settled."""
        ...
