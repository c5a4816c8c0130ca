"""A daemon that answers from lists given by the test, and records the requests.

Its socket, frames and errors are real; only the answers are made up.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from crabtalk.protocol import NotFoundError, Server, wire
from crabtalk.transport import RunFiles, TransportLimits
from tests.scripted_server import open_listener

PAGE_SIZE = 2  # entries


class CannedDaemon(Server):
    def __init__(self, *entries: wire.MemoryEntry) -> None:
        self.entries = list(entries)
        self.memory_hits: list[wire.MemoryHit] = []
        self.session_hits: list[wire.SessionHit] = []
        self.events: list[wire.AgentEventMsg] = []
        self.requests: list[Any] = []

    async def search_memory(self, request: wire.SearchMemoryMsg) -> wire.MemoryHitList:
        self.requests.append(request)
        return wire.MemoryHitList(hits=self.memory_hits)

    async def list_memory(self, request: wire.ListMemoryMsg) -> wire.MemoryPage:
        """Return two entries a page."""
        self.requests.append(request)
        if request.agent != "crab":
            raise NotFoundError(f"no agent is called {request.agent!r}")
        if request.HasField("name"):
            entries = [e for e in self.entries if request.name in (e.name, *e.aliases)]
            if not entries:
                raise NotFoundError("nothing is called that")
            return wire.MemoryPage(entries=entries, total=1)
        rest = [entry for entry in self.entries if entry.number > request.after]
        page = wire.MemoryPage(entries=rest[:PAGE_SIZE], total=len(self.entries))
        if len(rest) > PAGE_SIZE:
            page.next_after = page.entries[-1].number
        return page

    async def replace_memory(self, request: wire.ReplaceMemoryMsg) -> None:
        self.requests.append(request)
        self.entries = list(request.entries)
        for number, entry in enumerate(self.entries, 1):
            entry.number = number

    async def search_sessions(self, request: wire.SearchSessionsMsg) -> wire.SessionHitList:
        self.requests.append(request)
        return wire.SessionHitList(hits=self.session_hits)

    async def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        """Send all events; then an error ends the stream."""
        self.requests.append(request)
        for event in self.events:
            yield event
        raise NotFoundError("that was all")


@asynccontextmanager
async def serve_daemon(peer: Server, home: Path) -> AsyncIterator[None]:
    """Serve on the socket of the daemon of `home`."""
    (home / "run").mkdir(mode=0o700, parents=True)
    # A request that is never answered must not delay the shutdown.
    limits = TransportLimits(drain_timeout=0.1)
    async with open_listener(peer, RunFiles.for_home(home).socket_path, limits=limits):
        yield


def make_entry(number: int, name: str, content: str, **rest: Any) -> wire.MemoryEntry:
    fields = {"kind": "note", "created_at": 1_700_000_000 + number, **rest}
    return wire.MemoryEntry(number=number, name=name, content=content, **fields)
