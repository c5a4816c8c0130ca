"""A clock that only the test moves, and entries for tests."""

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
        self._idle = asyncio.Event()  # set when the runner has read the clock and waits

    def now(self) -> float:
        return self._now

    def random_fraction(self) -> float:
        return next(self._fractions, 0.0)

    def read_zone(self) -> object:
        return self._place

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        self._idle.set()
        waits = [asyncio.ensure_future(item.wait()) for item in (event, self._changed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._changed.clear()

    async def set_time(self, now: float, *, zone_name: str | None = None) -> None:
        """Set the clock, and return when the runner has read it."""
        await self._idle.wait()
        self._now = now
        self._place = zone_name or self._place
        self._idle.clear()
        self._changed.set()
        await self._idle.wait()


def make_entry(number: int, schedule: str, **rest: Any) -> CronEntry:
    fields = {"id": number, "schedule": schedule, "agent": "crab", "skill": "feeds", **rest}
    return parse_entry(fields, find_zone("UTC"))
