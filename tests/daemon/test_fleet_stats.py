"""The fleet's part of a daemon's statistics: the database and the other daemons."""

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
async def test_all_daemons_are_listed_including_dead_ones(home: Path, postgres_url: str) -> None:
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
        info = await collect_fleet_info(storage)
        assert info.trouble == ""
        assert info.schema_version == len(MIGRATIONS)
        assert info.lease_secs == 60
        assert info.is_listening
        assert abs(info.clock_ahead) < 1  # both clocks are this machine's
        assert "crabtalk" in info.database
        assert "@" not in info.database
        members = [
            (member.name, member.version, member.is_alive, member.is_self)
            for member in info.members
        ]
        version = crabtalk.__version__
        assert members == [
            ("a", version, True, False),
            ("b", version, True, True),
            ("c", "0.0", False, False),
        ]
        assert all(member.uptime_secs < 60 for member in info.members)


@pytest.mark.req("fleet.stats.away")
@pytest.mark.parametrize("how", ["gone", "silent"])
@pytest.mark.clock
async def test_an_unreachable_database_is_reported_quickly(
    home: Path, private_postgres: PostgresServer, how: str
) -> None:
    async with open_member(home, private_postgres.url, "a") as storage:
        if how == "gone":
            await asyncio.to_thread(private_postgres.stop, "immediate")
        else:
            await asyncio.to_thread(private_postgres.stall)
        try:
            started_at = time.monotonic()
            info = await collect_fleet_info(storage)
            assert time.monotonic() - started_at < DATABASE_TIMEOUT_SECONDS + 10
        finally:
            if how == "gone":
                await asyncio.to_thread(private_postgres.start)
            else:
                await asyncio.to_thread(private_postgres.resume)
        assert info.trouble.startswith("the database postgresql://")
        assert info.lease_secs == 60
        assert not info.members
        async with asyncio.timeout(30):
            while (await collect_fleet_info(storage)).trouble:
                await asyncio.sleep(0.05)
