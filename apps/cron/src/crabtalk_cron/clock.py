"""Clock: time, chance and this machine's zone, in one object, so that a test can bring its own."""

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
        """Something that differs when this machine was given another zone."""
        time.tzset()
        return time.tzname, time.timezone, time.altzone

    async def wait(self, woken: asyncio.Event, seconds: float) -> None:
        """Until `woken` is set, or about so long. Cancelled, nothing is left behind."""
        try:
            async with asyncio.timeout(seconds):
                await woken.wait()
        except TimeoutError:
            pass
