"""Watcher: looks at crons.toml, says when it has changed, and takes fired entries out of it.

Editors write in place or beside and rename; both are noticed. A file is read when it was the same
in two looks, so that one half written is not taken for one with half its entries removed.
"""

import os
import stat
from pathlib import Path

from crabtalk.transport import replace_file

from .crons_file import CronsFile, FileRemark, parse_crons_file
from .entry import CronEntry
from .toml_document import remove_entry

# Seconds between two looks.
POLL_INTERVAL = 0.5
# A file that never stops changing is read after so many looks.
MAX_CHECKS = 3
# Of a file in bytes; ten thousand entries are about half of it.
MAX_FILE_BYTES = 2 * 1024 * 1024
MAX_TRIES = 5


class CronsFileWatcher:
    """Blocks for as long as the file system does: call it from a thread, one call at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_version: object = ""  # what the file was like when it was read
        self._seen_version: object = ""
        self._check_count = 0

    def check_file(self) -> CronsFile | None:
        """What the file says, if that may have changed and it is not being written."""
        shape = get_file_version(self.path)
        if shape == self._read_version:
            return None
        is_settled = shape == self._seen_version
        self._seen_version = shape
        self._check_count += 1
        if not is_settled and self._check_count < MAX_CHECKS:
            return None
        self._check_count = 0
        if is_settled:
            self._read_version = shape
        return self.read_file()

    def read_file(self) -> CronsFile:
        """What it says now; without a file, nothing. Never raises."""
        try:
            text = read_text(self.path)
        except FileNotFoundError:
            return CronsFile()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            return CronsFile(mistakes=[FileRemark(1, f"it cannot be read: {reason}")])
        return parse_crons_file(text)

    def remove_entry(self, entry: CronEntry) -> bool:
        """Takes out that entry; False when it is not there any more, or not as it was.

        Raises OSError or ValueError, and has changed nothing then.
        """
        path = self.path.resolve()  # a link stays one
        for _ in range(MAX_TRIES):
            shape = get_file_version(path)
            try:
                text = read_text(path)
            except FileNotFoundError:
                return False
            found = parse_crons_file(text)
            if entry not in found.entries:
                if found.mistakes:
                    raise ValueError(str(found.mistakes[0]))
                return False
            left = remove_entry(text, found.table_numbers[found.entries.index(entry)])
            if get_file_version(path) == shape:  # else somebody was quicker
                replace_file(path, left.encode(), stat.S_IMODE(path.stat().st_mode))
                return True
        raise ValueError("it keeps changing")


def get_file_version(path: Path) -> object:
    """Differs from what it was before the file was written or replaced.

    Not if that was milliseconds ago: a file's times stand still for so long.
    """
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_text(path: Path) -> str:
    # Opening a pipe would not end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a file; move it away")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(
            f"it is larger than {MAX_FILE_BYTES // 1024 // 1024} MiB; take entries out"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8; convert it") from None
