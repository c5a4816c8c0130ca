"""PortFileWatcher: finds MCP servers of other components in the run directory (RFC 0043).

`<name>.port` contains the port on this machine where the component of that name serves MCP. New,
removed and changed files are noticed within a second. Components are not started from here.
"""

import asyncio
import logging
from pathlib import Path

# Not from crabtalk.service itself, which also loads the SDK.
from crabtalk.service.port_file import LOOPBACK, PortFileContent, is_port_open, list_port_files
from crabtalk.storage import McpServerConfig

from .peers import PeerStatus
from .server_manager import ALL_AGENTS, McpServerManager

log = logging.getLogger(__name__)

INTERVAL = 1.0
MAX_FILES = 64


class PortFileWatcher:
    """Declares the servers it finds for all agents. `close` stops watching, not the components."""

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
        """Read the port files and declare the servers that listen."""
        files = {file.name: file for file in list_port_files(self._home)[:MAX_FILES]}
        contents = {
            name: content
            for name, file in files.items()
            if (content := file.read_content()) is not None
        }
        self._stale = {name: old for name, old in self._stale.items() if contents.get(name) == old}
        failed = {
            owner.name
            for owner, peer in self._mcp.list_states()
            if owner.agent == ALL_AGENTS and peer.status is PeerStatus.FAILED
        }
        serving = {name: old for name, old in self._serving.items() if contents.get(name) == old}
        for name, content in contents.items():
            if content == self._stale.get(name) or (name in serving and name not in failed):
                continue
            if await asyncio.to_thread(is_port_open, content.port):
                serving[name] = content
            else:
                serving.pop(name, None)
                self._stale[name] = content
                log.warning(
                    "%s names port %d, but nothing listens there; it is ignored until it changes",
                    files[name].path,
                    content.port,
                )
        if serving != self._serving:
            self._serving = serving
            self._mcp.declare(
                ALL_AGENTS,
                [build_component_server(name, serving[name]) for name in sorted(serving)],
            )


def build_component_server(name: str, content: PortFileContent) -> McpServerConfig:
    return McpServerConfig(name=name, url=f"http://{LOOPBACK}:{content.port}/mcp")
