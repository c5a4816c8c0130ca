"""The snapshot as a file: read whole, replaced whole, copied aside when it is damaged."""

import os
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from .journal_file import SnapshotReference, write_at

# A reader that meets a writer looks again this often.
MAX_READS = 8


def identify_snapshot(data: bytes) -> SnapshotReference:
    """How a journal names the snapshot that it follows. A missing one is an empty one."""
    return SnapshotReference(len(data), zlib.crc32(data))


def read_file(path: Path) -> bytes:
    """Nothing where there is nothing. A link is not followed."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(file, "rb") as reader:
        return reader.read()


def read_files(path: Path) -> tuple[bytes, bytes, bytes]:
    """Snapshot, journal and checksums of one moment, while somebody may be writing them. A writer
    replaces the snapshot before it empties the journal, and after it replaced the checksums, which
    fit the snapshot before as well: while the snapshot stays, so do the others."""
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
    """The next snapshot, flushed, next to this one. What a crash left there is replaced."""
    aside = temporary_path(path)
    aside.unlink(missing_ok=True)
    write_new_file(aside, data)
    return aside


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
    """A copy of a damaged file under a dated name, once: a crash before the file is replaced
    leads here again."""
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
