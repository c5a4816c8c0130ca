"""All storage backends, empty, for tests of the guarantees that all of them give."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.storage import FileStorage, MemoryStorage, Storage
from crabtalk.storage.postgres import PostgresStorage

BACKENDS = ("files", "memory", "postgres")


@asynccontextmanager
async def open_backend(
    name: str, home: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Storage]:
    """Opens the backend of that name, and closes it at the end."""
    home.mkdir(exist_ok=True)
    storage: Storage
    match name:
        case "files":
            storage = FileStorage(home, flush=False)
        case "memory":
            storage = MemoryStorage()
        case _:
            storage = PostgresStorage(home, request.getfixturevalue("postgres_url"))
    try:
        yield storage
    finally:
        await storage.close()
