"""Starts HTTP servers that use the SDK as child processes. Only the first one loads the SDK."""

import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.forked_programs import DEVNULL, PIPE, ForkedProcess, ForkedProgram

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.mcp.servers"]
SERVERS = ForkedProgram(
    *(ROOT / "tests" / "mcp" / "servers.py", "tests.mcp.servers:main"),
    *("uvicorn.lifespan.on", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
)


class HttpServerProcess:
    """A server process and its address."""

    def __init__(self, process: ForkedProcess, port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    @contextmanager
    def restart(self) -> Iterator[None]:
        """Kill and restart the server without yielding to this process's event loop."""
        self.process.kill()
        self.process.wait_blocking()
        process = start_process("--port", str(self.port), stdout=DEVNULL)
        assert process.stdin is not None
        with process.stdin:
            while not is_listening(self.port):
                assert process.returncode is None
                time.sleep(0.01)
            yield
        process.wait_blocking()


@asynccontextmanager
async def run_http_server(*options: str) -> AsyncIterator[HttpServerProcess]:
    process = start_process(*options, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin:
        yield HttpServerProcess(process, int(await process.stdout.readline()))
    await process.wait()


def start_process(*options: str, stdout: int) -> ForkedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return SERVERS.start("--http", *options, stdin=PIPE, stdout=stdout, env=environment)


def is_listening(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0
