"""Replaces small files atomically: no reader sees half of one, and no crash leaves half of one."""

import os
import re
from contextlib import suppress
from pathlib import Path

TEMPORARY_NAME = re.compile(r"\..+\.(\d+)\.new")


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a temporary file, fsync it, rename it to `path`, and fsync the directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove_stale_temporary_files(directory: Path) -> None:
    """Remove temporary files that a crash left behind: they may hold secrets."""
    with suppress(OSError):
        for path in directory.iterdir():
            match = TEMPORARY_NAME.fullmatch(path.name)
            if match and not is_process_alive(int(match[1])):
                path.unlink(missing_ok=True)


def is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        return True
    return True
