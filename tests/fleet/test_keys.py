"""Keys and attach in a fleet: a key runs once, and a run is followed from any daemon."""

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
from crabtalk.daemon.fleet_following import FleetFollowing
from crabtalk.protocol import wire
from tests.daemon.served import Served, becomes, ending, refused, said, told, until, within
from tests.fleet.several import STORAGE, put_agents, several
from tests.fleet.siege import Child
from tests.fleet.test_fleet import talking, wait_for_tickets
from tests.model_server import model_server
from tests.postgres import perform

SLOW = "!say before\n!wait\n!say after"
ACCEPTED = "SELECT count(*) AS count FROM accepted"


def following_of(daemon: Served) -> FleetFollowing:
    assert daemon.daemon.fleet is not None
    assert daemon.daemon.fleet.following is not None
    return daemon.daemon.fleet.following


def start_of(events: list[Event]) -> wire.StreamStart:
    (start,) = [event for event in events if isinstance(event, wire.StreamStart)]
    return start


async def next_text(stream: AsyncGenerator[Any, None]) -> str:
    return (await until(stream, wire.StreamChunk)).content


def questions(daemon: Served) -> list[str]:
    """What the model was asked, the last message of each request."""
    return [request["messages"][-1]["content"] for request in daemon.model.requests]


async def users(daemon: Served) -> list[str]:
    async with daemon.client() as client:
        page = await client.list_messages("crab")
    return [message.content for message in page.messages if message.role == "user"]


# ── A repeated key ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.fleet_follow")
async def test_a_repeated_key_follows_the_run_of_another_daemon_from_its_beginning(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        first = asyncio.ensure_future(told(here.stream("crab", SLOW, key="k\0")))
        await one.model.until_waiting()
        async with aclosing(there.stream("crab", SLOW, key="k\0")) as stream:
            start = await until(stream, wire.StreamStart)
            assert (await next_text(stream)).strip() == "before"
            assert not first.done()
            one.model.release()
            rest = await told(stream)
        events = await within(first)
        assert start == start_of(events)
        assert not start.stored
        assert said(rest).strip() == "after"
        assert ending(rest) == ending(events)
        assert questions(one) == [SLOW]
        assert await users(two) == [SLOW]
        assert following_of(two).readers == 0


@pytest.mark.req("delivery.fleet_follow")
async def test_a_repeated_key_follows_a_turn_that_waits_at_another_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 3) as daemons, talking(*daemons) as clients:
        model = daemons[0].model
        ahead = asyncio.ensure_future(clients[2].send("crab", "!say ahead\n!wait"))
        await model.until_waiting()
        first = asyncio.ensure_future(told(clients[0].stream("crab", SLOW, key="k1")))
        await becomes(lambda: perform(postgres_url, ACCEPTED)[0]["count"] == 1)
        async with aclosing(clients[1].stream("crab", SLOW, key="k1")) as stream:
            start = await until(stream, wire.StreamStart)
            await wait_for_tickets(postgres_url, 1)  # its own is not in line
            model.release()
            assert (await next_text(stream)).strip() == "before"
            await model.until_waiting()
            model.release()
            rest = await told(stream)
        assert start == start_of(await within(first))
        assert said(rest).strip() == "after"
        await within(ahead)
        assert await users(daemons[1]) == ["!say ahead\n!wait", SLOW]


@pytest.mark.req("delivery.fleet_follow")
async def test_a_turn_that_waits_in_line_follows_the_same_key_elsewhere(
    tmp_path: Path, postgres_url: str
) -> None:
    """Two daemons were asked at the same moment, and neither found the other."""
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        first = asyncio.ensure_future(told(here.stream("crab", SLOW, key="k1")))
        await one.model.until_waiting()
        waiting = two.daemon.runtime.start("crab", SLOW, key="k1")
        await wait_for_tickets(postgres_url, 1)
        async with aclosing(there.stream("crab", SLOW, key="k1")) as stream:
            start = await until(stream, wire.StreamStart)
            assert (await next_text(stream)).strip() == "before"
            one.model.release()
            rest = await told(stream)
        assert start == start_of(await within(first))
        assert said(rest).strip() == "after"
        await within(waiting.wait())
        assert questions(one) == [SLOW]
        assert await users(two) == [SLOW]


@pytest.mark.req("delivery.fleet_once")
async def test_a_turn_with_a_key_does_not_wait_for_a_recovery_that_waits_for_it(
    tmp_path: Path, postgres_url: str
) -> None:
    """A daemon that slept recovers its conversations. The turn is first in its own line, and
    another daemon has the conversation's turn."""
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, _):
        first = asyncio.ensure_future(told(here.stream("crab", SLOW)))
        await one.model.until_waiting()
        runtime = two.daemon.runtime
        waiting = runtime.start("crab", "!say well", key="k1")
        runtime._recover(waiting.pair)
        await wait_for_tickets(postgres_url, 1)
        one.model.release()
        assert (await within(waiting.wait())).text.strip() == "well"
        await within(first)


@pytest.mark.req("delivery.fleet_follow")
async def test_a_send_with_the_key_of_another_daemons_run_is_answered_with_its_outcome(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        first = asyncio.ensure_future(here.send("crab", SLOW, key="k1"))
        await one.model.until_waiting()
        second = asyncio.ensure_future(there.send("crab", SLOW, key="k1"))
        await becomes(lambda: following_of(two).readers == 1)
        # What waits in line meanwhile does not delay it.
        later = asyncio.ensure_future(here.send("crab", "!say later\n!wait"))
        one.model.release()
        assert await within(second) == await within(first)
        assert not later.done()
        await one.model.until_waiting()
        one.model.release()
        await within(later)
        assert await users(two) == [SLOW, "!say later\n!wait"]
        again = await within(there.send("crab", SLOW, key="k1"))
        assert again.content == "beforeafter"


@pytest.mark.req("delivery.fleet_once")
async def test_another_message_under_the_key_of_another_daemons_run_is_refused(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        first = asyncio.ensure_future(here.send("crab", SLOW, key="k1"))
        await one.model.until_waiting()
        assert await refused(there.send("crab", "!say other", key="k1")) == 409
        assert await refused(told(there.stream("crab", "!say other", key="k1"))) == 409
        assert await refused(there.steer_session("crab", SLOW, key="k1")) == 409
        one.model.release()
        await within(first)
        assert await refused(there.send("crab", "!say other", key="k1")) == 409
        assert await users(two) == [SLOW]


@pytest.mark.req("delivery.fleet_once")
async def test_a_steer_with_a_key_is_said_once_whichever_daemon_is_asked(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        first = asyncio.ensure_future(here.send("crab", SLOW))
        await one.model.until_waiting()
        for client in (there, here, there):
            await within(client.steer_session("crab", "!say steered", key="s1"))
        assert await refused(there.steer_session("crab", "!say other", key="s1")) == 409
        async with aclosing(there.attach("crab", key="s1")) as stream:
            assert isinstance((await within(anext(stream)))[1], wire.StreamStart)
        one.model.release()
        await within(first)
        for client in (there, here):
            await within(client.steer_session("crab", "!say steered", key="s1"))
        assert await refused(there.steer_session("crab", "!say other", key="s1")) == 409
        assert await refused(there.steer_session("crab", "!say more", key="s2")) == 404
        assert await users(two) == [SLOW, "!say steered"]


@pytest.mark.req("delivery.fleet_once")
async def test_the_key_of_a_turn_that_was_refused_is_free_at_every_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        ahead = asyncio.ensure_future(here.send("crab", "!say ahead\n!wait"))
        await one.model.until_waiting()
        waiting = two.daemon.runtime.start("crab", "!say mine", key="k1")
        await becomes(lambda: perform(postgres_url, ACCEPTED)[0]["count"] == 1)
        waiting.kill()
        await within(waiting.wait())
        assert perform(postgres_url, ACCEPTED)[0]["count"] == 0
        one.model.release()
        await within(ahead)
        assert (await within(there.send("crab", "!say another", key="k1"))).content == "another"
        assert (await within(here.send("crab", "!say another", key="k1"))).content == "another"
        assert await users(two) == ["!say ahead\n!wait", "!say another"]


@pytest.mark.req("delivery.fleet_once")
async def test_fifty_clients_with_one_key_at_three_daemons_run_it_once(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 3) as daemons:
        script = "!chunks 20 100\n!say done"

        async def say(number: int) -> tuple[str, str]:
            async with daemons[number % 3].client() as client:
                if number % 2:
                    answer = await client.send("crab", script, key="k1")
                    return "", answer.content
                events = await told(client.stream("crab", script, key="k1"))
                places = [n for n, e in enumerate(events) if isinstance(e, wire.StreamStart)]
                start = events[places[-1]]
                assert isinstance(start, wire.StreamStart)
                return start.run_id, said(events[places[-1] :])

        answers = await within(asyncio.gather(*[say(number) for number in range(50)]))
        assert len({text for _, text in answers}) == 1
        assert len({run for run, _ in answers if run}) == 1
        assert len(daemons[0].model.requests) == 1
        assert await users(daemons[0]) == [script]
        assert [following_of(daemon).readers for daemon in daemons] == [0, 0, 0]
        assert perform(postgres_url, ACCEPTED)[0]["count"] == 0


# ── Attach ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.fleet_follow")
async def test_attach_follows_a_run_of_another_daemon_by_id_key_or_conversation(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        assert await refused(told(there.attach("crab"))) == 404
        first = asyncio.ensure_future(told(here.stream("crab", SLOW, key="k1")))
        await one.model.until_waiting()
        run = one.daemon.runtime.find_run("crab")
        assert run is not None
        named: list[dict[str, str]] = [{"run_id": run.id}, {"key": "k1"}, {}]
        assert await refused(told(there.attach("crab", key="k2"))) == 404
        assert await refused(told(there.attach("crab", run_id="nobody"))) == 404
        assert await refused(told(there.attach("crab", sender="other"))) == 404
        readers = [
            asyncio.ensure_future(told(there.attach("crab", **name)))  # type: ignore[arg-type]
            for name in named
        ]
        await becomes(lambda: following_of(two).readers == 3)
        one.model.release()
        events = await within(first)
        local = await told(here.attach("crab", run_id=run.id))
        for reader in readers:
            numbered = await within(reader)
            heard = [event for _, event in numbered]
            numbers = [number for number, _ in numbered]
            assert numbers == sorted(numbers)
            assert numbers[0] == 1
            assert start_of(heard) == start_of(events)
            assert said(heard) == said(events)
            assert ending(heard) == ending(events)
        # Over, it is what the log has, wherever it ran.
        for client in (here, there):
            for name in named[:2]:
                stored = await told(client.attach("crab", **name))  # type: ignore[arg-type]
                assert stored == local
                assert start_of([event for _, event in stored]).stored


@pytest.mark.req("delivery.fleet_follow")
async def test_attach_goes_on_after_an_event_number_at_any_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        first = asyncio.ensure_future(told(here.stream("crab", SLOW, key="k1")))
        await one.model.until_waiting()
        heard: list[tuple[int, Event]] = []
        async with aclosing(there.attach("crab", key="k1")) as stream:
            async for number, event in stream:
                heard.append((number, event))
                if isinstance(event, wire.StreamChunk):
                    break
        one.model.release()
        again = await told(there.attach("crab", key="k1", after=heard[-1][0]))
        events = await within(first)
        if again[0][0]:  # it was in flight still: nothing twice
            assert said([event for _, event in [*heard, *again]]) == said(events)
        else:
            assert said([event for _, event in again]) == said(events)


@pytest.mark.req("delivery.fleet_follow")
async def test_events_that_only_the_log_has_are_read_there_by_who_follows(
    tmp_path: Path, postgres_url: str
) -> None:
    script = (
        '!say one\n!tool set_title {"title": "T"}\n!then\n!say two\n'
        '!tool set_title {"title": "U"}\n!then\n!say three\n!wait\n!say four'
    )
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        runtime = one.daemon.runtime
        runtime.limits = replace(runtime.limits, run_buffer=100)
        first = asyncio.ensure_future(told(here.stream("crab", script, key="k1")))
        await one.model.until_waiting()
        run = runtime.find_run("crab")
        assert run is not None
        assert run.transcript.dropped
        reader = asyncio.ensure_future(told(there.stream("crab", script, key="k1")))
        await becomes(lambda: following_of(two).readers == 1)
        one.model.release()
        events, heard = await within(first), await within(reader)
        assert said(heard) == said(events)
        assert start_of(heard).run_id == run.id
        kinds = [wire.ToolStartEvent, wire.ToolResultEvent, wire.ToolsCompleteEvent]
        for kind in kinds:
            assert [e for e in heard if isinstance(e, kind)]


@pytest.mark.req("delivery.fleet_follow")
async def test_a_run_goes_on_for_its_readers_at_other_daemons(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        async with aclosing(here.stream("crab", SLOW, key="k1")) as stream:
            await until(stream, wire.StreamStart)
            await one.model.until_waiting()
            reader = asyncio.ensure_future(told(there.stream("crab", SLOW, key="k1")))
            run = one.daemon.runtime.find_run("crab")
            assert run is not None
            await becomes(lambda: run.followers == 2)
        await becomes(lambda: run.followers == 1)
        one.model.release()
        assert ending(await within(reader)).stop_reason == wire.STOP_REASON_COMPLETED


@pytest.mark.req("delivery.fleet_follow")
async def test_one_of_several_readers_that_leaves_stops_nothing(
    tmp_path: Path, postgres_url: str
) -> None:
    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        async with aclosing(here.stream("crab", SLOW, key="k1")) as own:
            await until(own, wire.StreamStart)
            await one.model.until_waiting()
            reader = asyncio.ensure_future(told(there.stream("crab", SLOW, key="k1")))
            await becomes(lambda: following_of(two).readers == 1)
        async with (
            two.client() as client,
            aclosing(client.stream("crab", SLOW, key="k1")) as stream,
        ):
            await until(stream, wire.StreamChunk)
            assert following_of(two).readers == 2
        await becomes(lambda: following_of(two).readers == 1)
        one.model.release()
        events = await within(reader)
        assert said(events) == "beforeafter"
        assert ending(events).stop_reason == wire.STOP_REASON_COMPLETED


@pytest.mark.req("delivery.fleet_follow")
async def test_a_question_of_a_followed_run_is_answered_at_any_daemon(
    tmp_path: Path, postgres_url: str
) -> None:
    from tests.fleet.test_fleet import ASK

    async with several(tmp_path, postgres_url, 2) as (one, two), talking(one, two) as (here, there):
        first = asyncio.ensure_future(told(here.stream("crab", ASK, key="k1")))
        async with aclosing(there.stream("crab", ASK, key="k1")) as stream:
            ask = await until(stream, wire.AskUserEvent)
            async with two.client() as client:
                await client.reply_to_ask("crab", "a", ask_id=ask.ask_id)
            assert said(await told(stream)) == "thanks"
        assert said(await within(first)) == "thanks"
        assert one.daemon.asks.waiting() == []


# ── Deaths ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.fleet_once")
@pytest.mark.parametrize("is_following", [True, False])
async def test_a_key_whose_daemon_was_killed_has_the_interrupted_outcome_and_is_not_run_again(
    tmp_path: Path, postgres_url: str, is_following: bool
) -> None:
    async with model_server() as model:
        config = f'[llm]\nbase_url = "{model.url}"\nmodel = "scripted"\nmax_retries = 0\n'
        config += STORAGE.format(database=postgres_url, lease=1.0)
        await put_agents(tmp_path, postgres_url, {"crab": 'prompt = "You are crab."\n'})
        daemons = [Child(tmp_path / name) for name in ("one", "two")]
        for daemon in daemons:
            daemon.home.mkdir(0o700)
            (daemon.home / "config.toml").write_text(config)
        try:
            await asyncio.gather(*(daemon.start() for daemon in daemons))
            async with (
                connect(home=daemons[0].home) as here,
                connect(home=daemons[1].home) as there,
            ):
                first = asyncio.ensure_future(told(here.stream("crab", SLOW, key="k1")))
                await model.until_waiting()
                if is_following:
                    async with aclosing(there.stream("crab", SLOW, key="k1")) as stream:
                        assert (await next_text(stream)).strip() == "before"
                        daemons[0].signal(signal.SIGKILL)
                        events = await told(stream)
                else:
                    daemons[0].signal(signal.SIGKILL)
                    events = await told(there.stream("crab", SLOW, key="k1"))
                first.cancel()  # it would look for its daemon for a while
                await asyncio.wait([first])
                assert ending(events).stop_reason == wire.STOP_REASON_ERROR
                assert ending(events).error
                # Whoever followed has had the start; what is stored is not told them again.
                starts = [e for e in events if isinstance(e, wire.StreamStart)]
                assert [start.stored for start in starts] == ([] if is_following else [True])
                with pytest.raises(ServerError, match=r"not heard of any more|daemon ended"):
                    await within(there.send("crab", SLOW, key="k1"))
                page = await there.list_messages("crab")
                assert [m.content for m in page.messages if m.role == "user"] == [SLOW]
                assert len(model.requests) == 1
                assert (await within(there.send("crab", "!say hi", key="k2"))).content == "hi"
        finally:
            for daemon in daemons:
                daemon.signal(signal.SIGKILL)
