"""Servers on the SDK over HTTP, as processes of their own. Only the first has to load it."""

import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.warm import DEVNULL, PIPE, Program, Started

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.mcp.servers"]
SERVERS = Program(
    *(ROOT / "tests" / "mcp" / "servers.py", "tests.mcp.servers:main"),
    *("uvicorn.lifespan.on", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
)


class Running:
    """A server, and where it is."""

    def __init__(self, process: Started, port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Killed and started anew, in one breath: no loop of this process gets to notice."""
        self.process.kill()
        self.process.ended()
        process = start("--port", str(self.port), stdout=DEVNULL)
        assert process.stdin is not None
        with process.stdin:
            while not listens(self.port):
                assert process.returncode is None
                time.sleep(0.01)
            yield
        process.ended()


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[Running]:
    process = start(*options, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin:
        yield Running(process, int(await process.stdout.readline()))
    await process.wait()


def start(*options: str, stdout: int) -> Started:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return SERVERS.start("--http", *options, stdin=PIPE, stdout=stdout, env=environment)


def listens(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0
