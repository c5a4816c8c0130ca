"""McpWorld: a server manager with a real host process and real servers."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from crabtalk.mcp import (
    McpCallResult,
    McpLimits,
    McpProgress,
    McpServerManager,
    PeerStateChanged,
    PeerStatus,
    ServerTool,
)
from crabtalk.storage import Agent, McpServerConfig

HERE = Path(__file__).parent
TINY_SERVER = HERE / "tiny_server.py"
# Seconds: the deadline of every wait in tests.
PATIENCE = 30
CRAB = Agent("crab", "You are crab.")


def build_tiny_server(*options: str, name: str = "beach", **settings: Any) -> McpServerConfig:
    """Declare a server that starts fast."""
    return McpServerConfig(name, sys.executable, ("-S", str(TINY_SERVER), *options), **settings)


class McpWorld:
    """A server manager and the events it has published."""

    def __init__(self, path: Path, limits: McpLimits | None = None, **settings: Any) -> None:
        self.path = path
        self.events: list[PeerStateChanged] = []
        self.mcp = McpServerManager(
            path / "tokens", limits=limits, heard=self.events.append, **settings
        )

    def declare(self, *servers: McpServerConfig, agent: str = "crab") -> None:
        self.mcp.declare(agent, servers)

    async def connect(self, *servers: McpServerConfig, agent: str = "crab") -> None:
        """Declare servers and wait until all are connected."""
        self.declare(*servers, agent=agent)
        await self.wait_until(lambda: self.list_statuses(agent) == ["connected"] * len(servers))

    def list_statuses(self, agent: str = "crab") -> list[str]:
        return [peer.status.value for owner, peer in self.mcp.list_states() if owner.agent == agent]

    def find_error(self, agent: str = "crab") -> str:
        return next(peer.error for owner, peer in self.mcp.list_states() if owner.agent == agent)

    def list_event_statuses(self, agent: str = "crab") -> list[str]:
        return [event.status.value for event in self.events if event.agent == agent]

    def find_tool(self, name: str, agent: str = "crab") -> ServerTool:
        known = self.mcp.get_toolbox(msgspec.structs.replace(CRAB, name=agent), ()).find(name)
        assert known is not None, name
        return known

    def list_offered(self, agent: str = "crab") -> list[str]:
        box = self.mcp.get_toolbox(msgspec.structs.replace(CRAB, name=agent), ())
        return [known.name for known in box.offered]

    async def call(self, name: str, agent: str = "crab", /, **arguments: Any) -> McpCallResult:
        return await self.call_with_progress(name, None, agent, **arguments)

    async def call_with_progress(
        self,
        name: str,
        on_progress: Callable[[McpProgress], None] | None,
        agent: str = "crab",
        /,
        **arguments: Any,
    ) -> McpCallResult:
        """Call a tool and receive its progress."""
        known = self.find_tool(name, agent)
        encoded = msgspec.json.encode(arguments)
        async with asyncio.timeout(PATIENCE):
            return await self.mcp.call(known.peer, known.tool.name, encoded, on_progress)

    async def call_for_text(self, name: str, agent: str = "crab", /, **arguments: Any) -> str:
        return (await self.call(name, agent, **arguments)).text

    async def wait_for_failure(self) -> str:
        """Wait until the only server fails, and return its error."""
        await self.wait_until(
            lambda: any(event.status is PeerStatus.FAILED for event in self.events)
        )
        return next(event.error for event in self.events if event.status is PeerStatus.FAILED)

    async def release_all(self) -> None:
        """Release all agents and drop all events. The host keeps running."""
        for agent in {owner.agent for owner, _ in self.mcp.list_states()}:
            self.mcp.release(agent)
        await self.wait_until(lambda: not self.mcp.host.server_pids)
        self.events.clear()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def open_world(
    path: Path, limits: McpLimits | None = None, **settings: Any
) -> AsyncIterator[McpWorld]:
    new_world = McpWorld(path, limits, **settings)
    try:
        yield new_world
    finally:
        async with asyncio.timeout(PATIENCE):
            await new_world.mcp.close()


def is_alive(pid: int) -> bool:
    """A zombie counts as dead."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def list_children(pid: int) -> list[int]:
    """Return all children, including zombies: their parent should have reaped them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def read_resident_bytes(pid: int) -> int:
    """Return the resident memory in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
