"""How storage fails."""


class StorageError(Exception):
    """Something could not be kept or read; says what, why, and what to do about it."""


class StorageUnavailableError(StorageError):
    """The same, for now: what is shared cannot be reached, and is tried again by itself."""


class FencedError(StorageUnavailableError):
    """Somebody else has the conversation's turn by now; nothing of this was kept."""
