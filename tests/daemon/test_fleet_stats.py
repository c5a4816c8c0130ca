"""What a daemon says of the database it shares, and of those it shares it with."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import crabtalk
from crabtalk.daemon.fleet.stats import DATABASE_TIMEOUT_SECONDS, collect_fleet_info
from crabtalk.storage.postgres import PostgresStorage
from crabtalk.storage.postgres.schema import MIGRATIONS
from tests.postgres import PostgresServer, execute_sql


@asynccontextmanager
async def open_member(
    home: Path, url: str, name: str, lease: float = 60
) -> AsyncIterator[PostgresStorage]:
    storage = PostgresStorage(home, url, name=name, lease=lease)
    try:
        await storage.open()
        yield storage
    finally:
        await storage.close()


@pytest.mark.req("fleet.stats")
async def test_all_daemons_are_named_the_dead_ones_too(home: Path, postgres_url: str) -> None:
    async with (
        open_member(home, postgres_url, "a"),
        open_member(home, postgres_url, "b") as storage,
    ):
        execute_sql(
            postgres_url,
            "INSERT INTO daemons (id, name, version, expires_at) VALUES "
            "(gen_random_uuid(), 'c', '0.0', clock_timestamp() - interval '1 minute')",
        )
        async with asyncio.timeout(30):
            while not storage.mailbox.is_listening:
                await asyncio.sleep(0.01)
        storage.membership.count_runs = lambda: 3
        found = await collect_fleet_info(storage)
        assert found.trouble == ""
        assert found.schema_version == len(MIGRATIONS)
        assert found.lease_secs == 60
        assert found.is_listening
        assert abs(found.clock_ahead) < 1  # both are this machine's
        assert "crabtalk" in found.database
        assert "@" not in found.database
        told = [(one.name, one.version, one.is_alive, one.is_self) for one in found.members]
        version = crabtalk.__version__
        assert told == [
            ("a", version, True, False),
            ("b", version, True, True),
            ("c", "0.0", False, False),
        ]
        assert all(one.uptime_secs < 60 for one in found.members)


@pytest.mark.req("fleet.stats.away")
@pytest.mark.parametrize("how", ["gone", "silent"])
@pytest.mark.clock
async def test_a_database_that_is_away_is_said_to_be_and_soon(
    home: Path, private_postgres: PostgresServer, how: str
) -> None:
    async with open_member(home, private_postgres.url, "a") as storage:
        if how == "gone":
            await asyncio.to_thread(private_postgres.stop, "immediate")
        else:
            await asyncio.to_thread(private_postgres.stall)
        try:
            began = time.monotonic()
            found = await collect_fleet_info(storage)
            assert time.monotonic() - began < DATABASE_TIMEOUT_SECONDS + 10
        finally:
            if how == "gone":
                await asyncio.to_thread(private_postgres.start)
            else:
                await asyncio.to_thread(private_postgres.resume)
        assert found.trouble.startswith("the database postgresql://")
        assert found.lease_secs == 60
        assert not found.members
        async with asyncio.timeout(30):
            while (await collect_fleet_info(storage)).trouble:
                await asyncio.sleep(0.05)
