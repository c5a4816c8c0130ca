"""The daemon as `crabtalkd run` runs it, plus signals that report its tasks and objects.

    python -m bench.probed_daemon FILE run --home DIR ...

SIGUSR1 appends a line of JSON to FILE: the number of tasks by coroutine, of threads, and of objects
known to the garbage collector. SIGUSR2 prints on stderr what each task waits for.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

from crabtalk.daemon.cli import main


def write_counts(number: int, frame: FrameType | None) -> None:
    tasks = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    gc.collect()
    counts = {"tasks": tasks, "threads": threading.active_count(), "objects": len(gc.get_objects())}
    line = json.dumps(counts).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line)
    os.close(descriptor)


def print_waits(number: int, frame: FrameType | None) -> None:
    for task in asyncio.all_tasks():
        print(f"{task.get_name()}:", *list_waits(task.get_coro()), file=sys.stderr, flush=True)


def list_waits(coroutine: Any) -> Iterator[str]:
    """List the suspended coroutines, from the outermost to the innermost."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            yield f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        inner = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
        if inner is None and not hasattr(coroutine, "cr_frame"):
            yield repr(coroutine)[:200]
        coroutine = inner


if __name__ == "__main__":
    path = sys.argv.pop(1)
    signal.signal(signal.SIGUSR1, write_counts)
    signal.signal(signal.SIGUSR2, print_waits)
    main()
