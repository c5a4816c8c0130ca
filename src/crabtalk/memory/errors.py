"""Errors of the entry store. Each message ends in what to do next; `code` is an HTTP status."""

from typing import ClassVar


class MemoryStoreError(Exception):
    """The base class. Raised itself when the disk refused a write; nothing has changed then."""

    code: ClassVar[int] = 500


class NameTakenError(MemoryStoreError):
    """A name or an alias already belongs to another entry."""

    code = 409


class UnknownEntryError(MemoryStoreError):
    """No entry has that name or alias."""

    code = 404


class EntryKindError(MemoryStoreError):
    """The operation is not allowed for entries of this kind."""

    code = 403


class MemoryLimitError(MemoryStoreError):
    """An entry or a memory exceeds a limit, or a text is empty or invalid."""

    code = 413


class MemoryInUseError(MemoryStoreError):
    """Another process, or another part of this one, is writing this memory."""

    code = 409


class MemoryUnavailableError(MemoryStoreError):
    """The backend cannot be reached now; a write may or may not have been stored."""

    code = 503


class BadCrmemError(MemoryStoreError):
    """The data is not a CRMEM file, or a damaged one."""

    code = 422


class MarkdownBookError(MemoryStoreError):
    """A book of pages cannot be written or read; nothing was loaded."""

    code = 422
