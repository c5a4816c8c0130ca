"""Streaming: small chunk events, as fast as they go, to one client and to a hundred at once.

The bare loops write the same frames, encoded beforehand, one at a time; their clients take frames
apart and count them. Ours builds and encodes each event, and its client yields typed ones.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import uvloop

from crabtalk.client import connect
from crabtalk.protocol import wire

from .peers import now, on_core, peer, percentile
from .report import Table

EVENTS = 100_000
ROUNDS = 5
CROWD = 100


async def callbacks(path: Path, count: int) -> None:
    """Reads `count` frames as bytes arrive: four bytes, a length, that many bytes."""
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


async def streams(path: Path, count: int) -> None:
    """The same with a StreamReader."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(str(count).encode())
    for _ in range(count):
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
    writer.close()


async def ours(path: Path, count: int) -> None:
    seen = 0
    async with connect(f"unix:{path}") as client:
        async for event in client.stream("crab", str(count)):
            if type(event) is wire.StreamChunk:
                seen += 1
    assert seen == count, f"{seen} of {count} events arrived"


async def crowd(one: Callable[[Path, int], Awaitable[None]], path: Path, count: int) -> None:
    await asyncio.gather(*(one(path, count) for _ in range(CROWD)))


def timed(work: Awaitable[None], events: int) -> float:
    """Events a second."""

    async def run() -> float:
        start = now()
        await work
        return events / (now() - start)

    return uvloop.run(run())


SIDES = {"callbacks": callbacks, "streams": streams, "ours": ours}


def run() -> list[Table]:
    table = Table(
        "Chunk events a second, each side on a core of its own",
        ["clients", "events each", "bare callbacks", "bare streams", "ours", "ours / streams"],
    )
    with contextlib.ExitStack() as peers:
        with on_core(0):
            paths = {kind: peers.enter_context(peer(kind)) for kind in SIDES}
        peers.enter_context(on_core(-1))
        for clients, rounds in ((1, ROUNDS), (CROWD, 1)):
            samples: dict[str, list[float]] = {kind: [] for kind in SIDES}
            for _ in range(rounds):
                for kind, one in SIDES.items():
                    path = paths[kind]
                    work = one(path, EVENTS) if clients == 1 else crowd(one, path, EVENTS)
                    samples[kind].append(timed(work, EVENTS * clients))
            rates = {kind: percentile(taken, 0.5) for kind, taken in samples.items()}
            table.row(
                str(clients),
                f"{EVENTS:,}",
                *(f"{rates[kind]:,.0f}" for kind in SIDES),
                f"{rates['ours'] / rates['streams']:.2f}",
            )
    return [table]
