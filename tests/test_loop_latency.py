"""The latency measurement itself: if it saw nothing, other tests could not fail."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from tests.loop_latency import measure_loop_latency


@pytest.mark.clock
async def test_a_blocked_loop_is_seen() -> None:
    async with measure_loop_latency() as delays:
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251 - like any blocking call
        await asyncio.sleep(0.05)
    assert max(delays) > 0.15


@pytest.mark.clock
async def test_a_thread_that_holds_the_interpreter_is_seen() -> None:
    async with measure_loop_latency() as delays:
        await asyncio.sleep(0.02)
        # One call into C that does not release the interpreter.
        await asyncio.to_thread(sum, range(12_000_000))
        await asyncio.sleep(0.02)
    assert max(delays) > 0.03


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a core to share")
@pytest.mark.clock
def test_a_busy_machine_is_not_blamed_on_the_loop() -> None:
    """Other processes compete for the one core that it may use."""
    script = """
import asyncio, os, subprocess, sys, time
from tests.loop_latency import measure_loop_latency

async def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    async with measure_loop_latency() as delays:
        await asyncio.sleep(0.05)
        start = time.monotonic()
        sum(range(3_000_000))
        took = time.monotonic() - start
        await asyncio.sleep(0.05)
    for process in busy:
        process.kill()
        process.wait()
    print(max(delays), took)

asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    delay, took = map(float, result.stdout.split())
    assert delay < took / 2
