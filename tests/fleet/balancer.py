"""A TCP balancer in front of several daemons: the one address a fleet's clients are given."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress


class Balancer:
    def __init__(self, ports: Sequence[int]) -> None:
        self._next = itertools.cycle(ports)
        self.port = 0
        self.served: Counter[int] = Counter()  # connections, by port

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = next(self._next)
        self.served[port] += 1
        there, back = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(passed_on(reader, back), passed_on(there, writer))


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def balancing(*ports: int) -> AsyncIterator[Balancer]:
    balancer = Balancer(ports)
    server = await asyncio.start_server(balancer.take, "127.0.0.1", 0)
    async with server:
        balancer.port = server.sockets[0].getsockname()[1]
        yield balancer
