"""The journal: what changed since the snapshot, one checksummed line each. No state is kept here.

A line is the checksum and the length of what follows, in hex, and a record as JSON. JSON has no raw
line feed, so after damage the next line is found whatever an entry says. Records say what is, not
what to do: replaying them twice ends where replaying them once does.
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
    """The snapshot that holds all that came before: its size and its CRC-32."""

    size: int
    checksum: int


class PutEntry(Struct, frozen=True, array_like=True, tag="put"):
    """The entry with this id is now this one."""

    entry: MemoryEntry


class DropEntry(Struct, frozen=True, array_like=True, tag="drop"):
    """The entry with this id, which had this name, is no more."""

    id: int
    name: str


EntryChange = PutEntry | DropEntry
JournalRecord = SnapshotReference | PutEntry | DropEntry
ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(JournalRecord)


@dataclass(slots=True)
class JournalLines:
    """What a journal says. `whole` is where its last record ends, and `damaged` counts lines that
    could not be read; one that a crash cut short is none."""

    records: list[JournalRecord] = field(default_factory=list)
    end: int = 0
    damaged_lines: int = 0


def encode_record(record: JournalRecord) -> bytes:
    payload = ENCODER.encode(record)
    return b"%08x %08x %s\n" % (zlib.crc32(payload), len(payload), payload)


def parse_journal(data: bytes) -> JournalLines:
    lines = JournalLines()
    at = 0
    while at < len(data):
        found = parse_record(data, at)
        if found is not None:
            record, at = found
            lines.records.append(record)
            lines.end = at
        else:
            following = data.find(b"\n", at)
            lines.damaged_lines += following >= 0
            at = following + 1 if following >= 0 else len(data)
    return lines


def parse_record(data: bytes, at: int) -> tuple[JournalRecord, int] | None:
    """The record that begins there and where the next does, or None."""
    start = at + PREFIX_LENGTH
    try:
        checksum, length = int(data[at : at + 8], 16), int(data[at + 9 : at + 17], 16)
    except ValueError:
        return None
    # Without the line feed it was not written to its end.
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
    """Held by one process at a time: whoever has it may write the memory."""

    def __init__(self, path: Path, *, flush: bool = True) -> None:
        """Creates it where there is none. Raises MemoryInUseError when somebody else has it."""
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
        """Goes on after what is whole."""
        if os.fstat(self._file).st_size > size:
            os.ftruncate(self._file, size)
            os.fsync(self._file)
        self.size = size

    def append(self, records: Sequence[JournalRecord], *, base: SnapshotReference) -> None:
        """After this they are kept; when it raises, the journal is as it was.

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
        """What a failed write may have left must not be there after a restart."""
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
        """Lets go of it. `remove` says that the snapshot has it all."""
        if self._file < 0:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1


def open_locked(path: Path) -> int:
    """The open file, locked. One that was removed while we waited for it is not the journal."""
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


def write_at(file: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, at)
        rest, at = rest[written:], at + written
