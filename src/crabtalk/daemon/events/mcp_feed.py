"""McpFeed: what happens to MCP servers, told to whoever subscribed. It never holds a server up.

A subscriber that falls behind misses the oldest of what waits for it; states are told whole, so
that what it hears last of each server is true.
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

    def publish(self, happened: PeerStateChanged) -> None:
        message = self._to_message(happened)
        for queue in self._queues:
            queue.append(message)
        self._wake_subscribers()

    async def subscribe(
        self, present: Iterable[PeerStateChanged]
    ) -> AsyncGenerator[wire.McpEventMsg, None]:
        """`present` comes first, as if it happened now; then everything, until it is closed."""
        if len(self._queues) >= self._limits.feeds:
            raise UnavailableError(f"{len(self._queues)} feeds are open already; close one")
        queue = deque((self._to_message(one) for one in present), maxlen=self._limits.feed_events)
        self._queues.append(queue)
        try:
            while True:
                while queue:
                    yield queue.popleft()
                await self._published.wait()
        finally:
            self._queues = [one for one in self._queues if one is not queue]

    def _wake_subscribers(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _to_message(self, happened: PeerStateChanged) -> wire.McpEventMsg:
        return wire.McpEventMsg(
            kind=EVENT_KINDS[happened.status],
            name=happened.name,
            tools=happened.tools,
            error=happened.error,
            timestamp=self._clock.now(),
            agent=happened.agent,
        )
