"""Ops: the closed set of ways to write a memory, as values. What they do is decided in `changes`.

An entry is named by its name or an alias. With `kind`, the op is for entries of that kind only: a
tool that may touch notes says so, and archives are safe from it.
"""

from typing import NamedTuple

from .entry import Kind


class Add(NamedTuple):
    """A new entry. Topics cannot be added."""

    name: str
    content: str
    aliases: tuple[str, ...] = ()
    kind: Kind = Kind.NOTE


class Update(NamedTuple):
    """New content, and new aliases where they are given. Archives are not rewritten."""

    name: str
    content: str
    aliases: tuple[str, ...] | None = None
    kind: Kind | None = None


class Rename(NamedTuple):
    """Another name for good; the old one is free. Archives keep theirs: markers name them."""

    name: str
    new_name: str
    kind: Kind | None = None


class Alias(NamedTuple):
    """These aliases instead of those it had."""

    name: str
    aliases: tuple[str, ...]
    kind: Kind | None = None


class Remove(NamedTuple):
    """The entry and all its aliases."""

    name: str
    kind: Kind | None = None


Op = Add | Update | Rename | Alias | Remove
