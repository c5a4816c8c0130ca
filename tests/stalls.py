"""How late an event loop comes round, but for what a busy machine is to blame for.

async with stalls() as late:
    ...
assert max(late) < 0.05
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PAUSE = 0.002
STAT = Path("/proc/stat")


@asynccontextmanager
async def stalls() -> AsyncIterator[list[float]]:
    """Seconds, each time it was due, without those in which a thread of this process stood in line
    for a core, or a core was stolen. Blocking calls count, and threads that hold the interpreter.
    """
    late: list[float] = []
    task = asyncio.ensure_future(tick(late))
    try:
        yield late
    finally:
        task.cancel()
        await asyncio.wait([task])


async def tick(late: list[float]) -> None:
    line = Line()
    line.stood()
    while True:
        begun = time.monotonic() - stolen()
        await asyncio.sleep(PAUSE)
        late.append(time.monotonic() - stolen() - begun - PAUSE - line.stood())


def stolen() -> float:
    """Seconds that a host has given cores of this machine to others of its guests. To whatever ran
    on them here it looks as if it had taken that long. None, where the system does not say."""
    if not STAT.exists():
        return 0.0
    first, *_ = STAT.read_text().splitlines()
    return int(first.split()[8]) / os.sysconf("SC_CLK_TCK")


class Line:
    """Where threads of this process wait for a core."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def stood(self) -> float:
        """Seconds since it was last asked, of the one that stood there longest: of several at once
        each would else count for itself."""
        before, self._seen = self._seen, {}
        for thread in Path("/proc/self/task").iterdir():
            try:
                self._seen[thread.name] = int((thread / "schedstat").read_text().split()[1])
            except OSError:  # it has just ended
                continue
        return max(ns - before.get(name, 0) for name, ns in self._seen.items()) / 1e9
