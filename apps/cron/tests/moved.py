"""A clock that stands still until the test moves it, and entries to go with it."""

import asyncio
from collections.abc import Iterable
from typing import Any

from crabtalk_cron.clock import Clock
from crabtalk_cron.entry import Entry, read_table
from crabtalk_cron.zones import zone_called


class MovedClock(Clock):
    def __init__(self, now: float, chances: Iterable[float] = ()) -> None:
        self._now = now
        self._chances = iter(chances)
        self._place = "here"
        self._moved = asyncio.Event()
        self._idle = asyncio.Event()  # whoever goes by this clock has seen what it shows

    def now(self) -> float:
        return self._now

    def chance(self) -> float:
        return next(self._chances, 0.0)

    def zone(self) -> object:
        return self._place

    async def wait(self, woken: asyncio.Event, seconds: float) -> None:
        self._idle.set()
        waits = [asyncio.ensure_future(one.wait()) for one in (woken, self._moved)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._moved.clear()

    async def move(self, now: float, *, place: str | None = None) -> None:
        """Returns when it was looked at."""
        await self._idle.wait()
        self._now = now
        self._place = place or self._place
        self._idle.clear()
        self._moved.set()
        await self._idle.wait()


def entry(number: int, schedule: str, **rest: Any) -> Entry:
    given = {"id": number, "schedule": schedule, "agent": "crab", "skill": "feeds", **rest}
    return read_table(given, zone_called("UTC"))
