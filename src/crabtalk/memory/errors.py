"""How the entry store fails. Each sentence ends in what to do next; `code` is an HTTP status."""

from typing import ClassVar


class MemoryStoreError(Exception):
    """What all of them are. By itself: the disk refused, and nothing has changed."""

    code: ClassVar[int] = 500


class NameTakenError(MemoryStoreError):
    """A name or an alias that already leads to another entry."""

    code = 409


class UnknownEntryError(MemoryStoreError):
    """Nothing has that name, and nothing that alias."""

    code = 404


class EntryKindError(MemoryStoreError):
    """The entry is of a kind that this is not done to."""

    code = 403


class MemoryLimitError(MemoryStoreError):
    """Larger, longer or more than an entry or a memory may be, or no text at all."""

    code = 413


class MemoryInUseError(MemoryStoreError):
    """Somebody else writes this memory."""

    code = 409


class MemoryUnavailableError(MemoryStoreError):
    """What keeps the memory cannot be reached now; a write may or may not have been kept."""

    code = 503


class BadCrmemError(MemoryStoreError):
    """No CRMEM file, or one that is damaged."""

    code = 422


class MarkdownBookError(MemoryStoreError):
    """A tree of pages that cannot be written or read; nothing was loaded."""

    code = 422
