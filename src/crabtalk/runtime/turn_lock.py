"""TurnLock: a fair lock. The turns of one conversation run one at a time, in order of arrival."""

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
        """Enters the queue, without waiting: the order is that of these calls, not of `acquire`.

        The place is the last one, or with `first` the one right after the current holder.
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
        """Waits until the lock is held. Cancelled, it gives up the place."""
        try:
            await place
        except asyncio.CancelledError:
            self.cancel(place)
            raise

    def cancel(self, place: asyncio.Future[None]) -> None:
        """Gives up a place, so that those behind it do not wait for it."""
        if place.done() and not place.cancelled():
            self.release()
        elif place in self._waiting:
            self._waiting.remove(place)

    def release(self) -> None:
        """Passes the lock to the next in the queue."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._busy = False
