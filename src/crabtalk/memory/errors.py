"""How the entry store fails. Each sentence ends in what to do next; `code` is an HTTP status."""

from typing import ClassVar


class StoreError(Exception):
    """What all of them are. By itself: the disk refused, and nothing has changed."""

    code: ClassVar[int] = 500


class NameTakenError(StoreError):
    """A name or an alias that already leads to another entry."""

    code = 409


class UnknownEntryError(StoreError):
    """Nothing has that name, and nothing that alias."""

    code = 404


class KindError(StoreError):
    """The entry is of a kind that this is not done to."""

    code = 403


class LimitError(StoreError):
    """Larger, longer or more than an entry or a memory may be, or no text at all."""

    code = 413


class MemoryInUseError(StoreError):
    """Somebody else writes this memory."""

    code = 409


class StoreUnavailableError(StoreError):
    """What keeps the memory cannot be reached now; a write may or may not have been kept."""

    code = 503


class BadFormatError(StoreError):
    """No CRMEM file, or one that is damaged."""

    code = 422


class TreeError(StoreError):
    """A tree of pages that cannot be written or read; nothing was loaded."""

    code = 422
