"""Errors of storage."""


class StorageError(Exception):
    """Something could not be stored or read. The text says what, why, and what to do about it."""


class StorageUnavailableError(StorageError):
    """A temporary failure: the shared database cannot be reached; reconnecting is automatic."""


class FencedError(StorageUnavailableError):
    """Another process holds the conversation's turn by now; nothing was stored."""
