"""Messages with keys: connections are cut, daemons are killed, and each message runs once."""

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import (
    Client,
    ConnectionClosedError,
    Event,
    ServerError,
    connect,
    connect_sync,
)
from crabtalk.protocol import FrameDecoder, Server, encode_frame, wire
from crabtalk.runtime import Run, RuntimeLimits
from crabtalk.transport import RunFiles
from tests.client.cutting_proxy import CuttingProxy, start_proxy
from tests.crash.launched_daemon import LaunchedDaemon, prepare_home, run_process
from tests.daemon.in_process_daemon import PATIENCE, InProcessDaemon, run_daemon, wait_with_timeout
from tests.model_server import ModelServer, model_server
from tests.scripted_server import ScriptedServer, open_listener

pytestmark = pytest.mark.timeout(120)
WAITING_SCRIPT = "!say half an\n!wait\n!say hour"


def list_event_names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def join_text(events: list[Event]) -> str:
    return "".join(event.content for event in events if isinstance(event, wire.StreamChunk))


def find_end(events: list[Event]) -> wire.StreamEnd:
    (end,) = [event for event in events if isinstance(event, wire.StreamEnd)]
    return end


async def collect_events(stream: AsyncGenerator[Event, None], into: list[Event]) -> list[Event]:
    async with aclosing(stream) as events:
        async for event in events:
            into.append(event)  # noqa: PERF401 - the test reads the list meanwhile
    return into


async def until_text(events: list[Event], wanted: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while join_text(events) != wanted:
            await asyncio.sleep(0.005)


async def until_followers(run: Run, count: int) -> None:
    while run.followers != count:
        await asyncio.sleep(0.002)


async def list_user_texts(client: Client, agent: str = "crab") -> list[str]:
    page = await client.list_messages(agent)
    return [message.content for message in page.messages if message.role == "user"]


@asynccontextmanager
async def serve_through_proxy(
    path: Path, **options: object
) -> AsyncIterator[tuple[InProcessDaemon, CuttingProxy, Client]]:
    async with (
        run_daemon(path, **options) as daemon,  # type: ignore[arg-type]
        start_proxy(path / "proxy.sock", RunFiles.for_home(daemon.home).socket_path) as proxy,
        connect(proxy.address, timeout=PATIENCE) as client,
    ):
        yield daemon, proxy, client


@asynccontextmanager
async def run_killable_daemon(
    path: Path,
) -> AsyncIterator[tuple[LaunchedDaemon, ModelServer, Client]]:
    home = path / "home"
    async with model_server() as model:
        prepare_home(home, model)
        async with run_process(home) as process, connect(home=home, timeout=PATIENCE) as client:
            yield process, model, client


# ── Cut connections ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("client.retry.stream")
async def test_a_stream_that_is_cut_continues_where_it_was(tmp_path: Path) -> None:
    async with serve_through_proxy(tmp_path) as (daemon, proxy, client):
        events: list[Event] = []
        reading = asyncio.ensure_future(
            collect_events(client.stream("crab", WAITING_SCRIPT), events)
        )
        await until_text(events, "half an")
        await daemon.model.until_waiting()
        proxy.cut_connections()
        run = daemon.daemon.runtime.find_run("crab")
        assert run is not None
        async with asyncio.timeout(PATIENCE):
            await until_followers(run, 0)
            await until_followers(run, 1)
        daemon.model.release()
        await wait_with_timeout(reading)
        assert join_text(events) == "half anhour"
        assert [name for name in list_event_names(events) if name != "StreamChunk"] == [
            *("StreamStart", "TextStartEvent", "TextEndEvent", "ContextUsageEvent", "StreamEnd")
        ]
        assert daemon.model.request_count == 1
        assert await list_user_texts(client) == [WAITING_SCRIPT]


@pytest.mark.req("client.retry.stream")
async def test_a_stream_may_be_cut_any_number_of_times(tmp_path: Path) -> None:
    async with serve_through_proxy(tmp_path) as (daemon, proxy, client):
        events: list[Event] = []
        script = "!chunks 400 400"
        reading = asyncio.ensure_future(collect_events(client.stream("crab", script), events))
        while not reading.done():
            seen = len(events)
            while len(events) < seen + 5 and not reading.done():
                await asyncio.sleep(0.01)
            proxy.cut_connections()
        await wait_with_timeout(reading)
        assert proxy.cuts > 3
        async with daemon.client() as direct:
            page = await direct.list_messages("crab")
        assert [m.content for m in page.messages] == [script, join_text(events)]
        assert list_event_names(events).count("StreamStart") == 1
        assert daemon.model.request_count == 1


@pytest.mark.req("client.retry.stream")
async def test_events_read_from_the_log_are_not_delivered_twice(tmp_path: Path) -> None:
    call = "!tool echo {}"
    script = f"!say one\n!wait\n{call}\n!then\n!say two\n{call}\n!then\n!say so\n!wait\n!say far"

    async def echo(_: object) -> str:
        return "x" * 5000

    limits = RuntimeLimits(run_buffer=1)
    async with serve_through_proxy(tmp_path, tools={"echo": echo}, limits=limits) as (
        daemon,
        proxy,
        client,
    ):
        events: list[Event] = []
        stream = client.stream("crab", script)
        while join_text(events) != "one":
            events.append(await anext(stream))
        await daemon.model.until_waiting()
        proxy.cut_connections()
        daemon.model.release()
        async with asyncio.timeout(PATIENCE):
            while daemon.model.request_count < 3:
                await asyncio.sleep(0.005)
        await daemon.model.until_waiting()
        run = daemon.daemon.runtime.find_run("crab")
        assert run is not None
        assert run.replay_buffer.last_dropped > 3  # the client has only that many
        reading = asyncio.ensure_future(collect_events(stream, events))
        await until_text(events, "onetwoso")
        daemon.model.release()
        await wait_with_timeout(reading)
        assert join_text(events) == "onetwosofar"
        assert list_event_names(events).count("StreamStart") == 1
        assert list_event_names(events).count("TextStartEvent") == 3
        assert list_event_names(events).count("TextEndEvent") == 3
        assert list_event_names(events).count("ToolResultEvent") == 2
        assert list_event_names(events).count("ToolsCompleteEvent") == 2


@pytest.mark.req("client.retry.send")
async def test_send_waits_for_the_same_turn_on_another_connection(tmp_path: Path) -> None:
    async with serve_through_proxy(tmp_path) as (daemon, proxy, client):
        answering = asyncio.ensure_future(client.send("crab", WAITING_SCRIPT))
        await daemon.model.until_waiting()
        proxy.cut_connections()
        await proxy.until_used()
        daemon.model.release()
        assert (await wait_with_timeout(answering)).content == "half anhour"
        assert await list_user_texts(client) == [WAITING_SCRIPT]
        assert daemon.model.request_count == 1


@pytest.mark.req("client.retry.steer")
async def test_a_steering_message_whose_answer_is_lost_is_delivered_once(tmp_path: Path) -> None:
    async with serve_through_proxy(tmp_path) as (daemon, proxy, client), daemon.client() as direct:
        answering = asyncio.ensure_future(direct.send("crab", WAITING_SCRIPT))
        await daemon.model.until_waiting()
        for text in ("!say left", "!say right"):
            steering = asyncio.ensure_future(client.steer_session("crab", text))
            await asyncio.sleep(0)
            while not proxy.is_used and not steering.done():
                await asyncio.sleep(0)
            proxy.cut_connections()
            await wait_with_timeout(steering)
        daemon.model.release()
        await wait_with_timeout(answering)
        assert await list_user_texts(direct) == [WAITING_SCRIPT, "!say left", "!say right"]


# ── Killed daemons ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("client.retry.killed")
async def test_a_turn_that_died_with_its_daemon_ends_with_an_error(tmp_path: Path) -> None:
    script = '!tool bash {"command": "echo waves"}\n!then\n!say so\n!hang'
    async with run_killable_daemon(tmp_path) as (process, model, client):
        events: list[Event] = []
        reading = asyncio.ensure_future(collect_events(client.stream("crab", script), events))
        await until_text(events, "so")
        await process.kill()
        await process.start()
        await wait_with_timeout(reading)
        assert find_end(events).error.startswith("the daemon ended while")
        assert list_event_names(events).count("StreamStart") == 1
        assert list_event_names(events).count("ToolResultEvent") == 1
        assert join_text(events) == "so"
        assert await list_user_texts(client) == [script]
        assert model.request_count == 2


@pytest.mark.req("client.retry.killed")
async def test_a_stored_result_that_the_client_missed_is_still_delivered(tmp_path: Path) -> None:
    """The stream is cut in the middle of a step, and the daemon killed in the one after it."""
    script = '!tool bash {"command": "echo waves"}\n!then\n!hang'
    async with run_killable_daemon(tmp_path) as (process, model, direct):
        target = RunFiles.for_home(process.home).socket_path
        async with start_proxy(tmp_path / "p", target) as proxy, connect(proxy.address) as client:
            events: list[Event] = []
            stream = client.stream("crab", script)
            assert type(await anext(stream)) is wire.StreamStart
            async with asyncio.timeout(PATIENCE):
                while model.request_count < 2:
                    await asyncio.sleep(0.005)
            await process.kill()
            await process.start()
            await collect_events(stream, events)
            assert list_event_names(events).count("ToolResultEvent") == 1
            assert find_end(events).error
        assert await list_user_texts(direct) == [script]


@pytest.mark.req("client.retry.unsent")
async def test_a_turn_that_was_never_accepted_is_resent_and_runs_once(tmp_path: Path) -> None:
    async with run_killable_daemon(tmp_path) as (process, model, client):
        await wait_with_timeout(client.send("crab", "first"))
        process.send_signal(signal.SIGSTOP)
        await process.wait_until_stopped()
        events: list[Event] = []
        reading = asyncio.ensure_future(collect_events(client.stream("crab", "second"), events))
        answering = asyncio.ensure_future(client.send("owl", "hello"))
        await asyncio.sleep(0.05)  # until the messages are in the socket of the daemon that dies
        await process.kill()
        await process.start()
        await wait_with_timeout(reading)
        assert (await wait_with_timeout(answering)).content == "heard: hello"
        assert join_text(events) == "heard: second"
        assert await list_user_texts(client) == ["first", "second"]
        assert await list_user_texts(client, "owl") == ["hello"]
        assert model.request_count == 3


@pytest.mark.req("client.retry.killed")
async def test_send_reports_that_its_turn_died_and_does_not_run_it_again(tmp_path: Path) -> None:
    async with run_killable_daemon(tmp_path) as (process, model, client):
        answering = asyncio.ensure_future(client.send("crab", "!hang"))
        await wait_with_timeout(model.until_asked())
        await process.kill()
        await process.start()
        with pytest.raises(ServerError, match="the daemon ended while") as caught:
            await wait_with_timeout(answering)
        assert caught.value.code == 500
        assert model.request_count == 1


@pytest.mark.req("client.retry.unsent")
async def test_a_turn_that_was_queued_when_its_daemon_died_is_run_by_the_next(
    tmp_path: Path,
) -> None:
    async with run_killable_daemon(tmp_path) as (process, model, client):
        first = asyncio.ensure_future(client.send("crab", "!hang"))
        await wait_with_timeout(model.until_asked())
        events: list[Event] = []
        reading = asyncio.ensure_future(collect_events(client.stream("crab", "second"), events))
        async with asyncio.timeout(PATIENCE):
            while not events:
                await asyncio.sleep(0.005)
        await process.kill()
        await process.start()
        await asyncio.wait([first])
        first.exception()
        await wait_with_timeout(reading)
        assert await list_user_texts(client) == ["!hang", "second"]
        assert len([event for event in events if isinstance(event, wire.StreamEnd)]) == 1


@pytest.mark.req("client.retry.random")
@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_whenever_the_daemon_is_killed(tmp_path: Path) -> None:
    async with run_killable_daemon(tmp_path) as (process, _, client):
        for number in range(40):
            content = f"message {number}\n!chunks 20 200"
            events: list[Event] = []
            reading = asyncio.ensure_future(collect_events(client.stream("crab", content), events))
            await asyncio.sleep(number * 0.004)
            await process.kill()
            await process.start()
            await wait_with_timeout(reading)
            assert list_event_names(events).count("StreamStart") == 1
            assert list_event_names(events)[-1] == "StreamEnd"
            assert (await list_user_texts(client)).count(content) == 1


# ── Limits ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("client.retry.bounded")
async def test_a_daemon_that_does_not_come_back_is_an_error_in_time(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with model_server() as model:
        prepare_home(home, model)
        async with (
            run_process(home) as process,
            connect(home=home, reconnect_timeout=0.3) as client,
        ):
            events: list[Event] = []
            reading = asyncio.ensure_future(collect_events(client.stream("crab", "!hang"), events))
            await wait_with_timeout(model.until_asked())
            await process.kill()
            with pytest.raises(ConnectionClosedError):
                await wait_with_timeout(reading)


class FragileServer:
    """Greets as a daemon that supports keys, and dies at every message."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                message = wire.ClientMessage.FromString(bytes(frame))
                if message.HasField("stream"):
                    self.keys.append(message.stream.key)
                    writer.close()
                    return
                welcome = wire.WelcomeMsg(protocol_version=1, features=["keys"])
                writer.write(encode_frame(wire.ServerMessage(welcome=welcome)))
        writer.close()


@pytest.mark.req("client.retry.bounded")
async def test_a_message_that_takes_daemons_down_is_sent_three_times(tmp_path: Path) -> None:
    fragile = FragileServer()
    path = tmp_path / "s"
    async with (
        await asyncio.start_unix_server(fragile.serve, path),
        connect(f"unix:{path}") as client,
    ):
        with pytest.raises(ConnectionClosedError):
            await wait_with_timeout(collect_events(client.stream("crab", "boom"), []))
    assert len(fragile.keys) == 3
    assert len(set(fragile.keys)) == 1
    assert len(fragile.keys[0]) == 32


# ── Closing streams ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("client.stream.close")
@pytest.mark.parametrize("way", ["close", "cancel", "client"])
async def test_closing_a_stream_cancels_its_run_at_once(tmp_path: Path, way: str) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as other:
        async with daemon.client() as client:
            events: list[Event] = []
            stream = client.stream("crab", "!say half an\n!hang")
            reading = asyncio.ensure_future(collect_events(stream, events))
            await until_text(events, "half an")
            if way == "cancel":
                reading.cancel()
                await asyncio.wait([reading])
            elif way == "close":
                second = client.stream("twin", "!say half\n!hang")
                await anext(second)
                await second.aclose()
                reading.cancel()
        await daemon.model.until_hung_up()
        await asyncio.wait([reading])
        async with asyncio.timeout(5):  # not after the half minute that a lost client gets
            while (await other.get_stats()).runs:
                await asyncio.sleep(0.005)


@pytest.mark.req("client.stream.close")
async def test_closing_a_queued_stream_does_not_stop_the_turn_before_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        theirs = asyncio.ensure_future(other.send("crab", WAITING_SCRIPT))
        await daemon.model.until_waiting()
        mine = client.stream("crab", "me too")
        assert type(await anext(mine)) is wire.StreamStart
        await mine.aclose()
        daemon.model.release()
        assert (await wait_with_timeout(theirs)).content == "half anhour"
        assert await list_user_texts(client) == [WAITING_SCRIPT]


@pytest.mark.req("client.stream.close")
async def test_closing_does_not_cancel_a_run_that_another_client_with_its_key_follows(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        events: list[Event] = []
        reading = asyncio.ensure_future(
            collect_events(other.stream("crab", WAITING_SCRIPT, key="k"), events)
        )
        await until_text(events, "half an")
        mine = client.stream("crab", WAITING_SCRIPT, key="k")
        await anext(mine)
        await mine.aclose()
        await daemon.model.until_waiting()
        daemon.model.release()
        await wait_with_timeout(reading)
        assert find_end(events).stop_reason == wire.STOP_REASON_COMPLETED
        # A run that no other client follows is cancelled, even if the caller gave the key.
        alone = client.stream("crab", "!hang", key="l")
        await anext(alone)
        await alone.aclose()
        async with asyncio.timeout(5):
            while (await other.get_stats()).runs:
                await asyncio.sleep(0.005)


@pytest.mark.req("client.stream.close")
async def test_a_detached_stream_goes_on_when_it_is_closed(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        async with daemon.client() as client:
            stream = client.stream("crab", WAITING_SCRIPT, detach=True)
            await anext(stream)
            await daemon.model.until_waiting()
            await stream.aclose()
        daemon.model.release()
        async with daemon.client() as client, asyncio.timeout(PATIENCE):
            while (await client.get_stats()).runs:
                await asyncio.sleep(0.005)
            assert (await client.list_messages("crab")).messages[-1].content == "half anhour"


@pytest.mark.req("client.kill.one_run")
async def test_kill_can_name_one_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        first: list[Event] = []
        reading = asyncio.ensure_future(
            collect_events(client.stream("crab", WAITING_SCRIPT, key="a"), first)
        )
        await daemon.model.until_waiting()
        waiting: list[Event] = []
        behind = asyncio.ensure_future(collect_events(client.stream("crab", "b", key="b"), waiting))
        async with asyncio.timeout(PATIENCE):
            while not waiting:
                await asyncio.sleep(0.005)
        start = waiting[0]
        assert isinstance(start, wire.StreamStart)
        assert await client.kill("crab", run_id=start.run_id)
        await wait_with_timeout(behind)
        assert find_end(waiting).stop_reason == wire.STOP_REASON_CANCELLED
        assert await client.kill("crab", key="no such key")
        daemon.model.release()
        await wait_with_timeout(reading)
        assert find_end(first).stop_reason == wire.STOP_REASON_COMPLETED
        assert not await client.kill("twin", key="a")


@pytest.mark.req("keys.unfollowed")
@pytest.mark.slow
async def test_a_run_whose_last_follower_attached_is_killed_half_a_minute_after_it_left(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        async with start_proxy(tmp_path / "p", RunFiles.for_home(daemon.home).socket_path) as proxy:
            lost = connect(proxy.address, reconnect_timeout=0)
            events: list[Event] = []
            reading = asyncio.ensure_future(
                collect_events(lost.stream("crab", "!say half\n!hang", key="k"), events)
            )
            await until_text(events, "half")
            attached = client.attach("crab", key="k")
            await anext(attached)
            proxy.cut_connections()
            with pytest.raises(ConnectionClosedError):
                await wait_with_timeout(reading)
            await attached.aclose()
        async with asyncio.timeout(45):
            while not daemon.model.hangups:
                await asyncio.sleep(0.05)


# ── Given keys, and daemons without keys ───────────────────────────────────────────────────────


@pytest.mark.req("client.key.given")
async def test_a_given_key_is_used_unchanged(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        first = await collect_events(client.stream("crab", "hello", key="mine"), [])
        again = await collect_events(client.stream("crab", "hello", key="mine"), [])
        assert join_text(first) == join_text(again) == "heard: hello"
        start = again[0]
        assert isinstance(start, wire.StreamStart)
        assert start.stored
        assert (await client.send("crab", "hello", key="mine")).content == "heard: hello"
        with pytest.raises(ServerError) as caught:
            await client.send("crab", "something else", key="mine")
        assert caught.value.code == 409
        (message, _) = (await client.list_messages("crab")).messages
        assert message.key == "mine"
        assert daemon.model.request_count == 1


@pytest.mark.req("client.key.default")
async def test_each_message_has_a_key_of_its_own(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "one")
        await collect_events(client.stream("crab", "one"), [])
        messages = (await client.list_messages("crab", with_runs=True)).messages
        keys = [message.key for message in messages if message.role == "user"]
        assert [len(key) for key in keys] == [32, 32]
        assert len(set(keys)) == 2


@pytest.mark.req("client.key.default")
async def test_without_reconnecting_there_are_no_keys(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        connect(home=daemon.home, reconnect_timeout=0) as client,
    ):
        await collect_events(client.stream("crab", "one"), [])
        messages = (await client.list_messages("crab", with_runs=True)).messages
        assert [message.key for message in messages] == ["", ""]


class KeylessServer(ScriptedServer):
    """A daemon from before keys: it has other features, and records what it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[wire.StreamMsg] = []

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        self.requests.append(request)
        async for event in super().stream(request):
            yield event


@pytest.mark.req("client.key.older_daemon")
async def test_an_older_daemon_gets_no_key_and_nothing_twice(tmp_path: Path) -> None:
    server = KeylessServer()
    path, through = tmp_path / "s", tmp_path / "p"
    async with (
        open_listener(server, path),
        start_proxy(through, path) as proxy,
        connect(proxy.address) as client,
    ):
        events: list[Event] = []
        await wait_with_timeout(collect_events(client.stream("crab", "count 2"), events))
        assert join_text(events) == "01"
        reading = asyncio.ensure_future(collect_events(client.stream("crab", "forever"), []))
        await server.until_started("forever")
        proxy.cut_connections()
        with pytest.raises(ConnectionClosedError):
            await wait_with_timeout(reading)
        assert [request.HasField("key") for request in server.requests] == [False, False]
        stream = client.stream("crab", "forever")
        await anext(stream)
        await stream.aclose()
        await server.until_ended("forever: cancelled")


class NoGreetingServer(Server):
    """A server that does not know hello."""

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        return wire.SendResponse(agent=request.agent, content=request.key or "no key")


@pytest.mark.req("client.key.older_daemon")
async def test_a_server_that_does_not_know_hello_gets_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with open_listener(NoGreetingServer(), path), connect(f"unix:{path}") as client:
        assert (await client.send("crab", "hello")).content == "no key"


@pytest.mark.req("client.key.older_daemon")
async def test_a_message_is_not_resent_to_a_daemon_without_keys(tmp_path: Path) -> None:
    """The daemon that had it was replaced by an older one."""
    fragile, path = FragileServer(), tmp_path / "s"
    async with (
        await asyncio.start_unix_server(fragile.serve, path),
        connect(f"unix:{path}") as client,
    ):
        await client._pool.ensure_connected()
        older = KeylessServer()
        stream = client.stream("crab", "count 1")
        sending = asyncio.ensure_future(anext(stream))
        async with asyncio.timeout(PATIENCE):
            while not fragile.keys:
                await asyncio.sleep(0)
        path.unlink()
        async with open_listener(older, path):
            with pytest.raises(ConnectionClosedError):
                await wait_with_timeout(sending)
        assert older.requests == []


# ── The blocking client ────────────────────────────────────────────────────────────────────────


@pytest.mark.req("client.sync.retry")
async def test_the_blocking_client_continues_after_a_cut_too(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        start_proxy(tmp_path / "p", RunFiles.for_home(daemon.home).socket_path) as proxy,
    ):
        events: list[Event] = []

        def read() -> None:
            with connect_sync(proxy.address) as client:
                events.extend(client.stream("crab", WAITING_SCRIPT))

        reading = asyncio.ensure_future(asyncio.to_thread(read))
        await daemon.model.until_waiting()
        proxy.cut_connections()
        daemon.model.release()
        await wait_with_timeout(reading)
        assert join_text(events) == "half anhour"
        assert daemon.model.request_count == 1


@pytest.mark.req("client.sync.retry")
async def test_leaving_the_loop_over_a_blocking_stream_cancels_its_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as other:

        def read() -> None:
            with connect_sync(home=daemon.home) as client:
                for event in client.stream("crab", "!say half\n!hang"):
                    if isinstance(event, wire.StreamChunk):
                        break

        await wait_with_timeout(asyncio.to_thread(read))
        await daemon.model.until_hung_up()
        async with asyncio.timeout(5):
            while (await other.get_stats()).runs:
                await asyncio.sleep(0.005)
