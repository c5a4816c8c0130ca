"""A proxy between a client and a daemon's socket that can cut every connection through it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PATIENCE = 30.0


class CuttingProxy:
    """`address` leads to the daemon; after a cut, new connections reach it again."""

    def __init__(self, path: Path, target: Path) -> None:
        self.address = f"unix:{path}"
        self.cuts = 0
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_used(self) -> bool:
        """Whether a client is connected through it."""
        return bool(self._writers)

    async def until_used(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.is_used:
                await asyncio.sleep(0.002)

    def cut_connections(self) -> None:
        self.cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, back = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(forward_bytes(reader, back), forward_bytes(theirs, writer))
        finally:
            self._writers -= {writer, back}

    async def close(self) -> None:
        self.cut_connections()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def forward_bytes(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


@asynccontextmanager
async def start_proxy(path: Path, target: Path) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(path, target)
    async with await asyncio.start_unix_server(proxy.connect, path):
        try:
            yield proxy
        finally:
            await proxy.close()
