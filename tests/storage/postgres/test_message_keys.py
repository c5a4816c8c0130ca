"""Message keys in a database: unique per conversation across daemons, found by an index."""

from pathlib import Path

import asyncpg
import pytest

from crabtalk.storage import StorageError
from crabtalk.storage.postgres import PostgresStorage, queries
from crabtalk.storage.postgres.column_encoding import make_pair_key
from tests.postgres import execute_sql
from tests.storage.postgres.test_accepted import expire_daemon
from tests.storage.postgres.test_turn_claims import expire_lease, open_storages
from tests.storage.sample_records import PAIR, make_opening
from tests.storage.test_run_lookup import make_accepted, make_turn, read_user_messages

MANY = 20_000
FILL = f"""
INSERT INTO entries (conversation, seq, message_id, kind, body, run)
SELECT c.id, 10 + n, 10 + n, 'message', '{{}}', 'r' || n
FROM conversations c, generate_series(1, {MANY}) AS n;
INSERT INTO message_keys (conversation, key, run)
SELECT c.id, 'k' || n, 'r' || n FROM conversations c, generate_series(1, {MANY}) AS n;
ANALYZE
"""


@pytest.mark.req("delivery.unique_keys")
async def test_a_conversation_has_a_key_only_once(tmp_path: Path, postgres_url: str) -> None:
    async with open_storages(tmp_path, postgres_url, 2) as (one, two):
        await one.append(PAIR, [make_opening(), *make_turn(0, "r1", "k\0 1")], create=True)
        with pytest.raises(StorageError, match="with this key already; attach"):
            await two.append(PAIR, make_turn(2, "r2", "k\0 1"))
        await two.append(PAIR, make_turn(2, "r2", "k2"))
        assert await read_user_messages(one) == [("question r1", "k\0 1"), ("question r2", "k2")]


@pytest.mark.req("delivery.unique_keys")
async def test_keys_of_deleted_conversations_leave_no_rows(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (one,):
        await one.append(PAIR, [make_opening(), *make_turn(0, "r1", "k1")], create=True)
        assert len(execute_sql(postgres_url, "SELECT * FROM message_keys")) == 1
        await one.delete_conversation(PAIR)
        assert execute_sql(postgres_url, "SELECT * FROM message_keys") == []


@pytest.mark.req("delivery.accepted_keys")
async def test_a_key_accepted_by_two_dead_daemons_is_stored_once(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as (one, two, three):
        await one.accept_message(make_accepted(1, "hello", "k1"))
        await two.accept_message(make_accepted(2, "hello", "k1"))
        await expire_daemon(one)
        await three.load_and_repair(PAIR)
        assert await read_user_messages(three) == [("hello", "k1")]
        await expire_daemon(two)
        assert await three.list_unsettled() == [PAIR]
        await three.load_and_repair(PAIR)
        assert await read_user_messages(three) == [("hello", "k1")]
        assert await three.list_unsettled() == []


@pytest.mark.req("delivery.fleet_follow")
async def test_the_holders_of_a_run_are_found_while_they_are_alive(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 3) as (one, two, three):
        claim = one.claim_turn(PAIR, "r1")
        await claim.acquire()
        await two.accept_message(make_accepted(2, "hello", "k\0"))
        assert await one.find_holders(PAIR) == []
        assert [tuple(h) for h in await three.find_holders(PAIR, key="k\0")] == [
            (one.id, "r1", True),
            (two.id, "w2", False),
        ]
        assert [h.daemon for h in await three.find_holders(PAIR, run="w2")] == [one.id, two.id]
        assert [h.daemon for h in await three.find_holders(PAIR, key="other")] == [one.id]
        await expire_lease(one, make_pair_key(PAIR))
        await expire_daemon(two)
        assert await three.find_holders(PAIR, key="k\0") == []
        claim.release()


@pytest.mark.req("delivery.find_run")
@pytest.mark.one_loop
async def test_keys_and_runs_of_a_long_conversation_are_found_by_an_index(
    tmp_path: Path, postgres_url: str
) -> None:
    storage = PostgresStorage(tmp_path, postgres_url)
    await storage.append(PAIR, [make_opening(), *make_turn(0, "first", "the key")], create=True)
    for statement in FILL.split(";\n"):
        execute_sql(postgres_url, statement)
    connection = await asyncpg.connect(postgres_url)
    try:
        for statement in (queries.RUN, queries.RUN_OF_KEY):
            await connection.execute("SET plan_cache_mode = force_generic_plan")
            await connection.execute(f"PREPARE lookup AS {statement}")
            rows = await connection.fetch("EXPLAIN EXECUTE lookup('a', 'b')")
            plan = "\n".join(row[0] for row in rows)
            assert "entries_run" in plan, plan
            assert "Seq Scan on entries" not in plan, plan
            assert "Seq Scan on message_keys" not in plan, plan
            await connection.execute("DEALLOCATE lookup")
        assert await storage.find_run(PAIR, key="the key") == make_turn(0, "first", "the key")
    finally:
        await connection.close()
        await storage.close()


@pytest.mark.req("delivery.find_run")
async def test_entries_from_before_message_keys_can_still_be_read(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_storages(tmp_path, postgres_url, 1) as (one,):
        await one.append(PAIR, [make_opening(), *make_turn(0, "r1", "k1")], create=True)
        execute_sql(postgres_url, "UPDATE entries SET run = NULL")
        execute_sql(postgres_url, "DELETE FROM message_keys")
        await one.append(PAIR, make_turn(2, "r2", "k2"))
        assert len(await read_user_messages(one)) == 2
        assert await one.find_run(PAIR, run="r1") == []
        assert await one.find_run(PAIR, run="r2") == make_turn(2, "r2", "k2")
