"""Streaming: small chunk events, as fast as they go, to one client and to a hundred at once.

The bare loop writes the same frames, encoded beforehand, one at a time; its client takes frames
apart and counts them. Ours builds, wraps and encodes each event, and its client yields typed ones.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import uvloop

from crabtalk.client import connect
from crabtalk.protocol import wire

from .peers import now, pair, percentile
from .report import Table

EVENTS = 100_000
ROUNDS = 5
CROWD = 100


async def bare(path: Path, count: int) -> None:
    """Reads `count` frames: four bytes, a length, that many bytes."""
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


def run() -> list[Table]:
    table = Table("Chunk events a second", ["clients", "events each", "bare", "ours", "ratio"])
    with pair() as (theirs, mine):
        for clients, rounds in ((1, ROUNDS), (CROWD, 1)):
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                for one, path, samples in ((bare, theirs, taken[0]), (ours, mine, taken[1])):
                    work = one(path, EVENTS) if clients == 1 else crowd(one, path, EVENTS)
                    samples.append(timed(work, EVENTS * clients))
            rates = percentile(taken[0], 0.5), percentile(taken[1], 0.5)
            table.row(
                str(clients),
                f"{EVENTS:,}",
                f"{rates[0]:,.0f}",
                f"{rates[1]:,.0f}",
                f"{rates[1] / rates[0]:.2f}",
            )
    return [table]
