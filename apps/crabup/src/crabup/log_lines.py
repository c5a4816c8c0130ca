"""The lines of a service's log: the last ones, and those that come."""

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import CrabupError
from .programs import make_log_path

# Between two looks at a file; a person reads no faster.
POLL_INTERVAL = 0.1


def find_log(name: str, home: Path) -> Path:
    """What it prints is in there too. Raises CommandError when it has none yet."""
    path = make_log_path(name, home)
    if not path.is_file():
        raise CrabupError(f"{name} has no log in {home}; `crabup {name} start` starts it")
    return path


def read_last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """The last lines, and where the file ended then."""
    with path.open("rb") as file:
        lines = [decode_line(line) for line in deque(file, count)]
        return lines, file.tell()


def follow_lines(path: Path, position: int) -> Iterator[str]:
    """Every line from there on, for ever. A file that is turned over is read from its start."""
    while True:
        try:
            with path.open("rb") as file:
                file.seek(position)
                yield from read_lines(file, path)
        except FileNotFoundError:
            time.sleep(POLL_INTERVAL)
        position = 0


def read_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    """Until the file is replaced or emptied, and all of it was read."""
    half = b""
    while True:
        is_current = is_same_file(file, path)  # before the read: what comes later is not lost
        while piece := file.readline():
            half += piece
            if half.endswith(b"\n"):
                yield decode_line(half)
                half = b""
        if not is_current:
            return
        time.sleep(POLL_INTERVAL)


def is_same_file(file: BinaryIO, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file.fileno())
    return os.path.samestat(here, there) and here.st_size >= file.tell()


def decode_line(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")
