"""The destinations of log lines: a stream that may not be read, and a rotated file."""

import os
import select
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

LOG_FILE_NAME = "crabtalkd.log"
MAX_FILE_SIZE = 10 * 1024 * 1024
MAX_OLD_FILES = 3
# Wait so long for a reader; after that, not at all until it reads again.
POLL_TIMEOUT_MS = 250


class LogStream:
    """A stream that is written to only while it has room. `lost_lines` counts the lines lost since
    the last one written.

    It writes to the descriptor: Python's buffer has a lock, and the exit of the process fails if a
    stuck thread holds it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lost_lines = 0
        self._stream = stream
        self._is_line_partial = False
        self._poll = select.poll()
        try:
            self._descriptor = stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._descriptor = -1
        else:
            self._poll.register(self._descriptor, select.POLLOUT)

    def write(self, line: bytes) -> None:
        if self._descriptor < 0:
            self._stream.write(line.decode())
            return
        rest = b"\n" + line if self._is_line_partial else line
        while rest:
            if not self._poll.poll(0 if self.lost_lines else POLL_TIMEOUT_MS):
                raise BlockingIOError
            # A pipe that is writable has room for PIPE_BUF bytes.
            rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
            self._is_line_partial = bool(rest)


class LogFile:
    """The file, opened at the first write, and again after it was removed or a write failed.

    `lost_lines` counts the lines lost since the last one written.
    """

    def __init__(self, path: Path) -> None:
        self.lost_lines = 0
        self.path = path
        self._descriptor: int | None = None

    def write(self, line: bytes) -> None:
        try:
            descriptor, size = self._open_with_room(len(line))
            try:
                rest = line
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                os.ftruncate(descriptor, size)  # no half lines
                raise
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open_with_room(self, needed: int) -> tuple[int, int]:
        """Rotate the file if it lacks room. Returns its descriptor and size."""
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:
            self.close()
        size = os.fstat(self._open()).st_size
        if size and size + needed > MAX_FILE_SIZE:
            self.close()
            self._rotate()
            size = 0
        return self._open(), size

    def _open(self) -> int:
        if self._descriptor is None:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self.path.parent.chmod(0o700)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(self.path, flags, 0o600)
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise OSError("it is not a regular file")
            os.fchmod(self._descriptor, 0o600)
        return self._descriptor

    def _rotate(self) -> None:
        names = [
            LOG_FILE_NAME,
            *(f"{LOG_FILE_NAME}.{number}" for number in range(1, MAX_OLD_FILES + 1)),
        ]
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            with suppress(FileNotFoundError):
                self.path.with_name(newer).replace(self.path.with_name(older))
