"""Backoff: growing pauses between retries, with jitter."""

import asyncio
import random

FIRST_DELAY, MAX_DELAY = 0.25, 30.0


class Backoff:
    def __init__(self, first: float = FIRST_DELAY, longest: float = MAX_DELAY) -> None:
        self._first_delay = first
        self._max_delay = longest
        self._next_delay = first

    def reset(self) -> None:
        """The last try worked: start again with the first delay."""
        self._next_delay = self._first_delay

    async def wait(self, at_least: float = 0.0) -> None:
        """Wait for the next delay. Cancelled, the delay still counts as used."""
        longest, self._next_delay = self._next_delay, min(self._next_delay * 2, self._max_delay)
        # Jitter: clients that lost the same service at the same time do not all retry at once.
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - no secret
        await asyncio.sleep(max(pause, at_least))
