"""Port files: servers that were started by somebody else, found in the run directory (RFC 0043).

`<name>.port` holds the number of a port on this machine, where the component of that name serves
MCP. Files that come, go or change are noticed within a second; the component is not ours to start.
"""

import asyncio
import logging
from pathlib import Path

# Not from the room as a whole: that also has what loads the SDK.
from crabtalk.component.port_file import LOOPBACK, Found, is_taken, port_files
from crabtalk.storage import McpServer

from .peers import Status
from .service import EVERYBODY, Mcp

log = logging.getLogger(__name__)

INTERVAL = 1.0
MOST = 64


class PortFiles:
    """What it finds belongs to everybody. `close` ends the watch, not the components."""

    def __init__(self, home: Path, mcp: Mcp, interval: float = INTERVAL) -> None:
        self._home = home
        self._mcp = mcp
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._serving: dict[str, Found] = {}
        self._stale: dict[str, Found] = {}

    def watch(self) -> None:
        self._task = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the port files cannot be read")
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """Takes note of what there is now."""
        files = {file.name: file for file in port_files(self._home)[:MOST]}
        found = {name: said for name, file in files.items() if (said := file.look()) is not None}
        self._stale = {name: old for name, old in self._stale.items() if found.get(name) == old}
        failed = {
            owner.name
            for owner, peer in self._mcp.states()
            if owner.agent == EVERYBODY and peer.status is Status.FAILED
        }
        serving = {name: old for name, old in self._serving.items() if found.get(name) == old}
        for name, said in found.items():
            if said == self._stale.get(name) or (name in serving and name not in failed):
                continue
            if await asyncio.to_thread(is_taken, said.port):
                serving[name] = said
            else:
                serving.pop(name, None)
                self._stale[name] = said
                log.warning(
                    "%s names port %d, but nobody listens there; it is ignored until it changes",
                    files[name].path,
                    said.port,
                )
        if serving != self._serving:
            self._serving = serving
            self._mcp.declare(
                EVERYBODY, [component(name, serving[name]) for name in sorted(serving)]
            )


def component(name: str, found: Found) -> McpServer:
    return McpServer(name=name, url=f"http://{LOOPBACK}:{found.port}/mcp")
