"""Ping: one round trip at a time, alternating between our daemon and a bare echo.

The placement of the two processes by the scheduler matters more than their work: waking a process
on an idle core can take longer than all it does. So both placements are measured.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import cast

import uvloop

from crabtalk.client import Client, connect

from .processes import PING, compute_percentile, pin_to_core, read_clock, run_daemon, run_peer
from .tables import BenchTable

ROUNDS = 60
PINGS = 200


class BareClient(asyncio.Protocol):
    """Writes, waits for one read, resolves a future."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.answer: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        if self.answer is not None:
            self.answer.set_result(None)

    async def ping(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(PING)
        await self.answer


async def time_rounds(bare: BareClient, ours: Client) -> tuple[list[float], list[float]]:
    samples_by_side: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for ping, samples in ((bare.ping, samples_by_side[0]), (ours.ping, samples_by_side[1])):
            for _ in range(PINGS):
                start = read_clock()
                await ping()
                samples.append((read_clock() - start) * 1e6)
    return samples_by_side


async def measure_ping(table: BenchTable, cores: str, bare_socket: Path, home: Path) -> None:
    loop = asyncio.get_running_loop()
    port = int(bare_socket.with_suffix(".port").read_text())
    token = (home / "run" / "token").read_text()
    daemon_port = (home / "run" / "crabtalk.port").read_text()
    for name in ("unix", "tcp"):
        if name == "unix":
            _, bare = await loop.create_unix_connection(BareClient, str(bare_socket))
            address = f"unix:{home}/run/crabtalk.sock"
        else:
            _, bare = await loop.create_connection(BareClient, "127.0.0.1", port)
            address = f"tcp:127.0.0.1:{daemon_port}"
        async with connect(address, token=token) as ours:
            theirs, mine = await time_rounds(bare, ours)
        middle = (compute_percentile(theirs, 0.5), compute_percentile(mine, 0.5))
        table.add_row(
            name,
            cores,
            f"{middle[0]:.0f}",
            f"{middle[1]:.0f}",
            f"{middle[1] / middle[0]:.2f}",
            f"{compute_percentile(theirs, 0.99):.0f}",
            f"{compute_percentile(mine, 0.99):.0f}",
        )
        bare.transport.close()


def run_benchmark() -> list[BenchTable]:
    table = BenchTable(
        "Ping round trip, µs",
        ["transport", "cores", "bare p50", "ours p50", "ratio", "bare p99", "ours p99"],
    )
    with contextlib.ExitStack() as peers:
        with pin_to_core(0):
            bare = peers.enter_context(run_peer("callbacks"))
            home, _ = peers.enter_context(run_daemon())
        with pin_to_core(-1):
            uvloop.run(measure_ping(table, "one each", bare, home))
        with pin_to_core(0):
            uvloop.run(measure_ping(table, "shared", bare, home))
    return [table]
