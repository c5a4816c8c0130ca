"""Peers with everything real: a host process, and servers it starts."""

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
# No test waits longer for anything.
PATIENCE = 30
CRAB = Agent("crab", "You are crab.")


def build_tiny_server(*options: str, name: str = "beach", **settings: Any) -> McpServerConfig:
    """A server that starts at once."""
    return McpServerConfig(name, sys.executable, ("-S", str(TINY_SERVER), *options), **settings)


class McpWorld:
    """Peers, and what was heard of them."""

    def __init__(self, path: Path, limits: McpLimits | None = None, **settings: Any) -> None:
        self.path = path
        self.events: list[PeerStateChanged] = []
        self.mcp = McpServerManager(
            path / "tokens", limits=limits, heard=self.events.append, **settings
        )

    def declare(self, *servers: McpServerConfig, agent: str = "crab") -> None:
        self.mcp.declare(agent, servers)

    async def connect(self, *servers: McpServerConfig, agent: str = "crab") -> None:
        """Declares them, and waits until all are there."""
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
        progressed: Callable[[McpProgress], None] | None,
        agent: str = "crab",
        /,
        **arguments: Any,
    ) -> McpCallResult:
        """A call whose progress is heard."""
        known = self.find_tool(name, agent)
        given = msgspec.json.encode(arguments)
        async with asyncio.timeout(PATIENCE):
            return await self.mcp.call(known.peer, known.tool.name, given, progressed)

    async def call_for_text(self, name: str, agent: str = "crab", /, **arguments: Any) -> str:
        return (await self.call(name, agent, **arguments)).text

    async def wait_for_failure(self) -> str:
        """Waits for the only server to fail. Why it did."""
        await self.wait_until(
            lambda: any(event.status is PeerStatus.FAILED for event in self.events)
        )
        return next(event.error for event in self.events if event.status is PeerStatus.FAILED)

    async def release_all(self) -> None:
        """All agents, their servers and what was heard of them. The host stays."""
        for agent in {owner.agent for owner, _ in self.mcp.list_states()}:
            self.mcp.release(agent)
        await self.wait_until(lambda: not self.mcp.host.server_pids)
        self.events.clear()

    async def wait_until(self, claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not claim():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def open_world(
    path: Path, limits: McpLimits | None = None, **settings: Any
) -> AsyncIterator[McpWorld]:
    made = McpWorld(path, limits, **settings)
    try:
        yield made
    finally:
        async with asyncio.timeout(PATIENCE):
            await made.mcp.close()


def is_alive(pid: int) -> bool:
    """A zombie is as dead as anything."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def list_children(pid: int) -> list[int]:
    """Zombies count: whoever has one has not looked after it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def read_resident_bytes(pid: int) -> int:
    """Resident, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
