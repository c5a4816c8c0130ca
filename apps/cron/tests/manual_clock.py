"""A clock that stands still until the test moves it, and entries to go with it."""

import asyncio
from collections.abc import Iterable
from typing import Any

from crabtalk_cron.clock import CronClock
from crabtalk_cron.entry import CronEntry, parse_entry
from crabtalk_cron.time_zones import find_zone


class CronManualClock(CronClock):
    def __init__(self, now: float, chances: Iterable[float] = ()) -> None:
        self._now = now
        self._fractions = iter(chances)
        self._place = "here"
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()  # whoever goes by this clock has seen what it shows

    def now(self) -> float:
        return self._now

    def random_fraction(self) -> float:
        return next(self._fractions, 0.0)

    def read_zone(self) -> object:
        return self._place

    async def wait(self, woken: asyncio.Event, seconds: float) -> None:
        self._idle.set()
        waits = [asyncio.ensure_future(one.wait()) for one in (woken, self._changed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._changed.clear()

    async def set_time(self, now: float, *, place: str | None = None) -> None:
        """Returns when it was looked at."""
        await self._idle.wait()
        self._now = now
        self._place = place or self._place
        self._idle.clear()
        self._changed.set()
        await self._idle.wait()


def make_entry(number: int, schedule: str, **rest: Any) -> CronEntry:
    given = {"id": number, "schedule": schedule, "agent": "crab", "skill": "feeds", **rest}
    return parse_entry(given, find_zone("UTC"))
