"""Listener: tokens, TLS, limits, and closing in order."""

import asyncio
import gc
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from crabtalk.protocol import wire
from crabtalk.transport import (
    Listener,
    ListenOptions,
    TcpAddress,
    TransportLimits,
    listen_tcp,
    listen_unix,
)
from crabtalk.transport.listener import MAX_SLOT_CHECKS, SLOT_CHECK_INTERVAL
from tests.scripted_server import RawPeer, ScriptedServer, make_ping, make_stream, open_listener

TOKEN = "correct horse"


def make_hello(token: str, padding: int = 0) -> wire.ClientMessage:
    return wire.ClientMessage(hello=wire.HelloMsg(token=token, client="x" * padding))


@asynccontextmanager
async def open_tcp_listener(
    limits: TransportLimits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Listener, int]]:
    listener = Listener(ScriptedServer(), limits)
    sock = listen_tcp(TcpAddress(port=0))
    listener.open(sock, ListenOptions("tcp", token=TOKEN, tls=tls))
    try:
        yield listener, sock.getsockname()[1]
    finally:
        await listener.close()


# ── Tokens ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.tcp.token")
async def test_tcp_answers_after_a_hello_with_the_token() -> None:
    async with open_tcp_listener() as (_, port):
        peer = await RawPeer.connect_tcp(port)
        peer.send(make_hello(TOKEN))
        assert (await peer.expect()).welcome.server_version == "scripted"
        peer.send(make_ping())
        assert (await peer.expect()).HasField("pong")
        await peer.close()


async def test_a_hello_may_be_followed_by_large_requests_without_waiting() -> None:
    async with open_tcp_listener() as (_, port):
        peer = await RawPeer.connect_tcp(port)
        peer.send(make_hello(TOKEN), make_stream("x" * 100_000), make_ping())
        assert (await peer.expect()).HasField("welcome")
        assert (await peer.expect()).stream.HasField("start")
        assert (await peer.expect()).stream.HasField("end")
        assert (await peer.expect()).HasField("pong")
        await peer.close()


@pytest.mark.req("trust.tcp.token")
@pytest.mark.parametrize(
    "first",
    [
        make_hello("wrong"),
        make_hello(""),
        make_hello(TOKEN + "x"),
        make_hello("é" * 10),
        make_ping(),
        wire.ClientMessage(),
        make_stream("x" * 100_000),
        make_hello(TOKEN, padding=5000),
    ],
)
async def test_tcp_answers_anything_else_with_401_and_closes(first: wire.ClientMessage) -> None:
    async with open_tcp_listener() as (listener, port):
        peer = await RawPeer.connect_tcp(port)
        peer.send(first, make_ping(), make_ping())
        assert "token" in await peer.expect_error(401)
        await peer.expect_close()
        await peer.close()
        assert listener.request_count == 0


async def test_bytes_that_are_no_message_are_refused() -> None:
    async with open_tcp_listener() as (_, port):
        peer = await RawPeer.connect_tcp(port)
        peer.writer.write(b"\0\0\0\x02\xff\xff")
        await peer.expect_error(401)
        await peer.expect_close()
        await peer.close()


async def test_an_http_request_is_refused() -> None:
    async with open_tcp_listener() as (_, port):
        peer = await RawPeer.connect_tcp(port)
        peer.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await peer.expect_error(401)
        await peer.expect_close()
        await peer.close()


@pytest.mark.req("bounds.hello_deadline")
async def test_a_silent_caller_is_refused_in_time() -> None:
    async with open_tcp_listener(TransportLimits(hello_timeout=0.05)) as (_, port):
        peer = await RawPeer.connect_tcp(port)
        await peer.expect_error(401)
        await peer.expect_close()
        await peer.close()


async def test_an_authenticated_caller_may_stay_silent() -> None:
    async with open_tcp_listener(TransportLimits(hello_timeout=0.05)) as (_, port):
        peer = await RawPeer.connect_tcp(port)
        peer.send(make_hello(TOKEN))
        await peer.expect()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.read(), 0.2)
        peer.send(make_ping())
        assert (await peer.expect()).HasField("pong")
        await peer.close()


@pytest.mark.req("transport.tcp.nodelay")
async def test_tcp_connections_send_small_packets_at_once() -> None:
    """TCP_NODELAY is set on the accepted socket."""
    async with open_tcp_listener() as (listener, port):
        peer = await RawPeer.connect_tcp(port)
        peer.send(make_hello(TOKEN))
        await peer.expect()
        (connection,) = listener._connections
        accepted = connection.transport.get_extra_info("socket")
        duplicate = socket.socket(fileno=os.dup(accepted.fileno()))
        with duplicate:
            assert duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await peer.close()


async def test_a_unix_socket_needs_no_hello_but_accepts_one(tmp_path: Path) -> None:
    async with open_listener(ScriptedServer(), tmp_path / "s"):
        peer = await RawPeer.connect_unix(tmp_path / "s")
        peer.send(make_ping(), make_hello("whatever"), make_ping())
        assert (await peer.expect()).HasField("pong")
        assert (await peer.expect()).HasField("welcome")
        assert (await peer.expect()).HasField("pong")
        await peer.close()


# ── TLS ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.req("trust.tcp.tls")
@pytest.mark.req("dispatch.every_transport")
async def test_tls_carries_the_same_frames(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with open_tcp_listener(tls=server_context) as (_, port):
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port, ssl=client_context))
        peer.send(make_hello(TOKEN), make_stream("count 1000"))
        assert (await peer.expect()).HasField("welcome")
        kinds = [(await peer.expect()).stream.WhichOneof("event") for _ in range(1002)]
        assert kinds == ["start", *["chunk"] * 1000, "end"]
        await peer.close()


async def test_a_refusal_reaches_a_tls_client(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with open_tcp_listener(tls=server_context) as (_, port):
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port, ssl=client_context))
        peer.send(make_hello("wrong"))
        await peer.expect_error(401)
        await peer.expect_close()
        await peer.close()


async def test_a_stream_is_cancelled_when_its_tls_client_goes_away(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with open_tcp_listener(tls=server_context) as (listener, port):
        server = listener.server
        assert isinstance(server, ScriptedServer)
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port, ssl=client_context))
        peer.send(make_hello(TOKEN), make_stream("forever"))
        await server.until_started("forever")
        await peer.close()
        await server.until_ended("forever: cancelled")


async def test_a_caller_without_tls_does_not_disturb_others(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with open_tcp_listener(TransportLimits(hello_timeout=1.5), tls=server_context) as (
        listener,
        port,
    ):
        plain = await RawPeer.connect_tcp(port)
        plain.send(make_hello(TOKEN))
        silent = await RawPeer.connect_tcp(port)
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port, ssl=client_context))
        peer.send(make_hello(TOKEN))
        assert (await peer.expect()).HasField("welcome")
        assert await silent.reader.read() == b""
        await plain.close()
        await silent.close()
        while listener.statistics().connections > 1:
            await asyncio.sleep(0)
        await peer.close()


# ── Closing ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("daemon.shutdown.order")
async def test_closing_lets_a_request_in_flight_finish(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, tmp_path / "s") as listener:
        idle = await RawPeer.connect_unix(tmp_path / "s")
        idle.send(make_ping())
        await idle.expect()
        peer = await RawPeer.connect_unix(tmp_path / "s")
        peer.send(wire.ClientMessage(send=wire.SendMsg(content="last")))
        await server.until_started("send last")
        closing = asyncio.create_task(listener.close())
        await idle.expect_close()
        peer.send(make_ping())
        assert "shutting down" in await peer.expect_error(503)
        server.release.set()
        assert (await peer.expect()).response.content == "last"
        await peer.expect_close()
        await closing
        assert listener.statistics().connections == 0
        await peer.close()
        await idle.close()


@pytest.mark.req("daemon.shutdown.order")
async def test_closing_stops_accepting(tmp_path: Path) -> None:
    async with open_listener(ScriptedServer(), tmp_path / "s") as listener:
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await RawPeer.connect_unix(tmp_path / "s")


async def test_closing_ends_subscriptions_at_once(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(
        server, tmp_path / "s", limits=TransportLimits(drain_timeout=30)
    ) as listener:
        peer = await RawPeer.connect_unix(tmp_path / "s")
        peer.send(wire.ClientMessage(subscribe_events=wire.SubscribeEvents()))
        await peer.expect()
        async with asyncio.timeout(5):
            await listener.close()
        await peer.expect_error(503)
        await peer.expect_close()
        assert server.ended == ["subscribe_events: cancelled"]
        await peer.close()


@pytest.mark.req("daemon.shutdown.order")
async def test_closing_cancels_requests_that_do_not_finish_in_time(tmp_path: Path) -> None:
    server = ScriptedServer()
    limits = TransportLimits(drain_timeout=0.05)
    async with open_listener(server, tmp_path / "s", limits=limits) as listener:
        streaming, sending = (
            await RawPeer.connect_unix(tmp_path / "s"),
            await RawPeer.connect_unix(tmp_path / "s"),
        )
        streaming.send(make_stream("forever"))
        sending.send(wire.ClientMessage(send=wire.SendMsg(content="slow")))
        await server.until_started("forever")
        await server.until_started("send slow")
        await listener.close()
        assert sorted(server.ended) == ["forever: cancelled", "send slow: cancelled"]
        assert (await streaming.expect()).stream.HasField("start")
        await streaming.expect_error(503)
        await sending.expect_error(503)
        await streaming.close()
        await sending.close()


async def test_closing_does_not_wait_for_peers_that_do_not_read(tmp_path: Path) -> None:
    server = ScriptedServer()
    limits = TransportLimits(drain_timeout=0.05)
    async with open_listener(server, tmp_path / "s", limits=limits) as listener:
        peer = await RawPeer.connect_unix(tmp_path / "s")
        peer.transport.pause_reading()
        peer.send(make_stream("flood 100000000"))
        await server.until_started("flood 100000000")
        async with asyncio.timeout(5):
            await listener.close()
        assert server.ended == ["flood 100000000: cancelled"]
        await peer.close()


async def test_closing_during_a_tls_handshake(server_context: ssl.SSLContext) -> None:
    async with open_tcp_listener(tls=server_context) as (listener, port):
        peer = await RawPeer.connect_tcp(port)
        while not listener.statistics().connections:
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await listener.close()
        assert listener.statistics().connections == 0
        await peer.close()


@pytest.mark.req("daemon.shutdown.order")
async def test_a_caller_that_was_just_accepted_is_closed_too(tmp_path: Path) -> None:
    async with open_listener(ScriptedServer(), tmp_path / "s") as listener:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "s"))
            while not listener.statistics().accepted:
                await asyncio.sleep(0)
            await listener.close()
            caller.settimeout(0)
            assert caller.recv(1) == b""
    gc.collect()  # a socket that was not closed would cause a warning here


async def test_cancelling_the_close_skips_the_waiting_but_not_the_closing(tmp_path: Path) -> None:
    server = ScriptedServer()
    limits = TransportLimits(drain_timeout=30)
    async with open_listener(server, tmp_path / "s", limits=limits) as listener:
        peer = await RawPeer.connect_unix(tmp_path / "s")
        peer.send(make_stream("forever"))
        await server.until_started("forever")
        closing = asyncio.create_task(listener.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert server.ended == ["forever: cancelled"]
        assert listener.statistics().connections == 0
        await peer.close()


@pytest.mark.parametrize("rounds", [1, 2, 5])
async def test_a_close_that_is_cancelled_at_any_moment_still_closes(
    tmp_path: Path, rounds: int
) -> None:
    server = ScriptedServer()
    limits = TransportLimits(drain_timeout=0.01)
    async with open_listener(server, tmp_path / "s", limits=limits) as listener:
        peer = await RawPeer.connect_unix(tmp_path / "s")
        peer.send(make_stream("forever"))
        await server.until_started("forever")
        late = await RawPeer.connect_unix(tmp_path / "s")
        closing = asyncio.create_task(listener.close())
        for _ in range(rounds):
            await asyncio.sleep(0.005)
        closing.cancel()
        await asyncio.wait([closing])
        await server.until_ended("forever: cancelled")
        while listener.statistics().connections:
            await asyncio.sleep(0)
        await peer.close()
        await late.close()


async def test_a_stream_has_time_to_clean_up_when_its_tls_client_goes_away(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    class Tidy(ScriptedServer):
        async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
            yield wire.StreamEvent(start=wire.StreamStart())
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                await self.record_event(self.ended, "tidied up")

    server = Tidy()
    listener = Listener(server)
    sock = listen_tcp(TcpAddress(port=0))
    listener.open(sock, ListenOptions("tcp", token=TOKEN, tls=server_context))
    port = sock.getsockname()[1]
    peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port, ssl=client_context))
    peer.send(make_hello(TOKEN), make_stream("x"))
    await peer.expect()
    await peer.expect()
    await peer.close()
    await server.until_ended("tidied up")
    await listener.close()


# ── Accepting ──────────────────────────────────────────────────────────────────────────────────


async def test_statistics_count_connections_and_requests(tmp_path: Path) -> None:
    async with open_listener(ScriptedServer(), tmp_path / "s") as listener:
        for _ in range(3):
            peer = await RawPeer.connect_unix(tmp_path / "s")
            peer.send(make_ping(), make_ping())
            await peer.expect()
            await peer.expect()
            await peer.close()
        peer = await RawPeer.connect_unix(tmp_path / "s")
        peer.writer.write(b"\xff\xff\xff\xff")
        await peer.expect_error(413)
        await peer.close()
        while listener.statistics().connections:
            await asyncio.sleep(0)
        statistics = listener.statistics()
        assert statistics.accepted == 4
        assert statistics.refused == 1
        assert statistics.requests == 6
        assert statistics.inbound_bytes == 0


@pytest.mark.req("bounds.connections")
async def test_unauthenticated_callers_do_not_count_as_connections(tmp_path: Path) -> None:
    async with open_tcp_listener(TransportLimits(strangers=3, connections=2)) as (listener, port):
        listener.open(listen_unix(tmp_path / "s"), ListenOptions("unix"))
        strangers = [await RawPeer.connect_tcp(port) for _ in range(3)]
        while listener.statistics().connections < 3:
            await asyncio.sleep(0)
        one_more = await RawPeer.connect_tcp(port)
        await one_more.expect_error(503)
        owner = await RawPeer.connect_unix(tmp_path / "s")
        owner.send(make_ping())
        assert (await owner.expect()).HasField("pong")
        strangers[0].send(make_hello(TOKEN))
        assert (await strangers[0].expect()).HasField("welcome")
        strangers[1].send(make_hello(TOKEN))
        assert "2 connections" in await strangers[1].expect_error(503)
        for peer in (*strangers, one_more, owner):
            await peer.close()


@pytest.mark.req("bounds.crowd.strangers")
async def test_many_callers_with_a_token_wait_and_are_accepted() -> None:
    async def connect_and_ping(port: int) -> None:
        peer = await RawPeer.connect_tcp(port)
        peer.send(make_hello(TOKEN), make_ping())
        assert (await peer.expect()).HasField("welcome")
        assert (await peer.expect()).HasField("pong")
        await peer.close()

    async with open_tcp_listener(TransportLimits(strangers=8)) as (listener, port):
        await asyncio.gather(*(connect_and_ping(port) for _ in range(300)))
        statistics = listener.statistics()
        assert (statistics.accepted, statistics.refused) == (300, 0)


@pytest.mark.req("bounds.crowd.strangers")
async def test_callers_that_send_no_token_are_not_waited_for() -> None:
    async with open_tcp_listener(TransportLimits(strangers=2)) as (_, port):
        silent = [await RawPeer.connect_tcp(port) for _ in range(2)]
        one_more = await RawPeer.connect_tcp(port)
        assert "2 others have yet to show their token" in await one_more.expect_error(503)
        for peer in (*silent, one_more):
            await peer.close()


@pytest.mark.req("bounds.crowd.strangers")
async def test_callers_of_another_socket_do_not_shorten_the_wait_for_a_slot(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with open_tcp_listener(TransportLimits(strangers=4)) as (listener, port):
        listener.open(listen_unix(path), ListenOptions("unix"))
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        for sock in crowd:
            sock.connect(str(path))
        # Connected without running the loop, so that it finds all of them at once.
        alone = socket.create_connection(("127.0.0.1", port))
        strangers = [RawPeer(*await asyncio.open_connection(sock=alone))]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(strangers[0].read(), MAX_SLOT_CHECKS * SLOT_CHECK_INTERVAL)
        strangers += [await RawPeer.connect_tcp(port) for _ in range(3)]
        owner, one_more = await RawPeer.connect_unix(path), await RawPeer.connect_tcp(port)
        one_more.send(make_hello(TOKEN))
        while listener.statistics().connections < 8 + 4 + 1:
            await asyncio.sleep(0)
        for _ in range(10):  # time enough to refuse it
            owner.send(make_ping())
            await owner.expect()
        strangers[0].send(make_hello(TOKEN))
        assert (await strangers[0].expect()).HasField("welcome")
        assert (await one_more.expect()).HasField("welcome")
        for sock in crowd:
            sock.close()
        for peer in (*strangers, one_more, owner):
            await peer.close()


async def test_a_flood_of_refused_callers_is_disconnected_rather_than_kept(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with open_listener(
        ScriptedServer(), path, limits=TransportLimits(connections=1)
    ) as listener:
        first = await RawPeer.connect_unix(path)
        first.send(make_ping())
        await first.expect()
        crowd = [await RawPeer.connect_unix(path) for _ in range(200)]
        while listener.statistics().refused < 200:
            await asyncio.sleep(0)
        assert len(listener._lingering) <= 64
        first.send(make_ping())
        assert (await first.expect()).HasField("pong")
        for peer in [*crowd, first]:
            await peer.close()


@pytest.mark.req("bounds.accept")
async def test_running_out_of_file_descriptors_only_pauses_accepting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    path = tmp_path / "s"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_listener(ScriptedServer(), path) as listener:
        first = await RawPeer.connect_unix(path)
        first.send(make_ping())
        await first.expect()
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for sock in waiting:
            sock.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(s.fileno() for s in waiting) + 1, hard))
        try:
            for sock in waiting:
                sock.connect(str(path))
            for _ in range(20):
                first.send(make_ping())
                assert (await first.expect()).HasField("pong")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while listener.statistics().accepted < 4:
            await asyncio.sleep(0.01)
        for sock in waiting:
            sock.close()
        await first.close()


def test_two_listeners_cannot_share_a_path(tmp_path: Path) -> None:
    with (
        listen_unix(tmp_path / "s"),
        pytest.raises(FileExistsError, match="another program answers"),
    ):
        listen_unix(tmp_path / "s")
