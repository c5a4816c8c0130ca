"""A database that is unreachable, stalled, read-only or refuses us: errors are clear, nothing is
acknowledged that was not written, and the daemon recovers by itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import (
    AGENTS,
    CONFIG,
    InProcessDaemon,
    collect_events,
    get_stream_end,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)
from tests.fleet.fleet_daemons import STORAGE, put_agents, run_one_daemon
from tests.loop_latency import measure_loop_latency
from tests.model_server import model_server
from tests.postgres import Mode, PostgresServer, execute_sql

MODES: tuple[Mode, ...] = ("fast", "immediate")
LEASE, STATEMENT = 1.0, 0.5
# Seconds for an immediate answer, on a busy machine.
AT_ONCE = 2.0
# Maximum seconds that the loop may be blocked.
HELD = 0.05


@asynccontextmanager
async def run_single_daemon(
    path: Path, url: str, *, more: str = ""
) -> AsyncIterator[InProcessDaemon]:
    """A daemon with a database that may be unreachable."""
    async with model_server() as model:
        settings = STORAGE.format(database=url, lease=LEASE)
        config = f"{CONFIG.replace('{url}', model.url)}{settings}{more}"
        async with run_one_daemon(path / "daemon", config, model) as daemon:
            yield daemon


async def expect_server_error(request: Awaitable[Any]) -> ServerError:
    with pytest.raises(ServerError) as caught:
        await wait_with_timeout(request)
    assert caught.value.message.strip(), "an error says why"
    return caught.value


async def ping_at_once(client: Client) -> None:
    async with asyncio.timeout(AT_ONCE):
        await client.ping()


async def wait_until_serving(client: Client, sender: str = "") -> None:
    """Send messages until one succeeds, without doing anything else."""
    codes: set[int] = set()
    content = ""
    async with asyncio.timeout(30):
        while not content:
            try:
                content = (await client.send("crab", "!say back", sender=sender)).content
            except ServerError as error:
                codes.add(error.code)
                await asyncio.sleep(0.02)
    assert content == "back"
    assert codes <= {503}


def read_record(url: str, sender: str = "user") -> list[str]:
    """The messages with their roles, and the stop reasons of runs."""
    rows = execute_sql(
        url,
        "SELECT e.kind, e.body FROM entries e JOIN conversations c ON c.id = e.conversation "
        f"WHERE c.sender = '{sender}' ORDER BY e.seq",
    )
    record = []
    for row in rows:
        body = json.loads(row["body"])
        if row["kind"] == "message":
            record.append(f"{body['message']['role']}: {body['message']['text']}")
        elif row["kind"] == "event" and body["event"] == "done":
            record.append(body["data"]["stop_reason"])
    return record


# ── Unreachable ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.database.away")
async def test_a_daemon_starts_without_its_database_and_serves_once_it_is_reachable(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    await put_agents(tmp_path, private_postgres.url, AGENTS)
    await asyncio.to_thread(private_postgres.stop)
    async with (
        run_single_daemon(tmp_path, private_postgres.url) as daemon,
        daemon.client() as client,
    ):
        await ping_at_once(client)
        for request in (
            client.send("crab", "!say x"),
            client.list_conversations(),
            client.list_messages("crab"),
            client.list_agents(),
            client.create_agent("newt", "You are newt."),
            client.set_title("crab", "Crabs"),
            client.kill("crab"),
            client.subscribe_event("build", "crab"),
            client.list_memory("crab"),
        ):
            error = await expect_server_error(request)
            assert error.code == 503, error
            assert "try again" in error.message
        await ping_at_once(client)
        await asyncio.to_thread(private_postgres.start)
        await wait_until_serving(client)
        assert len((await client.list_agents()).agents) == len(AGENTS)


@pytest.mark.req("fleet.database.away")
@pytest.mark.parametrize("mode", MODES)
async def test_a_turn_that_loses_its_database_ends_with_an_error_and_keeps_stored_messages(
    tmp_path: Path, private_postgres: PostgresServer, mode: Mode
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    async with run_single_daemon(tmp_path, url) as daemon, daemon.client() as client:
        streaming = asyncio.ensure_future(collect_events(client.stream("crab", "!say half\n!wait")))
        sending = asyncio.ensure_future(client.send("crab", "!say half\n!wait", sender="tg:1"))
        await wait_until(lambda: len(daemon.model.requests) == 2)
        await daemon.model.until_waiting()
        await asyncio.to_thread(private_postgres.stop, mode)
        daemon.model.release()
        end = get_stream_end(await streaming)
        assert end.stop_reason == wire.STOP_REASON_ERROR
        assert "try again in a moment" in end.error
        assert (await expect_server_error(sending)).code == 503
        assert (await expect_server_error(client.send("crab", "!say meanwhile"))).code == 503
        await ping_at_once(client)
        await asyncio.to_thread(private_postgres.start)
        await wait_until_serving(client)
        await wait_until_serving(client, "tg:1")
    for sender in ("user", "tg:1"):
        assert read_record(url, sender) == [
            "user: !say half\n!wait",
            "interrupted",
            "user: !say back",
            "assistant: back",
            "completed",
        ]


@pytest.mark.req("fleet.database.away")
async def test_a_waiting_turn_survives_a_restart_of_the_database(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    async with run_single_daemon(tmp_path, url) as daemon, daemon.client() as client:
        first = asyncio.ensure_future(client.send("crab", "!say first\n!wait"))
        await daemon.model.until_waiting()
        second = asyncio.ensure_future(client.send("crab", "!say second"))

        def is_waiting() -> bool:
            statements = ("SELECT FROM tickets", "SELECT FROM accepted")
            return all(execute_sql(url, statement) for statement in statements)

        await wait_until(is_waiting)
        await asyncio.to_thread(private_postgres.restart, "fast")
        daemon.model.release()
        assert (await wait_with_timeout(second)).content == "second"
        await asyncio.wait([first])
    messages = [line for line in read_record(url) if line.startswith("user")]
    assert messages == ["user: !say first\n!wait", "user: !say second"]


@pytest.mark.slow  # measures time, which needs an idle machine
@pytest.mark.req("fleet.database.away")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.clock
async def test_the_loop_is_not_blocked_while_the_database_is_unreachable(
    tmp_path: Path, private_postgres: PostgresServer, mode: Mode
) -> None:
    await put_agents(tmp_path, private_postgres.url, AGENTS)
    async with (
        run_single_daemon(tmp_path, private_postgres.url) as daemon,
        daemon.client() as client,
    ):
        await wait_until_serving(client)
        worst = []
        for _ in range(5):  # a busy machine may be late sometimes; a blocked loop is always late
            async with measure_loop_latency() as late:
                await asyncio.to_thread(private_postgres.stop, mode)
                for _ in range(20):
                    await expect_server_error(client.send("crab", "!say x"))
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(private_postgres.start)
                await wait_until_serving(client)
            worst.append(max(late))
            if worst[-1] < HELD:
                break
        assert min(worst) < HELD, worst


# ── Slow ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.database.slow")
async def test_requests_to_a_stalled_database_time_out_without_delaying_pings(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    more = f"statement_timeout = {STATEMENT}\n"
    async with run_single_daemon(tmp_path, url, more=more) as daemon, daemon.client() as client:
        await wait_until_serving(client)
        await asyncio.to_thread(private_postgres.stall)
        try:
            asking = [
                asyncio.ensure_future(expect_server_error(request))
                for request in (
                    client.send("crab", "!say x"),
                    client.list_conversations(),
                    client.list_messages("crab"),
                    client.send("twin", "!say x"),
                )
            ]
            while not all(task.done() for task in asking):
                await ping_at_once(client)
                await asyncio.sleep(0.02)
            assert [(await task).code for task in asking] == [503] * 4
        finally:
            await asyncio.to_thread(private_postgres.resume)
        await wait_until_serving(client)
        await wait_until_serving(client, "tg:1")


@pytest.mark.req("fleet.database.slow")
async def test_writes_interrupted_by_a_stall_are_neither_acknowledged_nor_mixed_up(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    more = f"statement_timeout = {STATEMENT}\n"
    async with run_single_daemon(tmp_path, url, more=more) as daemon, daemon.client() as client:
        stream = client.stream("crab", "!say half\n!wait")
        await wait_for_event(stream, wire.StreamChunk)
        await daemon.model.until_waiting()
        await asyncio.to_thread(private_postgres.stall)
        try:
            daemon.model.release()
            assert (await wait_for_event(stream, wire.StreamEnd)).error
        finally:
            await asyncio.to_thread(private_postgres.resume)
        await wait_until_serving(client)
    record = read_record(url)
    # The server may carry out statements from the stall when it resumes.
    half = ["assistant: half", "completed"] if "assistant: half" in record else ["interrupted"]
    expected = ["user: !say half\n!wait", *half]
    assert record == [*expected, "user: !say back", "assistant: back", "completed"]


# ── Read-only, refused or busy ─────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.database.failover")
async def test_a_read_only_database_is_reported_and_used_again_once_it_is_writable(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    async with run_single_daemon(tmp_path, url) as daemon, daemon.client() as client:
        await wait_until_serving(client)
        execute_sql(url, "ALTER DATABASE crabtalk SET default_transaction_read_only = on")
        await asyncio.to_thread(private_postgres.restart, "fast")
        for _ in range(3):
            error = await expect_server_error(client.send("crab", "!say x"))
            assert error.code == 503, error
        await ping_at_once(client)
        execute_sql(
            url,
            "SET default_transaction_read_only = off",
            "ALTER DATABASE crabtalk RESET default_transaction_read_only",
        )
        await wait_until_serving(client)
        users = [line for line in read_record(url) if line.startswith("user")]
        assert users == ["user: !say back"] * 2


@pytest.mark.req("fleet.database.refused")
async def test_a_wrong_password_is_reported_and_its_correction_needs_no_restart(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    execute_sql(url, "CREATE ROLE guest LOGIN SUPERUSER PASSWORD 'another'")
    guest = url.replace("crabtalk@", "guest:secret-word@")
    async with run_single_daemon(tmp_path, guest) as daemon, daemon.client() as client:
        await ping_at_once(client)
        error = await expect_server_error(client.send("crab", "!say x"))
        assert "password authentication failed" in error.message
        assert "check url in [storage] of config.toml" in error.message
        assert "secret-word" not in error.message
        execute_sql(url, "ALTER ROLE guest PASSWORD 'secret-word'")
        async with asyncio.timeout(30):
            while True:
                try:
                    await client.send("crab", "!say x")
                except ServerError:
                    await asyncio.sleep(0.02)
                else:
                    break
        assert len((await client.list_agents()).agents) == len(AGENTS)


@pytest.mark.req("fleet.database.busy")
async def test_many_turns_on_few_connections_wait_for_each_other_and_lose_nothing(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    async with (
        run_single_daemon(tmp_path, url, more="pool = 2\n") as daemon,
        daemon.client() as client,
    ):
        answers = await wait_with_timeout(
            asyncio.gather(
                *(client.send("crab", f"!say {n}", sender=f"s{n % 40}") for n in range(120))
            )
        )
        assert sorted(int(answer.content) for answer in answers) == list(range(120))
    rows = execute_sql(url, "SELECT sum(message_count) AS count FROM conversations")
    assert rows[0]["count"] == 240


@pytest.mark.req("fleet.database.busy")
async def test_a_server_at_its_connection_limit_is_tried_again(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    url = private_postgres.url
    await put_agents(tmp_path, url, AGENTS)
    execute_sql(
        url,
        "CREATE ROLE guest LOGIN PASSWORD 'secret-word'",
        "GRANT ALL ON SCHEMA public TO guest",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest",
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO guest",
        "ALTER DATABASE crabtalk CONNECTION LIMIT 0",
    )
    guest = url.replace("crabtalk@", "guest:secret-word@")
    async with run_single_daemon(tmp_path, guest) as daemon, daemon.client() as client:
        error = await expect_server_error(client.send("crab", "!say x"))
        assert error.code == 503
        assert "too many connections" in error.message
        execute_sql(url, "ALTER DATABASE crabtalk CONNECTION LIMIT -1")
        await wait_until_serving(client)
