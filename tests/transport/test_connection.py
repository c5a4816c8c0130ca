"""Connection: order, cancellation, refusals and back-pressure, as a raw socket sees them."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import pytest

from crabtalk.protocol import MAX_FRAME, NotFoundError, encode_frame, encode_reply, wire
from crabtalk.transport import TransportLimits
from tests.loop_latency import read_steal_time
from tests.scripted_server import RawPeer, ScriptedServer, make_ping, make_stream, open_listener


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.mark.req("wire.request.one_reply")
async def test_a_request_is_answered_with_one_message(path: Path) -> None:
    async with open_listener(ScriptedServer(), path):
        peer = await RawPeer.connect_unix(path)
        peer.send(make_ping())
        assert (await peer.expect()).WhichOneof("msg") == "pong"
        await peer.close()


@pytest.mark.req("wire.pipeline.order")
async def test_short_requests_sent_ahead_are_answered_in_order(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path):
        peer = await RawPeer.connect_unix(path)
        peer.send(
            make_stream("forever"),
            make_ping(),
            wire.ClientMessage(get_config=wire.GetConfig()),
            wire.ClientMessage(),
            wire.ClientMessage(extension=b"3"),
            make_ping(),
        )
        kinds = []
        for _ in range(6):
            message = await peer.expect()
            kinds.append(message.stream.WhichOneof("event") or message.WhichOneof("msg"))
        kinds.remove("start")
        assert kinds == ["pong", "error", "error", "extension", "pong"]
        await peer.close()


async def test_more_pipelined_requests_than_the_limit_are_all_answered(path: Path) -> None:
    async with open_listener(ScriptedServer(), path, limits=TransportLimits(pipelined=4)):
        peer = await RawPeer.connect_unix(path)
        peer.send(*[make_ping()] * 1000)
        for _ in range(1000):
            assert (await peer.expect()).HasField("pong")
        await peer.close()


@pytest.mark.req("wire.malformed.400")
async def test_a_frame_that_does_not_parse_gets_400_and_the_connection_lives_on(path: Path) -> None:
    async with open_listener(ScriptedServer(), path):
        peer = await RawPeer.connect_unix(path)
        peer.writer.write(bytes.fromhex("00000002 ffff"))
        assert "not a ClientMessage" in await peer.expect_error(400)
        peer.send(make_ping())
        assert (await peer.expect()).HasField("pong")
        await peer.close()


@pytest.mark.req("dispatch.unknown_is_error")
async def test_an_empty_frame_gets_400(path: Path) -> None:
    async with open_listener(ScriptedServer(), path):
        peer = await RawPeer.connect_unix(path)
        peer.writer.write(bytes(4))
        assert "no request" in await peer.expect_error(400)
        await peer.close()


@pytest.mark.req("wire.frame.max")
async def test_an_oversized_frame_gets_413_after_the_answers_before_it_and_a_close(
    path: Path,
) -> None:
    async with open_listener(ScriptedServer(), path):
        peer = await RawPeer.connect_unix(path)
        peer.send(make_ping(), make_stream("count 1"))
        peer.writer.write((MAX_FRAME + 1).to_bytes(4, "big") + b"x" * 100_000)
        assert (await peer.expect()).HasField("pong")
        for event in ("start", "chunk", "end"):
            assert (await peer.expect()).stream.HasField(event)
        assert "16777216" in await peer.expect_error(413)
        await peer.expect_close()
        await peer.close()


async def test_a_frame_of_exactly_the_limit_is_read(path: Path) -> None:
    content = "x" * (MAX_FRAME - 100)
    message = make_stream(content)
    message.stream.cwd = "y" * (MAX_FRAME - message.ByteSize() - 5)
    message.stream.cwd += "y" * (MAX_FRAME - message.ByteSize())
    assert message.ByteSize() == MAX_FRAME
    server = ScriptedServer()
    async with open_listener(server, path):
        peer = await RawPeer.connect_unix(path)
        peer.send(message)
        assert (await peer.expect()).stream.HasField("start")
        assert server.started == [content]
        await peer.close()


@pytest.mark.req("bounds.header_allocates_nothing")
async def test_a_large_header_alone_allocates_nothing(path: Path) -> None:
    async with open_listener(ScriptedServer(), path) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.send(make_ping())
        peer.writer.write(MAX_FRAME.to_bytes(4, "big") + b"x" * 10)
        await peer.expect()
        while not (byte_count := listener.statistics().inbound_bytes):
            await asyncio.sleep(0)
        assert byte_count == 10
        await peer.close()


@pytest.mark.req("wire.answer.too_large")
async def test_an_answer_that_does_not_fit_a_frame_becomes_413(path: Path) -> None:
    async with open_listener(ScriptedServer(), path):
        peer = await RawPeer.connect_unix(path)
        peer.send(wire.ClientMessage(extension=str(MAX_FRAME).encode()), make_ping())
        assert "ask for less" in await peer.expect_error(413)
        assert (await peer.expect()).HasField("pong")
        await peer.close()


@pytest.mark.req("wire.answer.too_large")
async def test_a_stream_ends_at_the_event_that_does_not_fit_a_frame(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path):
        peer = await RawPeer.connect_unix(path)
        peer.send(make_stream(f"huge {MAX_FRAME}"), make_ping())
        assert (await peer.expect()).stream.HasField("start")
        await peer.expect_error(413)
        assert (await peer.expect()).HasField("pong")
        assert server.ended == [f"huge {MAX_FRAME}: cancelled"]
        await peer.close()


# ── Peers that disconnect ──────────────────────────────────────────────────────────────────────


@pytest.mark.req("dispatch.reply_channel_closed")
async def test_a_stream_is_cancelled_when_its_client_goes_away(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.send(make_stream("forever"))
        await peer.expect()
        await peer.close()
        await server.until_ended("forever: cancelled")
        while listener.statistics().connections:
            await asyncio.sleep(0)


async def test_a_request_with_one_answer_is_completed_though_its_client_left(
    path: Path,
) -> None:
    server = ScriptedServer()
    async with open_listener(server, path) as listener:
        peer = await RawPeer.connect_unix(path)
        send = wire.ClientMessage(send=wire.SendMsg(agent="crab", content="on"))
        peer.send(send)
        await server.until_started("send on")
        await peer.close()
        server.release.set()
        await server.until_ended("send on: completed")
        while listener.statistics().connections:
            await asyncio.sleep(0)


async def test_requests_sent_just_before_the_client_left_are_completed(path: Path) -> None:
    server = ScriptedServer()
    server.release.set()
    async with open_listener(server, path):
        peer = await RawPeer.connect_unix(path)
        peer.send(
            make_stream("forever"),
            *(wire.ClientMessage(send=wire.SendMsg(content=str(n))) for n in range(3)),
        )
        await peer.close()
        await server.until_ended("send 2: completed")
        sends = [outcome for outcome in server.ended if outcome.startswith("send")]
        assert sends == [f"send {n}: completed" for n in range(3)]


async def test_a_half_closed_peer_still_gets_its_answers(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path):
        peer = await RawPeer.connect_unix(path)
        peer.send(make_ping(), wire.ClientMessage(send=wire.SendMsg(content="late")))
        peer.writer.write_eof()
        assert (await peer.expect()).HasField("pong")
        await server.until_started("send late")
        server.release.set()
        assert (await peer.expect()).response.content == "late"
        await peer.expect_close()
        await peer.close()


@pytest.mark.req("wire.eof.clean")
@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0", b"\0\0\0\x05ab"])
async def test_a_connection_that_ends_anywhere_does_not_disturb_others(
    path: Path, data: bytes
) -> None:
    async with open_listener(ScriptedServer(), path) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.writer.write(data)
        await peer.close()
        other = await RawPeer.connect_unix(path)
        other.send(make_ping())
        assert (await other.expect()).HasField("pong")
        await other.close()
        while listener.statistics().connections:
            await asyncio.sleep(0)
        assert listener.statistics().inbound_bytes == 0


# ── Limits ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bounds.stalled_reader")
async def test_a_stalled_reader_slows_only_its_own_stream(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path):
        stalled = await RawPeer.connect_unix(path)
        stalled.transport.pause_reading()
        stalled.send(make_stream("flood 100000000"))
        await server.until_started("flood 100000000")
        other = await RawPeer.connect_unix(path)
        for _ in range(100):
            other.send(make_ping())
            assert (await other.expect()).HasField("pong")
        assert server.ended == []
        await other.close()
        await stalled.close()
        await server.until_ended("flood 100000000: cancelled")


@pytest.mark.req("bounds.stall_deadline")
async def test_a_reader_that_stalls_past_the_deadline_loses_its_connection(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path, limits=TransportLimits(stall_timeout=0.05)):
        stalled = await RawPeer.connect_unix(path)
        stalled.transport.pause_reading()
        stalled.send(make_stream("flood 100000000"))
        await server.until_ended("flood 100000000: cancelled")
        await stalled.close()


@pytest.mark.parametrize("request_bytes", [b"\0\0\0\x03\xf2\x01\0", b"\0\0\0\x02\xff\xff"])
@pytest.mark.req("bounds.pipelined")
async def test_a_peer_that_sends_without_reading_is_not_read_either(
    path: Path, request_bytes: bytes
) -> None:
    """Valid requests and invalid ones: unread answers must not pile up."""
    async with open_listener(ScriptedServer(), path) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.transport.pause_reading()
        peer.transport.set_write_buffer_limits(high=1 << 30)
        peer.writer.write(request_bytes * 1_000_000)
        seen, quiet_rounds = 0, 0
        while quiet_rounds < 50:
            await asyncio.sleep(0.001)
            quiet_rounds = quiet_rounds + 1 if listener.request_count == seen else 0
            seen = listener.request_count
        assert seen < 500_000
        assert listener.statistics().inbound_bytes < 1_000_000
        peer.transport.resume_reading()
        for _ in range(1_000_000 // 1000):
            await peer.expect()
        peer.transport.abort()


@pytest.mark.req("bounds.parts")
@pytest.mark.req("bounds.memory")
async def test_others_are_answered_while_a_large_request_is_parsed(
    path: Path,
) -> None:
    entries = [wire.MemoryEntry(name=f"n{n}", kind="note", content="c") for n in range(100_000)]
    request = wire.ClientMessage(replace_memory=wire.ReplaceMemoryMsg(entries=entries))
    async with open_listener(ScriptedServer(), path) as listener:
        large, small = await RawPeer.connect_unix(path), await RawPeer.connect_unix(path)
        large.send(request)
        while listener.request_count == 0:  # until it is being parsed
            await asyncio.sleep(0)
        answer = asyncio.ensure_future(large.expect_error(501))
        small.send(make_ping())
        assert (await small.expect()).HasField("pong")
        assert not answer.done()
        assert listener.statistics().inbound_bytes > 1_000_000
        await answer
        while listener.statistics().inbound_bytes:
            await asyncio.sleep(0)
        await large.close()
        await small.close()


@pytest.mark.req("bounds.loop")
@pytest.mark.clock
async def test_a_stream_at_full_speed_does_not_delay_others(path: Path) -> None:
    """A ping is answered fast while a flood is read as fast as it comes."""
    server = ScriptedServer()
    async with open_listener(server, path):
        greedy = await RawPeer.connect_unix(path)
        greedy.send(make_stream("flood 100000000"))

        async def swallow() -> None:
            while await greedy.reader.read(1 << 20):
                pass

        task = asyncio.create_task(swallow())
        other = await RawPeer.connect_unix(path)
        loop = asyncio.get_running_loop()
        slowest = 0.0
        for _ in range(50):
            start = loop.time()
            other.send(make_ping())
            await other.expect()
            slowest = max(slowest, loop.time() - start)
        task.cancel()
        await other.close()
        await greedy.close()
    assert slowest < 0.5


@pytest.mark.req("bounds.connections")
async def test_one_connection_too_many_gets_503(path: Path) -> None:
    async with open_listener(ScriptedServer(), path, limits=TransportLimits(connections=2)):
        first, second = await RawPeer.connect_unix(path), await RawPeer.connect_unix(path)
        first.send(make_ping())
        second.send(make_ping())
        await first.expect()
        await second.expect()
        third = await RawPeer.connect_unix(path)
        third.send(make_ping())
        assert "2 connections" in await third.expect_error(503)
        await third.expect_close()
        await third.close()
        await first.close()
        while True:
            fourth = await RawPeer.connect_unix(path)
            fourth.send(make_ping())
            if (await fourth.expect()).HasField("pong"):
                break
            await fourth.close()
        await fourth.close()
        await second.close()


@pytest.mark.req("bounds.inbound_bytes")
async def test_unprocessed_bytes_of_all_connections_together_are_limited(path: Path) -> None:
    limit = 1_000_000
    async with open_listener(
        ScriptedServer(), path, limits=TransportLimits(inbound_bytes=limit)
    ) as listener:
        peers = [await RawPeer.connect_unix(path) for _ in range(5)]
        for peer in peers:
            peer.writer.write((600_000).to_bytes(4, "big") + b"x" * 400_000)
        answers = await asyncio.gather(
            *(asyncio.wait_for(peer.read(), 0.5) for peer in peers), return_exceptions=True
        )
        refused = [a for a in answers if isinstance(a, wire.ServerMessage)]
        assert refused
        assert {message.error.code for message in refused} == {503}
        assert listener.statistics().inbound_bytes <= limit
        for peer in peers:
            peer.transport.abort()


@pytest.mark.req("bounds.inbound_bytes")
async def test_a_request_whose_answer_has_begun_no_longer_counts_as_input(path: Path) -> None:
    content = "forever ".ljust(600_000, "x")
    async with open_listener(
        server := ScriptedServer(), path, limits=TransportLimits(inbound_bytes=1_000_000)
    ) as listener:
        peers = [await RawPeer.connect_unix(path) for _ in range(3)]
        for peer in peers:
            peer.send(make_stream(content))
            assert (await peer.expect()).stream.HasField("start")
            assert listener.statistics().inbound_bytes == 0
        for peer in peers:
            await peer.close()  # must be noticed, though none of them was being read
        async with asyncio.timeout(10), server.changed:
            await server.changed.wait_for(lambda: len(server.ended) == 3)


# ── Users ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("trust.uds.same_user")
async def test_another_user_is_refused(path: Path) -> None:
    from crabtalk.transport import ListenOptions

    other_user = ListenOptions("unix", uid=os.geteuid() + 1)
    async with open_listener(ScriptedServer(), path, options=other_user):
        peer = await RawPeer.connect_unix(path)
        peer.send(make_ping())
        assert "serves user" in await peer.expect_error(401)
        await peer.expect_close()
        await peer.close()


# ── Regressions ────────────────────────────────────────────────────────────────────────────────


async def measure_longest_pause(stop: asyncio.Event) -> float:
    """The longest CPU time between two rounds of the loop until `stop`.

    Time that other processes take is not counted.
    """
    longest = 0.0
    while not stop.is_set():
        before = time.thread_time() - read_steal_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - read_steal_time() - before)
    return longest


@pytest.mark.req("bounds.loop")
@pytest.mark.parametrize("request_bytes", [b"\0\0\0\x03\xf2\x01\0", bytes(4)])
@pytest.mark.clock
async def test_a_flood_of_small_requests_does_not_hold_the_loop(
    path: Path, request_bytes: bytes
) -> None:
    async with open_listener(ScriptedServer(), path):
        peer = await RawPeer.connect_unix(path)
        stop = asyncio.Event()
        pause = asyncio.create_task(measure_longest_pause(stop))
        peer.writer.write(request_bytes * 20_000)
        for _ in range(20_000):
            await peer.expect()
        stop.set()
        longest = await pause
        await peer.close()
    assert longest < 0.1


@pytest.mark.req("bounds.pipelined")
async def test_small_requests_are_decoded_only_up_to_the_limit(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path, limits=TransportLimits(pipelined=8)) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.send(make_stream("forever"), *[make_ping()] * 5000)
        await server.until_started("forever")
        (connection,) = listener._connections
        assert len(connection._pending) <= 8
        peer.transport.abort()


@pytest.mark.req("dispatch.reply_channel_closed")
async def test_a_client_that_left_is_noticed_though_it_is_not_being_read(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.send(make_stream("forever"), *[make_ping()] * 1000)
        await server.until_started("forever")
        await peer.close()
        await server.until_ended("forever: cancelled")
        while listener.statistics().connections:
            await asyncio.sleep(0.01)
        assert listener.statistics().inbound_bytes == 0


@pytest.mark.req("dispatch.reply_channel_closed")
async def test_a_stream_whose_client_left_before_its_turn_is_not_begun(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.send(
            wire.ClientMessage(send=wire.SendMsg(agent="crab", content="slow")),
            make_stream("forever"),
            wire.ClientMessage(send=wire.SendMsg(agent="crab", content="last")),
        )
        await server.until_started("send slow")
        await peer.close()
        server.release.set()
        await server.until_ended("send last: completed")
        while listener.statistics().connections:
            await asyncio.sleep(0)
        assert server.started == ["send slow", "send last"]


async def test_a_detached_stream_whose_client_left_before_its_turn_is_begun(path: Path) -> None:
    server = ScriptedServer()
    async with open_listener(server, path):
        peer = await RawPeer.connect_unix(path)
        detached = make_stream("forever")
        detached.stream.detach = True
        slow = wire.SendMsg(agent="crab", content="slow")
        peer.send(wire.ClientMessage(send=slow), detached)
        await server.until_started("send slow")
        await peer.close()
        server.release.set()
        await server.until_started("forever")


async def test_a_slow_reader_that_keeps_reading_is_not_disconnected(path: Path) -> None:
    """It takes five times the deadline in all, but never a whole deadline without reading."""
    size = 3_000_000
    loop = asyncio.get_running_loop()
    expected = len(encode_reply("extension", bytes(size))) + len(encode_reply("pong", wire.Pong()))
    async with open_listener(ScriptedServer(), path, limits=TransportLimits(stall_timeout=1)):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, str(path))
            question = wire.ClientMessage(extension=str(size).encode())
            await loop.sock_sendall(sock, encode_frame(question) + encode_frame(make_ping()))
            received = 0
            while received < expected:
                piece = await loop.sock_recv(sock, 30_000)
                assert piece, f"disconnected after {received} bytes"
                received += len(piece)
                await asyncio.sleep(0.05)
        assert received == expected


@pytest.mark.req("wire.frame.max")
async def test_a_half_closed_peer_gets_the_error_for_its_oversized_frame_too(path: Path) -> None:
    async with open_listener(ScriptedServer(), path):
        peer = await RawPeer.connect_unix(path)
        peer.send(make_ping())
        peer.writer.write(b"\xff\xff\xff\xff")
        peer.writer.write_eof()
        assert (await peer.expect()).HasField("pong")
        await peer.expect_error(413)
        await peer.expect_close()
        await peer.close()


@pytest.mark.req("bounds.inbound_bytes")
async def test_a_frame_that_is_never_finished_is_refused(path: Path) -> None:
    async with open_listener(
        ScriptedServer(), path, limits=TransportLimits(stall_timeout=0.05)
    ) as listener:
        peer = await RawPeer.connect_unix(path)
        peer.writer.write((1000).to_bytes(4, "big") + b"x" * 10)
        assert "not finished" in await peer.expect_error(400)
        await peer.expect_close()
        await peer.close()
        while listener.statistics().connections:
            await asyncio.sleep(0)
        assert listener.statistics().inbound_bytes == 0


async def test_an_error_after_a_stream_that_outlived_its_cancellation_is_answered(
    path: Path,
) -> None:
    class Stubborn(ScriptedServer):
        async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
            yield wire.StreamEvent(start=wire.StreamStart())
            await self.record_event(self.started, "stubborn")
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        async def list_agents(self, request: wire.ListAgentsMsg) -> wire.AgentList:
            raise NotFoundError("none")

    server = Stubborn()
    async with open_listener(server, path):
        peer = await RawPeer.connect_unix(path)
        peer.send(
            make_stream("x"), wire.ClientMessage(list_agents=wire.ListAgentsMsg()), make_ping()
        )
        await server.until_started("stubborn")
        peer.writer.write_eof()
        assert (await peer.expect()).stream.HasField("start")
        await peer.expect_error(404)
        assert (await peer.expect()).HasField("pong")
        await peer.close()
