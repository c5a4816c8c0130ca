"""The input history: one file in the home, shared by all chats.

Each line is one message as a JSON string, so messages of several lines survive. The file is
bounded. Losing it loses only convenience, so errors are ignored.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

MAX_ENTRIES = 1000
MAX_BYTES = 1 << 20  # bytes read; the file is cut back to it when it is twice as large
MAX_ENTRY_BYTES = 1 << 16  # a longer message was pasted and is not stored


class InputHistory(History):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries, newest first."""
        try:
            with self._path.open("rb") as file:
                return reversed(parse_entries(read_tail(file.fileno())))
        except OSError:
            return ()

    def append_string(self, string: str) -> None:
        if string.strip() and string != next(iter(self._loaded_strings), None):
            super().append_string(string)
            del self._loaded_strings[MAX_ENTRIES:]

    def store_string(self, string: str) -> None:
        line = f"{json.dumps(string, ensure_ascii=False)}\n".encode(errors="replace")
        if len(line) > MAX_ENTRY_BYTES:
            return
        with suppress(OSError):
            descriptor = open_locked(self._path)
            try:
                os.write(descriptor, line)
                if os.fstat(descriptor).st_size > 2 * MAX_BYTES:
                    self._truncate_file(descriptor)
            finally:
                os.close(descriptor)

    def _truncate_file(self, descriptor: int) -> None:
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        lines = [
            json.dumps(entry, ensure_ascii=False) for entry in parse_entries(read_tail(descriptor))
        ]
        fresh.touch(mode=0o600)
        fresh.write_text("\n".join([*lines, ""]))
        fresh.replace(self._path)


def open_locked(path: Path) -> int:
    """Open the file for appending, with an exclusive lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another chat may have replaced the file with a shorter one while this one waited.
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)


def read_tail(descriptor: int) -> bytes:
    """Read the end of a file, from the beginning of a line."""
    size = os.fstat(descriptor).st_size
    if size <= MAX_BYTES:
        return os.pread(descriptor, size, 0)
    return os.pread(descriptor, MAX_BYTES, size - MAX_BYTES).partition(b"\n")[2]


def parse_entries(data: bytes) -> list[str]:
    """Parse entries, oldest first; invalid lines are left out."""
    entries = []
    for line in data.splitlines()[-MAX_ENTRIES:]:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, str):
                entries.append(entry)
    return entries
