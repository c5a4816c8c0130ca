"""Random peers all at once: whatever they do, nothing of them is left behind."""

import asyncio
import logging
import random
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from crabtalk.protocol import encode_frame, wire
from crabtalk.transport import (
    Listener,
    ListenOptions,
    TcpAddress,
    TransportLimits,
    listen_tcp,
    listen_unix,
)
from tests.scripted_server import RawPeer, ScriptedServer, make_ping, make_stream

LIMITS = TransportLimits(
    stall_timeout=0.3,
    hello_timeout=0.3,
    connections=200,
    inbound_bytes=3_000_000,
    drain_timeout=1,
)
HELLO = encode_frame(wire.ClientMessage(hello=wire.HelloMsg(token="t")))
# What a peer may send, and its relative frequency.
INPUT_WEIGHTS = {
    encode_frame(make_ping()): 10,
    encode_frame(make_stream("count 300")): 3,
    encode_frame(make_stream("flood 3000")): 1,
    encode_frame(make_stream("forever")): 1,
    encode_frame(make_stream("fail 1")): 2,
    encode_frame(wire.ClientMessage(subscribe_events=wire.SubscribeEvents())): 1,
    encode_frame(wire.ClientMessage(send=wire.SendMsg(content="y" * 2000))): 4,
    encode_frame(wire.ClientMessage(extension=b"200000")): 1,
    encode_frame(wire.ClientMessage(extension=b"20000000")): 0.2,
    b"\0\0\0\2\xff\xff": 1,
    b"\0\0\0\0": 1,
    b"\xff\xff\xff\xff": 0.2,
    (500_000).to_bytes(4, "big") + bytes(500_000): 0.5,
    b"\0\0": 0.3,
}


async def run_random_peer(rng: random.Random, path: Path, port: int) -> None:
    """One peer: sends some requests, reads some answers, and disconnects in one of several ways."""
    if rng.random() < 0.6:
        peer = await RawPeer.connect_unix(path)
    else:
        peer = await RawPeer.connect_tcp(port)
        # Disconnect with a reset. A normal close can hide behind requests that are not being read,
        # and the kernel would then need minutes to find out.
        sock = peer.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if rng.random() < 0.9:
            peer.writer.write(HELLO)
    try:
        for _ in range(rng.randrange(1, 4)):
            count = rng.randrange(1, rng.choice([3, 10, 120]))
            peer.writer.write(
                b"".join(rng.choices(list(INPUT_WEIGHTS), list(INPUT_WEIGHTS.values()), k=count))
            )
            try:
                async with asyncio.timeout(rng.random() * 0.05):
                    await peer.reader.read(rng.choice([10, 70_000]))
            except TimeoutError:
                pass
        leave = rng.random()
        if leave < 0.3:
            peer.writer.write_eof()
            async with asyncio.timeout(0.3):
                while await peer.reader.read(100_000):
                    pass
        elif leave < 0.4:
            await asyncio.sleep(0.4)  # longer than any timeout
    except (OSError, TimeoutError):
        pass
    finally:
        peer.transport.abort()


async def run_soak(path: Path, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    server = ScriptedServer()
    server.release.set()
    listener = Listener(server, LIMITS)
    listener.open(listen_unix(path), ListenOptions("unix"))
    tcp = listen_tcp(TcpAddress(port=0))
    listener.open(tcp, ListenOptions("tcp", token="t"))
    port = tcp.getsockname()[1]
    end = loop.time() + seconds

    async def visitor() -> None:
        while loop.time() < end:
            await run_random_peer(rng, path, port)

    await asyncio.gather(*(visitor() for _ in range(30)))
    async with asyncio.timeout(10):
        while listener.statistics().connections:
            await asyncio.sleep(0.05)
    assert listener.statistics().inbound_bytes == 0
    peer = await RawPeer.connect_unix(path)
    peer.send(make_ping())
    assert (await peer.expect()).HasField("pong")
    await peer.close()
    await listener.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others
    assert not faults


@pytest.mark.req("bounds.fuzz")
@pytest.mark.one_loop
async def test_nothing_is_left_of_many_random_peers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        await run_soak(tmp_path / "s", 1, seed=1)
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_left_of_many_random_peers_after_a_while(
    tmp_path: Path, seed: int
) -> None:
    await run_soak(tmp_path / "s", 30, seed)
