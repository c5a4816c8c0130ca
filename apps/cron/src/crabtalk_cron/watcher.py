"""Watcher: looks at crons.toml, says when it has changed, and takes fired entries out of it.

Editors write in place or beside and rename; both are noticed. A file is read when it was the same
in two looks, so that one half written is not taken for one with half its entries removed.
"""

import os
import stat
from pathlib import Path

from crabtalk.transport import replace_file

from .document import without
from .entry import Entry
from .reading import Reading, Remark, read_entries

# Seconds between two looks.
LOOK_EVERY = 0.5
# A file that never stops changing is read after so many looks.
MOST_LOOKS = 3
# Of a file in bytes; ten thousand entries are about half of it.
MOST = 2 * 1024 * 1024
TRIES = 5


class Watcher:
    """Blocks for as long as the file system does: call it from a thread, one call at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: object = ""  # what the file was like when it was read
        self._seen: object = ""
        self._looks = 0

    def look(self) -> Reading | None:
        """What the file says, if that may have changed and it is not being written."""
        shape = shape_of(self.path)
        if shape == self._read:
            return None
        is_settled = shape == self._seen
        self._seen = shape
        self._looks += 1
        if not is_settled and self._looks < MOST_LOOKS:
            return None
        self._looks = 0
        if is_settled:
            self._read = shape
        return self.read()

    def read(self) -> Reading:
        """What it says now; without a file, nothing. Never raises."""
        try:
            text = text_of(self.path)
        except FileNotFoundError:
            return Reading()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            return Reading(mistakes=[Remark(1, f"it cannot be read: {reason}")])
        return read_entries(text)

    def remove(self, entry: Entry) -> bool:
        """Takes out that entry; False when it is not there any more, or not as it was.

        Raises OSError or ValueError, and has changed nothing then.
        """
        path = self.path.resolve()  # a link stays one
        for _ in range(TRIES):
            shape = shape_of(path)
            try:
                text = text_of(path)
            except FileNotFoundError:
                return False
            found = read_entries(text)
            if entry not in found.entries:
                if found.mistakes:
                    raise ValueError(str(found.mistakes[0]))
                return False
            left = without(text, found.places[found.entries.index(entry)])
            if shape_of(path) == shape:  # else somebody was quicker
                replace_file(path, left.encode(), stat.S_IMODE(path.stat().st_mode))
                return True
        raise ValueError("it keeps changing")


def shape_of(path: Path) -> object:
    """Differs from what it was before the file was written or replaced.

    Not if that was milliseconds ago: a file's times stand still for so long.
    """
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def text_of(path: Path) -> str:
    # Opening a pipe would not end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a file; move it away")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST + 1)
    finally:
        os.close(descriptor)
    if len(data) > MOST:
        raise ValueError(f"it is larger than {MOST // 1024 // 1024} MiB; take entries out")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8; convert it") from None
