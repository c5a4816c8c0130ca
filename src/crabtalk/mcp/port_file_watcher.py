"""Port files: servers that were started by somebody else, found in the run directory (RFC 0043).

`<name>.port` holds the number of a port on this machine, where the component of that name serves
MCP. Files that come, go or change are noticed within a second; the component is not ours to start.
"""

import asyncio
import logging
from pathlib import Path

# Not from the room as a whole: that also has what loads the SDK.
from crabtalk.service.port_file import LOOPBACK, PortFileContent, is_port_open, list_port_files
from crabtalk.storage import McpServerConfig

from .peers import PeerStatus
from .server_manager import ALL_AGENTS, McpServerManager

log = logging.getLogger(__name__)

INTERVAL = 1.0
MAX_FILES = 64


class PortFileWatcher:
    """What it finds belongs to everybody. `close` ends the watch, not the components."""

    def __init__(self, home: Path, mcp: McpServerManager, interval: float = INTERVAL) -> None:
        self._home = home
        self._mcp = mcp
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._serving: dict[str, PortFileContent] = {}
        self._stale: dict[str, PortFileContent] = {}

    def watch(self) -> None:
        self._task = asyncio.ensure_future(self._scan_forever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _scan_forever(self) -> None:
        while True:
            try:
                await self.scan()
            except Exception:
                log.exception("the port files cannot be read")
            await asyncio.sleep(self._interval)

    async def scan(self) -> None:
        """Takes note of what there is now."""
        files = {file.name: file for file in list_port_files(self._home)[:MAX_FILES]}
        found = {
            name: said for name, file in files.items() if (said := file.read_content()) is not None
        }
        self._stale = {name: old for name, old in self._stale.items() if found.get(name) == old}
        failed = {
            owner.name
            for owner, peer in self._mcp.list_states()
            if owner.agent == ALL_AGENTS and peer.status is PeerStatus.FAILED
        }
        serving = {name: old for name, old in self._serving.items() if found.get(name) == old}
        for name, said in found.items():
            if said == self._stale.get(name) or (name in serving and name not in failed):
                continue
            if await asyncio.to_thread(is_port_open, said.port):
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
                ALL_AGENTS,
                [build_component_server(name, serving[name]) for name in sorted(serving)],
            )


def build_component_server(name: str, found: PortFileContent) -> McpServerConfig:
    return McpServerConfig(name=name, url=f"http://{LOOPBACK}:{found.port}/mcp")
