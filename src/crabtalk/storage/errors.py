"""How storage fails."""


class StorageError(Exception):
    """Something could not be kept or read; says what, why, and what to do about it."""
