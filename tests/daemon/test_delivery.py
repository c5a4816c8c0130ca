"""Delivery over real sockets: keys that many clients repeat, runs that many clients follow."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk.runtime import Limits, ToolDispatch
from tests.daemon.served import (
    Served,
    becomes,
    calling,
    ending,
    messages,
    refused,
    said,
    served,
    told,
    until,
    within,
)
from tests.plain_requests import plain_stream

Numbered = tuple[int, Event]


async def both(stream: AsyncGenerator[Numbered, None]) -> tuple[list[int], list[Event]]:
    """The numbers and the events of an attached stream."""
    found = await told(stream)
    return [number for number, _ in found], [event for _, event in found]


@asynccontextmanager
async def several(daemon: Served, count: int) -> AsyncIterator[list[Client]]:
    """Clients, each with connections of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(daemon.client()) for _ in range(count)]


def start_of(events: list[Event]) -> wire.StreamStart:
    start = events[0]
    assert isinstance(start, wire.StreamStart), start
    return start


async def race(daemon: Served, count: int, content: str, key: str) -> list[tuple[str, str]]:
    """As many clients, each with a connection of its own, half of them with `send`."""

    async def ask(number: int, client: Client) -> tuple[str, str]:
        if number % 2:
            reply = await client.send("crab", content, key=key)
            return reply.content, reply.model
        events = await told(client.stream("crab", content, key=key))
        assert not ending(events).error
        return said(events), ending(events).model

    async with asyncio.timeout(60), several(daemon, count) as clients:
        return await asyncio.gather(*(ask(n, c) for n, c in enumerate(clients)))


# ── Keys ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.key.races")
async def test_fifty_clients_with_one_key_get_one_run(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon:
        outcomes = await race(daemon, 50, "!say one run for all", "k")
        assert outcomes == [("one run for all", "scripted")] * 50
        assert daemon.model.asked == 1
        # And again, when it is over.
        assert await race(daemon, 50, "!say one run for all", "k") == outcomes
        assert daemon.model.asked == 1
        assert [m["role"] for m in daemon.kept()] == ["user", "assistant"]


@pytest.mark.req("delivery.key.races")
async def test_fifty_clients_that_race_while_another_turn_runs_get_one_run(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client:
        before = asyncio.ensure_future(client.send("crab", "!wait\n!say first"))
        await daemon.model.until_waiting()
        racing = asyncio.ensure_future(race(daemon, 50, "!say second", "k"))
        await becomes(lambda: daemon.daemon.runtime.running >= 2)
        daemon.model.release()
        assert await within(racing) == [("second", "scripted")] * 50
        await within(before)
        assert daemon.model.asked == 2


@pytest.mark.req("delivery.key.restart")
async def test_a_key_is_known_after_a_reload_and_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client:
        await told(client.stream("crab", "!say hello", key="k"))
        await client.reload()
        events = await told(client.stream("crab", "!say hello", key="k"))
        assert start_of(events).stored
        assert said(events) == "hello"
        assert daemon.model.asked == 1
    async with served(tmp_path) as daemon, daemon.client() as client:
        events = await told(client.stream("crab", "!say hello", key="k"))
        assert start_of(events).stored
        assert said(events) == "hello"
        assert (await client.send("crab", "!say hello", key="k")).content == "hello"
        assert daemon.model.asked == 0


@pytest.mark.req("delivery.key.conflict")
async def test_a_key_with_other_content_is_answered_with_409_and_a_sentence(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        stream = client.stream("crab", "!wait\n!say hello", key="k")
        await until(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        for request in (
            other.send("crab", "!say other", key="k"),
            told(other.stream("crab", "!say other", key="k")),
            told(other.stream("crab", "!wait\n!say hello", guest="twin", key="k")),
            other.steer_session("crab", "!wait\n!say hello", key="k"),
        ):
            assert await refused(request) == 409
        daemon.model.release()
        await told(stream)
        with pytest.raises(ServerError, match="give each message a key of its own") as caught:
            await other.send("crab", "!say other", key="k")
        assert caught.value.code == 409
        assert await refused(told(other.stream("crab", "!say other", key="k"))) == 409
        assert await refused(other.steer_session("crab", "!say other", key="k")) == 409
        assert daemon.model.asked == 1


@pytest.mark.req("delivery.key.length")
async def test_a_key_has_at_most_128_bytes(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client:
        for key in ("k" * 128, "ü" * 64, "🦀" * 32):
            for _ in range(2):
                assert (await client.send("crab", "!say hi", key=key)).content == "hi"
        assert daemon.model.asked == 3
        for key in ("k" * 129, "ü" * 64 + "k", "🦀" * 32 + "k"):
            assert await refused(client.send("crab", "!say hi", key=key)) == 400
            assert await refused(told(client.stream("crab", "!say hi", key=key))) == 400
            assert await refused(client.steer_session("crab", "!say hi", key=key)) == 400
        for _ in range(2):
            await client.send("crab", "!say hi", key="")
        assert daemon.model.asked == 5


@pytest.mark.req("delivery.key.running")
async def test_send_and_stream_with_one_key_are_one_run(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        sending = asyncio.ensure_future(client.send("crab", "!say one\n!wait\n!say two", key="k"))
        await daemon.model.until_waiting()
        stream = plain_stream(other, "!say one\n!wait\n!say two", key="k")
        assert isinstance(await anext(stream), wire.StreamStart)
        await stream.aclose()  # a run that was sent goes on
        again = asyncio.ensure_future(
            told(other.stream("crab", "!say one\n!wait\n!say two", key="k"))
        )
        await becomes(lambda: any(run.followers for run in daemon.daemon.runtime._runs))
        daemon.model.release()
        assert (await within(sending)).content == said(await within(again)) == "onetwo"
        assert daemon.model.asked == 1


@pytest.mark.req("delivery.key.steer")
async def test_a_steer_that_is_repeated_is_answered_with_pong_and_said_once(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as daemon,
        daemon.client() as client,
        several(daemon, 20) as clients,
    ):
        stream = client.stream("crab", "!wait\n!say hello", key="k")
        await until(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        await within(
            asyncio.gather(*(c.steer_session("crab", "!say steered", key="s") for c in clients))
        )
        daemon.model.release()
        await told(stream)
        await client.steer_session("crab", "!say steered", key="s")
        assert await refused(client.steer_session("crab", "!say more", key="s2")) == 404
        assert [m for m in await messages(client, "crab") if m[1] == "!say steered"] == [
            ("user", "!say steered")
        ]
        page = await client.list_messages("crab", with_runs=True)
        assert [(m.key, m.steer) for m in page.messages if m.role == "user"] == [
            ("k", 0),
            ("s", 1),
        ]


@pytest.mark.req("delivery.old_clients")
async def test_who_gives_no_key_sees_neither_numbers_nor_features(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client:
        peer = await daemon.peer()
        peer.send(wire.ClientMessage(stream=wire.StreamMsg(agent="crab", content="!say hello")))
        while True:
            message = await peer.expect()
            assert not message.stream.HasField("number")
            assert not message.stream.start.HasField("stored")
            if message.stream.HasField("end"):
                break
        peer.send(wire.ClientMessage(hello=wire.HelloMsg(protocol_version=1)))
        assert not (await peer.expect()).welcome.features
        await peer.close()
        assert {"keys", "attach", "records"} <= set((await client.hello()).features)
        page = await client.list_messages("crab")
        for found in page.messages:
            assert not any(
                found.HasField(name) for name in ("is_error", "key", "run_id", "said", "steer")
            )


# ── Clients that leave ─────────────────────────────────────────────────────────────────────────


async def leave(client: Client, content: str, key: str, *, detach: bool = False) -> str:
    """Begins a run and goes away; its id."""
    async with aclosing(plain_stream(client, content, key=key, detach=detach)) as stream:
        start = await until(stream, wire.StreamStart)
        await until(stream, wire.StreamChunk)
        return start.run_id


@pytest.mark.req("delivery.key.left")
async def test_a_run_with_a_key_that_nobody_follows_is_killed_after_a_while(tmp_path: Path) -> None:
    async with served(tmp_path, return_seconds=0.05) as daemon:
        async with daemon.client() as client:
            await leave(client, "!say one\n!wait\n!say two", "k")
        async with daemon.client() as client:
            await becomes(lambda: daemon.daemon.runtime.running == 0)
            events = await told(client.stream("crab", "!say one\n!wait\n!say two", key="k"))
            assert start_of(events).stored
            assert ending(events).stop_reason == wire.STOP_REASON_CANCELLED
            assert daemon.model.asked == 1


@pytest.mark.req("delivery.key.left")
@pytest.mark.parametrize("how", ["attach", "stream", "detach"])
async def test_a_run_with_a_key_goes_on_while_somebody_follows_it(tmp_path: Path, how: str) -> None:
    script = "!say one\n!wait\n!say two"
    async with served(tmp_path, return_seconds=0.05) as daemon, daemon.client() as other:
        async with daemon.client() as client:
            run_id = await leave(client, script, "k", detach=how == "detach")
        if how == "detach":
            await asyncio.sleep(0.2)
            following = asyncio.ensure_future(both(other.attach("crab", key="k")))
        elif how == "attach":
            following = asyncio.ensure_future(both(other.attach("crab", run_id=run_id)))
        else:

            async def follow() -> tuple[list[int], list[Event]]:
                return [], await told(other.stream("crab", script, key="k"))

            following = asyncio.ensure_future(follow())
        await asyncio.sleep(0.2)
        assert daemon.daemon.runtime.running == 1
        daemon.model.release()
        _, events = await within(following)
        assert said(events) == "onetwo"
        assert ending(events).stop_reason == wire.STOP_REASON_COMPLETED


@pytest.mark.req("delivery.key.left")
async def test_the_time_without_followers_begins_anew_when_the_last_one_leaves(
    tmp_path: Path,
) -> None:
    """Also when the last one was one who attached."""
    async with served(tmp_path, return_seconds=0.3) as daemon:
        loop = asyncio.get_running_loop()
        async with daemon.client() as client:
            run_id = await leave(client, "!say one\n!wait\n!say two", "k")
        left = loop.time()
        async with (
            daemon.client() as client,
            aclosing(client.attach("crab", run_id=run_id)) as stream,
        ):
            await anext(stream)
            await asyncio.sleep(0.25)
        left = loop.time()
        await becomes(lambda: daemon.daemon.runtime.running == 0)
        assert loop.time() - left >= 0.25


@pytest.mark.req("delivery.key.withdrawn")
async def test_a_turn_whose_client_left_while_it_waited_leaves_the_key_free(tmp_path: Path) -> None:
    async with served(tmp_path, return_seconds=0.05) as daemon, daemon.client() as client:
        first = asyncio.ensure_future(client.send("crab", "!wait\n!say first"))
        await daemon.model.until_waiting()
        async with (
            daemon.client() as other,
            aclosing(plain_stream(other, "!say second", key="k")) as stream,
        ):
            await until(stream, wire.StreamStart)
        await becomes(lambda: daemon.daemon.runtime.running == 1)
        daemon.model.release()
        await within(first)
        assert (await client.send("crab", "!say another", key="k")).content == "another"
        assert [m for m in await messages(client, "crab") if m[0] == "user"] == [
            ("user", "!wait\n!say first"),
            ("user", "!say another"),
        ]


# ── Attach ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.attach.by")
async def test_a_run_is_followed_by_its_id_by_its_key_and_by_its_conversation(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client, several(daemon, 4) as clients:
        stream = client.stream("crab", "!say one\n!wait\n!say two", key="k")
        start = await until(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        ways: list[dict[str, str]] = [{"run_id": start.run_id}, {"key": "k"}, {}, {}]
        following = [
            asyncio.ensure_future(both(each.attach("crab", **way)))  # type: ignore[arg-type]
            for each, way in zip(clients, ways, strict=True)
        ]
        await becomes(lambda: any(r.followers >= 5 for r in daemon.daemon.runtime._runs))
        daemon.model.release()
        own = [start, *await told(stream)]
        for each in following:
            numbers, events = await within(each)
            assert start_of(events) == start
            assert said(events) == said(own) == "onetwo"
            assert ending(events) == ending(own)
            assert numbers == sorted(numbers)
            assert numbers[0] == 1
        for late, way in zip(clients, ways[:2], strict=False):
            _, events = await both(late.attach("crab", **way))  # type: ignore[arg-type]
            assert start_of(events).stored
            assert start_of(events).run_id == start.run_id
            assert said(events) == "onetwo"
        assert await refused(told(client.attach("crab"))) == 404


@pytest.mark.req("delivery.attach.nothing")
async def test_to_follow_what_is_not_there_is_a_404(tmp_path: Path) -> None:
    async with served(tmp_path) as daemon, daemon.client() as client:
        for way in ({}, {"run_id": "nope"}, {"key": "nope"}):
            assert await refused(told(client.attach("crab", **way))) == 404  # type: ignore[arg-type]
            assert await refused(told(client.attach("nobody", **way))) == 404  # type: ignore[arg-type]
        events = await told(client.stream("crab", "!say hello", key="k"))
        other = start_of(events).run_id
        assert await refused(told(client.attach("crab", sender="x", run_id=other))) == 404
        assert await refused(told(client.attach("twin", key="k"))) == 404


@pytest.mark.req("delivery.attach.after")
async def test_what_a_client_has_and_what_attach_gives_is_the_whole_for_any_number(
    tmp_path: Path,
) -> None:
    script = calling([("look", {})], [("look", {}), ("look", {})]).replace(
        "!say done", "!think well\n!say a b c d e f g\n!wait\n!say h i j"
    )

    async def look(call: ToolDispatch) -> str:
        return "waves"

    async with served(tmp_path, tools={"look": look}) as daemon, daemon.client() as client:
        stream = client.stream("crab", script, key="k")
        await until(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        (run,) = daemon.daemon.runtime._runs
        count = run.transcript.count
        whole = asyncio.ensure_future(both(client.attach("crab", key="k")))
        random.seed(7)
        rest = {
            after: asyncio.ensure_future(both(client.attach("crab", key="k", after=after)))
            for after in {0, 1, count, *random.sample(range(count), 10)}
        }
        await becomes(lambda: run.followers == len(rest) + 2)
        daemon.model.release()
        _, events = await within(whole)
        numbered = [(n, e) for n, e in zip(*await within(whole), strict=True)]
        for after, each in rest.items():
            numbers, found = await within(each)
            assert all(number > after for number in numbers)
            kept = [e for n, e in numbered if n <= after]
            assert len(said(kept)) <= len(said(events))
            text = said(events)[len(said(events)) - len(said(found)) :]
            assert said(found) == text
            results = [e for e in found if isinstance(e, wire.ToolResultEvent)]
            before = [e for e in kept if isinstance(e, wire.ToolResultEvent)]
            assert len(before) + len(results) == 3
            assert ending(found) == ending(events)
        await told(stream)


@pytest.mark.req("delivery.attach.dropped")
async def test_what_is_not_in_memory_any_more_is_sent_from_the_log(tmp_path: Path) -> None:
    script = calling(*[[("look", {"n": n})] for n in range(8)]).replace(
        "!say done", "!say so\n!wait\n!say done"
    )

    async def look(call: ToolDispatch) -> str:
        return call.arguments * 100

    async with (
        served(tmp_path, tools={"look": look}, limits=Limits(run_buffer=2000)) as daemon,
        daemon.client() as client,
    ):
        stream = client.stream("crab", script, key="k")
        start = await until(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        (run,) = daemon.daemon.runtime._runs
        dropped = run.transcript.dropped
        assert dropped
        following = [
            asyncio.ensure_future(both(client.attach("crab", key="k", after=after)))
            for after in (0, dropped - 1, dropped)
        ]
        await becomes(lambda: run.followers == 4)
        daemon.model.release()
        first, second, third = [await within(each) for each in following]
        for numbers, events in (first, second):
            assert start_of(events).run_id == start.run_id
            assert not start_of(events).stored
            assert said(events) == "sodone"
            results = [e for e in events if isinstance(e, wire.ToolResultEvent)]
            assert len(results) == 8
            assert numbers[0] == 0
            assert [n for n in numbers if n] == sorted(set(numbers) - {0})
        assert min(third[0]) > dropped
        assert said(third[1]) == "sodone"
        await told(stream)


@pytest.mark.req("delivery.attach.readers")
async def test_a_hundred_readers_and_one_that_reads_nothing_hold_up_nobody(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as daemon,
        daemon.client() as client,
        several(daemon, 100) as clients,
    ):
        stream = client.stream("crab", "!say go\n!wait\n!chunks 20000 0", key="k")
        await until(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        stuck = await daemon.peer()
        stuck.send(wire.ClientMessage(attach=wire.AttachMsg(agent="crab", key="k")))
        following = [asyncio.ensure_future(both(c.attach("crab", key="k"))) for c in clients]
        await becomes(lambda: any(r.followers == 102 for r in daemon.daemon.runtime._runs))
        daemon.model.release()
        own = said(await told(stream))
        assert len(own.split()) == 20000
        for each in following:
            _, events = await within(each)
            assert said(events) == own
        text = ""
        while True:
            message = await stuck.expect()
            text += message.stream.chunk.content
            if message.stream.HasField("end"):
                break
        assert text == own
        await stuck.close()


@pytest.mark.req("delivery.attach.ask")
async def test_a_pending_question_is_shown_once_to_each_follower(tmp_path: Path) -> None:
    script = calling(
        [("ask_user", {"questions": [{"question": "Which?", "header": "h", "options": []}]})]
    )
    async with (
        served(tmp_path, hooks={}) as daemon,
        daemon.client() as client,
        daemon.client() as other,
    ):
        stream = client.stream("crab", script, key="k")
        ask = await until(stream, wire.AskUserEvent)
        repeating = asyncio.ensure_future(told(other.stream("crab", script, key="k")))
        attaching = asyncio.ensure_future(both(other.attach("crab")))
        await becomes(lambda: any(r.followers == 3 for r in daemon.daemon.runtime._runs))
        await other.reply_to_ask("crab", "This.", ask_id=ask.ask_id)
        repeated = await within(repeating)
        _, attached = await within(attaching)
        for events in (repeated, attached):
            asks = [e for e in events if isinstance(e, wire.AskUserEvent)]
            assert [each.ask_id for each in asks] == [ask.ask_id]
            assert said(events) == "done"
        await told(stream)
