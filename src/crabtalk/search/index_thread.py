"""IndexThread: the one thread that writes the session index, one thing after the other.

It steps back for those that answer. Threads that only read are others.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# How much it steps back: a nice value.
INDEXING_NICENESS = 10
# What glibc is told: bytes from which on memory is the system's again once it is freed, and how
# many pools there are for what is smaller. The numbers of the two are its own.
MMAP_THRESHOLD_BYTES, MAX_ARENAS = 256 * 1024, 2
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8


class IndexThread:
    """Started by the first that needs it."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._is_closed = False

    def run(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Cancelled before it has begun, it does not begin; after that, it is carried out.

        Raises RuntimeError once it is closed.
        """
        if self._is_closed:
            raise RuntimeError("the session index is closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                1, thread_name_prefix="session-index", initializer=set_up_thread
            )
        return asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    async def close(self, last: Callable[[], None]) -> None:
        """Waits for what it still has to do, and then for `last`, whose exception is raised.

        One that never began is over.
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
    """Answering comes before indexing. The engine's own threads are started from this one, and
    are as patient."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), INDEXING_NICENESS)


def limit_malloc() -> None:
    """Of what was freed, in this thread as in all others: an allocator has one set of rules. The
    engine fills and frees megabytes with each commit, and one that is left to itself keeps them,
    for each thread anew: many times what is in use."""
    allocator = find_malloc_function("mallopt")
    if allocator is not None:
        allocator(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        allocator(M_ARENA_MAX, MAX_ARENAS)


def trim_malloc() -> None:
    """To the system, what is free and was too small for that."""
    trim = find_malloc_function("malloc_trim")
    if trim is not None:
        trim(0)


def find_malloc_function(name: str) -> Callable[..., int] | None:
    """A function that glibc has, and other systems do without."""
    import ctypes

    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found
