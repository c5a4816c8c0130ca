"""crabtalkd that logs its accesses to files outside its home, and its memory use.

Run `python -m tests.hostile.watched_daemon run --home HOME`. WATCH_NOTES names the log of accesses:
writes outside HOME, and any access below WATCH_SECRET. WATCH_HELD names the log of memory use, a
line per sample.
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
# Directories without ordinary files.
SPECIAL_DIRECTORIES = ("/dev/", "/proc/")
# Events that change files, with the number of path arguments.
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
    home: str, secret: str, log_access: Callable[[str], None]
) -> Callable[[str, Any], None]:
    """A hook for `sys.addaudithook`."""

    def resolve_path(path: Any) -> str:
        """The absolute path; empty for descriptors and names relative to an open directory."""
        if not isinstance(path, str | bytes | os.PathLike):
            return ""
        text = os.fsdecode(path)
        is_resolvable = text.startswith("/") or ".." in text.split("/")
        return os.path.normpath(Path.cwd() / text) if is_resolvable else ""

    def is_below(path: str, directory: str) -> bool:
        return path == directory or path.startswith(f"{directory}/")

    def hook(event: str, arguments: Any) -> None:
        if event == "open":
            paths, changes = arguments[:1], bool((arguments[2] or 0) & WRITE_FLAGS)
        elif event in CHANGE_EVENTS:
            paths, changes = arguments[: CHANGE_EVENTS[event]], True
        elif event in READ_EVENTS:
            paths, changes = arguments[: READ_EVENTS[event]], False
        else:
            return
        for path in map(resolve_path, paths):
            if not path or path.startswith(SPECIAL_DIRECTORIES):
                continue
            if is_below(path, secret) or (changes and not is_below(path, home)):
                log_access(f"{event} {path}\n")

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
    """Log the bytes allocated by the C library, and Python's objects of up to 512 bytes, which the
    C library does not see. Freed memory that is kept for later is not included."""
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
