"""Keys and attach in a fleet: a key runs once, and any daemon can follow a run."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import ServerError, connect
from crabtalk.client.events import Event
from crabtalk.daemon.fleet.remote_runs import RemoteRuns
from crabtalk.protocol import wire
from tests.daemon.in_process_daemon import (
    InProcessDaemon,
    collect_events,
    collect_text,
    expect_error_code,
    get_stream_end,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)
from tests.fleet.fleet_daemons import STORAGE, put_agents, run_daemons
from tests.fleet.stress_run import FleetDaemonProcess
from tests.fleet.test_fleet import connect_clients, wait_for_tickets
from tests.model_server import model_server
from tests.postgres import execute_sql

SLOW = "!say before\n!wait\n!say after"
ACCEPTED = "SELECT count(*) AS count FROM accepted"


def get_remote_runs(daemon: InProcessDaemon) -> RemoteRuns:
    assert daemon.daemon.fleet is not None
    assert daemon.daemon.fleet.remote_runs is not None
    return daemon.daemon.fleet.remote_runs


def get_stream_start(events: list[Event]) -> wire.StreamStart:
    (start,) = [event for event in events if isinstance(event, wire.StreamStart)]
    return start


async def read_next_text(stream: AsyncGenerator[Any, None]) -> str:
    return (await wait_for_event(stream, wire.StreamChunk)).content


def list_questions(daemon: InProcessDaemon) -> list[str]:
    """The last message of each request to the model."""
    return [request["messages"][-1]["content"] for request in daemon.model.requests]


async def list_user_messages(daemon: InProcessDaemon) -> list[str]:
    async with daemon.client() as client:
        page = await client.list_messages("crab")
    return [message.content for message in page.messages if message.role == "user"]


# ── A repeated key ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.fleet_follow")
async def test_a_repeated_key_follows_the_run_of_another_daemon_from_its_beginning(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(collect_events(here.stream("crab", SLOW, key="k\0")))
        await one.model.until_waiting()
        async with aclosing(there.stream("crab", SLOW, key="k\0")) as stream:
            start = await wait_for_event(stream, wire.StreamStart)
            assert (await read_next_text(stream)).strip() == "before"
            assert not first.done()
            one.model.release()
            rest = await collect_events(stream)
        events = await wait_with_timeout(first)
        assert start == get_stream_start(events)
        assert not start.stored
        assert collect_text(rest).strip() == "after"
        assert get_stream_end(rest) == get_stream_end(events)
        assert list_questions(one) == [SLOW]
        assert await list_user_messages(two) == [SLOW]
        assert get_remote_runs(two).readers == 0


@pytest.mark.req("delivery.fleet_follow")
async def test_a_repeated_key_follows_a_turn_that_waits_at_another_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 3) as daemons,
        connect_clients(*daemons) as clients,
    ):
        model = daemons[0].model
        earlier = asyncio.ensure_future(clients[2].send("crab", "!say ahead\n!wait"))
        await model.until_waiting()
        first = asyncio.ensure_future(collect_events(clients[0].stream("crab", SLOW, key="k1")))
        await wait_until(lambda: execute_sql(postgres_url, ACCEPTED)[0]["count"] == 1)
        async with aclosing(clients[1].stream("crab", SLOW, key="k1")) as stream:
            start = await wait_for_event(stream, wire.StreamStart)
            await wait_for_tickets(postgres_url, 1)  # only the first message is queued
            model.release()
            assert (await read_next_text(stream)).strip() == "before"
            await model.until_waiting()
            model.release()
            rest = await collect_events(stream)
        assert start == get_stream_start(await wait_with_timeout(first))
        assert collect_text(rest).strip() == "after"
        await wait_with_timeout(earlier)
        assert await list_user_messages(daemons[1]) == ["!say ahead\n!wait", SLOW]


@pytest.mark.req("delivery.fleet_follow")
async def test_a_queued_turn_follows_the_run_with_its_key_at_another_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    """Two daemons got the key at the same moment, and neither found the other's run."""
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(collect_events(here.stream("crab", SLOW, key="k1")))
        await one.model.until_waiting()
        waiting = two.daemon.runtime.start("crab", SLOW, key="k1")
        await wait_for_tickets(postgres_url, 1)
        async with aclosing(there.stream("crab", SLOW, key="k1")) as stream:
            start = await wait_for_event(stream, wire.StreamStart)
            assert (await read_next_text(stream)).strip() == "before"
            one.model.release()
            rest = await collect_events(stream)
        assert start == get_stream_start(await wait_with_timeout(first))
        assert collect_text(rest).strip() == "after"
        await wait_with_timeout(waiting.wait())
        assert list_questions(one) == [SLOW]
        assert await list_user_messages(two) == [SLOW]


@pytest.mark.req("delivery.fleet_once")
async def test_a_turn_with_a_key_does_not_wait_for_a_recovery_that_waits_for_it(
    tmp_path: Path, postgres_url: str
) -> None:
    """A suspended daemon recovers its conversations. The turn is first in the daemon's own queue,
    and another daemon has the conversation's turn."""
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, _),
    ):
        first = asyncio.ensure_future(collect_events(here.stream("crab", SLOW)))
        await one.model.until_waiting()
        runtime = two.daemon.runtime
        waiting = runtime.start("crab", "!say well", key="k1")
        runtime._start_recovery(waiting.pair)
        await wait_for_tickets(postgres_url, 1)
        one.model.release()
        assert (await wait_with_timeout(waiting.wait())).text.strip() == "well"
        await wait_with_timeout(first)


@pytest.mark.req("delivery.fleet_follow")
async def test_a_send_with_the_key_of_another_daemons_run_is_answered_with_its_outcome(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(here.send("crab", SLOW, key="k1"))
        await one.model.until_waiting()
        second = asyncio.ensure_future(there.send("crab", SLOW, key="k1"))
        await wait_until(lambda: get_remote_runs(two).readers == 1)
        # Turns queued meanwhile do not delay it.
        later = asyncio.ensure_future(here.send("crab", "!say later\n!wait"))
        one.model.release()
        assert await wait_with_timeout(second) == await wait_with_timeout(first)
        assert not later.done()
        await one.model.until_waiting()
        one.model.release()
        await wait_with_timeout(later)
        assert await list_user_messages(two) == [SLOW, "!say later\n!wait"]
        repeated = await wait_with_timeout(there.send("crab", SLOW, key="k1"))
        assert repeated.content == "beforeafter"


@pytest.mark.req("delivery.fleet_once")
async def test_another_message_with_the_key_of_another_daemons_run_is_refused(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(here.send("crab", SLOW, key="k1"))
        await one.model.until_waiting()
        assert await expect_error_code(there.send("crab", "!say other", key="k1")) == 409
        assert (
            await expect_error_code(collect_events(there.stream("crab", "!say other", key="k1")))
            == 409
        )
        assert await expect_error_code(there.steer_session("crab", SLOW, key="k1")) == 409
        one.model.release()
        await wait_with_timeout(first)
        assert await expect_error_code(there.send("crab", "!say other", key="k1")) == 409
        assert await list_user_messages(two) == [SLOW]


@pytest.mark.req("delivery.fleet_once")
async def test_a_steer_with_a_key_is_stored_once_across_daemons(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(here.send("crab", SLOW))
        await one.model.until_waiting()
        for client in (there, here, there):
            await wait_with_timeout(client.steer_session("crab", "!say steered", key="s1"))
        assert await expect_error_code(there.steer_session("crab", "!say other", key="s1")) == 409
        async with aclosing(there.attach("crab", key="s1")) as stream:
            assert isinstance((await wait_with_timeout(anext(stream)))[1], wire.StreamStart)
        one.model.release()
        await wait_with_timeout(first)
        for client in (there, here):
            await wait_with_timeout(client.steer_session("crab", "!say steered", key="s1"))
        assert await expect_error_code(there.steer_session("crab", "!say other", key="s1")) == 409
        assert await expect_error_code(there.steer_session("crab", "!say more", key="s2")) == 404
        assert await list_user_messages(two) == [SLOW, "!say steered"]


@pytest.mark.req("delivery.fleet_once")
async def test_the_key_of_a_turn_that_was_refused_is_free_at_every_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        ahead = asyncio.ensure_future(here.send("crab", "!say ahead\n!wait"))
        await one.model.until_waiting()
        waiting = two.daemon.runtime.start("crab", "!say mine", key="k1")
        await wait_until(lambda: execute_sql(postgres_url, ACCEPTED)[0]["count"] == 1)
        waiting.kill()
        await wait_with_timeout(waiting.wait())
        assert execute_sql(postgres_url, ACCEPTED)[0]["count"] == 0
        one.model.release()
        await wait_with_timeout(ahead)
        assert (
            await wait_with_timeout(there.send("crab", "!say another", key="k1"))
        ).content == "another"
        assert (
            await wait_with_timeout(here.send("crab", "!say another", key="k1"))
        ).content == "another"
        assert await list_user_messages(two) == ["!say ahead\n!wait", "!say another"]


@pytest.mark.req("delivery.fleet_once")
async def test_fifty_clients_with_one_key_at_three_daemons_run_it_once(
    tmp_path: Path, postgres_url: str
) -> None:
    async with run_daemons(tmp_path, postgres_url, 3) as daemons:
        script = "!chunks 20 100\n!say done"

        async def say(number: int) -> tuple[str, str]:
            async with daemons[number % 3].client() as client:
                if number % 2:
                    answer = await client.send("crab", script, key="k1")
                    return "", answer.content
                events = await collect_events(client.stream("crab", script, key="k1"))
                starts = [n for n, e in enumerate(events) if isinstance(e, wire.StreamStart)]
                start = events[starts[-1]]
                assert isinstance(start, wire.StreamStart)
                return start.run_id, collect_text(events[starts[-1] :])

        answers = await wait_with_timeout(asyncio.gather(*[say(number) for number in range(50)]))
        assert len({text for _, text in answers}) == 1
        assert len({run for run, _ in answers if run}) == 1
        assert len(daemons[0].model.requests) == 1
        assert await list_user_messages(daemons[0]) == [script]
        assert [get_remote_runs(daemon).readers for daemon in daemons] == [0, 0, 0]
        assert execute_sql(postgres_url, ACCEPTED)[0]["count"] == 0


# ── Attach ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.fleet_follow")
async def test_attach_follows_a_run_of_another_daemon_by_id_key_or_conversation(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        assert await expect_error_code(collect_events(there.attach("crab"))) == 404
        first = asyncio.ensure_future(collect_events(here.stream("crab", SLOW, key="k1")))
        await one.model.until_waiting()
        run = one.daemon.runtime.find_run("crab")
        assert run is not None
        targets: list[dict[str, str]] = [{"run_id": run.id}, {"key": "k1"}, {}]
        assert await expect_error_code(collect_events(there.attach("crab", key="k2"))) == 404
        assert (
            await expect_error_code(collect_events(there.attach("crab", run_id="missing"))) == 404
        )
        assert await expect_error_code(collect_events(there.attach("crab", sender="other"))) == 404
        readers = [
            asyncio.ensure_future(collect_events(there.attach("crab", **target)))  # type: ignore[arg-type]
            for target in targets
        ]
        await wait_until(lambda: get_remote_runs(two).readers == 3)
        one.model.release()
        events = await wait_with_timeout(first)
        local = await collect_events(here.attach("crab", run_id=run.id))
        for reader in readers:
            numbered = await wait_with_timeout(reader)
            received = [event for _, event in numbered]
            numbers = [number for number, _ in numbered]
            assert numbers == sorted(numbers)
            assert numbers[0] == 1
            assert get_stream_start(received) == get_stream_start(events)
            assert collect_text(received) == collect_text(events)
            assert get_stream_end(received) == get_stream_end(events)
        # After its end, any daemon streams it from the log.
        for client in (here, there):
            for target in targets[:2]:
                stored = await collect_events(client.attach("crab", **target))  # type: ignore[arg-type]
                assert stored == local
                assert get_stream_start([event for _, event in stored]).stored


@pytest.mark.req("delivery.fleet_follow")
async def test_attach_goes_on_after_an_event_number_at_any_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(collect_events(here.stream("crab", SLOW, key="k1")))
        await one.model.until_waiting()
        received: list[tuple[int, Event]] = []
        async with aclosing(there.attach("crab", key="k1")) as stream:
            async for number, event in stream:
                received.append((number, event))
                if isinstance(event, wire.StreamChunk):
                    break
        one.model.release()
        rest = await collect_events(there.attach("crab", key="k1", after=received[-1][0]))
        events = await wait_with_timeout(first)
        if rest[0][0]:  # the run had not ended yet: no event is repeated
            assert collect_text([event for _, event in [*received, *rest]]) == collect_text(events)
        else:
            assert collect_text([event for _, event in rest]) == collect_text(events)


@pytest.mark.req("delivery.fleet_follow")
async def test_a_follower_reads_events_that_are_only_in_the_log_from_there(
    tmp_path: Path, postgres_url: str
) -> None:
    script = (
        '!say one\n!tool set_title {"title": "T"}\n!then\n!say two\n'
        '!tool set_title {"title": "U"}\n!then\n!say three\n!wait\n!say four'
    )
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        runtime = one.daemon.runtime
        runtime.limits = replace(runtime.limits, run_buffer=100)
        first = asyncio.ensure_future(collect_events(here.stream("crab", script, key="k1")))
        await one.model.until_waiting()
        run = runtime.find_run("crab")
        assert run is not None
        assert run.replay_buffer.last_dropped
        reader = asyncio.ensure_future(collect_events(there.stream("crab", script, key="k1")))
        await wait_until(lambda: get_remote_runs(two).readers == 1)
        one.model.release()
        events, received = await wait_with_timeout(first), await wait_with_timeout(reader)
        assert collect_text(received) == collect_text(events)
        assert get_stream_start(received).run_id == run.id
        kinds = [wire.ToolStartEvent, wire.ToolResultEvent, wire.ToolsCompleteEvent]
        for kind in kinds:
            assert [e for e in received if isinstance(e, kind)]


@pytest.mark.req("delivery.fleet_follow")
async def test_a_run_goes_on_for_its_readers_at_other_daemons(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        async with aclosing(here.stream("crab", SLOW, key="k1")) as stream:
            await wait_for_event(stream, wire.StreamStart)
            await one.model.until_waiting()
            reader = asyncio.ensure_future(collect_events(there.stream("crab", SLOW, key="k1")))
            run = one.daemon.runtime.find_run("crab")
            assert run is not None
            await wait_until(lambda: run.followers == 2)
        await wait_until(lambda: run.followers == 1)
        one.model.release()
        assert (
            get_stream_end(await wait_with_timeout(reader)).stop_reason
            == wire.STOP_REASON_COMPLETED
        )


@pytest.mark.req("delivery.fleet_follow")
async def test_a_reader_that_leaves_does_not_stop_the_others(
    tmp_path: Path, postgres_url: str
) -> None:
    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        async with aclosing(here.stream("crab", SLOW, key="k1")) as own:
            await wait_for_event(own, wire.StreamStart)
            await one.model.until_waiting()
            reader = asyncio.ensure_future(collect_events(there.stream("crab", SLOW, key="k1")))
            await wait_until(lambda: get_remote_runs(two).readers == 1)
        async with (
            two.client() as client,
            aclosing(client.stream("crab", SLOW, key="k1")) as stream,
        ):
            await wait_for_event(stream, wire.StreamChunk)
            assert get_remote_runs(two).readers == 2
        await wait_until(lambda: get_remote_runs(two).readers == 1)
        one.model.release()
        events = await wait_with_timeout(reader)
        assert collect_text(events) == "beforeafter"
        assert get_stream_end(events).stop_reason == wire.STOP_REASON_COMPLETED


@pytest.mark.req("delivery.fleet_follow")
async def test_a_question_of_a_followed_run_is_answered_at_any_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    from tests.fleet.test_fleet import ASK

    async with (
        run_daemons(tmp_path, postgres_url, 2) as (one, two),
        connect_clients(one, two) as (here, there),
    ):
        first = asyncio.ensure_future(collect_events(here.stream("crab", ASK, key="k1")))
        async with aclosing(there.stream("crab", ASK, key="k1")) as stream:
            ask = await wait_for_event(stream, wire.AskUserEvent)
            async with two.client() as client:
                await client.reply_to_ask("crab", "a", ask_id=ask.ask_id)
            assert collect_text(await collect_events(stream)) == "thanks"
        assert collect_text(await wait_with_timeout(first)) == "thanks"
        assert one.daemon.pending_questions.list_unanswered() == []


# ── Killed daemons ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.fleet_once")
@pytest.mark.parametrize("is_following", [True, False])
async def test_a_key_whose_daemon_was_killed_has_the_interrupted_outcome_and_is_not_run_again(
    tmp_path: Path, postgres_url: str, is_following: bool
) -> None:
    async with model_server() as model:
        config = f'[llm]\nbase_url = "{model.url}"\nmodel = "scripted"\nmax_retries = 0\n'
        config += STORAGE.format(database=postgres_url, lease=1.0)
        await put_agents(tmp_path, postgres_url, {"crab": 'prompt = "You are crab."\n'})
        daemons = [FleetDaemonProcess(tmp_path / name) for name in ("one", "two")]
        for daemon in daemons:
            daemon.home.mkdir(0o700)
            (daemon.home / "config.toml").write_text(config)
        try:
            await asyncio.gather(*(daemon.start() for daemon in daemons))
            async with (
                connect(home=daemons[0].home) as here,
                connect(home=daemons[1].home) as there,
            ):
                first = asyncio.ensure_future(collect_events(here.stream("crab", SLOW, key="k1")))
                await model.until_waiting()
                if is_following:
                    async with aclosing(there.stream("crab", SLOW, key="k1")) as stream:
                        assert (await read_next_text(stream)).strip() == "before"
                        daemons[0].send_signal(signal.SIGKILL)
                        events = await collect_events(stream)
                else:
                    daemons[0].send_signal(signal.SIGKILL)
                    events = await collect_events(there.stream("crab", SLOW, key="k1"))
                first.cancel()  # it would try to reconnect for a while
                await asyncio.wait([first])
                assert get_stream_end(events).stop_reason == wire.STOP_REASON_ERROR
                assert get_stream_end(events).error
                # A follower already has the start event; it does not get it again.
                starts = [e for e in events if isinstance(e, wire.StreamStart)]
                assert [start.stored for start in starts] == ([] if is_following else [True])
                with pytest.raises(ServerError, match=r"not heard of any more|daemon ended"):
                    await wait_with_timeout(there.send("crab", SLOW, key="k1"))
                page = await there.list_messages("crab")
                assert [m.content for m in page.messages if m.role == "user"] == [SLOW]
                assert len(model.requests) == 1
                assert (
                    await wait_with_timeout(there.send("crab", "!say hi", key="k2"))
                ).content == "hi"
        finally:
            for daemon in daemons:
                daemon.send_signal(signal.SIGKILL)
