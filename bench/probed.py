"""The daemon as `crabtalkd run` runs it, which says on SIGUSR1 what is alive in it.

    python -m bench.probed FILE run --home DIR ...

A line of JSON is added to FILE each time: the tasks by what they do, threads, and objects the
collector knows of.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections import Counter
from types import FrameType

from crabtalk.daemon.cli import main


def tell(number: int, frame: FrameType | None) -> None:
    tasks = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    gc.collect()
    alive = {"tasks": tasks, "threads": threading.active_count(), "objects": len(gc.get_objects())}
    line = json.dumps(alive).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line)
    os.close(descriptor)


if __name__ == "__main__":
    path = sys.argv.pop(1)
    signal.signal(signal.SIGUSR1, tell)
    main()
