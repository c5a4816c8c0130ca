"""Times: milliseconds that only ever grow. Readers sort by them, so no two may be the same."""


class IncreasingClock:
    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self, at: int) -> int:
        """`at`, or just after the last one if that is later."""
        self.last = max(self.last + 1, at)
        return self.last
