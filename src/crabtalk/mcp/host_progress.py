"""What servers say about the progress of calls, in the host: as often as anybody can follow."""

import asyncio
import math
from collections.abc import Callable

from .messages import Progress

INTERVAL = 0.1  # between two words about one call
LONGEST_WORDS = 2000
LONGEST_COUNT = 1e15  # written out


class Reports:
    """Those about one call. Of what comes too fast the latest is told, and never too late: `close`
    tells what was held back. Nothing is told after it."""

    def __init__(self, call: int, tell: Callable[[Progress], None]) -> None:
        self._call = call
        self._tell = tell
        self._held: Progress | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False

    def hear(self, progress: float, total: float | None, message: str | None) -> None:
        if self._is_closed:
            return
        self._held = word(self._call, progress, total, message)
        if self._pause is None:
            self._let_go()

    def close(self) -> None:
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        if self._held is not None:
            self._tell(self._held)
            self._held = None

    def _let_go(self) -> None:
        """Tells the latest, and then nothing for a while."""
        self._pause = None
        if self._held is not None:
            self._tell(self._held)
            self._held = None
            self._pause = asyncio.get_running_loop().call_later(INTERVAL, self._let_go)


def word(call: int, progress: float, total: float | None, message: str | None) -> Progress:
    """Numbers that mean nothing are left out: servers send any."""
    done = progress if math.isfinite(progress) and progress >= 0 else None
    end = total if total is not None and math.isfinite(total) and total > 0 else None
    if done is None or (end is not None and done > end):
        end = None
    said = " ".join((message or "")[:LONGEST_WORDS].split())
    text = said.encode(errors="replace").decode() or numbers(done, end)
    return Progress(call, text, done, end)


def numbers(done: float | None, end: float | None) -> str:
    """`3/10`, or `3` when there is no telling of how many."""
    return "/".join(number(one) for one in (done, end) if one is not None)


def number(value: float) -> str:
    return f"{value:.0f}" if value % 1 == 0 and value < LONGEST_COUNT else f"{value:g}"
