"""Concurrent requests of one connection: control beside streams, order, limits and ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.protocol import MAX_FRAME, wire
from crabtalk.transport import (
    Listener,
    ListenOptions,
    TcpAddress,
    TransportLimits,
    listen_tcp,
    listen_unix,
)
from tests.scripted_server import RawPeer, ScriptedServer, make_ping, make_stream

TOKEN = "side-by-side"
PATIENCE = 30


class GatedServer(ScriptedServer):
    """Chunks of a stream `gated NAME` are those that the test puts into `gates[NAME]`."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Queue[str]] = {}

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        verb, _, name = request.content.partition(" ")
        if verb != "gated":
            async for event in super().stream(request):
                yield event
            return
        async with self.record_outcome(request.content):
            gate = self.gates.setdefault(name, asyncio.Queue())
            yield wire.StreamEvent(start=wire.StreamStart(agent=name))
            while text := await gate.get():
                yield wire.StreamEvent(chunk=wire.StreamChunk(content=text))
            yield wire.StreamEvent(end=wire.StreamEnd(agent=name))

    async def compact(self, request: wire.CompactMsg) -> wire.CompactResponse:
        async with self.record_outcome("compact"):
            await self.release.wait()
        return wire.CompactResponse(summary="short")


@asynccontextmanager
async def open_peer(
    transport: str, path: Path, limits: TransportLimits | None = None
) -> AsyncIterator[tuple[GatedServer, Listener, RawPeer]]:
    server = GatedServer()
    listener = Listener(server, limits)
    async with asyncio.timeout(PATIENCE):
        if transport == "unix":
            listener.open(listen_unix(path / "s"), ListenOptions("unix"))
            peer = await RawPeer.connect_unix(path / "s")
        else:
            sock = listen_tcp(TcpAddress(port=0))
            listener.open(sock, ListenOptions("tcp", token=TOKEN))
            peer = await RawPeer.connect_tcp(sock.getsockname()[1])
            peer.send(wire.ClientMessage(hello=wire.HelloMsg(token=TOKEN)))
            assert (await peer.expect()).HasField("welcome")
        try:
            yield server, listener, peer
        finally:
            await peer.close()
            await listener.close()


each_transport = pytest.mark.parametrize("transport", ["unix", "tcp"])


def add_request_id(message: wire.ClientMessage, request_id: int) -> wire.ClientMessage:
    labelled_message = wire.ClientMessage()
    labelled_message.CopyFrom(message)
    labelled_message.request_id = request_id
    return labelled_message


def make_turn(
    name: str, *, agent: str = "crab", request_id: int | None = None
) -> wire.ClientMessage:
    message = wire.ClientMessage(stream=wire.StreamMsg(agent=agent, content=f"gated {name}"))
    return message if request_id is None else add_request_id(message, request_id)


# ── Control requests beside long ones ──────────────────────────────────────────────────────────


@pytest.mark.req("wire.side_by_side.control")
@each_transport
async def test_control_is_answered_while_long_requests_run(transport: str, tmp_path: Path) -> None:
    async with open_peer(transport, tmp_path) as (server, _, peer):
        for request, name in (
            (make_stream("forever"), "forever"),
            (wire.ClientMessage(send=wire.SendMsg(agent="a", content="x")), "send x"),
            (wire.ClientMessage(compact=wire.CompactMsg(agent="b")), "compact"),
            (wire.ClientMessage(subscribe_events=wire.SubscribeEvents()), "subscribe_events"),
        ):
            peer.send(request)
            await server.until_started(name)
            if name in ("forever", "subscribe_events"):
                await peer.expect()
            peer.send(make_ping())
            assert (await peer.expect()).HasField("pong")
        server.release.set()
        answers = [await peer.expect(), await peer.expect()]
        assert {answer.WhichOneof("msg") for answer in answers} == {"response", "compact"}


@pytest.mark.req("wire.side_by_side.control")
async def test_a_large_turn_does_not_stop_reading(tmp_path: Path) -> None:
    async with open_peer("unix", tmp_path) as (_, listener, peer):
        peer.send(make_stream("forever ".ljust(600_000, "x")))
        assert (await peer.expect()).stream.HasField("start")
        peer.send(make_ping())
        assert (await peer.expect()).HasField("pong")
        assert listener.statistics().inbound_bytes == 0


# ── Concurrent streams ─────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.side_by_side.streams")
@each_transport
async def test_two_streams_interleave_whole_frames_each_in_its_own_order(
    transport: str, tmp_path: Path
) -> None:
    async with open_peer(transport, tmp_path) as (server, _, peer):
        peer.send(
            make_turn("one", agent="a", request_id=1), make_turn("two", agent="b", request_id=2)
        )
        for _ in range(2):
            assert (await peer.expect()).stream.HasField("start")
        order = []
        for n in range(50):
            name = ("one", "two")[n % 2]
            server.gates[name].put_nowait(f"{name} {n}")
            message = await peer.expect()
            order.append((message.request_id, message.stream.chunk.content))
        assert order == [(n % 2 + 1, f"{('one', 'two')[n % 2]} {n}") for n in range(50)]


@pytest.mark.req("wire.side_by_side.streams")
@each_transport
async def test_floods_on_one_connection_arrive_complete_and_in_order(
    transport: str, tmp_path: Path
) -> None:
    async with open_peer(transport, tmp_path) as (_, _, peer):
        count = 3000
        for n in range(8):
            request = wire.StreamMsg(agent=f"agent {n}", content=f"count {count}")
            peer.send(add_request_id(wire.ClientMessage(stream=request), n))
        chunks: dict[int, list[str]] = {n: [] for n in range(8)}
        ended = 0
        while ended < 8:
            message = await peer.expect()
            if message.stream.HasField("chunk"):
                chunks[message.request_id].append(message.stream.chunk.content)
            ended += message.stream.HasField("end")
        expected = [str(n) for n in range(count)]
        assert all(texts == expected for texts in chunks.values())


@pytest.mark.req("wire.side_by_side.streams")
async def test_turns_of_one_conversation_begin_in_the_order_they_came(tmp_path: Path) -> None:
    async with open_peer("unix", tmp_path) as (server, _, peer):
        first = wire.ClientMessage(send=wire.SendMsg(agent="crab", content="first"))
        named = make_turn("second")
        named.stream.sender = "user"  # the default
        peer.send(first, named, make_turn("third"), make_turn("other", agent="twin"))
        await server.until_started("gated other")
        assert server.started == ["send first", "gated other"]
        server.release.set()
        await server.until_started("gated third")
        assert server.started == ["send first", "gated other", "gated second", "gated third"]


async def test_a_turn_that_waits_to_begin_counts_as_unprocessed_input(tmp_path: Path) -> None:
    async with open_peer("unix", tmp_path) as (server, listener, peer):
        peer.send(
            wire.ClientMessage(send=wire.SendMsg(agent="crab", content="first")),
            make_stream("forever ".ljust(10_000, "x")),
            make_ping(),
        )
        assert (await peer.expect()).HasField("pong")
        assert listener.statistics().inbound_bytes > 10_000
        server.release.set()
        kinds = {(await peer.expect()).WhichOneof("msg") for _ in range(2)}
        assert kinds == {"response", "stream"}
        assert listener.statistics().inbound_bytes == 0


# ── Request ids ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.side_by_side.request_id")
async def test_each_answer_carries_the_id_of_its_request_and_no_other(tmp_path: Path) -> None:
    async with open_peer("unix", tmp_path) as (_, _, peer):
        for request_id in (0, 7, 2**64 - 1):
            peer.send(add_request_id(make_ping(), request_id))
            answer = await peer.expect()
            assert answer.HasField("request_id")
            assert answer == wire.ServerMessage(pong=wire.Pong(), request_id=request_id)
        peer.send(add_request_id(make_stream("fail 404"), 3))
        ids = [(await peer.expect()).request_id for _ in range(3)]
        assert ids == [3, 3, 3]
        peer.send(add_request_id(make_stream(f"huge {MAX_FRAME}"), 4))
        assert (await peer.expect()).request_id == 4
        assert (await peer.expect()).error.code == 413
        peer.send(add_request_id(wire.ClientMessage(), 5))
        answer = await peer.expect()
        assert (answer.error.code, answer.request_id) == (400, 5)
        peer.send(make_ping())
        assert not (await peer.expect()).HasField("request_id")


# ── Limits ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.side_by_side.bound")
@each_transport
async def test_one_long_request_too_many_gets_429_and_control_is_answered(
    transport: str, tmp_path: Path
) -> None:
    async with open_peer(transport, tmp_path, TransportLimits(in_flight=2)) as (server, _, peer):
        peer.send(make_turn("a", agent="a"), make_turn("b", agent="b"))
        for _ in range(2):
            assert (await peer.expect()).stream.HasField("start")
        peer.send(make_turn("c", agent="c", request_id=9))
        refusal = await peer.expect()
        assert (refusal.error.code, refusal.request_id) == (429, 9)
        assert "open another connection" in refusal.error.message
        peer.send(make_ping())
        assert (await peer.expect()).HasField("pong")
        server.gates["a"].put_nowait("")
        assert (await peer.expect()).stream.HasField("end")
        peer.send(make_turn("d", agent="d"))
        assert (await peer.expect()).stream.start.agent == "d"


@pytest.mark.req("bounds.stall_deadline")
async def test_a_client_that_reads_none_of_its_streams_loses_all_of_them(tmp_path: Path) -> None:
    limits = TransportLimits(stall_timeout=0.05)
    async with open_peer("unix", tmp_path, limits) as (server, listener, peer):
        peer.transport.pause_reading()
        for n in range(8):
            content = f"flood 10000000{n}"
            peer.send(wire.ClientMessage(stream=wire.StreamMsg(agent=str(n), content=content)))
        for n in range(8):
            await server.until_ended(f"flood 10000000{n}: cancelled")
        while listener.statistics().connections:
            await asyncio.sleep(0)


# ── Closing ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("wire.side_by_side.ends")
@each_transport
async def test_a_malformed_frame_leaves_the_streams_alone(transport: str, tmp_path: Path) -> None:
    async with open_peer(transport, tmp_path) as (server, _, peer):
        peer.send(make_turn("a"))
        assert (await peer.expect()).stream.HasField("start")
        peer.writer.write(bytes.fromhex("00000002 ffff"))
        await peer.expect_error(400)
        server.gates["a"].put_nowait("still here")
        assert (await peer.expect()).stream.chunk.content == "still here"


@pytest.mark.req("wire.side_by_side.ends")
@each_transport
async def test_an_oversized_frame_ends_the_streams_and_closes(
    transport: str, tmp_path: Path
) -> None:
    async with open_peer(transport, tmp_path) as (server, listener, peer):
        sending = wire.ClientMessage(send=wire.SendMsg(agent="c", content="x"))
        peer.send(make_turn("a", agent="a"), make_turn("b", agent="b"), sending)
        for _ in range(2):
            assert (await peer.expect()).stream.HasField("start")
        await server.until_started("send x")
        peer.writer.write((MAX_FRAME + 1).to_bytes(4, "big"))
        await peer.expect_error(413)
        await peer.expect_close()
        await server.until_ended("gated a: cancelled")
        await server.until_ended("gated b: cancelled")
        server.release.set()
        await server.until_ended("send x: completed")
        await peer.close()
        while listener.statistics().connections:
            await asyncio.sleep(0)


@pytest.mark.req("wire.side_by_side.ends")
@each_transport
@pytest.mark.parametrize("half", [False, True], ids=["close", "half-close"])
async def test_a_client_that_disconnects_ends_all_its_streams(
    transport: str, half: bool, tmp_path: Path
) -> None:
    async with open_peer(transport, tmp_path) as (server, listener, peer):
        sending = wire.ClientMessage(send=wire.SendMsg(agent="c", content="x"))
        feed = wire.ClientMessage(subscribe_events=wire.SubscribeEvents())
        peer.send(make_turn("a", agent="a"), make_turn("b", agent="b"), feed, sending)
        for _ in range(3):
            await peer.expect()
        await server.until_started("send x")
        if half:
            peer.writer.write_eof()
        else:
            await peer.close()
        for name in ("gated a", "gated b", "subscribe_events"):
            await server.until_ended(f"{name}: cancelled")
        server.release.set()
        await server.until_ended("send x: completed")
        if half:
            assert (await peer.expect()).response.content == "x"
            await peer.expect_close()
        while listener.statistics().connections:
            await asyncio.sleep(0)


async def test_a_queued_detached_turn_begins_though_its_client_left(tmp_path: Path) -> None:
    async with open_peer("unix", tmp_path) as (server, _, peer):
        waiting = make_turn("later")
        waiting.stream.detach = True
        peer.send(
            wire.ClientMessage(send=wire.SendMsg(agent="crab", content="x")), waiting, make_ping()
        )
        assert (await peer.expect()).HasField("pong")
        await peer.close()
        server.release.set()
        await server.until_started("gated later")


@pytest.mark.req("daemon.shutdown.order")
@each_transport
async def test_stopping_ends_feeds_at_once_and_lets_turns_finish(
    transport: str, tmp_path: Path
) -> None:
    async with open_peer(transport, tmp_path) as (server, listener, peer):
        feed = wire.ClientMessage(subscribe_events=wire.SubscribeEvents())
        peer.send(make_turn("a", request_id=1), add_request_id(feed, 2))
        for _ in range(2):
            await peer.expect()
        closing = asyncio.create_task(listener.close())
        refusal = await peer.expect()
        assert (refusal.error.code, refusal.request_id) == (503, 2)
        peer.send(add_request_id(make_ping(), 3))
        refusal = await peer.expect()
        assert (refusal.error.code, refusal.request_id) == (503, 3)
        server.gates["a"].put_nowait("last words")
        server.gates["a"].put_nowait("")
        assert (await peer.expect()).stream.chunk.content == "last words"
        assert (await peer.expect()).stream.HasField("end")
        await peer.expect_close()
        await closing


@pytest.mark.req("daemon.shutdown.order")
async def test_stopping_sends_an_error_to_every_turn_that_does_not_finish(tmp_path: Path) -> None:
    limits = TransportLimits(drain_timeout=0.05)
    async with open_peer("unix", tmp_path, limits) as (server, listener, peer):
        peer.send(make_turn("a", agent="a", request_id=1), make_turn("b", agent="b", request_id=2))
        for _ in range(2):
            await peer.expect()
        await listener.close()
        refusals = [await peer.expect() for _ in range(2)]
        assert {(r.error.code, r.request_id) for r in refusals} == {(503, 1), (503, 2)}
        assert sorted(server.ended) == ["gated a: cancelled", "gated b: cancelled"]
