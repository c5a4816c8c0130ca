"""EventQueue: a bounded queue from one run to the reader of its events.

A slow reader slows its run down. After the reader has left, events are dropped.
"""

import asyncio
from collections import deque

from .events import Event


class EventQueue:
    """One writer, one reader. The writer pushes, and waits for room while the queue `is_full`."""

    __slots__ = ("_bound", "_closed", "_events", "_reader", "_writer")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._events: deque[Event] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def is_full(self) -> bool:
        return len(self._events) >= self._bound

    def push(self, event: Event) -> None:
        if self._closed:
            return
        self._events.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait_for_room(self) -> None:
        """Waits until the reader has caught up, or left."""
        while self.is_full and not self._closed:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def next_event(self) -> Event:
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = self._events.popleft()
        if self._writer is not None and not self._writer.done() and not self.is_full:
            self._writer.set_result(None)
        return event

    def close(self) -> None:
        """Called when the reader leaves."""
        self._closed = True
        self._events.clear()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
