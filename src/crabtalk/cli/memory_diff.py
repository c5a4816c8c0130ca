"""Difference: what becomes of a memory when other entries take its place. Entries go by name."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crabtalk.service.command_line import to_one_line

if TYPE_CHECKING:
    from crabtalk.memory import MemoryEntry

MAX_NAMES = 8  # names of each sort
MAX_NAME_LENGTH = 60  # characters of one


@dataclass(frozen=True, slots=True)
class MemoryDiff:
    """The names of entries, in the order they are in."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    @classmethod
    def compare(
        cls, before: "Iterable[MemoryEntry]", after: "Iterable[MemoryEntry]"
    ) -> "MemoryDiff":
        old = {entry.name: entry for entry in before}
        new = {entry.name: entry for entry in after}
        return cls(
            added=[name for name in new if name not in old],
            removed=[name for name in old if name not in new],
            changed=[
                name
                for name in new
                if name in old
                and get_comparable_fields(new[name]) != get_comparable_fields(old[name])
            ],
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def format_text(self) -> str:
        """The numbers, and below them the first of the names."""
        sorts = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        numbers = ", ".join(f"{len(names)} {sort}" for sort, names in sorts)
        return "\n".join(
            [numbers, *(f"  {sort}: {format_names(names)}" for sort, names in sorts if names)]
        )


def get_comparable_fields(entry: "MemoryEntry") -> tuple[object, ...]:
    """All of an entry but its number, which is given anew."""
    return entry.kind, entry.content, entry.aliases, entry.created_at


def format_names(names: list[str]) -> str:
    shown = ", ".join(to_one_line(name, MAX_NAME_LENGTH) for name in names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"
