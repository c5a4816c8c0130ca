"""Peers with everything real: a host process, and servers it starts."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from crabtalk.mcp import Happened, Known, Mcp, McpLimits, Progress, Result, Status
from crabtalk.storage import Agent, McpServer

HERE = Path(__file__).parent
TINY = HERE / "tiny.py"
# No test waits longer for anything.
PATIENCE = 30
CRAB = Agent("crab", "You are crab.")


def tiny(*options: str, name: str = "beach", **settings: Any) -> McpServer:
    """A server that starts at once."""
    return McpServer(name, sys.executable, ("-S", str(TINY), *options), **settings)


class World:
    """Peers, and what was heard of them."""

    def __init__(self, path: Path, limits: McpLimits | None = None, **settings: Any) -> None:
        self.path = path
        self.events: list[Happened] = []
        self.mcp = Mcp(path / "tokens", limits=limits, heard=self.events.append, **settings)

    def declare(self, *servers: McpServer, agent: str = "crab") -> None:
        self.mcp.declare(agent, servers)

    async def connected(self, *servers: McpServer, agent: str = "crab") -> None:
        """Declares them, and waits until all are there."""
        self.declare(*servers, agent=agent)
        await self.until(lambda: self.statuses(agent) == ["connected"] * len(servers))

    def statuses(self, agent: str = "crab") -> list[str]:
        return [peer.status.value for owner, peer in self.mcp.states() if owner.agent == agent]

    def error(self, agent: str = "crab") -> str:
        return next(peer.error for owner, peer in self.mcp.states() if owner.agent == agent)

    def told(self, agent: str = "crab") -> list[str]:
        return [event.status.value for event in self.events if event.agent == agent]

    def find(self, name: str, agent: str = "crab") -> Known:
        known = self.mcp.toolbox(msgspec.structs.replace(CRAB, name=agent), ()).find(name)
        assert known is not None, name
        return known

    def offered(self, agent: str = "crab") -> list[str]:
        box = self.mcp.toolbox(msgspec.structs.replace(CRAB, name=agent), ())
        return [known.name for known in box.offered]

    async def call(self, name: str, agent: str = "crab", /, **arguments: Any) -> Result:
        return await self.watched(name, None, agent, **arguments)

    async def watched(
        self,
        name: str,
        progressed: Callable[[Progress], None] | None,
        agent: str = "crab",
        /,
        **arguments: Any,
    ) -> Result:
        """A call whose progress is heard."""
        known = self.find(name, agent)
        given = msgspec.json.encode(arguments)
        async with asyncio.timeout(PATIENCE):
            return await self.mcp.call(known.peer, known.tool.name, given, progressed)

    async def text(self, name: str, agent: str = "crab", /, **arguments: Any) -> str:
        return (await self.call(name, agent, **arguments)).text

    async def failed(self) -> str:
        """Waits for the only server to fail. Why it did."""
        await self.until(lambda: any(event.status is Status.FAILED for event in self.events))
        return next(event.error for event in self.events if event.status is Status.FAILED)

    async def forget(self) -> None:
        """All agents, their servers and what was heard of them. The host stays."""
        for agent in {owner.agent for owner, _ in self.mcp.states()}:
            self.mcp.release(agent)
        await self.until(lambda: not self.mcp.link.servers)
        self.events.clear()

    async def until(self, claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not claim():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(
    path: Path, limits: McpLimits | None = None, **settings: Any
) -> AsyncIterator[World]:
    made = World(path, limits, **settings)
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


def children(pid: int) -> list[int]:
    """Zombies count: whoever has one has not looked after it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def memory_of(pid: int) -> int:
    """Resident, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
