"""Replacing a small file so that no reader ever sees half of it, and no crash leaves half of it."""

import os
import re
from contextlib import suppress
from pathlib import Path

TEMPORARY_NAME = re.compile(r"\..+\.(\d+)\.new")


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write aside, fsync, rename, fsync the directory."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove_stale_temporary_files(directory: Path) -> None:
    """Removes what a crash left of files being replaced: it may hold secrets nobody knows of."""
    with suppress(OSError):
        for path in directory.iterdir():
            found = TEMPORARY_NAME.fullmatch(path.name)
            if found and not is_process_alive(int(found[1])):
                path.unlink(missing_ok=True)


def is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's process is one too
        return True
    return True
