"""Delivery over real sockets: many clients repeat a key, or follow a run."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk.runtime import RuntimeLimits, ToolDispatch
from tests.daemon.in_process_daemon import (
    InProcessDaemon,
    collect_events,
    collect_text,
    expect_error_code,
    get_stream_end,
    read_conversation,
    run_daemon,
    script_tool_calls,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)
from tests.plain_requests import plain_stream

NumberedEvent = tuple[int, Event]


async def collect_numbered(
    stream: AsyncGenerator[NumberedEvent, None],
) -> tuple[list[int], list[Event]]:
    """The numbers and the events of an attached stream."""
    numbered = await collect_events(stream)
    return [number for number, _ in numbered], [event for _, event in numbered]


@asynccontextmanager
async def connect_clients(daemon: InProcessDaemon, count: int) -> AsyncIterator[list[Client]]:
    """Clients with separate connections."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(daemon.client()) for _ in range(count)]


def get_stream_start(events: list[Event]) -> wire.StreamStart:
    start = events[0]
    assert isinstance(start, wire.StreamStart), start
    return start


async def race_clients(
    daemon: InProcessDaemon, count: int, content: str, key: str
) -> list[tuple[str, str]]:
    """Send a message from `count` clients with separate connections, half of them with `send`."""

    async def ask(number: int, client: Client) -> tuple[str, str]:
        if number % 2:
            reply = await client.send("crab", content, key=key)
            return reply.content, reply.model
        events = await collect_events(client.stream("crab", content, key=key))
        assert not get_stream_end(events).error
        return collect_text(events), get_stream_end(events).model

    async with asyncio.timeout(60), connect_clients(daemon, count) as clients:
        return await asyncio.gather(*(ask(n, c) for n, c in enumerate(clients)))


# ── Keys ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.key.races")
async def test_fifty_clients_with_one_key_get_one_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        outcomes = await race_clients(daemon, 50, "!say one run for all", "k")
        assert outcomes == [("one run for all", "scripted")] * 50
        assert daemon.model.request_count == 1
        # The same again after the run.
        assert await race_clients(daemon, 50, "!say one run for all", "k") == outcomes
        assert daemon.model.request_count == 1
        assert [m["role"] for m in daemon.read_messages()] == ["user", "assistant"]


@pytest.mark.req("delivery.key.races")
async def test_fifty_clients_that_race_while_another_turn_runs_get_one_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        before = asyncio.ensure_future(client.send("crab", "!wait\n!say first"))
        await daemon.model.until_waiting()
        racing = asyncio.ensure_future(race_clients(daemon, 50, "!say second", "k"))
        await wait_until(lambda: daemon.daemon.runtime.running_count >= 2)
        daemon.model.release()
        assert await wait_with_timeout(racing) == [("second", "scripted")] * 50
        await wait_with_timeout(before)
        assert daemon.model.request_count == 2


@pytest.mark.req("delivery.key.restart")
async def test_a_key_is_known_after_a_reload_and_a_restart(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await collect_events(client.stream("crab", "!say hello", key="k"))
        await client.reload()
        events = await collect_events(client.stream("crab", "!say hello", key="k"))
        assert get_stream_start(events).stored
        assert collect_text(events) == "hello"
        assert daemon.model.request_count == 1
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        events = await collect_events(client.stream("crab", "!say hello", key="k"))
        assert get_stream_start(events).stored
        assert collect_text(events) == "hello"
        assert (await client.send("crab", "!say hello", key="k")).content == "hello"
        assert daemon.model.request_count == 0


@pytest.mark.req("delivery.key.conflict")
async def test_a_key_with_other_content_is_answered_with_409_and_a_sentence(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        stream = client.stream("crab", "!wait\n!say hello", key="k")
        await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        for request in (
            other.send("crab", "!say other", key="k"),
            collect_events(other.stream("crab", "!say other", key="k")),
            collect_events(other.stream("crab", "!wait\n!say hello", guest="twin", key="k")),
            other.steer_session("crab", "!wait\n!say hello", key="k"),
        ):
            assert await expect_error_code(request) == 409
        daemon.model.release()
        await collect_events(stream)
        with pytest.raises(ServerError, match="give each message a key of its own") as caught:
            await other.send("crab", "!say other", key="k")
        assert caught.value.code == 409
        assert (
            await expect_error_code(collect_events(other.stream("crab", "!say other", key="k")))
            == 409
        )
        assert await expect_error_code(other.steer_session("crab", "!say other", key="k")) == 409
        assert daemon.model.request_count == 1


@pytest.mark.req("delivery.key.length")
async def test_a_key_has_at_most_128_bytes(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for key in ("k" * 128, "ü" * 64, "🦀" * 32):
            for _ in range(2):
                assert (await client.send("crab", "!say hi", key=key)).content == "hi"
        assert daemon.model.request_count == 3
        for key in ("k" * 129, "ü" * 64 + "k", "🦀" * 32 + "k"):
            assert await expect_error_code(client.send("crab", "!say hi", key=key)) == 400
            assert (
                await expect_error_code(collect_events(client.stream("crab", "!say hi", key=key)))
                == 400
            )
            assert await expect_error_code(client.steer_session("crab", "!say hi", key=key)) == 400
        for _ in range(2):
            await client.send("crab", "!say hi", key="")
        assert daemon.model.request_count == 5


@pytest.mark.req("delivery.key.running")
async def test_send_and_stream_with_one_key_are_one_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        sending = asyncio.ensure_future(client.send("crab", "!say one\n!wait\n!say two", key="k"))
        await daemon.model.until_waiting()
        stream = plain_stream(other, "!say one\n!wait\n!say two", key="k")
        assert isinstance(await anext(stream), wire.StreamStart)
        await stream.aclose()  # a run that was sent goes on
        again = asyncio.ensure_future(
            collect_events(other.stream("crab", "!say one\n!wait\n!say two", key="k"))
        )
        await wait_until(lambda: any(run.followers for run in daemon.daemon.runtime._runs))
        daemon.model.release()
        assert (
            (await wait_with_timeout(sending)).content
            == collect_text(await wait_with_timeout(again))
            == "onetwo"
        )
        assert daemon.model.request_count == 1


@pytest.mark.req("delivery.key.steer")
async def test_a_steer_that_is_repeated_is_answered_with_pong_and_said_once(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        daemon.client() as client,
        connect_clients(daemon, 20) as clients,
    ):
        stream = client.stream("crab", "!wait\n!say hello", key="k")
        await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        await wait_with_timeout(
            asyncio.gather(*(c.steer_session("crab", "!say steered", key="s") for c in clients))
        )
        daemon.model.release()
        await collect_events(stream)
        await client.steer_session("crab", "!say steered", key="s")
        assert await expect_error_code(client.steer_session("crab", "!say more", key="s2")) == 404
        assert [m for m in await read_conversation(client, "crab") if m[1] == "!say steered"] == [
            ("user", "!say steered")
        ]
        page = await client.list_messages("crab", with_runs=True)
        assert [(m.key, m.steer) for m in page.messages if m.role == "user"] == [
            ("k", 0),
            ("s", 1),
        ]


@pytest.mark.req("delivery.old_clients")
async def test_a_client_without_keys_sees_neither_numbers_nor_features(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        peer = await daemon.connect_raw()
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
        for message_info in page.messages:
            assert not any(
                message_info.HasField(name)
                for name in ("is_error", "key", "run_id", "said", "steer")
            )


# ── Clients that leave ─────────────────────────────────────────────────────────────────────────


async def start_and_leave(client: Client, content: str, key: str, *, detach: bool = False) -> str:
    """Start a run and disconnect. Returns the run's id."""
    async with aclosing(plain_stream(client, content, key=key, detach=detach)) as stream:
        start = await wait_for_event(stream, wire.StreamStart)
        await wait_for_event(stream, wire.StreamChunk)
        return start.run_id


@pytest.mark.req("delivery.key.left")
async def test_a_run_with_a_key_and_no_followers_is_killed_after_a_while(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, return_seconds=0.05) as daemon:
        async with daemon.client() as client:
            await start_and_leave(client, "!say one\n!wait\n!say two", "k")
        async with daemon.client() as client:
            await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
            events = await collect_events(
                client.stream("crab", "!say one\n!wait\n!say two", key="k")
            )
            assert get_stream_start(events).stored
            assert get_stream_end(events).stop_reason == wire.STOP_REASON_CANCELLED
            assert daemon.model.request_count == 1


@pytest.mark.req("delivery.key.left")
@pytest.mark.parametrize("how", ["attach", "stream", "detach"])
async def test_a_run_with_a_key_goes_on_while_it_has_a_follower(tmp_path: Path, how: str) -> None:
    script = "!say one\n!wait\n!say two"
    async with run_daemon(tmp_path, return_seconds=0.05) as daemon, daemon.client() as other:
        async with daemon.client() as client:
            run_id = await start_and_leave(client, script, "k", detach=how == "detach")
        if how == "detach":
            await asyncio.sleep(0.2)
            following = asyncio.ensure_future(collect_numbered(other.attach("crab", key="k")))
        elif how == "attach":
            following = asyncio.ensure_future(collect_numbered(other.attach("crab", run_id=run_id)))
        else:

            async def follow() -> tuple[list[int], list[Event]]:
                return [], await collect_events(other.stream("crab", script, key="k"))

            following = asyncio.ensure_future(follow())
        await asyncio.sleep(0.2)
        assert daemon.daemon.runtime.running_count == 1
        daemon.model.release()
        _, events = await wait_with_timeout(following)
        assert collect_text(events) == "onetwo"
        assert get_stream_end(events).stop_reason == wire.STOP_REASON_COMPLETED


@pytest.mark.req("delivery.key.left")
async def test_the_time_without_followers_restarts_when_the_last_one_leaves(
    tmp_path: Path,
) -> None:
    """Also if the last follower attached to the run."""
    async with run_daemon(tmp_path, return_seconds=0.3) as daemon:
        loop = asyncio.get_running_loop()
        async with daemon.client() as client:
            run_id = await start_and_leave(client, "!say one\n!wait\n!say two", "k")
        left = loop.time()
        async with (
            daemon.client() as client,
            aclosing(client.attach("crab", run_id=run_id)) as stream,
        ):
            await anext(stream)
            await asyncio.sleep(0.25)
        left = loop.time()
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        assert loop.time() - left >= 0.25


@pytest.mark.req("delivery.key.withdrawn")
async def test_a_turn_whose_client_left_while_it_waited_leaves_the_key_free(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, return_seconds=0.05) as daemon, daemon.client() as client:
        first = asyncio.ensure_future(client.send("crab", "!wait\n!say first"))
        await daemon.model.until_waiting()
        async with (
            daemon.client() as other,
            aclosing(plain_stream(other, "!say second", key="k")) as stream,
        ):
            await wait_for_event(stream, wire.StreamStart)
        await wait_until(lambda: daemon.daemon.runtime.running_count == 1)
        daemon.model.release()
        await wait_with_timeout(first)
        assert (await client.send("crab", "!say another", key="k")).content == "another"
        assert [m for m in await read_conversation(client, "crab") if m[0] == "user"] == [
            ("user", "!wait\n!say first"),
            ("user", "!say another"),
        ]


# ── Attach ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.attach.by")
async def test_a_run_is_followed_by_its_id_by_its_key_and_by_its_conversation(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        daemon.client() as client,
        connect_clients(daemon, 4) as clients,
    ):
        stream = client.stream("crab", "!say one\n!wait\n!say two", key="k")
        start = await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        ways: list[dict[str, str]] = [{"run_id": start.run_id}, {"key": "k"}, {}, {}]
        following = [
            asyncio.ensure_future(collect_numbered(follower.attach("crab", **way)))  # type: ignore[arg-type]
            for follower, way in zip(clients, ways, strict=True)
        ]
        await wait_until(lambda: any(r.followers >= 5 for r in daemon.daemon.runtime._runs))
        daemon.model.release()
        own = [start, *await collect_events(stream)]
        for task in following:
            numbers, events = await wait_with_timeout(task)
            assert get_stream_start(events) == start
            assert collect_text(events) == collect_text(own) == "onetwo"
            assert get_stream_end(events) == get_stream_end(own)
            assert numbers == sorted(numbers)
            assert numbers[0] == 1
        for late, way in zip(clients, ways[:2], strict=False):
            _, events = await collect_numbered(late.attach("crab", **way))  # type: ignore[arg-type]
            assert get_stream_start(events).stored
            assert get_stream_start(events).run_id == start.run_id
            assert collect_text(events) == "onetwo"
        assert await expect_error_code(collect_events(client.attach("crab"))) == 404


@pytest.mark.req("delivery.attach.nothing")
async def test_attaching_to_an_unknown_run_is_a_404(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        for way in ({}, {"run_id": "nope"}, {"key": "nope"}):
            assert await expect_error_code(collect_events(client.attach("crab", **way))) == 404  # type: ignore[arg-type]
            assert await expect_error_code(collect_events(client.attach("missing", **way))) == 404  # type: ignore[arg-type]
        events = await collect_events(client.stream("crab", "!say hello", key="k"))
        other = get_stream_start(events).run_id
        assert (
            await expect_error_code(collect_events(client.attach("crab", sender="x", run_id=other)))
            == 404
        )
        assert await expect_error_code(collect_events(client.attach("twin", key="k"))) == 404


@pytest.mark.req("delivery.attach.after")
async def test_attach_continues_a_stream_without_gaps_after_any_number(
    tmp_path: Path,
) -> None:
    script = script_tool_calls([("look", {})], [("look", {}), ("look", {})]).replace(
        "!say done", "!think well\n!say a b c d e f g\n!wait\n!say h i j"
    )

    async def look(call: ToolDispatch) -> str:
        return "waves"

    async with run_daemon(tmp_path, tools={"look": look}) as daemon, daemon.client() as client:
        stream = client.stream("crab", script, key="k")
        await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        (run,) = daemon.daemon.runtime._runs
        count = run.replay_buffer.count
        whole = asyncio.ensure_future(collect_numbered(client.attach("crab", key="k")))
        random.seed(7)
        rest = {
            after: asyncio.ensure_future(
                collect_numbered(client.attach("crab", key="k", after=after))
            )
            for after in {0, 1, count, *random.sample(range(count), 10)}
        }
        await wait_until(lambda: run.followers == len(rest) + 2)
        daemon.model.release()
        _, events = await wait_with_timeout(whole)
        numbered = [(n, e) for n, e in zip(*await wait_with_timeout(whole), strict=True)]
        for after, task in rest.items():
            numbers, later_events = await wait_with_timeout(task)
            assert all(number > after for number in numbers)
            earlier_events = [e for n, e in numbered if n <= after]
            assert len(collect_text(earlier_events)) <= len(collect_text(events))
            text = collect_text(events)[
                len(collect_text(events)) - len(collect_text(later_events)) :
            ]
            assert collect_text(later_events) == text
            results = [e for e in later_events if isinstance(e, wire.ToolResultEvent)]
            before = [e for e in earlier_events if isinstance(e, wire.ToolResultEvent)]
            assert len(before) + len(results) == 3
            assert get_stream_end(later_events) == get_stream_end(events)
        await collect_events(stream)


@pytest.mark.req("delivery.attach.dropped")
async def test_events_no_longer_in_memory_are_sent_from_the_log(tmp_path: Path) -> None:
    script = script_tool_calls(*[[("look", {"n": n})] for n in range(8)]).replace(
        "!say done", "!say so\n!wait\n!say done"
    )

    async def look(call: ToolDispatch) -> str:
        return call.arguments * 100

    async with (
        run_daemon(tmp_path, tools={"look": look}, limits=RuntimeLimits(run_buffer=2000)) as daemon,
        daemon.client() as client,
    ):
        stream = client.stream("crab", script, key="k")
        start = await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        (run,) = daemon.daemon.runtime._runs
        dropped = run.replay_buffer.last_dropped
        assert dropped
        following = [
            asyncio.ensure_future(collect_numbered(client.attach("crab", key="k", after=after)))
            for after in (0, dropped - 1, dropped)
        ]
        await wait_until(lambda: run.followers == 4)
        daemon.model.release()
        first, second, third = [await wait_with_timeout(task) for task in following]
        for numbers, events in (first, second):
            assert get_stream_start(events).run_id == start.run_id
            assert not get_stream_start(events).stored
            assert collect_text(events) == "sodone"
            results = [e for e in events if isinstance(e, wire.ToolResultEvent)]
            assert len(results) == 8
            assert numbers[0] == 0
            assert [n for n in numbers if n] == sorted(set(numbers) - {0})
        assert min(third[0]) > dropped
        assert collect_text(third[1]) == "sodone"
        await collect_events(stream)


@pytest.mark.req("delivery.attach.readers")
async def test_a_hundred_readers_and_a_stalled_one_do_not_delay_each_other(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        daemon.client() as client,
        connect_clients(daemon, 100) as clients,
    ):
        stream = client.stream("crab", "!say go\n!wait\n!chunks 20000 0", key="k")
        await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        stuck = await daemon.connect_raw()
        stuck.send(wire.ClientMessage(attach=wire.AttachMsg(agent="crab", key="k")))
        following = [
            asyncio.ensure_future(collect_numbered(c.attach("crab", key="k"))) for c in clients
        ]
        await wait_until(lambda: any(r.followers == 102 for r in daemon.daemon.runtime._runs))
        daemon.model.release()
        own = collect_text(await collect_events(stream))
        assert len(own.split()) == 20000
        for task in following:
            _, events = await wait_with_timeout(task)
            assert collect_text(events) == own
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
    script = script_tool_calls(
        [("ask_user", {"questions": [{"question": "Which?", "header": "h", "options": []}]})]
    )
    async with (
        run_daemon(tmp_path, hooks={}) as daemon,
        daemon.client() as client,
        daemon.client() as other,
    ):
        stream = client.stream("crab", script, key="k")
        ask = await wait_for_event(stream, wire.AskUserEvent)
        repeating = asyncio.ensure_future(collect_events(other.stream("crab", script, key="k")))
        attaching = asyncio.ensure_future(collect_numbered(other.attach("crab")))
        await wait_until(lambda: any(r.followers == 3 for r in daemon.daemon.runtime._runs))
        await other.reply_to_ask("crab", "This.", ask_id=ask.ask_id)
        repeated = await wait_with_timeout(repeating)
        _, attached = await wait_with_timeout(attaching)
        for events in (repeated, attached):
            asks = [e for e in events if isinstance(e, wire.AskUserEvent)]
            assert [ask_event.ask_id for ask_event in asks] == [ask.ask_id]
            assert collect_text(events) == "done"
        await collect_events(stream)
