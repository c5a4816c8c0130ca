"""IndexThread: the one thread that writes the session index, one job after the other.

It runs at low priority. Reads use other threads.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# Its nice value.
INDEXING_NICENESS = 10
# Options for glibc's malloc: the size from which on freed memory is returned to the system, and how
# many arenas there are for smaller blocks. The numbers of the two options are glibc's.
MMAP_THRESHOLD_BYTES, MAX_ARENAS = 256 * 1024, 2
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8


class IndexThread:
    """The thread starts with the first job."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._is_closed = False

    def run(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Run `function` in the thread. Cancelled before it starts, it does not run; later, it
        does.

        Raises RuntimeError after `close`.
        """
        if self._is_closed:
            raise RuntimeError("the session index is closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                1, thread_name_prefix="session-index", initializer=set_up_thread
            )
        return asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    async def close(self, last: Callable[[], None]) -> None:
        """Wait for the queued jobs, then run `last`, whose exception is raised.

        A thread that was never started runs nothing.
        """
        self._is_closed = True
        if self._executor is None:
            return
        try:
            await asyncio.wrap_future(self._executor.submit(last))
        finally:
            await asyncio.to_thread(self._executor.shutdown)


def set_up_thread() -> None:
    lower_priority()
    limit_malloc()


def lower_priority() -> None:
    """Lower the thread's priority: answering comes before indexing.

    Tantivy starts its threads from this one, so they inherit the priority.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), INDEXING_NICENESS)


def limit_malloc() -> None:
    """Make malloc return freed memory, in all threads: its options are per process.

    Each commit makes tantivy allocate and free megabytes. By default malloc keeps them, once per
    thread: many times what is in use.
    """
    allocator = find_malloc_function("mallopt")
    if allocator is not None:
        allocator(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        allocator(M_ARENA_MAX, MAX_ARENAS)


def trim_malloc() -> None:
    """Return free memory below the threshold to the system."""
    trim = find_malloc_function("malloc_trim")
    if trim is not None:
        trim(0)


def find_malloc_function(name: str) -> Callable[..., int] | None:
    """Find a function that only glibc has."""
    import ctypes

    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function
