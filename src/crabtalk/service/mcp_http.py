"""An MCP server over streamable HTTP: the socket, `/mcp`, `/health`, and a clean shutdown.

Loads the `mcp` SDK, starlette and uvicorn; no other module of this package does.
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

# Connections at a time; more get 503.
MAX_CONNECTIONS = 1000
# Seconds that running calls have left after a stop.
GRACE_SECONDS = 3

log = logging.getLogger(__name__)


class McpHttpServer(uvicorn.Server):
    """Serves one MCP server. The port file names its port while it takes requests."""

    def __init__(self, server: MCPServer[Any] | Server[Any], port_file: PortFile) -> None:
        self._port_file = port_file
        self._publication = ExitStack()
        self._stop_requested = asyncio.Event()
        app = server.streamable_http_app()
        app.router.routes.append(Route("/health", self._handle_health))
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                date_header=False,
                lifespan="on",
                limit_concurrency=MAX_CONNECTIONS,
                server_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
                ws="none",
            )
        )

    async def run_until_stopped(self) -> None:
        """Bind, publish and serve. The port file is gone when this returns or raises."""
        with self._publication, listen_tcp(TcpAddress(port=0)) as self._listen_socket:
            await self.serve(sockets=[self._listen_socket])

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._stop_requested.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listen_socket.getsockname()
        self._publication.enter_context(self._port_file.publish(port))
        log.info("%s is ready: http://%s:%s/mcp", self._port_file.name, host, port)

    async def main_loop(self) -> None:
        """Wait for `stop`. The original polls ten times a second."""
        await self.on_tick(0)
        await self._stop_requested.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # First: a client that comes now must find no component rather than one that shuts down.
        self._publication.close()
        await super().shutdown(sockets)
        log.info("%s has stopped", self._port_file.name)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller: the original raises them again before the shutdown."""
        yield

    async def _handle_health(self, _: Request) -> JSONResponse:
        return JSONResponse({"name": self._port_file.name, "status": "ok", "pid": os.getpid()})
