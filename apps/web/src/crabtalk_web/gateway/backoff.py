"""Retry backoff: each delay is longer than the last, with random jitter."""

import asyncio
import random

FIRST_DELAY, MAX_DELAY = 0.25, 30.0


class RetryBackoff:
    def __init__(self, first: float = FIRST_DELAY, longest: float = MAX_DELAY) -> None:
        self._first_delay = first
        self._max_delay = longest
        self._next_delay = first

    def reset(self) -> None:
        """The attempt succeeded: start again with the first delay."""
        self._next_delay = self._first_delay

    async def wait(self) -> None:
        """Sleep for the next delay. Cancellation changes nothing but the next delay."""
        longest, self._next_delay = self._next_delay, min(self._next_delay * 2, self._max_delay)
        # Jitter: gateways that lost the same relay together must not all return together.
        await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - no secret
