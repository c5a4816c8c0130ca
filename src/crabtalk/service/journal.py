"""Journal: a book on disk. Appends only, a record a line; written anew when most of it is history.

What is noted counts at once, and survives a crash once it was flushed: nothing that must not happen
twice, or be forgotten, leaves a process before that. What the records mean is the book's business.
"""

import asyncio
import logging
import os
from io import FileIO
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from crabtalk.transport import replace_file

# Written anew when it is larger than this, and so many times what it came to when it last was.
MIN_COMPACT_SIZE = 1024 * 1024
COMPACT_RATIO = 2

log = logging.getLogger(__name__)


class JournalState(Protocol):
    """What the records of a journal come to."""

    def apply(self, record: Any) -> None: ...

    def snapshot(self) -> Any:
        """All of it, as one record."""


B = TypeVar("B", bound=JournalState)


class RecordJournal(Generic[B]):
    """One process has it at a time, which is for others to see to. Between two writes the file is
    closed: there may be a thousand of them, of which most say nothing.

    `reader` is of any record.
    """

    def __init__(
        self,
        path: Path,
        book: B,
        reader: msgspec.json.Decoder[Any],
        *,
        worth_shortening: int = MIN_COMPACT_SIZE,
    ) -> None:
        self.path = path
        self.state = book
        self._decoder = reader
        self._min_compact_size = worth_shortening
        self._unwritten_lines: list[bytes] = []
        self._is_open = False
        self._size = 0
        self._compacted_size = 0  # what it came to when it was last written anew
        self._lock = asyncio.Lock()

    @property
    def size(self) -> int:
        return self._size

    def open(self) -> None:
        """Raises OSError."""
        is_new = not self.path.exists()
        with open_private_file(self.path) as file:
            data = file.read()
            self._size = self.replay(data)
            if self._size < len(data):
                self._save_damaged_data(data[self._size :])
                file.truncate(self._size)
        if is_new:  # else a power failure could take it away with all that is written to it
            flush_directory(self.path.parent)
        self._is_open = True

    def _save_damaged_data(self, data: bytes) -> None:
        if b"\n" in data:  # more than the last line, torn by a crash
            log.error("%s is damaged; what cannot be read is kept aside", self.path)
            replace_file(self.path.with_suffix(".damaged"), data)

    def replay(self, data: bytes) -> int:
        """How much of it makes sense, and is in the book now."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            try:
                self.state.apply(self._decoder.decode(data[start:end]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                break
            start = end + 1
        return start

    def append(self, *records: Any) -> None:
        for record in records:
            self.state.apply(record)
            self._unwritten_lines.append(encode_record(record))

    async def append_and_flush(self, *records: Any) -> None:
        """Notes and flushes."""
        self.append(*records)
        await self.flush()

    async def flush(self) -> None:
        """All that was noted is on disk. Raises OSError. Cancelled, it is carried out first."""
        work = asyncio.ensure_future(self._flush_lines())
        cancelled: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            work.exception()  # seen, though the cancellation matters more
            raise cancelled
        work.result()

    async def _flush_lines(self) -> None:
        async with self._lock:  # what somebody else is writing counts as well
            if not self._is_open or not self._unwritten_lines:
                return
            lines, self._unwritten_lines = self._unwritten_lines, []
            data = b"".join(lines)
            try:
                if self._needs_compaction(self._size + len(data)) or not await self._write_lines(
                    data
                ):
                    await self._compact()
            except OSError:
                self._unwritten_lines = lines + self._unwritten_lines
                raise

    async def _write_lines(self, data: bytes) -> bool:
        is_written = await asyncio.to_thread(write_at, self.path, self._size, data)
        self._size += len(data) if is_written else 0
        return is_written

    def _needs_compaction(self, size: int) -> bool:
        return size > self._min_compact_size and size > COMPACT_RATIO * self._compacted_size

    async def _compact(self) -> None:
        data = encode_record(self.state.snapshot())
        await asyncio.to_thread(replace_file, self.path, data)
        self._size = self._compacted_size = len(data)

    def close(self) -> None:
        """What was not flushed is gone."""
        self._is_open = False


def open_private_file(path: Path) -> FileIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "r+")


def flush_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_at(path: Path, place: int, data: bytes) -> bool:
    """Over whatever an earlier try has left there. False where somebody has taken away what was
    before it."""
    with open_private_file(path) as file:
        if file.seek(0, os.SEEK_END) < place:
            return False
        file.seek(place)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return True


def encode_record(record: Any) -> bytes:
    try:
        return msgspec.json.encode(record) + b"\n"
    except UnicodeEncodeError:  # half a character, which nobody should have let through
        return msgspec.json.encode(replace_lone_surrogates(msgspec.to_builtins(record))) + b"\n"


def replace_lone_surrogates(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {
                replace_lone_surrogates(key): replace_lone_surrogates(one)
                for key, one in value.items()
            }
        case list() | tuple():
            return [replace_lone_surrogates(one) for one in value]
        case _:
            return value
