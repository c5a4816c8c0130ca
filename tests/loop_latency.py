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

TICK = 0.002
PROC_STAT = Path("/proc/stat")


@asynccontextmanager
async def measure_loop_latency() -> AsyncIterator[list[float]]:
    """Seconds, each time it was due, without those in which a thread of this process stood in line
    for a core, or a core was stolen. Blocking calls count, and threads that hold the interpreter.
    """
    late: list[float] = []
    task = asyncio.ensure_future(record_latency(late))
    try:
        yield late
    finally:
        task.cancel()
        await asyncio.wait([task])


async def record_latency(late: list[float]) -> None:
    line = RunQueueWait()
    line.read_longest_wait()
    while True:
        begun = time.monotonic() - read_steal_time()
        await asyncio.sleep(TICK)
        late.append(time.monotonic() - read_steal_time() - begun - TICK - line.read_longest_wait())


def read_steal_time() -> float:
    """Seconds that a host has given cores of this machine to others of its guests. To whatever ran
    on them here it looks as if it had taken that long. None, where the system does not say."""
    if not PROC_STAT.exists():
        return 0.0
    first, *_ = PROC_STAT.read_text().splitlines()
    return int(first.split()[8]) / os.sysconf("SC_CLK_TCK")


class RunQueueWait:
    """Where threads of this process wait for a core."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def read_longest_wait(self) -> float:
        """Seconds since it was last asked, of the one that stood there longest: of several at once
        each would else count for itself."""
        before, self._seen = self._seen, {}
        for thread in Path("/proc/self/task").iterdir():
            try:
                self._seen[thread.name] = int((thread / "schedstat").read_text().split()[1])
            except OSError:  # it has just ended
                continue
        return max(ns - before.get(name, 0) for name, ns in self._seen.items()) / 1e9
