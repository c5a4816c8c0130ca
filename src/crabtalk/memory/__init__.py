"""The entry store: notes and archives of an agent, and the search over them. Stands alone."""

from .entry import MAX_ALIASES, MAX_CONTENT, MAX_ENTRIES, MAX_NAME, Entry, Kind
from .errors import (
    BadFormatError,
    KindError,
    LimitError,
    MemoryInUseError,
    NameTakenError,
    StoreError,
    TreeError,
    UnknownEntryError,
)
from .memory import Hit, Memory, Statistics
from .ops import Add, Alias, Op, Remove, Rename, Update
from .tokens import tokens, words

__all__ = [
    "MAX_ALIASES",
    "MAX_CONTENT",
    "MAX_ENTRIES",
    "MAX_NAME",
    "Add",
    "Alias",
    "BadFormatError",
    "Entry",
    "Hit",
    "Kind",
    "KindError",
    "LimitError",
    "Memory",
    "MemoryInUseError",
    "NameTakenError",
    "Op",
    "Remove",
    "Rename",
    "Statistics",
    "StoreError",
    "TreeError",
    "UnknownEntryError",
    "Update",
    "tokens",
    "words",
]
