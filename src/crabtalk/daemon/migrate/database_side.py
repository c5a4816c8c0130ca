"""DatabaseSide: reads and writes a fleet's database for a migration. No daemon may use the database
meanwhile."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from crabtalk.storage import Subscription
from crabtalk.storage.postgres import PostgresMemoryStore
from crabtalk.storage.postgres.agent_table import AgentTable
from crabtalk.storage.postgres.database import PostgresDatabase, translate_database_errors
from crabtalk.storage.postgres.schema import migrate_schema
from crabtalk.storage.postgres.storage import get_channel
from crabtalk.storage.postgres.subscription_table import SubscriptionTable

from .conversation_rows import ConversationRows
from .migration import ByteItems, ConversationItems, ItemDigest, MigrationError, hash_bytes

# A statement may write a long conversation, or list all conversations.
STATEMENT_SECONDS = 600.0

# Daemons take this lock at start to check the schema, so none can start meanwhile.
LOCK_TEMPLATE = "SELECT {}(hashtextextended('crabtalk ' || current_schema(), 0)) AS is_ours"
HOLD_LOCK, TRY_LOCK = (
    LOCK_TEMPLATE.format("pg_try_advisory_lock"),
    LOCK_TEMPLATE.format("pg_try_advisory_xact_lock"),
)
LIVE_DAEMONS = "SELECT name FROM daemons WHERE expires_at > clock_timestamp() ORDER BY started_at"
# Ids of earlier subscriptions must not be used again.
ADVANCE_SUBSCRIPTION_IDS = """
SELECT setval(numbers, greatest(nextval(numbers), (SELECT max(id) FROM subscriptions)))
FROM (SELECT pg_get_serial_sequence('subscriptions', 'id')::regclass AS numbers) AS sequence
"""


class DatabaseSide:
    def __init__(self, database: PostgresDatabase, url: str) -> None:
        self.name = database.name
        channel = get_channel(url)
        self.items: Mapping[str, ByteItems] = {
            "agents": AgentRowItems(AgentTable(database, channel)),
            "memories": MemoryRowItems(PostgresMemoryStore(database)),
            "subscriptions": SubscriptionRowItems(database, channel),
        }
        self.logs: ConversationItems = ConversationRows(database)


@asynccontextmanager
async def database_side(url: str, *, is_source: bool) -> AsyncIterator[DatabaseSide]:
    """Lock the database; fails at the end if the lock was lost meanwhile.

    Raises StorageError and MigrationError.
    """
    database = PostgresDatabase(url, pool=2, statement_seconds=STATEMENT_SECONDS)
    lock: Any = None
    try:
        if is_source and not await has_tables(database):
            raise MigrationError(
                f"nothing of crabtalk is in {database.name}; check the address, and its "
                "search_path if there is one"
            )
        refuse_other_lock((await database.change(TRY_LOCK))[0], database)
        await migrate_schema(database)
        lock = await database.connect()
        with translate_database_errors(database):
            row = await lock.fetchrow(HOLD_LOCK)
        refuse_other_lock(row, database)
        await refuse_live_daemons(database)
        if is_source:
            await refuse_unsettled_messages(database)
        yield DatabaseSide(database, url)
        await refuse_live_daemons(database)
        if lock.is_closed():
            raise MigrationError(
                f"the connection to {database.name} was lost for a while, and anybody could have "
                "written meanwhile; run it again to compare"
            )
    finally:
        if lock is not None:
            lock.terminate()
        await database.close()


async def has_tables(database: PostgresDatabase) -> bool:
    # Without retries: a wrong address fails at once.
    rows = await database.change("SELECT to_regclass('crabtalk_schema') IS NOT NULL AS is_there")
    return bool(rows[0]["is_there"])


def refuse_other_lock(row: Any, database: PostgresDatabase) -> None:
    if row["is_ours"] is False:  # None without a schema, which migrate_schema reports
        raise MigrationError(
            f"another program is at work in {database.name}: a daemon that starts, or another "
            "migration; wait until that is done"
        )


async def refuse_live_daemons(database: PostgresDatabase) -> None:
    names = [row["name"] for row in await database.fetch(LIVE_DAEMONS)]
    if names:
        raise MigrationError(
            f"daemons use {database.name}: {', '.join(names)}; stop all of them first (one that "
            "was killed counts until its lease is over)"
        )


async def refuse_unsettled_messages(database: PostgresDatabase) -> None:
    """Only logs are copied, and accepted messages are not in the logs yet."""
    rows = await database.fetch("SELECT count(*) AS left FROM accepted")
    if rows[0]["left"]:
        raise MigrationError(
            f"daemons of {database.name} were killed with {rows[0]['left']} accepted messages that "
            "are in no conversation yet; start a daemon, which adds them in a few seconds, stop "
            "it, and run this again"
        )


class AgentRowItems:
    def __init__(self, table: AgentTable) -> None:
        self._table = table
        self._bodies: dict[str, str] = {}

    async def names(self) -> list[str]:
        self._bodies = await self._table.load_bodies()
        return sorted(self._bodies)

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [ItemDigest(hash_bytes(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return self._bodies[name].encode()

    async def add(self, items: Sequence[tuple[str, bytes]]) -> None:
        for name, data in items:
            await self._table.put(name, data.decode())


class MemoryRowItems:
    def __init__(self, memories: PostgresMemoryStore) -> None:
        self._memories = memories

    async def names(self) -> list[str]:
        return sorted(await self._memories.list_names())

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [ItemDigest(hash_bytes(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return await self._memories.export_memory(name)

    async def add(self, items: Sequence[tuple[str, bytes]]) -> None:
        for name, data in items:
            await self._memories.import_memory(name, data)


class SubscriptionRowItems:
    """Subscriptions, named by their ids."""

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._table = SubscriptionTable(database, channel)
        self._subscriptions: dict[str, Subscription] = {}

    async def names(self) -> list[str]:
        self._subscriptions = {
            str(subscription.id): subscription for subscription in await self._table.load()
        }
        return sorted(self._subscriptions)

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]:
        return [ItemDigest(hash_bytes(await self.read(name))) for name in names]

    async def read(self, name: str) -> bytes:
        return msgspec.json.encode(self._subscriptions[name])

    async def add(self, items: Sequence[tuple[str, bytes]]) -> None:
        added = [msgspec.json.decode(data, type=Subscription) for _, data in items]
        async with self._database.transaction() as connection:
            await connection.executemany(
                "INSERT INTO subscriptions (id, source, target_agent, once, created_by) "
                "VALUES ($1, $2, $3, $4, $5)",
                [
                    (item.id, item.source, item.target_agent, item.once, item.created_by)
                    for item in added
                ],
            )
            await connection.execute(ADVANCE_SUBSCRIPTION_IDS)
