"""Port files: servers that were started by somebody else, found in the run directory (RFC 0043).

`<name>.port` holds the number of a port on this machine, where the component of that name serves
MCP. Files that come, go or change are noticed within a second; the component is not ours to start.
"""

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from crabtalk.storage import McpServer

from .peers import Status
from .service import EVERYBODY, Mcp

log = logging.getLogger(__name__)

SUFFIX = ".port"
OURS = "crabtalk"
INTERVAL = 1.0
LONGEST_FILE = 16
MOST = 64


class Found(NamedTuple):
    """What a file says, and which file it is: one that was written anew is another."""

    port: int
    written: int


class PortFiles:
    """What it finds belongs to everybody. `close` ends the watch, not the components."""

    def __init__(self, directory: Path, mcp: Mcp, interval: float = INTERVAL) -> None:
        self._directory = directory
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
        found = scan(self._directory)
        self._stale = {name: old for name, old in self._stale.items() if found.get(name) == old}
        failed = {
            owner.name
            for owner, peer in self._mcp.states()
            if owner.agent == EVERYBODY and peer.status is Status.FAILED
        }
        serving = {name: old for name, old in self._serving.items() if found.get(name) == old}
        for name, file in found.items():
            if file == self._stale.get(name) or (name in serving and name not in failed):
                continue
            if await somebody_listens(file.port):
                serving[name] = file
            else:
                serving.pop(name, None)
                self._stale[name] = file
                log.warning(
                    "%s names port %d, but nobody listens there; it is ignored until it changes",
                    self._directory / f"{name}{SUFFIX}",
                    file.port,
                )
        if serving != self._serving:
            self._serving = serving
            self._mcp.declare(
                EVERYBODY, [component(name, serving[name]) for name in sorted(serving)]
            )


def scan(directory: Path) -> dict[str, Found]:
    """All port files but the daemon's own. What holds no port is none."""
    found: dict[str, Found] = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name.removesuffix(SUFFIX)
            if name in (entry.name, OURS, "") or name.startswith(".") or len(found) >= MOST:
                continue
            with suppress(OSError, ValueError):
                status = entry.stat(follow_symlinks=False)
                with Path(entry.path).open("rb") as file:
                    port = int(file.read(LONGEST_FILE))
                if 0 < port < 65536 and status.st_uid == os.geteuid():
                    found[name] = Found(port, status.st_mtime_ns)
    return found


async def somebody_listens(port: int) -> bool:
    try:
        async with asyncio.timeout(INTERVAL):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def component(name: str, found: Found) -> McpServer:
    return McpServer(name=name, url=f"http://127.0.0.1:{found.port}/mcp")
