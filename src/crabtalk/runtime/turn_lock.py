"""Line: turns of one conversation, one at a time, in the order they came."""

import asyncio
from collections import deque


class TurnLock:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False

    @property
    def is_idle(self) -> bool:
        return not self._busy and not self._waiting

    def enqueue(self, *, first: bool = False) -> asyncio.Future[None]:
        """Takes a place, at once: order is decided here, not when it is awaited.

        It is the last one, or with `first` the one after whoever has their turn now.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._busy:
            if first:
                self._waiting.appendleft(place)
            else:
                self._waiting.append(place)
        else:
            self._busy = True
            place.set_result(None)
        return place

    async def acquire(self, place: asyncio.Future[None]) -> None:
        """Waits for one's turn. Cancelled, the place is given up, and nobody behind it waits."""
        try:
            await place
        except asyncio.CancelledError:
            self.cancel(place)
            raise

    def cancel(self, place: asyncio.Future[None]) -> None:
        """Leaves a place that will not be reached; nobody behind it waits for it."""
        if place.done() and not place.cancelled():
            self.release()
        elif place in self._waiting:
            self._waiting.remove(place)

    def release(self) -> None:
        """One's turn is over."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._busy = False
