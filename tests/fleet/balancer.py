"""A TCP load balancer in front of several daemons: the address for a fleet's clients."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress


class Balancer:
    def __init__(self, ports: Sequence[int]) -> None:
        self._next = itertools.cycle(ports)
        self.port = 0
        self.connections: Counter[int] = Counter()  # number by port

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = next(self._next)
        self.connections[port] += 1
        daemon_reader, daemon_writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(
                copy_stream(reader, daemon_writer), copy_stream(daemon_reader, writer)
            )


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def run_balancer(*ports: int) -> AsyncIterator[Balancer]:
    balancer = Balancer(ports)
    server = await asyncio.start_server(balancer.handle, "127.0.0.1", 0)
    async with server:
        balancer.port = server.sockets[0].getsockname()[1]
        yield balancer
