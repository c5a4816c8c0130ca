"""Watches crons.toml for changes, and removes entries from it that were to run once.

Editors write in place, or write another file and rename it; both are noticed. A file is read when
two checks in a row saw the same version, because half of a file could pass for one with fewer
entries.
"""

import os
import stat
from pathlib import Path

from crabtalk.transport import replace_file

from .crons_file import CronsFile, FileRemark, parse_crons_file
from .entry import CronEntry
from .toml_document import remove_entry

# Seconds between two checks.
POLL_INTERVAL = 0.5
# A file that never stops changing is read after this many checks.
MAX_CHECKS = 3
# Bytes of a file; ten thousand entries are about half of it.
MAX_FILE_BYTES = 2 * 1024 * 1024
MAX_TRIES = 5


class CronsFileWatcher:
    """Blocks on the file system: call it from a thread, one call at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_version: object = ""  # the version that was read last
        self._seen_version: object = ""
        self._check_count = 0

    def check_file(self) -> CronsFile | None:
        """The content of the file, if it may have changed and is not being written."""
        version = get_file_version(self.path)
        if version == self._read_version:
            return None
        is_settled = version == self._seen_version
        self._seen_version = version
        self._check_count += 1
        if not is_settled and self._check_count < MAX_CHECKS:
            return None
        self._check_count = 0
        if is_settled:
            self._read_version = version
        return self.read_file()

    def read_file(self) -> CronsFile:
        """The content now; empty if there is no file. Never raises."""
        try:
            text = read_text(self.path)
        except FileNotFoundError:
            return CronsFile()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            return CronsFile(mistakes=[FileRemark(1, f"it cannot be read: {reason}")])
        return parse_crons_file(text)

    def remove_entry(self, entry: CronEntry) -> bool:
        """Remove the entry. False if the file does not have it any more, or has changed it.

        Raises OSError or ValueError without having changed anything.
        """
        path = self.path.resolve()  # replaces the target of a link, not the link
        for _ in range(MAX_TRIES):
            version = get_file_version(path)
            try:
                text = read_text(path)
            except FileNotFoundError:
                return False
            crons = parse_crons_file(text)
            if entry not in crons.entries:
                if crons.mistakes:
                    raise ValueError(str(crons.mistakes[0]))
                return False
            remaining_text = remove_entry(text, crons.table_numbers[crons.entries.index(entry)])
            if get_file_version(path) == version:  # else another program has just written it
                replace_file(path, remaining_text.encode(), stat.S_IMODE(path.stat().st_mode))
                return True
        raise ValueError("it keeps changing")


def get_file_version(path: Path) -> object:
    """Changes when the file is written or replaced.

    Two writes within a few milliseconds may give the same version: file times are that coarse.
    """
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read_text(path: Path) -> str:
    # O_NONBLOCK: opening a pipe would not end otherwise.
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
