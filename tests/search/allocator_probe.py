"""A process that commits many times, and then reports the free memory its allocator still holds.

python -m tests.search.allocator_probe HOME COMMITS

Prints the free megabytes that were not returned to the system.
"""

import asyncio
import ctypes
import sys
from pathlib import Path

from crabtalk.storage import Pair
from tests.search.search_harness import open_harness

MALLINFO_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class MallocInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO_FIELDS.split()]


async def measure_free_memory(home: Path, commits: int) -> float:
    async with open_harness(home) as harness:
        for number in range(commits):
            for sender in range(8):
                words = [f"word{number}x{position}" for position in range(40)]
                await harness.append_messages(Pair("crab", f"user{sender}"), *words)
            await harness.wait_until_committed()
        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = MallocInfo
        free: int = libc.mallinfo2().fordblks
    return free / 1e6


if __name__ == "__main__":
    print(asyncio.run(measure_free_memory(Path(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201
