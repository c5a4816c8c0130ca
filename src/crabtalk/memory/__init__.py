"""The entry store: an agent's notes and archives, with search.

Of the rest of crabtalk it imports only `crabtalk.lazy_imports`.
"""

from typing import TYPE_CHECKING

from crabtalk.lazy_imports import load_lazily

from .authors import (
    AGENT_AUTHOR,
    ALL_ENTRIES,
    MemoryView,
    add_author,
    encode_author,
    get_author,
    qualify_name,
    qualify_names,
    strip_author,
)
from .entry import MAX_ALIASES, MAX_CONTENT, MAX_ENTRIES, MAX_NAME, EntryKind, MemoryEntry
from .errors import (
    BadCrmemError,
    EntryKindError,
    MarkdownBookError,
    MemoryInUseError,
    MemoryLimitError,
    MemoryStoreError,
    MemoryUnavailableError,
    NameTakenError,
    UnknownEntryError,
)
from .tokenizer import split_words, tokenize_text

if TYPE_CHECKING:
    from .checksums import MemoryDamage, describe_damage
    from .file_backend import verify_memory
    from .journal_file import DropEntry, EntryChange, PutEntry
    from .memory import Memory, MemoryHit, MemoryStatistics
    from .operations import (
        AddEntry,
        MemoryOperation,
        RemoveEntry,
        RenameEntry,
        SetAliases,
        UpdateEntry,
    )
    from .persistence import BackendSizes, JournalPosition, PersistenceBackend, RemoteChanges
    from .table import EntryTable

__all__ = [
    "AGENT_AUTHOR",
    "ALL_ENTRIES",
    "MAX_ALIASES",
    "MAX_CONTENT",
    "MAX_ENTRIES",
    "MAX_NAME",
    "AddEntry",
    "BackendSizes",
    "BadCrmemError",
    "DropEntry",
    "EntryChange",
    "EntryKind",
    "EntryKindError",
    "EntryTable",
    "JournalPosition",
    "MarkdownBookError",
    "Memory",
    "MemoryDamage",
    "MemoryEntry",
    "MemoryHit",
    "MemoryInUseError",
    "MemoryLimitError",
    "MemoryOperation",
    "MemoryStatistics",
    "MemoryStoreError",
    "MemoryUnavailableError",
    "MemoryView",
    "NameTakenError",
    "PersistenceBackend",
    "PutEntry",
    "RemoteChanges",
    "RemoveEntry",
    "RenameEntry",
    "SetAliases",
    "UnknownEntryError",
    "UpdateEntry",
    "add_author",
    "describe_damage",
    "encode_author",
    "get_author",
    "qualify_name",
    "qualify_names",
    "split_words",
    "strip_author",
    "tokenize_text",
    "verify_memory",
]

# Loaded when a memory is opened: most conversations never remember or recall.
__getattr__ = load_lazily(
    __name__,
    {
        "file_backend": ("verify_memory",),
        "journal_file": ("EntryChange", "DropEntry", "PutEntry"),
        "memory": ("MemoryHit", "Memory", "MemoryStatistics"),
        "operations": (
            "AddEntry",
            "SetAliases",
            "MemoryOperation",
            "RemoveEntry",
            "RenameEntry",
            "UpdateEntry",
        ),
        "persistence": ("PersistenceBackend", "RemoteChanges", "JournalPosition", "BackendSizes"),
        "checksums": ("MemoryDamage", "describe_damage"),
        "table": ("EntryTable",),
    },
)
