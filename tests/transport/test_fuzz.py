"""Malformed frames and random bytes sent to a live listener, while another client is served."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import connect
from crabtalk.protocol import MAX_FRAME, wire
from tests.scripted_server import RawPeer

FRAMES = 45_000
STREAMS = 6_000

SERVE = """
import asyncio, os, signal, sys
from pathlib import Path
import uvloop
from crabtalk.protocol import Server
from crabtalk.transport import ListenOptions, Listener, TcpAddress, listen_tcp, listen_unix

async def main() -> None:
    listener = Listener(Server())
    listener.open(listen_unix(Path(sys.argv[1])), ListenOptions("unix", uid=os.geteuid()))
    tcp = listen_tcp(TcpAddress(port=0))
    listener.open(tcp, ListenOptions("tcp", token="secret"))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(tcp.getsockname()[1], flush=True)
    await stop.wait()
    while listener.statistics().connections:
        await asyncio.sleep(0.01)
    statistics = listener.statistics()
    await listener.close()
    print(statistics.connections, statistics.inbound_bytes, flush=True)

uvloop.run(main())
"""


class FuzzTarget:
    """The process under attack."""

    def __init__(self, process: asyncio.subprocess.Process, path: Path, port: int) -> None:
        self.process = process
        self.path = path
        self.port = port

    @property
    def rss(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@asynccontextmanager
async def start_target(path: Path) -> AsyncIterator[FuzzTarget]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield FuzzTarget(process, path, int(await process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
        assert (process.returncode, out, err) == (0, b"0 0\n", b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def make_payload(rng: random.Random) -> bytes:
    """A payload that is no message, or a damaged one."""
    choice = rng.randrange(4)
    if choice == 0:
        return rng.randbytes(rng.randrange(64))
    message = wire.ClientMessage(
        create_agent=wire.CreateAgentMsg(name="x" * rng.randrange(40), config="{}", prompt="é")
    )
    data = bytearray(message.SerializeToString())
    if choice == 1:
        return bytes(data[: rng.randrange(len(data))])
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if choice == 2:
        return bytes(data)
    return bytes(data) + rng.randbytes(rng.randrange(16))


def frame_data(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def send_malformed_frames(path: Path, rng: random.Random, count: int) -> None:
    """Send valid frames with bad payloads: each is answered, and the connection stays open."""
    peer = await RawPeer.connect_unix(path)
    batch = 500
    for _ in range(count // batch):
        peer.writer.write(b"".join(frame_data(make_payload(rng)) for _ in range(batch)))
        for _ in range(batch):
            answer = await peer.expect()
            assert answer.error.code in (400, 410, 501) or answer.HasField("pong"), answer
    await peer.close()


def make_random_stream(rng: random.Random) -> bytes:
    choice = rng.randrange(4)
    if choice == 0:
        return rng.randbytes(rng.randrange(200))
    if choice == 1:
        return rng.randrange(MAX_FRAME + 1, 1 << 32).to_bytes(4, "big") + rng.randbytes(50)
    good = frame_data(make_payload(rng)) * rng.randrange(1, 4)
    if choice == 2:
        return good[: rng.randrange(len(good))]
    return good + rng.randbytes(rng.randrange(10))


async def send_random_streams(target: FuzzTarget, rng: random.Random, count: int) -> None:
    """Send random bytes, then disconnect: with a close, a half-close or a reset."""
    for n in range(count):
        if n % 2:
            peer = await RawPeer.connect_unix(target.path)
        else:
            peer = await RawPeer.connect_tcp(target.port)
        peer.writer.write(make_random_stream(rng))
        leave = rng.randrange(3)
        if leave == 0:
            peer.transport.abort()
            continue
        if leave == 1:
            peer.writer.write_eof()
            async with asyncio.timeout(10):
                while await peer.read() is not None:
                    pass
        await peer.close()


@pytest.mark.req("bounds.fuzz")
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_thousands_of_malformed_inputs_do_not_disturb_a_client(tmp_path: Path) -> None:
    await attack_target(tmp_path, FRAMES // 3, STREAMS // 3, seed=20261115)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("seed", range(3))
async def test_a_million_and_a_half_malformed_inputs_do_not_disturb_a_client(
    tmp_path: Path, seed: int
) -> None:
    await attack_target(tmp_path, FRAMES * 10, STREAMS * 10, seed)


async def attack_target(tmp_path: Path, frames: int, streams: int, seed: int) -> None:
    rng = random.Random(seed)
    async with (
        start_target(tmp_path / "s") as target,
        connect(f"unix:{tmp_path / 's'}") as bystander,
    ):
        await send_malformed_frames(target.path, rng, frames // 5)
        await send_random_streams(target, rng, streams // 5)
        await bystander.ping()
        rss, descriptors = target.rss, target.descriptors
        attack = asyncio.gather(
            send_malformed_frames(target.path, rng, frames * 4 // 5),
            send_random_streams(target, rng, streams * 4 // 5),
        )
        pings = 0
        while not attack.done():
            async with asyncio.timeout(5):
                await bystander.ping()
            pings += 1
            await asyncio.sleep(0.001)
        await attack
        assert pings > 100
        while target.descriptors > descriptors:
            await asyncio.sleep(0.01)
        assert target.rss - rss < 4 << 20
