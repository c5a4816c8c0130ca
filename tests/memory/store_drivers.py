"""Drivers for every kind of memory store, used alike from a test's thread."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from crabtalk.hooks.memory_pool import FileMemoryStore
from crabtalk.memory import Memory
from crabtalk.storage.postgres.database import PostgresDatabase
from crabtalk.storage.postgres.memory_store import TABLES, PostgresMemoryStore
from tests.memory.memory_samples import open_memory, read_fixed_time

T = TypeVar("T")


class StoreDriver(Protocol):
    def open(self, name: str = "crab") -> Memory: ...

    def names(self) -> list[str]: ...

    def export_memory(self, name: str = "crab") -> bytes: ...

    def import_memory(self, name: str, data: bytes) -> None: ...


class FileStoreDriver:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memories = FileMemoryStore(directory, flush=False)

    def open(self, name: str = "crab") -> Memory:
        return open_memory(self._directory / f"{name}.crmem")

    def names(self) -> list[str]:
        return asyncio.run(self._memories.list_names())

    def export_memory(self, name: str = "crab") -> bytes:
        return asyncio.run(self._memories.export_memory(name))

    def import_memory(self, name: str, data: bytes) -> None:
        asyncio.run(self._memories.import_memory(name, data))


class PostgresStoreDriver:
    """As in a daemon, with an event loop in another thread."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.database = PostgresDatabase(url)
        self.memories = PostgresMemoryStore(self.database, now=read_fixed_time)

    def create(self) -> None:
        self.run(create_tables(self.database))

    def open(self, name: str = "crab") -> Memory:
        return self.run(self.memories.open(name))

    def catch_up(self, memory: Memory) -> None:
        self.run(self.memories.catch_up(memory))

    def names(self) -> list[str]:
        return self.run(self.memories.list_names())

    def export_memory(self, name: str = "crab") -> bytes:
        return self.run(self.memories.export_memory(name))

    def import_memory(self, name: str, data: bytes) -> None:
        self.run(self.memories.import_memory(name, data))

    def close(self) -> None:
        self.run(self.database.close())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


async def create_tables(database: PostgresDatabase) -> None:
    async with database.transaction() as connection:
        await connection.execute(TABLES)


@contextmanager
def run_loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextmanager
def open_postgres_stores(url: str, count: int) -> Iterator[list[PostgresStoreDriver]]:
    """`count` stores on one database, like the daemons of a fleet."""
    with run_loop_in_thread() as loop:
        stores = [PostgresStoreDriver(url, loop) for _ in range(count)]
        stores[0].create()
        try:
            yield stores
        finally:
            for store in stores:
                store.close()
