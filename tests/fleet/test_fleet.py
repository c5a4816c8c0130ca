"""Several daemons with the same conversations: a client may ask any of them."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError, connect
from crabtalk.daemon.fleet.feed_relay import FeedRelay
from crabtalk.protocol import wire
from crabtalk.runtime import SearchScope, SessionIndex
from crabtalk.storage import Pair
from crabtalk.storage.postgres import PostgresStorage
from crabtalk.transport import ListenOptions, TcpAddress, listen_tcp
from tests.daemon.in_process_daemon import (
    PATIENCE,
    InProcessDaemon,
    expect_error_code,
    follow_feed,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)
from tests.fleet.balancer import run_balancer
from tests.fleet.fleet_daemons import run_daemons
from tests.postgres import execute_sql

QUESTION = {"question": "Which?", "header": "Pick", "options": [{"label": "a"}, {"label": "b"}]}
ASK = f"!tool ask_user {json.dumps({'questions': [QUESTION]})}\n!then\n!say thanks"
FLEET = "crabtalk.daemon.fleet.coordinator"
TICKETS = "SELECT count(*) AS waiting FROM tickets"


@asynccontextmanager
async def connect_clients(*daemons: InProcessDaemon) -> AsyncIterator[list[Client]]:
    """One client for each daemon."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(daemon.client()) for daemon in daemons]


def get_relay(daemon: InProcessDaemon) -> FeedRelay:
    assert daemon.daemon.fleet is not None
    return daemon.daemon.fleet.relay


async def wait_for_tickets(url: str, count: int) -> None:
    """Wait until `count` turns wait in the whole fleet."""
    await wait_until(lambda: execute_sql(url, TICKETS)[0]["waiting"] == count)


# ── Turns ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.conversations")
async def test_a_conversation_can_be_continued_at_another_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_daemons(tmp_path, postgres_url, 3) as daemons:
        for number, daemon in enumerate(daemons):
            async with daemon.client() as client:
                await client.send("crab", f"!say answer {number}")
        messages = daemons[0].model.requests[-1]["messages"]
        contents = [m["content"] for m in messages if m["role"] != "system"]
        assert contents == [
            "!say answer 0",
            "answer 0",
            "!say answer 1",
            "answer 1",
            "!say answer 2",
        ]
        # The first daemon has an older state in memory: it must load what the others added.
        async with daemons[0].client() as client:
            await client.send("crab", "!say again")
            page = await client.list_messages("crab")
        assert [m.content for m in page.messages][1::2] == [
            "answer 0",
            "answer 1",
            "answer 2",
            "again",
        ]


@pytest.mark.req("fleet.fifo")
async def test_turns_of_a_conversation_run_one_at_a_time_in_order_across_daemons(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 3) as daemons,
        connect_clients(*daemons) as clients,
    ):
        model = daemons[0].model
        first = asyncio.ensure_future(clients[0].send("crab", "!say first\n!wait"))
        await model.until_waiting()
        later = []
        for number, place in enumerate((1, 0, 2, 1, 0)):
            content = f"!say turn {number}"
            later.append(asyncio.ensure_future(clients[place].send("crab", content)))
            await wait_for_tickets(postgres_url, number + 1)
        assert model.release() == 1
        await wait_with_timeout(asyncio.gather(first, *later))
        page = await clients[1].list_messages("crab")
        assert [m.content for m in page.messages if m.role == "user"] == [
            "!say first\n!wait",
            *[f"!say turn {number}" for number in range(5)],
        ]
        assert [m.id for m in page.messages] == list(range(12))


@pytest.mark.req("fleet.fifo")
async def test_a_turn_waits_for_another_daemons_turn_but_not_for_other_conversations(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        slow = asyncio.ensure_future(here.send("crab", "!say slow\n!wait"))
        await one.model.until_waiting()
        await wait_with_timeout(there.send("crab", "!say quick", sender="tg:1"))
        await wait_with_timeout(there.send("twin", "!say quick too"))
        one.model.release()
        await wait_with_timeout(slow)


@pytest.mark.req("fleet.balanced")
async def test_clients_behind_a_load_balancer_see_one_conversation(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_daemons(tmp_path, postgres_url, 2) as daemons:
        ports = []
        for daemon in daemons:
            sock = listen_tcp(TcpAddress("127.0.0.1", 0))
            daemon.listener.open(sock, ListenOptions("tcp", token="shared"))
            ports.append(sock.getsockname()[1])
        async with run_balancer(*ports) as balancer:
            for number in range(6):
                # A new connection, and so another daemon, for each message.
                address = f"tcp:127.0.0.1:{balancer.port}"
                async with connect(address, token="shared", timeout=PATIENCE) as client:
                    answer = await client.send("crab", f"!say answer {number}")
                    assert answer.content == f"answer {number}"
                    page = await client.list_messages("crab")
            assert set(balancer.connections) == set(ports)
            assert [m.content for m in page.messages][1::2] == [f"answer {n}" for n in range(6)]


# ── Forwarded requests ─────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.routing")
async def test_a_turn_is_killed_from_any_daemon(tmp_path: Path, postgres_url: str) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        stream = here.stream("crab", "!say so far\n!hang")
        await wait_for_event(stream, wire.StreamChunk)
        await wait_with_timeout(there.kill("crab"))
        assert (
            await wait_for_event(stream, wire.StreamEnd)
        ).stop_reason == wire.STOP_REASON_CANCELLED
        await wait_with_timeout(there.kill("crab"))  # nothing in flight: no error
        assert not await there.kill("crab", sender="other")


@pytest.mark.req("fleet.routing")
async def test_a_turn_is_steered_from_any_daemon(tmp_path: Path, postgres_url: str) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        turn = asyncio.ensure_future(here.send("crab", "!say first\n!wait"))
        await one.model.until_waiting()
        await wait_with_timeout(there.steer_session("crab", "!say steered"))
        one.model.release()
        assert (await wait_with_timeout(turn)).content == "steered"
        assert await expect_error_code(there.steer_session("crab", "!say late")) == 404


@pytest.mark.req("fleet.routing")
async def test_a_question_is_answered_and_seen_from_any_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        stream = here.stream("crab", ASK)
        question = await wait_for_event(stream, wire.AskUserEvent)
        # The next stream, at any daemon, shows the open question of the turn before.
        next_stream = there.stream("crab", "!say next")
        repeated = await wait_for_event(next_stream, wire.AskUserEvent)
        assert repeated.ask_id == question.ask_id
        await wait_with_timeout(there.reply_to_ask("crab", '{"Pick":"this"}'))
        assert (await wait_for_event(stream, wire.StreamEnd)).error == ""
        assert (await wait_for_event(next_stream, wire.StreamEnd)).error == ""
        assert await expect_error_code(there.reply_to_ask("crab", "late")) == 404


async def test_a_daemon_of_another_version_that_cannot_serve_questions_is_logged(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, FLEET)
    old = PostgresStorage(tmp_path, postgres_url)  # without a handler for questions
    async with run_daemons(tmp_path, postgres_url, 1) as (one,), AsyncExitStack() as stack:
        stack.push_async_callback(old.close)
        await old.open()
        turn = old.claim_turn(Pair("crab", "user"), "r1")
        await wait_with_timeout(turn.acquire())
        async with one.client() as client:
            stream = client.stream("crab", "!say next")
            end = asyncio.ensure_future(wait_for_event(stream, wire.StreamEnd))
            await wait_until(lambda: any(record.name == FLEET for record in caplog.records))
            turn.release()
            assert (await wait_with_timeout(end)).error == ""
    (record,) = [record for record in caplog.records if record.name == FLEET]
    assert "is of another version" in record.getMessage()
    assert (record.levelno, record.exc_info) == (logging.INFO, None)


@pytest.mark.req("fleet.routing")
async def test_a_title_set_elsewhere_does_not_wait_for_the_turn(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        turn = asyncio.ensure_future(here.send("crab", "!say x\n!wait"))
        await one.model.until_waiting()
        await wait_with_timeout(there.set_title("crab", "Of crabs"))
        listed = await there.list_conversations()
        assert [c.title for c in listed.conversations] == ["Of crabs"]
        one.model.release()
        await wait_with_timeout(turn)


@pytest.mark.req("fleet.routing")
async def test_a_conversation_deleted_elsewhere_ends_its_turn_and_is_gone_everywhere(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        stream = here.stream("crab", "!say so far\n!hang")
        await wait_for_event(stream, wire.StreamChunk)
        (listed,) = (await there.list_conversations()).conversations
        await wait_with_timeout(there.delete_conversation(listed.file_path))
        assert (
            await wait_for_event(stream, wire.StreamEnd)
        ).stop_reason == wire.STOP_REASON_CANCELLED
        assert not (await here.list_conversations()).conversations
        await wait_with_timeout(here.send("crab", "!say anew"))
        assert (await there.list_messages("crab")).total == 2


@pytest.mark.req("fleet.routing")
async def test_a_compaction_elsewhere_waits_for_the_turn_and_is_seen_here(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        turn = asyncio.ensure_future(here.send("crab", "!say x\n!wait"))
        await one.model.until_waiting()
        compacting = asyncio.ensure_future(there.compact("crab"))
        await wait_for_tickets(postgres_url, 1)
        one.model.release()
        await wait_with_timeout(turn)
        await wait_with_timeout(compacting)
        await wait_with_timeout(here.send("crab", "!say after"))
        messages = one.model.requests[-1]["messages"]
        assert [m["content"] for m in messages if m["role"] == "user"] == [
            "It was about crabs.",
            "!say after",
        ]


# ── Feed ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.feed")
async def test_the_feed_has_the_runs_of_other_daemons(tmp_path: Path, postgres_url: str) -> None:
    async with run_daemons(tmp_path, postgres_url, 2) as (one, two):
        async with follow_feed(two, agent="crab") as feed, one.client() as client:
            relay = get_relay(one)
            await wait_until(lambda: relay.has_interests)
            await client.send("crab", "!say one two three")
            await client.send("twin", "!say not for you")
            events = await feed.wait_until_done()
        words = [e.content for e in events if e.kind == wire.TEXT_DELTA]
        assert "".join(words) == "one two three"
        assert {e.agent for e in events} == {"crab"}
        assert not any(e.missed for e in events)
        await wait_until(lambda: not relay.has_interests)


@pytest.mark.req("fleet.feed")
async def test_a_new_subscriber_gets_the_open_questions_of_other_daemons(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        stream = here.stream("crab", ASK)
        question = await wait_for_event(stream, wire.AskUserEvent)
        async with follow_feed(two, all_kinds=True) as feed:
            await wait_until(lambda: any(e.kind == wire.ASK_USER for e in feed.events))
            (event,) = [e for e in feed.events if e.kind == wire.ASK_USER]
            assert event.ask.ask_id == question.ask_id
        await there.reply_to_ask("crab", "x")
        await wait_for_event(stream, wire.StreamEnd)


# Daemons that just died still count as alive, and are asked first. If they were asked one after the
# other, the test would time out.
JUST_DIED = """
INSERT INTO daemons (id, name, version, started_at, expires_at)
SELECT gen_random_uuid(), 'silent ' || number, '0', '2020-01-01', now() + interval '1 hour'
FROM generate_series(1, 8) AS number
"""


@pytest.mark.req("fleet.feed")
async def test_dead_daemons_do_not_delay_the_open_questions_of_others(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_daemons(tmp_path, postgres_url, 2) as (one, two), one.client() as here:
        execute_sql(postgres_url, JUST_DIED)
        stream = here.stream("crab", ASK)
        question = await wait_for_event(stream, wire.AskUserEvent)
        async with follow_feed(two, all_kinds=True) as feed:
            await wait_until(lambda: any(e.kind == wire.ASK_USER for e in feed.events))
            (event,) = [e for e in feed.events if e.kind == wire.ASK_USER]
            assert event.ask.ask_id == question.ask_id
        await here.reply_to_ask("crab", "x")
        await wait_for_event(stream, wire.StreamEnd)


# ── Shared state ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.shared")
async def test_an_agent_created_at_one_daemon_can_be_used_at_another_at_once(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        await here.create_agent("newt", "You are newt.")
        assert (await there.send("newt", "!say hello")).content == "hello"
        await here.delete_agent("newt")
        await wait_until(lambda: "newt" not in two.daemon.runtime.agents)
        with pytest.raises(ServerError):
            await there.send("newt", "!say hello")


@pytest.mark.req("fleet.shared")
async def test_a_memory_written_at_one_daemon_is_found_at_another(
    tmp_path: Path, postgres_url: str
) -> None:
    note = '!tool remember {"name":"shell","content":"The shell is blue."}\n!then\n!say noted'
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        await here.send("crab", note)
        hits = await there.search_memory("crab", "blue shell")
        assert [hit.name for hit in hits.hits] == ["shell"]


@pytest.mark.req("fleet.events")
async def test_exactly_one_daemon_fires_each_subscription_and_each_once(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 3) as daemons,
        connect_clients(*daemons) as clients,
    ):
        await clients[0].subscribe_event("build", "crab")
        await clients[1].subscribe_event("build", "twin", once=True)
        # Published at all three at once: the first subscription runs three times, the second once.
        await asyncio.gather(
            *(client.publish_event("build", f"!say {n}") for n, client in enumerate(clients))
        )

        async def list_answers(agent: str) -> list[str]:
            try:
                page = await clients[2].list_messages(agent, sender="event:build")
            except ServerError:
                return []
            return [m.content for m in page.messages if m.role == "assistant"]

        await wait_for_count(lambda: list_answers("crab"), 3)
        await wait_for_count(lambda: list_answers("twin"), 1)
        assert sorted(await list_answers("crab")) == ["0", "1", "2"]
        assert [s.source for s in (await clients[2].list_subscriptions()).subscriptions] == [
            "build"
        ]


async def wait_for_count(fetch_items: Callable[[], Awaitable[list[str]]], count: int) -> None:
    async with asyncio.timeout(30):
        while len(await fetch_items()) != count:
            await asyncio.sleep(0.02)


# ── Dead daemons ───────────────────────────────────────────────────────────────────────────────

EXPIRE = "UPDATE leases SET expires_at = clock_timestamp() - interval '1 second'"
DONES = """
SELECT body::json->>'run' AS run, body::json->'data'->>'stop_reason' AS reason
FROM entries WHERE kind = 'event' AND body::json->>'event' = 'done' ORDER BY seq
"""


@pytest.mark.req("fleet.dead")
async def test_the_turn_of_a_dead_daemon_is_closed_and_reported_to_followers(
    tmp_path: Path, postgres_url: str
) -> None:
    # A long lease is renewed late: an expired one stays expired until another daemon takes over.
    async with (
        run_daemons(tmp_path, postgres_url, 2, lease=30) as (one, two),
        connect_clients(one, two) as (here, there),
        follow_feed(two) as feed,
    ):
        stream = here.stream("crab", "!say so far\n!hang")
        await wait_for_event(stream, wire.StreamChunk)
        execute_sql(postgres_url, EXPIRE)
        # The next message, at another daemon, does not wait for the dead one.
        assert (await wait_with_timeout(there.send("crab", "!say on"))).content == "on"
        await wait_until(lambda: any(e.kind == wire.DONE and e.error for e in feed.events))
        reasons = [row["reason"] for row in execute_sql(postgres_url, DONES)]
        assert reasons == ["interrupted", "completed"]
        # The daemon that counted as dead can append nothing, and reports that.
        assert await here.kill("crab")
        end = await wait_for_event(stream, wire.StreamEnd)
        assert "taken over" in end.error
        assert len(execute_sql(postgres_url, DONES)) == 2


# ── Searching ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.search")
async def test_search_finds_messages_of_other_daemons_at_once_but_not_deleted_ones(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):

        async def search(word: str) -> list[str]:
            return [
                hit.sender for hit in (await wait_with_timeout(there.search_sessions(word))).hits
            ]

        await here.send("crab", "!say periwinkle", sender="ann")
        assert await search("periwinkle") == ["ann"]
        await here.send("crab", "!say cowrie", sender="ann")
        await here.send("crab", "!say cowrie", sender="bob")
        assert sorted(await search("cowrie")) == ["ann", "bob"]
        for listed in (await here.list_conversations(sender="ann")).conversations:
            await here.delete_conversation(listed.file_path)
        assert await search("periwinkle") == []
        assert await search("cowrie") == ["bob"]


@pytest.mark.req("fleet.search")
async def test_an_index_that_is_opened_again_reads_only_new_records(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_daemons(tmp_path, postgres_url, 2) as (one, two):
        async with connect_clients(one) as (here,):
            for number in range(20):
                await here.send("crab", f"!say oyster{number}", sender=f"s{number}")
        async with two.client() as there:
            assert (await wait_with_timeout(there.search_sessions("oyster7"))).hits
        index = two.daemon.index
        await wait_until(lambda: index.statistics().is_current)
        await two.daemon.index.close()
        async with connect_clients(one) as (here,):
            await here.send("crab", "!say limpet", sender="late")
        reopened = SessionIndex(two.daemon.storage, two.home / "index" / "sessions")
        try:
            (hit,) = await wait_with_timeout(reopened.search("limpet", scope=SearchScope()))
            assert hit.sender == "late"
            assert reopened.statistics().commits == 1
            assert (await wait_with_timeout(reopened.search("oyster3", scope=SearchScope())))[
                0
            ].sender == "s3"
        finally:
            await reopened.close()


# ── Statistics ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("fleet.stats")
async def test_the_statistics_have_all_daemons_and_the_database(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 3) as (one, _, _),
        connect_clients(one) as (here,),
    ):
        fleet = (await here.get_stats()).fleet
        assert [member.is_alive for member in fleet.members] == [True] * 3
        assert sum(member.is_self for member in fleet.members) == 1
        assert fleet.schema_version == 4
        assert fleet.lease_secs == 10
        assert abs(fleet.clock_ahead) < 1


# ── Accepted messages ──────────────────────────────────────────────────────────────────────────


@pytest.mark.req("accepted.waiting_turn")
async def test_a_turn_that_waits_for_another_daemon_is_stored_before_it_starts(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(here.send("crab", "!wait\n!say first"))
        await one.model.until_waiting()
        second = there.stream("crab", "!say second")
        await wait_for_event(second, wire.StreamStart)
        (row,) = execute_sql(postgres_url, "SELECT body FROM accepted")
        assert json.loads(row["body"])["text"] == "!say second"
        one.model.release()
        await wait_with_timeout(first)
        assert (await wait_for_event(second, wire.StreamEnd)).error == ""
        assert execute_sql(postgres_url, "SELECT body FROM accepted") == []


@pytest.mark.req("accepted.recovery")
async def test_messages_accepted_by_a_dead_daemon_are_closed_by_the_others(
    tmp_path: Path, postgres_url: str
) -> None:
    """Its queued turns had no lease that another daemon could take over."""
    async with run_daemons(tmp_path, postgres_url, 1, lease=1.0) as (one,), one.client() as client:
        await client.send("crab", "!say hello")
        entry = {"agent": "crab", "sender": "user", "run": "r9", "text": "wait for me", "at": "now"}
        execute_sql(
            postgres_url,
            "INSERT INTO accepted (run, steer, key, agent, sender, daemon, body) SELECT 'r9', 0, "
            f"key, agent, sender, gen_random_uuid(), '{json.dumps(entry)}' FROM conversations",
        )

        async def contents() -> list[str]:
            return [m.content for m in (await client.list_messages("crab")).messages]

        async with asyncio.timeout(PATIENCE):
            while len(await contents()) < 3:
                await asyncio.sleep(0.02)
        assert await contents() == ["!say hello", "hello", "wait for me"]
        # The message is in the history that the daemon has in memory.
        await client.send("crab", "!say and on")
        messages = one.model.requests[-1]["messages"]
        assert [m["content"] for m in messages if m["role"] == "user"][-2:] == [
            "wait for me",
            "!say and on",
        ]
