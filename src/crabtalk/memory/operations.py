"""Ops: the closed set of ways to write a memory, as values. What they do is decided in `changes`.

An entry is named by its name or an alias. With `kind`, the op is for entries of that kind only: a
tool that may touch notes says so, and archives are safe from it.
"""

from typing import NamedTuple

from .entry import EntryKind


class AddEntry(NamedTuple):
    """A new entry. Topics cannot be added."""

    name: str
    content: str
    aliases: tuple[str, ...] = ()
    kind: EntryKind = EntryKind.NOTE


class UpdateEntry(NamedTuple):
    """New content, and new aliases where they are given. Archives are not rewritten."""

    name: str
    content: str
    aliases: tuple[str, ...] | None = None
    kind: EntryKind | None = None


class RenameEntry(NamedTuple):
    """Another name for good; the old one is free. Archives keep theirs: markers name them."""

    name: str
    new_name: str
    kind: EntryKind | None = None


class SetAliases(NamedTuple):
    """These aliases instead of those it had."""

    name: str
    aliases: tuple[str, ...]
    kind: EntryKind | None = None


class RemoveEntry(NamedTuple):
    """The entry and all its aliases."""

    name: str
    kind: EntryKind | None = None


MemoryOperation = AddEntry | UpdateEntry | RenameEntry | SetAliases | RemoveEntry
