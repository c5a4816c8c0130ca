"""CronClock: time, random numbers and the local zone in one object, so that a test can replace it.

Cron reads them nowhere else.
"""

import asyncio
import random
import time


class CronClock:
    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def random_fraction(self) -> float:
        """At least 0, and less than 1."""
        return random.random()  # noqa: S311 - spreads load, keeps no secret

    def read_zone(self) -> object:
        """A value that changes when this machine's zone is changed."""
        time.tzset()
        return time.tzname, time.timezone, time.altzone

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until `event` is set, or for about `seconds`. Cancelled, nothing is left behind."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
