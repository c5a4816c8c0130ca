"""The difference between a memory and the entries that will replace it, by entry name."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crabtalk.service.command_line import to_one_line

if TYPE_CHECKING:
    from crabtalk.memory import MemoryEntry

MAX_NAMES = 8  # names listed for each kind of change
MAX_NAME_LENGTH = 60  # characters


@dataclass(frozen=True, slots=True)
class MemoryDiff:
    """The names of added, removed and changed entries, each in the order of its memory."""

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
        """Render the numbers, and below them the first names of each kind."""
        changes = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        numbers = ", ".join(f"{len(names)} {kind}" for kind, names in changes)
        return "\n".join(
            [numbers, *(f"  {kind}: {format_names(names)}" for kind, names in changes if names)]
        )


def get_comparable_fields(entry: "MemoryEntry") -> tuple[object, ...]:
    """Return all fields but the name and the number, which `replace` assigns anew."""
    return entry.kind, entry.content, entry.aliases, entry.created_at


def format_names(names: list[str]) -> str:
    text = ", ".join(to_one_line(name, MAX_NAME_LENGTH) for name in names[:MAX_NAMES])
    return text if len(names) <= MAX_NAMES else f"{text} and {len(names) - MAX_NAMES} more"
