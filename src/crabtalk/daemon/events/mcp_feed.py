"""McpFeed: sends state changes of MCP servers to its subscribers. It never delays a server.

A subscriber that falls behind misses the oldest events. Each event has the whole state of its
server, so the last one of each server is always right.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable

from crabtalk.mcp import PeerStateChanged, PeerStatus
from crabtalk.protocol import UnavailableError, wire
from crabtalk.runtime import Clock

from .feed import FeedLimits

EVENT_KINDS = {
    PeerStatus.UNKNOWN: wire.MCP_EVENT_KIND_UNKNOWN,
    PeerStatus.CONNECTING: wire.MCP_EVENT_KIND_CONNECTING,
    PeerStatus.CONNECTED: wire.MCP_EVENT_KIND_CONNECTED,
    PeerStatus.FAILED: wire.MCP_EVENT_KIND_FAILED,
    PeerStatus.DISCONNECTED: wire.MCP_EVENT_KIND_DISCONNECTED,
}


class McpFeed:
    def __init__(self, limits: FeedLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._queues: list[deque[wire.McpEventMsg]] = []
        self._published = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queues)

    def publish(self, change: PeerStateChanged) -> None:
        message = self._to_message(change)
        for queue in self._queues:
            queue.append(message)
        self._wake_subscribers()

    async def subscribe(
        self, present: Iterable[PeerStateChanged]
    ) -> AsyncGenerator[wire.McpEventMsg, None]:
        """First the `present` states, with the current time; then all changes, until closed."""
        if len(self._queues) >= self._limits.feeds:
            raise UnavailableError(f"{len(self._queues)} feeds are open already; close one")
        queue = deque(
            (self._to_message(state) for state in present), maxlen=self._limits.feed_events
        )
        self._queues.append(queue)
        try:
            while True:
                while queue:
                    yield queue.popleft()
                await self._published.wait()
        finally:
            self._queues = [other for other in self._queues if other is not queue]

    def _wake_subscribers(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _to_message(self, change: PeerStateChanged) -> wire.McpEventMsg:
        return wire.McpEventMsg(
            kind=EVENT_KINDS[change.status],
            name=change.name,
            tools=change.tools,
            error=change.error,
            timestamp=self._clock.now(),
            agent=change.agent,
        )
