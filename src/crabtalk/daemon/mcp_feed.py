"""McpFeed: what happens to MCP servers, told to whoever subscribed. It never holds a server up.

A subscriber that falls behind misses the oldest of what waits for it; states are told whole, so
that what it hears last of each server is true.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable

from crabtalk.mcp import Happened, Status
from crabtalk.protocol import UnavailableError, wire
from crabtalk.runtime import Clock

from .feed import FeedLimits

KINDS = {
    Status.UNKNOWN: wire.MCP_EVENT_KIND_UNKNOWN,
    Status.CONNECTING: wire.MCP_EVENT_KIND_CONNECTING,
    Status.CONNECTED: wire.MCP_EVENT_KIND_CONNECTED,
    Status.FAILED: wire.MCP_EVENT_KIND_FAILED,
    Status.DISCONNECTED: wire.MCP_EVENT_KIND_DISCONNECTED,
}


class McpFeed:
    def __init__(self, limits: FeedLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._queues: list[deque[wire.McpEventMsg]] = []
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queues)

    def publish(self, happened: Happened) -> None:
        message = self._message(happened)
        for queue in self._queues:
            queue.append(message)
        self._wake()

    async def subscribe(
        self, present: Iterable[Happened]
    ) -> AsyncGenerator[wire.McpEventMsg, None]:
        """`present` comes first, as if it happened now; then everything, until it is closed."""
        if len(self._queues) >= self._limits.feeds:
            raise UnavailableError(f"{len(self._queues)} feeds are open already; close one")
        queue = deque((self._message(one) for one in present), maxlen=self._limits.feed_events)
        self._queues.append(queue)
        try:
            while True:
                while queue:
                    yield queue.popleft()
                await self._news.wait()
        finally:
            self._queues = [one for one in self._queues if one is not queue]

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _message(self, happened: Happened) -> wire.McpEventMsg:
        return wire.McpEventMsg(
            kind=KINDS[happened.status],
            name=happened.name,
            tools=happened.tools,
            error=happened.error,
            timestamp=self._clock.now(),
            agent=happened.agent,
        )
