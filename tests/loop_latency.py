"""Measures how late an event loop runs, without delays caused by a busy machine.

async with measure_loop_latency() as delays:
    ...
assert max(delays) < 0.05
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
    """Collects the delay of each tick in seconds.

    Time in which a thread of this process waited for a core, or a core was stolen, is subtracted.
    Blocking calls count, and so do threads that hold the interpreter.
    """
    delays: list[float] = []
    task = asyncio.ensure_future(record_latency(delays))
    try:
        yield delays
    finally:
        task.cancel()
        await asyncio.wait([task])


async def record_latency(delays: list[float]) -> None:
    run_queue = RunQueueWait()
    run_queue.read_longest_wait()
    while True:
        start = time.monotonic() - read_steal_time()
        await asyncio.sleep(TICK)
        elapsed = time.monotonic() - read_steal_time() - start
        delays.append(elapsed - TICK - run_queue.read_longest_wait())


def read_steal_time() -> float:
    """Seconds in which the host gave this machine's cores to other guests.

    To a program on such a core it looks as if it had run all that time. 0 where the system does
    not report it.
    """
    if not PROC_STAT.exists():
        return 0.0
    first, *_ = PROC_STAT.read_text().splitlines()
    return int(first.split()[8]) / os.sysconf("SC_CLK_TCK")


class RunQueueWait:
    """How long threads of this process waited for a core."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def read_longest_wait(self) -> float:
        """Seconds since the last call that the longest waiting thread waited.

        Only the longest, because threads that wait at the same time would be counted twice.
        """
        before, self._seen = self._seen, {}
        for thread in Path("/proc/self/task").iterdir():
            try:
                self._seen[thread.name] = int((thread / "schedstat").read_text().split()[1])
            except OSError:  # it has just ended
                continue
        return max(ns - before.get(name, 0) for name, ns in self._seen.items()) / 1e9
