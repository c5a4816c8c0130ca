"""The entry store: notes and archives of an agent, and the search over them. Stands alone."""

from typing import TYPE_CHECKING

from crabtalk.late import late

from .authors import (
    AGENT,
    EVERYTHING,
    View,
    author_label,
    author_of,
    qualify_name,
    qualify_names,
    with_author,
    without_author,
)
from .entry import MAX_ALIASES, MAX_CONTENT, MAX_ENTRIES, MAX_NAME, Entry, Kind
from .errors import (
    BadFormatError,
    KindError,
    LimitError,
    MemoryInUseError,
    NameTakenError,
    StoreError,
    StoreUnavailableError,
    TreeError,
    UnknownEntryError,
)
from .tokens import tokens, words

if TYPE_CHECKING:
    from .files import verify_memory
    from .journal import Change, Drop, Put
    from .memory import Hit, Memory, Statistics
    from .ops import Add, Alias, Op, Remove, Rename, Update
    from .persistence import Journal, News, Position, Sizes
    from .sums import Damage, describe_damage
    from .table import Table

__all__ = [
    "AGENT",
    "EVERYTHING",
    "MAX_ALIASES",
    "MAX_CONTENT",
    "MAX_ENTRIES",
    "MAX_NAME",
    "Add",
    "Alias",
    "BadFormatError",
    "Change",
    "Damage",
    "Drop",
    "Entry",
    "Hit",
    "Journal",
    "Kind",
    "KindError",
    "LimitError",
    "Memory",
    "MemoryInUseError",
    "NameTakenError",
    "News",
    "Op",
    "Position",
    "Put",
    "Remove",
    "Rename",
    "Sizes",
    "Statistics",
    "StoreError",
    "StoreUnavailableError",
    "Table",
    "TreeError",
    "UnknownEntryError",
    "Update",
    "View",
    "author_label",
    "author_of",
    "describe_damage",
    "qualify_name",
    "qualify_names",
    "tokens",
    "verify_memory",
    "with_author",
    "without_author",
    "words",
]

# Needed once a memory is opened: most conversations never remember or recall.
__getattr__ = late(
    __name__,
    {
        "files": ("verify_memory",),
        "journal": ("Change", "Drop", "Put"),
        "memory": ("Hit", "Memory", "Statistics"),
        "ops": ("Add", "Alias", "Op", "Remove", "Rename", "Update"),
        "persistence": ("Journal", "News", "Position", "Sizes"),
        "sums": ("Damage", "describe_damage"),
        "table": ("Table",),
    },
)
