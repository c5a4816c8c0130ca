"""A database that is unreachable, stalled, read-only or full: reported in a sentence within a time
limit, and used again by itself once it recovers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from crabtalk.storage import StorageError, StorageUnavailableError
from crabtalk.storage.postgres import database as database_module
from crabtalk.storage.postgres.database import PostgresDatabase, strip_credentials
from tests.loop_latency import measure_loop_latency
from tests.postgres import Mode, PostgresServer, execute_sql

PATIENCE = 20
MODES: tuple[Mode, ...] = ("fast", "immediate")


@asynccontextmanager
async def open_database(url: str, **options: float) -> AsyncIterator[PostgresDatabase]:
    database = PostgresDatabase(url, **options)  # type: ignore[arg-type]
    try:
        yield database
    finally:
        async with asyncio.timeout(PATIENCE):
            await database.close()


async def wait_until_working(database: PostgresDatabase) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await database.change("CREATE TABLE IF NOT EXISTS notes (text text)")
                await database.change("INSERT INTO notes VALUES ('x')")
            except StorageUnavailableError:
                await asyncio.sleep(0.02)
            else:
                return


@pytest.mark.req("fleet.database.away")
async def test_an_unreachable_database_is_reported_and_used_again_once_it_is_back(
    private_postgres: PostgresServer,
) -> None:
    async with open_database(private_postgres.url) as database:
        await wait_until_working(database)
        await asyncio.to_thread(private_postgres.stop, "immediate")
        for _ in range(3):
            with pytest.raises(StorageUnavailableError, match="try again in a moment"):
                await database.change("INSERT INTO notes VALUES ('y')")
        await asyncio.to_thread(private_postgres.start)
        await wait_until_working(database)


@pytest.mark.req("fleet.database.away")
@pytest.mark.clock
async def test_no_statement_waits_for_an_unreachable_database(
    private_postgres: PostgresServer,
) -> None:
    async with open_database(private_postgres.url) as database:
        await wait_until_working(database)
        await asyncio.to_thread(private_postgres.stop, "fast")
        started_at = time.monotonic()
        answers = await asyncio.gather(
            *(database.fetch("SELECT 1") for _ in range(200)), return_exceptions=True
        )
        assert all(isinstance(answer, StorageUnavailableError) for answer in answers)
        assert time.monotonic() - started_at < 5
        await asyncio.to_thread(private_postgres.start)


@pytest.mark.req("fleet.database.away")
@pytest.mark.parametrize("mode", MODES)
async def test_reading_statements_survive_a_restart_of_the_server(
    private_postgres: PostgresServer, mode: Mode
) -> None:
    async with open_database(private_postgres.url) as database:
        assert await database.fetch("SELECT 1")
        await asyncio.to_thread(private_postgres.restart, mode)
        assert await database.fetch("SELECT 1")


@pytest.mark.req("fleet.database.slow")
@pytest.mark.clock
async def test_a_statement_on_a_stalled_server_times_out(private_postgres: PostgresServer) -> None:
    async with open_database(private_postgres.url, statement_seconds=0.5) as database:
        await wait_until_working(database)
        await asyncio.to_thread(private_postgres.stall)
        try:
            started_at = time.monotonic()
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(StorageUnavailableError):
                    await database.change("INSERT INTO notes VALUES ('y')")
            assert time.monotonic() - started_at < 5
        finally:
            await asyncio.to_thread(private_postgres.resume)
        await wait_until_working(database)


@pytest.mark.req("fleet.database.slow")
async def test_a_cancelled_statement_does_not_wait_for_a_stalled_server(
    private_postgres: PostgresServer,
) -> None:
    async with open_database(private_postgres.url) as database:
        await wait_until_working(database)
        await asyncio.to_thread(private_postgres.stall)
        try:
            asking = asyncio.ensure_future(database.fetch("SELECT 1"))
            await asyncio.sleep(0.05)
            asking.cancel()
            done, _ = await asyncio.wait([asking], timeout=5)
            assert done, "a cancelled statement waits for the server"
        finally:
            await asyncio.to_thread(private_postgres.resume)
        await wait_until_working(database)


@pytest.mark.req("fleet.database.slow")
async def test_the_server_ends_a_statement_that_takes_too_long(postgres_url: str) -> None:
    async with open_database(postgres_url, statement_seconds=0.2) as database:
        with pytest.raises(StorageUnavailableError, match="statement timeout"):
            await database.fetch("SELECT pg_sleep(20)")
        assert await database.fetch("SELECT 1")


@pytest.mark.req("fleet.database.failover")
async def test_a_read_only_server_is_used_again_once_it_is_writable(
    private_postgres: PostgresServer,
) -> None:
    """As after a failover to a standby."""
    url = private_postgres.url
    async with open_database(url, pool=3) as database:
        await wait_until_working(database)
        execute_sql(url, "ALTER DATABASE crabtalk SET default_transaction_read_only = on")
        await asyncio.to_thread(private_postgres.restart, "fast")
        await asyncio.gather(*(database.fetch("SELECT pg_sleep(0.05)") for _ in range(3)))
        for _ in range(3):
            with pytest.raises(StorageUnavailableError, match="read-only"):
                await database.change("INSERT INTO notes VALUES ('y')")
        execute_sql(
            url, "SET transaction_read_only = off", "SET default_transaction_read_only = off",
            "ALTER DATABASE crabtalk RESET default_transaction_read_only",
        )  # fmt: skip
        await wait_until_working(database)
        await asyncio.gather(
            *(database.change("INSERT INTO notes VALUES ('z')") for _ in range(20))
        )


@pytest.mark.req("fleet.database.busy")
async def test_too_many_connections_are_a_temporary_error(private_postgres: PostgresServer) -> None:
    url = private_postgres.url
    execute_sql(url, "ALTER DATABASE crabtalk CONNECTION LIMIT 0")
    execute_sql(url, "CREATE ROLE guest LOGIN PASSWORD 'x' NOSUPERUSER")
    guest = url.replace("crabtalk@", "guest:x@")
    async with open_database(guest) as database:
        with pytest.raises(StorageUnavailableError, match="too many connections"):
            await database.fetch("SELECT 1")
        execute_sql(url, "ALTER DATABASE crabtalk CONNECTION LIMIT -1")
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await database.fetch("SELECT 1")
                except StorageUnavailableError:
                    await asyncio.sleep(0.02)
                else:
                    break


@pytest.mark.req("fleet.database.busy")
async def test_a_full_pool_is_a_temporary_error_without_backoff(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CONNECT_SECONDS", 0.3)
    async with open_database(postgres_url, pool=2) as database:
        async with database.transaction(), database.transaction():
            with pytest.raises(StorageUnavailableError, match="pool in \\[storage\\]"):
                await database.fetch("SELECT 1")
        # No backoff follows, unlike after a failed connection.
        assert await database.fetch("SELECT 1")


@pytest.mark.req("fleet.database.refused")
async def test_a_wrong_password_is_reported_without_showing_it(
    private_postgres: PostgresServer,
) -> None:
    execute_sql(private_postgres.url, "CREATE ROLE guest LOGIN PASSWORD 'right'")
    url = private_postgres.url.replace("crabtalk@", "guest:wrong-secret@")
    async with open_database(url) as database:
        with pytest.raises(StorageError, match="check url in") as caught:
            await database.fetch("SELECT 1")
        assert not isinstance(caught.value, StorageUnavailableError)
        assert "password authentication failed" in str(caught.value)
        assert "wrong-secret" not in str(caught.value)


@pytest.mark.req("fleet.database.refused")
async def test_a_missing_database_is_reported(postgres_server: str) -> None:
    async with open_database(postgres_server.replace("/crabtalk?", "/nowhere?")) as database:
        with pytest.raises(StorageError, match="check url in"):
            await database.fetch("SELECT 1")


@pytest.mark.req("fleet.database.refused")
@pytest.mark.parametrize("value", [2**70, "\ud800"])
async def test_values_that_no_column_can_hold_are_refused_without_a_retry(
    postgres_url: str, value: object
) -> None:
    kind = "bigint" if isinstance(value, int) else "text"
    async with open_database(postgres_url) as database:
        with pytest.raises(StorageError, match="cannot hold this") as caught:
            await database.fetch(f"SELECT $1::{kind}", value)
        assert not isinstance(caught.value, StorageUnavailableError)


@pytest.mark.req("fleet.database.refused")
def test_a_url_is_shown_without_secrets() -> None:
    url = "postgresql://me:secret@db.example:5432/crabs?password=secret&sslmode=require"
    assert strip_credentials(url) == "postgresql://db.example:5432/crabs"
    assert "secret" not in strip_credentials("postgresql://me:sec%40ret@db.example/crabs")
    assert strip_credentials("postgresql:///crabs?password=secret") == "postgresql:///crabs"


@pytest.mark.req("fleet.database.away")
@pytest.mark.clock
async def test_the_loop_is_not_blocked_while_the_database_restarts(
    private_postgres: PostgresServer,
) -> None:
    async with open_database(private_postgres.url, statement_seconds=0.5) as database:
        await wait_until_working(database)
        async with measure_loop_latency() as late:
            for mode in MODES:
                await asyncio.to_thread(private_postgres.stop, mode)
                for _ in range(20):
                    with pytest.raises(StorageUnavailableError):
                        await database.fetch("SELECT 1")
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(private_postgres.start)
                await wait_until_working(database)
        assert max(late) < 0.5
