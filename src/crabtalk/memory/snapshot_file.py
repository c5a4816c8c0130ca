"""The snapshot file: read and replaced as a whole, and backed up when it is damaged."""

import os
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from .journal_file import SnapshotReference, write_at

# How often a reader retries while a writer is active.
MAX_READS = 8


def identify_snapshot(data: bytes) -> SnapshotReference:
    """How a journal names the snapshot it follows. A missing snapshot counts as empty."""
    return SnapshotReference(len(data), zlib.crc32(data))


def read_file(path: Path) -> bytes:
    """Read a file; empty if it does not exist. Symbolic links are not followed."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(file, "rb") as reader:
        return reader.read()


def read_files(path: Path) -> tuple[bytes, bytes, bytes]:
    """Read snapshot, journal and checksums of the same moment, even during a write.

    A writer first replaces the checksums, which also fit the old snapshot, then the snapshot, and
    then empties the journal. So while the snapshot stays the same, all three fit.
    """
    for _ in range(MAX_READS):
        data, lines, sums = (
            read_file(path),
            read_file(journal_path(path)),
            read_file(checksums_path(path)),
        )
        if read_file(path) == data:
            break
    return data, lines, sums


def journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")


def checksums_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sums")


def write_temporary(path: Path, data: bytes) -> Path:
    """Write and flush the next snapshot beside the current one, replacing what a crash left."""
    temporary = temporary_path(path)
    temporary.unlink(missing_ok=True)
    write_new_file(temporary, data)
    return temporary


def temporary_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def write_new_file(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        write_at(file, data, 0)
        os.fsync(file)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(file)


def flush_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def back_up_damaged(path: Path, data: bytes, now: float) -> Path:
    """Copy a damaged file to a dated name.

    It is copied once, even if a crash before its replacement makes this run again.
    """
    prefix = f"{path.name}.damaged-"
    for old in path.parent.iterdir():
        if old.name.startswith(prefix) and read_file(old) == data:
            return old
    dated = f"{prefix}{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}"
    copy = path.with_name(dated)
    number = 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{dated}-{number}")
    write_new_file(copy, data)
    flush_directory(path.parent)
    return copy
