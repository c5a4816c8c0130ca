"""Backoff: how long to wait before the next try, longer each time and never quite the same."""

import asyncio
import random

FIRST, LONGEST = 0.25, 30.0


class Backoff:
    def __init__(self, first: float = FIRST, longest: float = LONGEST) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        """It worked."""
        self._next = self._first

    async def wait(self, at_least: float = 0.0) -> None:
        """Cancelled, it has not waited, and nothing else has changed."""
        longest, self._next = self._next, min(self._next * 2, self._longest)
        # Who lost the same service at the same time does not come back at the same time.
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - no secret
        await asyncio.sleep(max(pause, at_least))
