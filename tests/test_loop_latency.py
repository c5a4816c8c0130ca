"""A measure that sees nothing would let everything pass."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from tests.loop_latency import measure_loop_latency


@pytest.mark.clock
async def test_a_loop_that_is_held_up_is_seen() -> None:
    async with measure_loop_latency() as late:
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251 - as a call that blocks would
        await asyncio.sleep(0.05)
    assert max(late) > 0.15


@pytest.mark.clock
async def test_a_thread_that_holds_the_interpreter_is_seen() -> None:
    async with measure_loop_latency() as late:
        await asyncio.sleep(0.02)
        # One call of C, which lets nobody in.
        await asyncio.to_thread(sum, range(12_000_000))
        await asyncio.sleep(0.02)
    assert max(late) > 0.03


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a core to share")
@pytest.mark.clock
def test_a_machine_that_looks_away_is_not_blamed_on_the_loop() -> None:
    """With others on the one core that it may use."""
    script = """
import asyncio, os, subprocess, sys, time
from tests.loop_latency import measure_loop_latency

async def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    async with measure_loop_latency() as late:
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        sum(range(3_000_000))
        took = time.monotonic() - begun
        await asyncio.sleep(0.05)
    for one in busy:
        one.kill()
        one.wait()
    print(max(late), took)

asyncio.run(main())
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    late, took = map(float, found.stdout.split())
    assert late < took / 2
