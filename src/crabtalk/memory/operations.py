"""Operations: all ways to change a memory, as values. `changes` decides what they do.

An entry is identified by its name or an alias. With `kind`, the operation only applies to entries
of that kind: a tool that may change notes sets it, so it cannot touch archives.
"""

from typing import NamedTuple

from .entry import EntryKind


class AddEntry(NamedTuple):
    """Add an entry. Topics cannot be added."""

    name: str
    content: str
    aliases: tuple[str, ...] = ()
    kind: EntryKind = EntryKind.NOTE


class UpdateEntry(NamedTuple):
    """Set the content, and the aliases if given. Archives cannot be rewritten."""

    name: str
    content: str
    aliases: tuple[str, ...] | None = None
    kind: EntryKind | None = None


class RenameEntry(NamedTuple):
    """Rename for good; the old name becomes free. Archives keep their names: markers use them."""

    name: str
    new_name: str
    kind: EntryKind | None = None


class SetAliases(NamedTuple):
    """Replace the aliases."""

    name: str
    aliases: tuple[str, ...]
    kind: EntryKind | None = None


class RemoveEntry(NamedTuple):
    """Remove the entry and all its aliases."""

    name: str
    kind: EntryKind | None = None


MemoryOperation = AddEntry | UpdateEntry | RenameEntry | SetAliases | RemoveEntry
