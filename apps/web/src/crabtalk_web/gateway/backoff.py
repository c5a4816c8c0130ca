"""Backoff: how long to wait before the next try, longer each time and never quite the same."""

import asyncio
import random

FIRST_DELAY, MAX_DELAY = 0.25, 30.0


class RetryBackoff:
    def __init__(self, first: float = FIRST_DELAY, longest: float = MAX_DELAY) -> None:
        self._first_delay = first
        self._max_delay = longest
        self._next_delay = first

    def reset(self) -> None:
        """It worked."""
        self._next_delay = self._first_delay

    async def wait(self) -> None:
        """Cancelled, it has not waited, and nothing else has changed."""
        longest, self._next_delay = self._next_delay, min(self._next_delay * 2, self._max_delay)
        # Whoever lost the same relay at the same time does not come back at the same time.
        await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - no secret
