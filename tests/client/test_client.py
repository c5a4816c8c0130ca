"""Client: finding the daemon, typed calls, streams, and what holds when something breaks."""

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import get_args

import pytest

import crabtalk
from crabtalk.client import (
    CannotConnectError,
    Client,
    ConnectionClosedError,
    DaemonNotRunningError,
    Event,
    ServerError,
    UnexpectedReplyError,
    connect,
)
from crabtalk.protocol import ROUTES, FrameTooLargeError, NotFoundError, Server, wire
from crabtalk.transport import (
    Listener,
    ListenOptions,
    RunFiles,
    TcpAddress,
    TransportLimits,
    listen_tcp,
)
from tests.scripted_server import ScriptedServer, open_listener


@pytest.fixture
def run(home: Path) -> RunFiles:
    (home / "run").mkdir(parents=True)
    return RunFiles.for_home(home)


# ── Finding the daemon ─────────────────────────────────────────────────────────────────────────


async def test_the_daemon_of_a_home_is_found_by_its_socket(home: Path, run: RunFiles) -> None:
    async with open_listener(ScriptedServer(), run.socket_path), connect(home=home) as client:
        await client.ping()


async def test_the_daemon_is_found_through_the_environment(
    home: Path, run: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRABTALK_HOME", str(home))
    async with open_listener(ScriptedServer(), run.socket_path), crabtalk.connect() as client:
        await client.ping()


async def test_without_a_socket_the_port_file_and_token_are_used(home: Path, run: RunFiles) -> None:
    listener = Listener(ScriptedServer())
    sock = listen_tcp(TcpAddress(port=0))
    listener.open(sock, ListenOptions("tcp", token=run.ensure_token()))
    run.publish_port(sock.getsockname()[1])
    run.lock_path.write_text(str(os.getpid()))
    async with connect(home=home) as client:
        await client.ping()
    run.socket_path.touch()  # a stale socket does not matter
    async with connect(home=home) as client:
        await client.ping()
    await listener.close()


async def test_a_missing_daemon_is_reported_with_the_next_step(home: Path) -> None:
    with pytest.raises(DaemonNotRunningError, match=r"no daemon answers in .*run --home"):
        async with connect(home=home):
            pass


async def test_a_silent_daemon_is_distinguished_from_a_missing_one(
    home: Path, run: RunFiles
) -> None:
    """Something listens on the port and says nothing."""
    with listen_tcp(TcpAddress(port=0)) as sock:
        run.ensure_token()
        run.lock_path.write_text(str(os.getpid()))
        run.publish_port(sock.getsockname()[1])
        with pytest.raises(CannotConnectError, match=r"did not answer within 0\.05 s") as caught:
            async with connect(home=home, connect_timeout=0.05):
                pass
        assert not isinstance(caught.value, DaemonNotRunningError)


async def test_the_server_refuses_a_wrong_token(run: RunFiles) -> None:
    listener = Listener(ScriptedServer())
    sock = listen_tcp(TcpAddress(port=0))
    listener.open(sock, ListenOptions("tcp", token="right"))
    address = f"tcp:127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(ServerError) as caught:
        async with connect(address, token="wrong"):
            pass
    assert caught.value.code == 401
    async with connect(address, token="right") as client:
        await client.ping()
    await listener.close()


@pytest.mark.req("client.reconnect")
async def test_a_restarted_daemon_is_found_again(home: Path, run: RunFiles) -> None:
    async with open_listener(ScriptedServer(), run.socket_path):
        client = connect(home=home)
        await client.__aenter__()
        await client.ping()
    with pytest.raises((DaemonNotRunningError, ConnectionClosedError)):
        await client.ping()
    async with open_listener(ScriptedServer(), run.socket_path):
        await client.ping()
        await client.__aexit__(None, None, None)


# ── Requests ───────────────────────────────────────────────────────────────────────────────────


class EchoServer(Server):
    """Records the last request, and answers every request with an empty reply of its type."""

    def __init__(self) -> None:
        self.last: tuple[str, object] = ("", None)

    async def answer(self, message: wire.ClientMessage) -> AsyncGenerator[tuple[str, object], None]:
        name = message.WhichOneof("msg")
        assert name is not None
        self.last = (name, getattr(message, name))
        reply = ROUTES[name].reply
        field = wire.ServerMessage.DESCRIPTOR.fields_by_name[reply]
        yield reply, getattr(wire, field.message_type.name)() if field.message_type else b"out"


CALLS: dict[str, tuple[dict[str, object], object]] = {
    "send": (
        dict(agent="a", content="c", sender="s", cwd="/w", guest="g", tool_choice="none"),
        wire.SendMsg(agent="a", content="c", sender="s", cwd="/w", guest="g", tool_choice="none"),
    ),
    "reply_to_ask": (
        dict(agent="a", content="c", sender="s"),
        wire.ReplyToAsk(agent="a", sender="s", content="c"),
    ),
    "steer_session": (
        dict(agent="a", content="c", sender="s"),
        wire.SteerSessionMsg(agent="a", sender="s", content="c"),
    ),
    "kill": (
        dict(agent="a", sender="s", run_id="r", key="k"),
        wire.KillMsg(agent="a", sender="s", run_id="r", key="k"),
    ),
    "compact": (dict(agent="a", sender="s"), wire.CompactMsg(agent="a", sender="s")),
    "list_active_conversations": (
        dict(agent="a", sender="s"),
        wire.ListActiveConversationsMsg(agent="a", sender="s"),
    ),
    "list_conversations": (
        dict(agent="a", sender="s"),
        wire.ListConversationsMsg(agent="a", sender="s"),
    ),
    "get_conversation_history": (
        dict(handle="h"),
        wire.GetConversationHistoryMsg(file_path="h"),
    ),
    "delete_conversation": (dict(handle="h"), wire.DeleteConversationMsg(file_path="h")),
    "list_messages": (
        dict(agent="a", sender="s", offset=0, limit=5),
        wire.ListMessagesMsg(agent="a", sender="s", offset=0, limit=5),
    ),
    "list_records": (
        dict(agent="a", sender="s", position=3, log_id="l", limit=5),
        wire.ListRecordsMsg(agent="a", sender="s", position=3, log_id="l", limit=5),
    ),
    "list_archives": (
        dict(agent="a", sender="s"),
        wire.ListArchivesMsg(agent="a", sender="s"),
    ),
    "search_sessions": (
        dict(
            **dict(query="q", agent="a", sender="s", limit=1),
            **dict(context_before=2, context_after=3, since="t", until="u"),
        ),
        wire.SearchSessionsMsg(
            query="q",
            agent="a",
            sender="s",
            limit=1,
            context_before=2,
            context_after=3,
            since="t",
            until="u",
        ),
    ),
    "search_memory": (
        dict(agent="a", query="q", limit=1, sender="s"),
        wire.SearchMemoryMsg(agent="a", query="q", limit=1, sender="s"),
    ),
    "list_memory": (
        dict(agent="a", sender="s", name="n", after=3),
        wire.ListMemoryMsg(agent="a", sender="s", name="n", after=3),
    ),
    "replace_memory": (
        dict(agent="a", entries=[wire.MemoryEntry(name="n")], sender="s"),
        wire.ReplaceMemoryMsg(agent="a", entries=[wire.MemoryEntry(name="n")], sender="s"),
    ),
    "set_title": (
        dict(agent="a", title="t", sender="s"),
        wire.SetTitleMsg(agent="a", title="t", sender="s"),
    ),
    "set_mode": (
        dict(agent="a", mode="ask", sender="s"),
        wire.SetModeMsg(agent="a", mode="ask", sender="s"),
    ),
    "explain_agent": (
        dict(agent="a", sender="s", mode="plan"),
        wire.ExplainAgentMsg(agent="a", sender="s", mode="plan"),
    ),
    "list_agents": ({}, wire.ListAgentsMsg()),
    "get_agent": (dict(name="a"), wire.GetAgentMsg(name="a")),
    "create_agent": (
        dict(name="a", prompt="p", config={"model": "m"}),
        wire.CreateAgentMsg(name="a", prompt="p", config='{"model": "m"}'),
    ),
    "update_agent": (
        dict(name="a", config="{}", prompt="p"),
        wire.UpdateAgentMsg(name="a", prompt="p", config="{}"),
    ),
    "delete_agent": (dict(name="a"), wire.DeleteAgentMsg(name="a")),
    "rename_agent": (
        dict(old_name="a", new_name="b"),
        wire.RenameAgentMsg(old_name="a", new_name="b"),
    ),
    "list_skills": ({}, wire.ListSkillsMsg()),
    "list_models": ({}, wire.ListModelsMsg()),
    "set_active_model": (dict(model="m"), wire.SetActiveModelMsg(model="m")),
    "list_mcps": (dict(agent="a"), wire.ListMcpsMsg(agent="a")),
    "upsert_mcp": (
        dict(agent="a", config={"name": "n"}),
        wire.UpsertMcpMsg(agent="a", config='{"name": "n"}'),
    ),
    "delete_mcp": (dict(agent="a", name="n"), wire.DeleteMcpMsg(agent="a", name="n")),
    "subscribe_event": (
        dict(source="s", target_agent="a", once=True),
        wire.SubscribeEventMsg(source="s", target_agent="a", once=True),
    ),
    "unsubscribe_event": (dict(subscription=7), wire.UnsubscribeEventMsg(id=7)),
    "list_subscriptions": ({}, wire.ListSubscriptionsMsg()),
    "publish_event": (
        dict(source="s", payload="p"),
        wire.PublishEventMsg(source="s", payload="p"),
    ),
    "hello": ({}, wire.HelloMsg(protocol_version=1, client="python", wants_features=True)),
    "ping": ({}, wire.Ping()),
    "get_config": ({}, wire.GetConfig()),
    "reload": ({}, wire.ReloadMsg()),
    "get_stats": ({}, wire.GetStats()),
    "extension": (dict(payload=b"in"), b"in"),
}


@pytest.mark.req("client.typed_methods")
@pytest.mark.parametrize("name", CALLS)
async def test_each_method_sends_its_request_and_returns_its_answer(
    name: str, run: RunFiles
) -> None:
    arguments, request = CALLS[name]
    server = EchoServer()
    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        result = await getattr(client, name)(**arguments)
    assert server.last == (name, request)
    route = ROUTES[name]
    field = wire.ServerMessage.DESCRIPTOR.fields_by_name[route.reply]
    expected: object = field.message_type and getattr(wire, field.message_type.name)()
    if name == "kill":
        expected = True
    elif name == "compact":
        expected = ""
    elif route.reply == "pong":
        expected = None
    elif route.reply == "extension":
        expected = b"out"
    assert result == expected


@pytest.mark.req("client.typed_methods")
def test_every_request_has_a_method_of_its_name() -> None:
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction)}
    assert set(ROUTES) <= methods
    streams = {"stream", "attach", "subscribe_events", "subscribe_mcp_events"}
    assert set(CALLS) | streams == set(ROUTES)


@pytest.mark.req("client.primitives")
async def test_any_message_can_be_sent_with_the_primitives(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        reply = await client.request(wire.ClientMessage(ping=wire.Ping()))
        assert reply.WhichOneof("msg") == "pong"
        message = wire.ClientMessage(stream=wire.StreamMsg(agent="crab", content="count 1"))
        replies = [reply.stream async for reply in client.request_stream(message)]
        assert [r.WhichOneof("event") for r in replies] == ["start", "chunk", "end"]
        with pytest.raises(ServerError):
            await client.request(wire.ClientMessage())
        with pytest.raises(ServerError):
            [r async for r in client.request_stream(wire.ClientMessage())]


@pytest.mark.req("wire.errors.http_codes")
async def test_a_server_error_is_raised_with_code_and_message(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        with pytest.raises(ServerError, match=r"server error \(501\)") as caught:
            await client.list_agents()
        assert (caught.value.code, caught.value.message) == (
            501,
            "this server does not offer list_agents",
        )
        await client.ping()


async def test_kill_returns_whether_there_was_a_conversation(run: RunFiles) -> None:
    class Killer(Server):
        async def kill(self, request: wire.KillMsg) -> None:
            if request.agent != "crab":
                raise NotFoundError("no such conversation")

    async with (
        open_listener(Killer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        assert await client.kill("crab") is True
        assert await client.kill("stranger") is False


@pytest.mark.req("dispatch.independent")
async def test_requests_do_not_wait_for_each_other(run: RunFiles) -> None:
    server = ScriptedServer()
    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        slow = asyncio.create_task(client.send("crab", "slow"))
        await server.until_started("send slow")
        await asyncio.gather(*(client.ping() for _ in range(20)))
        assert not slow.done()
        server.release.set()
        assert (await slow).content == "slow"


async def test_connections_are_reused(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path) as listener,
        connect(f"unix:{run.socket_path}") as client,
    ):
        for _ in range(50):
            await client.ping()
            async for _ in client.stream("crab", "count 1"):
                pass
        assert listener.statistics().accepted == 1


async def test_few_connections_are_kept_when_many_were_needed(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path) as listener,
        connect(f"unix:{run.socket_path}") as client,
    ):
        await asyncio.gather(*(client.ping() for _ in range(100)))
        while listener.statistics().connections > 4:
            await asyncio.sleep(0)


async def test_a_late_answer_is_a_timeout(run: RunFiles) -> None:
    class Deaf(Server):
        async def ping(self, request: wire.Ping) -> None:
            await asyncio.Event().wait()

    limits = TransportLimits(drain_timeout=0.01)
    async with (
        open_listener(Deaf(), run.socket_path, limits=limits),
        connect(f"unix:{run.socket_path}", timeout=0.05) as client,
    ):
        with pytest.raises(TimeoutError):
            await client.ping()
        with pytest.raises(ServerError):
            await client.list_agents()


async def test_a_turn_outlives_the_timeout_of_earlier_requests(run: RunFiles) -> None:
    """The connection of a timed request is reused for one without a deadline."""
    server = ScriptedServer()
    async with (
        open_listener(server, run.socket_path),
        connect(f"unix:{run.socket_path}", timeout=0.05) as client,
    ):
        await client.ping()
        slow = asyncio.create_task(client.send("crab", "slow"))
        await asyncio.sleep(0.15)
        server.release.set()
        assert (await slow).content == "slow"


async def test_a_late_answer_is_never_taken_for_that_of_the_next_request(run: RunFiles) -> None:
    server = ScriptedServer()
    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        given_up = asyncio.create_task(client.send("crab", "given up"))
        await server.until_started("send given up")
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        server.release.set()
        assert (await client.send("crab", "next")).content == "next"


async def test_a_request_too_large_for_a_frame_is_refused_before_it_is_sent(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        with pytest.raises(FrameTooLargeError):
            await client.send("crab", "x" * (16 << 20))
        await client.ping()


@pytest.mark.req("client.unexpected_reply")
async def test_an_answer_of_the_wrong_type_is_an_error(run: RunFiles) -> None:
    class Confused(Server):
        async def answer(
            self, message: wire.ClientMessage
        ) -> AsyncGenerator[tuple[str, object], None]:
            yield "stats", wire.DaemonStats()

    async with (
        open_listener(Confused(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        with pytest.raises(UnexpectedReplyError, match="ping was answered with stats, not pong"):
            await client.ping()
        with pytest.raises(UnexpectedReplyError, match="stream was answered with stats"):
            async for _ in client.stream("crab", "hi"):
                pass


async def test_a_closed_client_raises_an_error_that_says_so(run: RunFiles) -> None:
    async with open_listener(ScriptedServer(), run.socket_path):
        async with connect(f"unix:{run.socket_path}") as client:
            pass
        with pytest.raises(ConnectionClosedError, match="this client is closed"):
            await client.ping()


# ── Streams ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("client.stream.sentinel")
async def test_a_stream_yields_typed_events_up_to_the_end(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        events = [event async for event in client.stream("crab", "count 2")]
    assert events == [
        wire.StreamStart(agent="crab"),
        wire.StreamChunk(content="0"),
        wire.StreamChunk(content="1"),
        wire.StreamEnd(agent="crab"),
    ]


def test_every_event_of_the_protocol_is_a_type_of_the_client() -> None:
    fields = wire.StreamEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    names = {field.message_type.name for field in fields if field.message_type}
    assert {kind.__name__ for kind in get_args(Event)} == names


async def test_a_stream_carries_all_its_fields(run: RunFiles) -> None:
    seen: list[wire.StreamMsg] = []

    class Recorder(Server):
        async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
            seen.append(request)
            yield wire.StreamEvent(end=wire.StreamEnd())

    async with (
        open_listener(Recorder(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        async for _ in client.stream(
            "a", "c", sender="s", cwd="/w", guest="g", tool_choice="auto", detach=True
        ):
            pass
        async for _ in client.stream("a", "c"):
            pass
    assert seen == [
        wire.StreamMsg(
            agent="a",
            content="c",
            sender="s",
            cwd="/w",
            guest="g",
            tool_choice="auto",
            detach=True,
        ),
        wire.StreamMsg(agent="a", content="c"),
    ]
    assert not seen[1].HasField("sender")


async def test_an_event_of_a_newer_daemon_is_skipped(run: RunFiles) -> None:
    class Newer(Server):
        async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
            yield wire.StreamEvent.FromString(bytes.fromhex("9a0600"))  # field 99, unknown here
            yield wire.StreamEvent(end=wire.StreamEnd(agent="crab"))

    async with (
        open_listener(Newer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        events = [event async for event in client.stream("crab", "hi")]
        assert events == [wire.StreamEnd(agent="crab")]


@pytest.mark.req("wire.stream.error_is_last")
async def test_an_error_in_a_stream_is_raised_after_the_events_before_it(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        seen: list[Event] = []
        with pytest.raises(ServerError, match="no such thing as 404") as caught:
            async for event in client.stream("crab", "fail 404"):
                seen.append(event)  # noqa: PERF401 - keeps the events before the error
        assert caught.value.code == 404
        assert seen == [wire.StreamStart(agent="crab"), wire.StreamChunk(content="so far")]
        await client.ping()


@pytest.mark.req("client.stream.close_cancels")
async def test_closing_the_iterator_cancels_the_run(run: RunFiles) -> None:
    server = ScriptedServer()
    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        async with aclosing(client.stream("crab", "forever")) as events:
            await anext(events)
        await server.until_ended("forever: cancelled")
        await client.ping()


@pytest.mark.req("client.stream.close_cancels")
async def test_leaving_the_loop_early_cancels_the_run(run: RunFiles) -> None:
    server = ScriptedServer()
    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        async for _ in client.stream("crab", "forever"):
            break
        await server.until_ended("forever: cancelled")


async def test_leaving_the_loop_at_the_end_event_keeps_the_connection(run: RunFiles) -> None:
    async with (
        open_listener(ScriptedServer(), run.socket_path) as listener,
        connect(f"unix:{run.socket_path}") as client,
    ):
        for _ in range(10):
            async for event in client.stream("crab", "count 1"):
                if isinstance(event, wire.StreamEnd):
                    break
            await asyncio.sleep(0)
        assert listener.statistics().accepted <= 2


async def test_cancelling_the_reader_cancels_the_run(run: RunFiles) -> None:
    server = ScriptedServer()

    async def read(client: Client) -> None:
        async for _ in client.stream("crab", "forever"):
            pass

    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        reader = asyncio.create_task(read(client))
        await server.until_started("forever")
        reader.cancel()
        await server.until_ended("forever: cancelled")
        with pytest.raises(asyncio.CancelledError):
            await reader


async def test_closing_the_client_cancels_its_runs(run: RunFiles) -> None:
    server = ScriptedServer()
    async with open_listener(server, run.socket_path):
        async with connect(f"unix:{run.socket_path}") as client:
            events = client.stream("crab", "forever")
            await anext(events)
        await server.until_ended("forever: cancelled")
        with pytest.raises(ConnectionClosedError):
            await anext(events)


async def test_a_slow_reader_of_a_fast_stream_loses_nothing(run: RunFiles) -> None:
    """There are more events than are read ahead: reading pauses and resumes, in order."""
    async with (
        open_listener(ScriptedServer(), run.socket_path),
        connect(f"unix:{run.socket_path}") as client,
    ):
        expected = 0
        async for event in client.stream("crab", "count 30000"):
            if isinstance(event, wire.StreamChunk):
                assert event.content == str(expected)
                expected += 1
                if expected % 1000 == 0:
                    await asyncio.sleep(0.001)
        assert expected == 30000


async def test_a_feed_goes_on_until_it_is_closed(run: RunFiles) -> None:
    server = ScriptedServer()
    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        async with aclosing(client.subscribe_events(agent="a", sender="s")) as feed:
            assert await anext(feed) == wire.AgentEventMsg(agent="a", sender="s")
        await server.until_ended("subscribe_events: cancelled")
        with pytest.raises(ServerError, match="subscribe_mcp_events"):
            await anext(client.subscribe_mcp_events())


@asynccontextmanager
async def serve_bytes(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], path: Path
) -> AsyncIterator[None]:
    """A server that sends raw bytes; it and all its connections end with the block."""
    handlers: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        writer.close()
        await writer.wait_closed()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.ensure_future(handle(reader, writer)))

    async with await asyncio.start_unix_server(start, path):
        yield
        await asyncio.gather(*handlers)


async def test_a_daemon_that_dies_in_a_stream_is_an_error_not_an_end(run: RunFiles) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(bytes.fromhex("0000000a2208 0a060a0463726162"))  # stream.start{crab}
        writer.write(bytes.fromhex("000000ff00"))

    async with (
        serve_bytes(die, run.socket_path),
        connect(f"unix:{run.socket_path}", reconnect_timeout=0) as client,
    ):
        events = client.stream("crab", "hi")
        assert await anext(events) == wire.StreamStart(agent="crab")
        with pytest.raises(ConnectionClosedError, match="inside a frame: 1 of 255"):
            await anext(events)


async def test_a_server_that_sends_garbage_is_an_error(run: RunFiles) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(bytes.fromhex("00000002ffff"))
        await reader.read()

    async with serve_bytes(babble, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        with pytest.raises(UnexpectedReplyError, match="not a ServerMessage"):
            await client.ping()


async def test_a_header_above_the_frame_limit_is_an_error(run: RunFiles) -> None:
    async def boast(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\xff\xff\xff\xff")
        await reader.read()

    async with serve_bytes(boast, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        with pytest.raises(FrameTooLargeError):
            await client.ping()


# ── Regressions ────────────────────────────────────────────────────────────────────────────────


async def test_a_short_timeout_after_a_long_one_is_short(run: RunFiles) -> None:
    server = ScriptedServer()
    limits = TransportLimits(drain_timeout=0.01)
    async with (
        open_listener(server, run.socket_path, limits=limits),
        connect(f"unix:{run.socket_path}") as client,
    ):
        await client.request(wire.ClientMessage(ping=wire.Ping()), 30)
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError, match="did not answer in time"):
                await client.request(wire.ClientMessage(send=wire.SendMsg()), 0.05)


async def test_cancelling_the_greeting_leaves_no_connection_open() -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def listen_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    async with await asyncio.start_server(listen_only, "127.0.0.1", 0) as server:
        client = connect(f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}")
        pinging = asyncio.create_task(client.ping())
        await arrived.wait()
        pinging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pinging
        await gone.wait()


async def test_closing_while_a_connection_is_being_made_ends_the_request(run: RunFiles) -> None:
    server = ScriptedServer()
    async with open_listener(server, run.socket_path) as listener:
        client = connect(f"unix:{run.socket_path}")
        request = asyncio.create_task(client.send("crab", "hi"))
        await asyncio.sleep(0)
        await client.__aexit__(None, None, None)
        with pytest.raises(ConnectionClosedError):
            await request
        while listener.statistics().connections:
            await asyncio.sleep(0)


async def test_large_events_are_not_read_far_ahead(run: RunFiles) -> None:
    class Large(Server):
        sent = 0

        async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
            for _ in range(50):
                self.sent += 1
                yield wire.StreamEvent(chunk=wire.StreamChunk(content="x" * 1_000_000))
            yield wire.StreamEvent(end=wire.StreamEnd())

    server = Large()
    async with open_listener(server, run.socket_path), connect(f"unix:{run.socket_path}") as client:
        events = client.stream("crab", "hi")
        await anext(events)
        for _ in range(200):
            await asyncio.sleep(0)
        assert server.sent < 10
        assert [type(event) async for event in events].count(wire.StreamChunk) == 49


async def test_a_server_that_is_no_daemon_is_reported_as_such() -> None:
    gone = asyncio.Event()

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    async with await asyncio.start_server(http, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(CannotConnectError, match="is no daemon"):
            async with connect(f"tcp:127.0.0.1:{port}"):
                pass
        await gone.wait()
