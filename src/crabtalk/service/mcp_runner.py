"""Runs a component: its lock, its log, its port file, and a clean end.

The code that loads the MCP SDK is in `mcp_http`, which is imported only here, when a server runs.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from crabtalk.transport import default_home

from .component_paths import ComponentPaths
from .errors import ComponentError

if TYPE_CHECKING:
    from mcp.server import MCPServer, Server

    AnyServer: TypeAlias = MCPServer[Any] | Server[Any]


def run_mcp(
    server: "AnyServer | Callable[[], AnyServer]",
    *,
    name: str | None = None,
    home: Path | None = None,
    verbose: bool = False,
) -> None:
    """Run a component with tools until Ctrl+C or SIGTERM.

    `server` is a server of the `mcp` SDK, or a function that makes one; `name` is by default the
    server's. It is served at `/mcp` on a free port of 127.0.0.1, which is in `run/<name>.port`
    while it runs; `/health` answers health checks. The log is `logs/<name>.log`. Errors at the
    start are printed to stderr, and the process exits with 1.
    """
    from .log import start_log

    try:
        if name is None:
            server = make_server(server)
            name = server.name
        paths = ComponentPaths((home or default_home()).absolute(), name)
        # The lock comes before the server, which may take a while to make.
        with paths.hold_lock():
            start_log(paths.log_path, verbose=verbose)
            with asyncio.Runner(loop_factory=get_event_loop_factory()) as runner:
                runner.run(serve_mcp(make_server(server), paths))
    except ComponentError as error:
        sys.exit(f"{name or 'component'}: {error}")


async def serve_mcp(server: "AnyServer", paths: ComponentPaths) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends running calls at once. The caller holds
    the lock.

    The port file is gone afterwards, also when this is cancelled; only SIGKILL leaves it behind.
    """
    from .mcp_http import McpHttpServer

    http = McpHttpServer(server, paths.port_file)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, http.stop)
    try:
        await http.run_until_stopped()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def make_server(server: "AnyServer | Callable[[], AnyServer]") -> "AnyServer":
    return server() if callable(server) else server


def get_event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop
