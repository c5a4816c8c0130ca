"""An MCP server over streamable HTTP: the socket, `/mcp`, `/health`, and the way down.

Loads the `mcp` SDK, starlette and uvicorn; nothing else of this room does.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import uvicorn
from mcp.server import MCPServer, Server
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from crabtalk.transport import TcpAddress, listen_tcp

from .port_file import PortFile

# Connections at a time; more are told to come back.
CONNECTIONS = 1000
# How long calls that run are waited for, once it was told to stop.
GRACE = 3

log = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """Serves one MCP server, and says where in a port file while it takes requests."""

    def __init__(self, server: MCPServer[Any] | Server[Any], port_file: PortFile) -> None:
        self._port_file = port_file
        self._published = ExitStack()
        self._told = asyncio.Event()
        app = server.streamable_http_app()
        app.router.routes.append(Route("/health", self._health))
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                date_header=False,
                lifespan="on",
                limit_concurrency=CONNECTIONS,
                server_header=False,
                timeout_graceful_shutdown=GRACE,
                ws="none",
            )
        )

    async def run_until_stopped(self) -> None:
        """Binds, publishes and serves. The port file is gone when it returns or raises."""
        with self._published, listen_tcp(TcpAddress(port=0)) as self._listening:
            await self.serve(sockets=[self._listening])

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._told.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listening.getsockname()
        self._published.enter_context(self._port_file.published(port))
        log.info("%s is ready: http://%s:%s/mcp", self._port_file.name, host, port)

    async def main_loop(self) -> None:
        """The original looks ten times a second whether it is to stop; here, that is told."""
        await self.on_tick(0)
        await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # First: a client that comes now must find no component, rather than a dying one.
        self._published.close()
        await super().shutdown(sockets)
        log.info("%s has stopped", self._port_file.name)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to who runs this: the original raises them anew, before we are done."""
        yield

    async def _health(self, _: Request) -> JSONResponse:
        return JSONResponse({"name": self._port_file.name, "status": "ok", "pid": os.getpid()})
