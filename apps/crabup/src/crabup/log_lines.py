"""The lines of a service's log: the last ones, and new ones as they are written."""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import CrabupError
from .programs import make_log_path

# Seconds between two checks of a file; a person reads no faster.
POLL_INTERVAL = 0.1


def find_log(name: str, home: Path) -> Path:
    """The log also has what the service prints. Raises CrabupError if there is none yet."""
    path = make_log_path(name, home)
    if not path.is_file():
        raise CrabupError(f"{name} has no log in {home}; `crabup {name} start` starts it")
    return path


def read_last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """The last lines, and the position of the end of the file."""
    with path.open("rb") as file:
        lines = [decode_line(line) for line in deque(file, count)]
        return lines, file.tell()


def follow_lines(path: Path, position: int) -> Iterator[str]:
    """Yield lines from a position on, for ever. A rotated file is read from its start."""
    while True:
        try:
            with path.open("rb") as file:
                file.seek(position)
                yield from read_lines(file, path)
        except FileNotFoundError:
            time.sleep(POLL_INTERVAL)
        position = 0


def read_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    """Yield lines until the file is replaced or emptied, and all of it was read."""
    line = b""
    while True:
        is_current = is_same_file(file, path)  # checked before the read, so that no line is lost
        while chunk := file.readline():
            line += chunk
            if line.endswith(b"\n"):
                yield decode_line(line)
                line = b""
        if not is_current:
            return
        time.sleep(POLL_INTERVAL)


def is_same_file(file: BinaryIO, path: Path) -> bool:
    try:
        current = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(file.fileno())
    return os.path.samestat(opened, current) and opened.st_size >= file.tell()


def decode_line(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")
