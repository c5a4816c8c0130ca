"""SubscriptionTable: event subscriptions in PostgreSQL, shared by the daemons of a fleet."""

from collections.abc import Collection

from crabtalk.storage.subscription import Subscription

from .database import MAX_BIGINT, PostgresDatabase

NOTIFY_CHANGE = """
UPDATE revisions SET number = number + 1 WHERE what = 'subscriptions'
RETURNING pg_notify($1, 'revision subscriptions ' || number)
"""


class SubscriptionTable:
    """Each call raises StorageError."""

    is_shared = True

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._channel = channel

    async def load(self) -> list[Subscription]:
        rows = await self._database.fetch(
            "SELECT id, source, target_agent, once, created_by FROM subscriptions ORDER BY id"
        )
        return [Subscription(**row) for row in rows]

    async def list_for_source(self, source: str) -> list[Subscription]:
        """The subscriptions to one source, as they are now."""
        rows = await self._database.fetch(
            "SELECT id, source, target_agent, once, created_by FROM subscriptions "
            "WHERE source = $1 ORDER BY id",
            source,
        )
        return [Subscription(**row) for row in rows]

    async def add(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription:
        async with self._database.transaction() as connection:
            number = await connection.fetchval(
                "INSERT INTO subscriptions (source, target_agent, once, created_by) "
                "VALUES ($1, $2, $3, $4) RETURNING id",
                source,
                target_agent,
                once,
                created_by,
            )
            await connection.execute(NOTIFY_CHANGE, self._channel)
        return Subscription(number, source, target_agent, once, created_by)

    async def remove(self, ids: Collection[int]) -> set[int]:
        """Remove those that exist, and return their ids. Each id is returned to one daemon only."""
        ids = [number for number in ids if number <= MAX_BIGINT]
        async with self._database.transaction() as connection:
            rows = await connection.fetch(
                "DELETE FROM subscriptions WHERE id = ANY($1::bigint[]) RETURNING id", ids
            )
            if rows:
                await connection.execute(NOTIFY_CHANGE, self._channel)
        return {row["id"] for row in rows}
