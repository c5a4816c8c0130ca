"""The schema: each migration is applied once, by one daemon at a time, and never reverted; and no
query scans whole tables when there are many conversations."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from crabtalk.model.messages import Message
from crabtalk.storage import ConversationMeta, EventRecord, MessageRecord, Pair, StorageError
from crabtalk.storage.postgres import (
    PostgresStorage,
    mailbox,
    membership,
    queries,
    schema,
    turn_claims,
)
from crabtalk.storage.postgres.database import PostgresDatabase
from crabtalk.storage.record_slices import WindowRequest
from tests.postgres import execute_sql, with_parameters

MANY = 20_000
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
LARGE = ("conversations", "entries", "leases", "tickets", "mail", "deletions")


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[PostgresDatabase]:
    database = PostgresDatabase(url)
    try:
        yield database
    finally:
        await database.close()


# ── Migrations ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.schema")
async def test_of_five_daemons_with_an_empty_schema_one_migrates_and_all_serve(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    storages = [PostgresStorage(tmp_path, postgres_url) for _ in range(5)]
    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*(storage.open() for storage in storages))
        for number, storage in enumerate(storages):
            pair = Pair("crab", f"s{number}")
            await storage.append(
                pair, [ConversationMeta(*pair, created_at="now").make_snapshot()], create=True
            )
        assert len(await storages[0].list_conversations()) == 5
        assert len(await storages[0].membership.list_members()) == 5
    finally:
        for storage in storages:
            await storage.close()
    versions = [
        row["version"] for row in execute_sql(postgres_url, "SELECT * FROM crabtalk_schema")
    ]
    assert versions == list(range(1, len(schema.MIGRATIONS) + 1))
    steps = [record for record in caplog.records if "goes to schema" in record.getMessage()]
    assert len(steps) == len(schema.MIGRATIONS)


@pytest.mark.req("fleet.schema")
async def test_a_migration_is_applied_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(postgres_url) as database:
        assert await schema.migrate_schema(database) == len(schema.MIGRATIONS)
        assert await schema.migrate_schema(database) == 0
        more = (*schema.MIGRATIONS, "CREATE TABLE later (x int)")
        monkeypatch.setattr(schema, "MIGRATIONS", more)
        assert await schema.migrate_schema(database) == 1
        assert await schema.migrate_schema(database) == 0


@pytest.mark.req("fleet.schema")
async def test_a_newer_schema_is_refused_and_not_changed(tmp_path: Path, postgres_url: str) -> None:
    async with open_database(postgres_url) as database:
        await schema.migrate_schema(database)
    execute_sql(postgres_url, "INSERT INTO crabtalk_schema VALUES (99)")
    before = execute_sql(postgres_url, TABLES)
    storage = PostgresStorage(tmp_path, postgres_url)
    try:
        with pytest.raises(StorageError, match=r"newer crabtalk .*: upgrade this daemon"):
            await storage.open()
        with pytest.raises(StorageError, match="upgrade this daemon"):
            await storage.list_conversations()
    finally:
        await storage.close()
    assert execute_sql(postgres_url, TABLES) == before
    assert not execute_sql(postgres_url, "SELECT FROM daemons")


@pytest.mark.req("fleet.schema")
async def test_a_failed_migration_changes_nothing_and_can_be_repeated(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(postgres_url) as database:
        with monkeypatch.context() as patch:
            broken = (*schema.MIGRATIONS, "CREATE TABLE half (x int); SELECT 1 / 0")
            patch.setattr(schema, "MIGRATIONS", broken)
            with pytest.raises(StorageError):
                await schema.migrate_schema(database)
        assert not execute_sql(postgres_url, TABLES)
        assert await schema.migrate_schema(database) == len(schema.MIGRATIONS)


@pytest.mark.req("fleet.schema")
async def test_a_daemon_that_dies_during_a_migration_does_not_block_others(
    postgres_url: str,
) -> None:
    dying = await asyncpg.connect(postgres_url)
    transaction = dying.transaction()
    await transaction.start()
    await dying.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended('crabtalk ' || current_schema(), 0))"
    )
    async with open_database(postgres_url) as database:
        migrating = asyncio.ensure_future(schema.migrate_schema(database))
        done, _ = await asyncio.wait([migrating], timeout=0.3)
        assert not done
        dying.terminate()
        async with asyncio.timeout(30):
            assert await migrating == len(schema.MIGRATIONS)


@pytest.mark.req("fleet.schema")
async def test_an_unknown_search_path_is_reported_in_a_sentence(
    tmp_path: Path, postgres_url: str
) -> None:
    storage = PostgresStorage(tmp_path, with_parameters(postgres_url, search_path="nowhere"))
    try:
        with pytest.raises(StorageError, match="create it with CREATE SCHEMA"):
            await storage.open()
    finally:
        await storage.close()


@pytest.mark.req("fleet.schema")
async def test_fleets_in_two_schemas_of_a_database_are_independent(
    tmp_path: Path, postgres_server: str, postgres_url: str
) -> None:
    from tests.postgres import create_schema

    pair = Pair("crab", "user")
    with create_schema(postgres_server) as other_url:
        one, other = PostgresStorage(tmp_path, postgres_url), PostgresStorage(tmp_path, other_url)
        try:
            held, free = one.claim_turn(pair, "r1"), other.claim_turn(pair, "r2")
            async with asyncio.timeout(30):
                await held.acquire()
                await free.acquire()
            await one.append(
                pair, [ConversationMeta(*pair, created_at="now").make_snapshot()], create=True
            )
            assert not await other.list_conversations()
            assert [member.id for member in await other.membership.list_members()] == [other.id]
            held.release()
            free.release()
        finally:
            await one.close()
            await other.close()


# ── Plans ──────────────────────────────────────────────────────────────────────────────────────

FILL = f"""
INSERT INTO conversations (key, handle, agent, sender, created_at, updated_at, title,
    message_count, approved, last_seq, marker_seq, changed)
SELECT 'k' || n, 'h' || n, 'agent' || n % 500, 's' || n, '', '', '', 2, '{{}}', 4, 1,
    pg_current_xact_id()
FROM generate_series(1, {MANY}) AS n;
INSERT INTO entries (conversation, seq, message_id, kind, body)
SELECT c.id, n, CASE WHEN n > 2 THEN n - 3 END,
    CASE n WHEN 1 THEN 'marker' WHEN 2 THEN 'event' ELSE 'message' END, '{{}}'
FROM conversations c, generate_series(1, 4) AS n;
INSERT INTO daemons (id, name, version, expires_at)
SELECT gen_random_uuid(), 'd' || n, '1', clock_timestamp() + interval '1 hour'
FROM generate_series(1, 100) AS n;
INSERT INTO leases (key, agent, sender, owner, run, since, fence, expires_at)
SELECT 'k' || n, 'a', 's', (SELECT id FROM daemons ORDER BY id OFFSET n % 100 LIMIT 1), 'r' || n, 0,
    crabtalk_fence(), clock_timestamp() + interval '1 hour'
FROM generate_series(1, {MANY}, 4) AS n;
INSERT INTO tickets (key, daemon, first)
SELECT 'k' || n, (SELECT id FROM daemons ORDER BY id OFFSET n % 100 LIMIT 1), false
FROM generate_series(1, {MANY}, 4) AS n;
INSERT INTO mail (recipient, sender, kind, body)
SELECT (SELECT id FROM daemons ORDER BY id OFFSET n % 100 LIMIT 1), gen_random_uuid(), 'events', ''
FROM generate_series(1, {MANY}, 4) AS n;
INSERT INTO deletions (handle, changed)
SELECT 'gone' || n, pg_current_xact_id() FROM generate_series(1, {MANY}, 4) AS n;
ANALYZE
"""
# Statements that list all rows on purpose.
ALL = {"VERSIONS"}
# Statements whose plan depends on the value: how many rows are newer.
RECENT = {"CHANGED", "GONE"}
NAMES = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")


def list_statements(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The statements of a module by name, except those that call our SQL functions."""
    for name, value in vars(module).items():
        is_statement = isinstance(value, str) and value.lstrip().startswith(NAMES)
        if name.isupper() and is_statement and not re.search("crabtalk_(?!fence)", value):
            yield name, value


async def fill_database(url: str) -> None:
    async with open_database(url) as database:
        await schema.migrate_schema(database)
    connection = await asyncpg.connect(url)
    try:
        for statement in FILL.split(";\n"):
            await connection.execute(statement)
    finally:
        await connection.close()


async def explain_statement(connection: Any, name: str, statement: str) -> str:
    """The plan that a connection uses after many executions of the statement."""
    await connection.execute(f"PREPARE of_{name} AS {statement}")
    row = await connection.fetchrow(
        "SELECT parameter_types::text[] AS kinds FROM pg_prepared_statements WHERE name = $1",
        f"of_{name.lower()}",
    )
    values = ", ".join("NULL" for _ in row["kinds"])
    if name in RECENT:
        await connection.execute("SET plan_cache_mode = force_custom_plan")
        values = "(pg_snapshot_xmin(pg_current_snapshot())::text)"
    else:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
    rows = await connection.fetch(f"EXPLAIN EXECUTE of_{name}{f'({values})' if values else ''}")
    return "\n".join(row[0] for row in rows)


@pytest.mark.req("fleet.no_scans")
@pytest.mark.one_loop
async def test_no_statement_scans_a_table_that_grows_with_conversations(
    postgres_url: str,
) -> None:
    await fill_database(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    checked = 0
    try:
        listings = {
            f"LISTING_{number}": queries.build_listing_query(*filters)[0]
            for number, filters in enumerate((("a", ""), ("", "s"), ("a", "s")))
        }
        for module in (queries, turn_claims, membership, mailbox):
            for name, statement in [*list_statements(module), *listings.items()]:
                text = await explain_statement(connection, name, statement)
                await connection.execute(f"DEALLOCATE of_{name}")
                scanned = set(re.findall(r"Seq Scan on (\w+)", text)) & set(LARGE)
                assert not scanned or name in ALL, f"{module.__name__}.{name}:\n{text}"
                checked += 1
    finally:
        await connection.close()
    assert checked > 25


@pytest.mark.req("fleet.no_scans")
@pytest.mark.one_loop
async def test_no_step_of_a_turn_scans_a_whole_table(tmp_path: Path, postgres_url: str) -> None:
    """This includes statements inside SQL functions, which EXPLAIN does not show."""
    await fill_database(postgres_url)
    storage = PostgresStorage(tmp_path, postgres_url, lease=0.6)
    other = PostgresStorage(tmp_path, postgres_url, lease=60)
    scans = (
        "SELECT relname, seq_scan FROM pg_stat_user_tables "
        f"WHERE schemaname = current_schema() AND relname IN {LARGE}"
    )
    await storage.open()
    await other.open()
    before = {row["relname"]: row["seq_scan"] for row in execute_sql(postgres_url, scans)}
    try:
        for number in range(12):  # until the connections use generic plans
            await use_every_query(storage, other, Pair("crab", f"user {number}"))
    finally:
        await storage.close()
        await other.close()
    after = {row["relname"]: row["seq_scan"] for row in execute_sql(postgres_url, scans)}
    assert set(before) == set(LARGE)
    assert after == before


async def use_every_query(storage: PostgresStorage, other: PostgresStorage, pair: Pair) -> None:
    claim = storage.claim_turn(pair, "r1")
    await claim.acquire()
    meta = ConversationMeta(*pair, created_at="now").make_snapshot()
    await storage.append(pair, [meta, MessageRecord(0, "", Message("user", "x"))], create=True)
    await storage.append(pair, [EventRecord("done", "", "r1", {"stop_reason": "completed"})])
    waiting = other.claim_turn(pair, "r2")
    await waiting._enter_task
    claim.release()
    await waiting.acquire()
    await other.database.change(
        "UPDATE leases SET expires_at = clock_timestamp() - interval '1 second' WHERE key = $1",
        waiting.key,
    )
    successor = storage.claim_turn(pair, "r3")
    await successor.acquire()
    successor.release()
    waiting.release()
    await storage.load_and_repair(pair)
    await storage.read_meta(pair)
    await storage.read_page(pair, 0, 10)
    await storage.list_archives(pair)
    ((handle, _),) = await storage.list_conversations(pair.agent, pair.sender)
    await storage.resolve_handle(handle)
    changes = await storage.read_changes("")
    assert changes is not None
    await storage.read_changes(changes.cursor)
    await storage.read_new_records([(handle, 0)], 1000)
    await storage.read_windows([WindowRequest(handle, 0, 0, 1, 1)])
    await storage.find_owner(pair)
    await storage.find_run(pair, run="r1")
    await storage.find_run(pair, key="k")
    await storage.read_records(pair, 0, 1000)
    await storage.find_holders(pair, run="r1", key="k")
    await storage.mailbox.send(other.id, "word", b"x")
    await storage.mailbox.send(uuid4(), "word", b"x")
    await storage.membership._send_heartbeat()
    await storage.membership._close_dead_leases()
    assert await storage.delete_conversation(pair)
