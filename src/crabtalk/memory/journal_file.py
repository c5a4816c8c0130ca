"""The journal: the changes since the snapshot, one checksummed line each. It holds no entries.

A line is the checksum and the length of the rest, in hex, and a record as JSON. JSON has no raw
line feed, so after damage the next line can be found whatever an entry contains. Records describe
states, not steps: replaying them twice has the same result as replaying them once.
"""

import fcntl
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from .entry import MemoryEntry
from .errors import MemoryInUseError, MemoryStoreError

log = logging.getLogger(__name__)
PREFIX_LENGTH = len("00000000 00000000 ")


class SnapshotReference(Struct, frozen=True, array_like=True, tag="base"):
    """Names the snapshot that has all earlier changes, by its size and CRC-32."""

    size: int
    checksum: int


class PutEntry(Struct, frozen=True, array_like=True, tag="put"):
    """The entry with this id is now `entry`."""

    entry: MemoryEntry


class DropEntry(Struct, frozen=True, array_like=True, tag="drop"):
    """The entry with this id, which had this name, was removed."""

    id: int
    name: str


EntryChange = PutEntry | DropEntry
JournalRecord = SnapshotReference | PutEntry | DropEntry
ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(JournalRecord)


@dataclass(slots=True)
class JournalLines:
    """The records of a journal. `end` is where the last one ends.

    `damaged_lines` counts unreadable lines, without one that a crash cut short.
    """

    records: list[JournalRecord] = field(default_factory=list)
    end: int = 0
    damaged_lines: int = 0


def encode_record(record: JournalRecord) -> bytes:
    payload = ENCODER.encode(record)
    return b"%08x %08x %s\n" % (zlib.crc32(payload), len(payload), payload)


def parse_journal(data: bytes) -> JournalLines:
    lines = JournalLines()
    position = 0
    while position < len(data):
        parsed = parse_record(data, position)
        if parsed is not None:
            record, position = parsed
            lines.records.append(record)
            lines.end = position
        else:
            line_end = data.find(b"\n", position)
            lines.damaged_lines += line_end >= 0
            position = line_end + 1 if line_end >= 0 else len(data)
    return lines


def parse_record(data: bytes, position: int) -> tuple[JournalRecord, int] | None:
    """Parse the record at `position`. Returns it and the position of the next, or None."""
    start = position + PREFIX_LENGTH
    try:
        checksum, length = (
            int(data[position : position + 8], 16),
            int(data[position + 9 : position + 17], 16),
        )
    except ValueError:
        return None
    # Without its line feed, the record was not written completely.
    if start + length >= len(data):
        return None
    payload = data[start : start + length]
    if zlib.crc32(payload) != checksum:
        return None
    try:
        return DECODER.decode(payload), start + length + 1
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class JournalFile:
    """Locked by one process at a time, which may write the memory."""

    def __init__(self, path: Path, *, flush: bool = True) -> None:
        """Creates the file if needed. Raises MemoryInUseError when another holder has the lock."""
        self.path = path
        self.size = 0
        self._flush = flush
        self._is_broken = False
        self._file = open_locked(path)

    def read(self) -> bytes:
        size = os.fstat(self._file).st_size
        with os.fdopen(self._file, "rb", closefd=False) as file:
            file.seek(0)
            return file.read(size)

    def truncate(self, size: int) -> None:
        """Cut everything after the last complete record."""
        if os.fstat(self._file).st_size > size:
            os.ftruncate(self._file, size)
            os.fsync(self._file)
        self.size = size

    def append(self, records: Sequence[JournalRecord], *, base: SnapshotReference) -> None:
        """Append records. They are stored when this returns; if it raises, the journal is
        unchanged.

        A new journal begins with its base.
        """
        if self._is_broken:
            raise MemoryStoreError(
                f"{self.path.name} could not be restored after a failed write; free some space, "
                "then open the memory again"
            )
        if not self.size:
            records = [base, *records]
        data = b"".join(map(encode_record, records))
        try:
            write_at(self._file, data, self.size)
            if self._flush:
                os.fsync(self._file)
        except OSError as error:
            self._undo_write()
            raise MemoryStoreError(
                f"cannot write {self.path}: {error.strerror}; nothing has changed, so free some "
                "space or mend its permissions and try again"
            ) from None
        self.size += len(data)

    def _undo_write(self) -> None:
        """Remove what a failed write may have left, which must not be there after a restart."""
        try:
            os.ftruncate(self._file, self.size)
            os.fsync(self._file)
        except OSError:
            self._is_broken = True
            log.exception("%s may end in a write that was reported as failed", self.path.name)

    def clear(self) -> None:
        os.ftruncate(self._file, 0)
        self.size = 0
        if self._flush:
            os.fsync(self._file)

    def close(self, *, remove: bool) -> None:
        """Release the lock. `remove` means that the snapshot has all changes."""
        if self._file < 0:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1


def open_locked(path: Path) -> int:
    """Open and lock the file. Retries if the file was removed meanwhile."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        file = os.open(path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_same_file(file, path):
                return file
        except BlockingIOError:
            os.close(file)
            raise MemoryInUseError(
                f"{path.stem} is being written by another process or another part of this one; "
                "close it there, or open it to read only"
            ) from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def write_at(file: int, data: bytes, position: int) -> None:
    remaining = memoryview(data)
    while remaining:
        written = os.pwrite(file, remaining, position)
        remaining, position = remaining[written:], position + written
