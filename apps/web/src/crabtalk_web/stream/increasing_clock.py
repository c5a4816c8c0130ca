"""Strictly increasing milliseconds. Readers sort by time, so no two envelopes may have the same."""


class IncreasingClock:
    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self, at: int) -> int:
        """Return `at`, or one more than the last time if that is later."""
        self.last = max(self.last + 1, at)
        return self.last
