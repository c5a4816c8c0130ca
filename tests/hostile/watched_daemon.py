"""crabtalkd that notes each file it touches where it has no business, and what it holds in memory.

python -m tests.hostile.watched_daemon run --home HOME, with WATCH_NOTES naming the file for the
notes and WATCH_SECRET a directory of which nothing may even be read. What is written below HOME is
its own.
WATCH_HELD names the file for what it holds: a line each moment.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crabtalk.daemon.cli import main as crabtalkd

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What is no file, or no file of anybody's.
SPECIAL_DIRECTORIES = ("/dev/", "/proc/")
# Which arguments of an event are paths; each of these changes something.
CHANGE_EVENTS = {
    "os.chmod": 1,
    "os.chown": 1,
    "os.link": 2,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.utime": 1,
}
SAMPLE_SECONDS = 0.05
READ_EVENTS = {"os.listdir": 1, "os.scandir": 1, "os.chdir": 1}


def make_audit_hook(
    home: str, secret: str, note: Callable[[str], None]
) -> Callable[[str, Any], None]:
    """A hook for `sys.addaudithook`."""

    def whole(path: Any) -> str:
        """Where it leads; empty for a descriptor, and for a name in a directory that is open."""
        if not isinstance(path, str | bytes | os.PathLike):
            return ""
        text = os.fsdecode(path)
        is_told = text.startswith("/") or ".." in text.split("/")
        return os.path.normpath(Path.cwd() / text) if is_told else ""

    def is_below(path: str, directory: str) -> bool:
        return path == directory or path.startswith(f"{directory}/")

    def hook(event: str, given: Any) -> None:
        if event == "open":
            paths, changes = given[:1], bool((given[2] or 0) & WRITE_FLAGS)
        elif event in CHANGE_EVENTS:
            paths, changes = given[: CHANGE_EVENTS[event]], True
        elif event in READ_EVENTS:
            paths, changes = given[: READ_EVENTS[event]], False
        else:
            return
        for path in map(whole, paths):
            if not path or path.startswith(SPECIAL_DIRECTORIES):
                continue
            if is_below(path, secret) or (changes and not is_below(path, home)):
                note(f"{event} {path}\n")

    return hook


class MallocStatistics(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    )


def log_memory_use(descriptor: int) -> None:
    """Bytes that are in use, by the C library, and objects of up to 512 bytes, by Python: neither
    knows of the other's. What is free, and kept for later, is in neither."""
    allocated = ctypes.CDLL(None).mallinfo2
    allocated.restype = MallocStatistics
    while True:
        now = allocated()
        line = f"{now.uordblks + now.hblkhd} {sys.getallocatedblocks()}\n"
        os.write(descriptor, line.encode())
        time.sleep(SAMPLE_SECONDS)


def main() -> object:
    notes, held = (
        os.open(os.environ[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for name in ("WATCH_NOTES", "WATCH_HELD")
    )
    threading.Thread(target=log_memory_use, args=(held,), daemon=True).start()
    home = sys.argv[sys.argv.index("--home") + 1]

    def note(line: str) -> None:
        os.write(notes, os.fsencode(line))

    sys.addaudithook(make_audit_hook(home, os.environ["WATCH_SECRET"], note))
    return crabtalkd()


if __name__ == "__main__":
    main()
