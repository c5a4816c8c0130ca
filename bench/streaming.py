"""Streaming: small chunk events, as fast as possible, to one client and to a hundred at once.

The bare peers write the same frames, encoded beforehand, one at a time; their clients split and
count frames. Our server builds and encodes each event, and our client yields typed events.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import uvloop

from crabtalk.client import connect
from crabtalk.protocol import wire

from .processes import compute_percentile, pin_to_core, read_clock, run_peer
from .tables import BenchTable

EVENTS = 100_000
ROUNDS = 5
CROWD_SIZE = 100


async def read_with_callbacks(path: Path, count: int) -> None:
    """Read `count` frames as bytes arrive: a length of four bytes, then that many bytes."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    class Counter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.rest = b""
            self.left = count
            cast("asyncio.Transport", transport).write(str(count).encode())

        def data_received(self, data: bytes) -> None:
            data = self.rest + data
            position = 0
            while len(data) - position >= 4:
                end = position + 4 + int.from_bytes(data[position : position + 4], "big")
                if end > len(data):
                    break
                position = end
                self.left -= 1
            self.rest = data[position:]
            if not self.left:
                done.set_result(None)

    transport, _ = await loop.create_unix_connection(Counter, str(path))
    await done
    transport.close()


async def read_with_streams(path: Path, count: int) -> None:
    """Read the same frames with a StreamReader."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(str(count).encode())
    for _ in range(count):
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
    writer.close()


async def read_with_client(path: Path, count: int) -> None:
    seen = 0
    async with connect(f"unix:{path}") as client:
        async for event in client.stream("crab", str(count)):
            if type(event) is wire.StreamChunk:
                seen += 1
    assert seen == count, f"{seen} of {count} events arrived"


async def read_in_crowd(
    read: Callable[[Path, int], Awaitable[None]], path: Path, count: int
) -> None:
    await asyncio.gather(*(read(path, count) for _ in range(CROWD_SIZE)))


def measure_rate(work: Awaitable[None], events: int) -> float:

    async def run() -> float:
        start = read_clock()
        await work
        return events / (read_clock() - start)

    return uvloop.run(run())


SIDES = {"callbacks": read_with_callbacks, "streams": read_with_streams, "ours": read_with_client}


def run_benchmark() -> list[BenchTable]:
    table = BenchTable(
        "Chunk events a second, each side on a core of its own",
        ["clients", "events each", "bare callbacks", "bare streams", "ours", "ours / streams"],
    )
    with contextlib.ExitStack() as peers:
        with pin_to_core(0):
            paths = {kind: peers.enter_context(run_peer(kind)) for kind in SIDES}
        peers.enter_context(pin_to_core(-1))
        for clients, rounds in ((1, ROUNDS), (CROWD_SIZE, 1)):
            samples: dict[str, list[float]] = {kind: [] for kind in SIDES}
            for _ in range(rounds):
                for kind, read in SIDES.items():
                    path = paths[kind]
                    work = read(path, EVENTS) if clients == 1 else read_in_crowd(read, path, EVENTS)
                    samples[kind].append(measure_rate(work, EVENTS * clients))
            rates = {kind: compute_percentile(times, 0.5) for kind, times in samples.items()}
            table.add_row(
                str(clients),
                f"{EVENTS:,}",
                *(f"{rates[kind]:,.0f}" for kind in SIDES),
                f"{rates['ours'] / rates['streams']:.2f}",
            )
    return [table]
