"""Difference: what becomes of a memory when other entries take its place. Entries go by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crabtalk.component.command import one_line

if TYPE_CHECKING:
    from crabtalk.memory import Entry

SHOWN = 8  # names of each sort
NAME = 60  # characters of one


@dataclass(frozen=True, slots=True)
class Difference:
    """The names of entries, in the order they are in."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    @classmethod
    def between(cls, before: "Iterable[Entry]", after: "Iterable[Entry]") -> "Difference":
        old = {entry.name: entry for entry in before}
        new = {entry.name: entry for entry in after}
        return cls(
            added=[name for name in new if name not in old],
            removed=[name for name in old if name not in new],
            changed=[name for name in new if name in old and said(new[name]) != said(old[name])],
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def as_text(self) -> str:
        """The numbers, and below them the first of the names."""
        sorts = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        numbers = ", ".join(f"{len(names)} {sort}" for sort, names in sorts)
        return "\n".join([numbers, *(f"  {sort}: {some(names)}" for sort, names in sorts if names)])


def said(entry: "Entry") -> tuple[object, ...]:
    """All of an entry but its number, which is given anew."""
    return entry.kind, entry.content, entry.aliases, entry.created_at


def some(names: list[str]) -> str:
    shown = ", ".join(one_line(name, NAME) for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
