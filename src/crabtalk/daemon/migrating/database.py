"""DatabaseSide: what a fleet keeps in its database, as a migration reads and writes it. It has the
database to itself: no daemon may use it meanwhile."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from crabtalk.storage import Subscription
from crabtalk.storage.postgres import PostgresMemories
from crabtalk.storage.postgres.agents import AgentTable
from crabtalk.storage.postgres.database import Database, told
from crabtalk.storage.postgres.schema import migrate
from crabtalk.storage.postgres.storage import channel_of
from crabtalk.storage.postgres.subscriptions import SubscriptionTable

from .migration import Digest, Logs, MigrationError, Texts, digest_of
from .rows import LogRows

# A statement may write a long conversation, or read the names of all.
STATEMENT_SECONDS = 600.0

# The lock under which daemons look after the schema as they start: none gets past it meanwhile.
LOCK = "SELECT {}(hashtextextended('crabtalk ' || current_schema(), 0)) AS is_ours"
HOLD, TRY = LOCK.format("pg_try_advisory_lock"), LOCK.format("pg_try_advisory_xact_lock")
ALIVE = "SELECT name FROM daemons WHERE expires_at > clock_timestamp() ORDER BY started_at"
# Numbers that were given out before are not given out again.
NUMBERS = """
SELECT setval(numbers, greatest(nextval(numbers), (SELECT max(id) FROM subscriptions)))
FROM (SELECT pg_get_serial_sequence('subscriptions', 'id')::regclass AS numbers) AS sequence
"""


class DatabaseSide:
    def __init__(self, database: Database, url: str) -> None:
        self.name = database.name
        channel = channel_of(url)
        self.texts: Mapping[str, Texts] = {
            "agents": AgentRows(AgentTable(database, channel)),
            "memories": MemoryRows(PostgresMemories(database)),
            "subscriptions": SubscriptionRows(database, channel),
        }
        self.logs: Logs = LogRows(database)


@asynccontextmanager
async def database_side(url: str, *, is_source: bool) -> AsyncIterator[DatabaseSide]:
    """With the database to itself until the end, which fails where that was not so.

    Raises StorageError and MigrationError.
    """
    database = Database(url, pool=2, statement_seconds=STATEMENT_SECONDS)
    lock: Any = None
    try:
        if is_source and not await has_tables(database):
            raise MigrationError(
                f"nothing of crabtalk is in {database.name}; check the address, and its "
                "search_path if there is one"
            )
        refuse_work((await database.change(TRY))[0], database)
        await migrate(database)
        lock = await database.connect()
        with told(database):
            row = await lock.fetchrow(HOLD)
        refuse_work(row, database)
        await refuse_daemons(database)
        if is_source:
            await refuse_accepted(database)
        yield DatabaseSide(database, url)
        await refuse_daemons(database)
        if lock.is_closed():
            raise MigrationError(
                f"the connection to {database.name} was lost for a while, and anybody could have "
                "written meanwhile; run it again to compare"
            )
    finally:
        if lock is not None:
            lock.terminate()
        await database.close()


async def has_tables(database: Database) -> bool:
    # Not tried twice: what is wrong with an address shows the first time.
    rows = await database.change("SELECT to_regclass('crabtalk_schema') IS NOT NULL AS is_there")
    return bool(rows[0]["is_there"])


def refuse_work(row: Any, database: Database) -> None:
    if row["is_ours"] is False:  # None without a schema, which is told when it is looked after
        raise MigrationError(
            f"somebody else is at work in {database.name}: a daemon that starts, or another "
            "migration; wait until that is done"
        )


async def refuse_daemons(database: Database) -> None:
    names = [row["name"] for row in await database.fetch(ALIVE)]
    if names:
        raise MigrationError(
            f"daemons use {database.name}: {', '.join(names)}; stop all of them first (one that "
            "was killed counts until its lease is over)"
        )


async def refuse_accepted(database: Database) -> None:
    """Only logs are moved, and messages that were accepted are not there yet."""
    rows = await database.fetch("SELECT count(*) AS left FROM accepted")
    if rows[0]["left"]:
        raise MigrationError(
            f"daemons of {database.name} were killed with {rows[0]['left']} accepted messages that "
            "are in no conversation yet; start a daemon, which adds them in a few seconds, stop "
            "it, and run this again"
        )


class AgentRows:
    def __init__(self, table: AgentTable) -> None:
        self._table = table
        self._known: dict[str, str] = {}

    async def names(self) -> list[str]:
        self._known = await self._table.bodies()
        return sorted(self._known)

    async def digests(self, names: Sequence[str]) -> list[Digest]:
        return [Digest(digest_of(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return self._known[name].encode()

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None:
        for name, data in things:
            await self._table.put(name, data.decode())


class MemoryRows:
    def __init__(self, memories: PostgresMemories) -> None:
        self._memories = memories

    async def names(self) -> list[str]:
        return sorted(await self._memories.names())

    async def digests(self, names: Sequence[str]) -> list[Digest]:
        return [Digest(digest_of(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return await self._memories.export_memory(name)

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None:
        for name, data in things:
            await self._memories.import_memory(name, data)


class SubscriptionRows:
    """By their numbers."""

    def __init__(self, database: Database, channel: str) -> None:
        self._database = database
        self._table = SubscriptionTable(database, channel)
        self._known: dict[str, Subscription] = {}

    async def names(self) -> list[str]:
        self._known = {str(one.id): one for one in await self._table.load()}
        return sorted(self._known)

    async def digests(self, names: Sequence[str]) -> list[Digest]:
        return [Digest(digest_of(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return msgspec.json.encode(self._known[name])

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None:
        added = [msgspec.json.decode(data, type=Subscription) for _, data in things]
        async with self._database.transaction() as connection:
            await connection.executemany(
                "INSERT INTO subscriptions (id, source, target_agent, once, created_by) "
                "VALUES ($1, $2, $3, $4, $5)",
                [(one.id, one.source, one.target_agent, one.once, one.created_by) for one in added],
            )
            await connection.execute(NUMBERS)
