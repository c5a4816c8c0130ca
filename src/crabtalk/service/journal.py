"""A journal: the records of a state on disk, one a line. It is compacted when most of it is old.

A record changes the state at once, and survives a crash once it is flushed. Flush before any effect
outside the process that must not happen twice or be forgotten. The state gives records a meaning.
"""

import asyncio
import logging
import os
from io import FileIO
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from crabtalk.transport import replace_file

# Compacted when it is larger than this, and COMPACT_RATIO times its size after the last compaction.
MIN_COMPACT_SIZE = 1024 * 1024
COMPACT_RATIO = 2

log = logging.getLogger(__name__)


class JournalState(Protocol):
    """The state that the records of a journal add up to."""

    def apply(self, record: Any) -> None: ...

    def snapshot(self) -> Any:
        """The whole state as one record."""


B = TypeVar("B", bound=JournalState)


class RecordJournal(Generic[B]):
    """A journal on disk. The caller makes sure that only one process uses it at a time.

    The file is closed between two writes, because a process may have a thousand journals of which
    most are idle. `reader` decodes any record.
    """

    def __init__(
        self,
        path: Path,
        state: B,
        decoder: msgspec.json.Decoder[Any],
        *,
        worth_shortening: int = MIN_COMPACT_SIZE,
    ) -> None:
        self.path = path
        self.state = state
        self._decoder = decoder
        self._min_compact_size = worth_shortening
        self._unwritten_lines: list[bytes] = []
        self._is_open = False
        self._size = 0
        self._compacted_size = 0  # size after the last compaction
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
        if is_new:  # else a power failure could lose the file with all that is written to it
            flush_directory(self.path.parent)
        self._is_open = True

    def _save_damaged_data(self, data: bytes) -> None:
        if b"\n" in data:  # more than a torn last line, as a crash leaves it
            log.error("%s is damaged; what cannot be read is kept aside", self.path)
            replace_file(self.path.with_suffix(".damaged"), data)

    def replay(self, data: bytes) -> int:
        """Apply the records to the state. Returns the number of bytes that could be decoded."""
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
        """Append the records and flush."""
        self.append(*records)
        await self.flush()

    async def flush(self) -> None:
        """Write all appended records to disk. Raises OSError. Cancelled, it finishes first."""
        work = asyncio.ensure_future(self._flush_lines())
        cancelled: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            work.exception()  # retrieved, because the cancellation is what is raised
            raise cancelled
        work.result()

    async def _flush_lines(self) -> None:
        async with self._lock:  # another task's flush may have written our lines meanwhile
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
        """Close without writing: records that were not flushed are lost."""
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


def write_at(path: Path, position: int, data: bytes) -> bool:
    """Write at `position`, over the remains of an earlier try. False if the file is shorter than
    `position`, because another program has cut it."""
    with open_private_file(path) as file:
        if file.seek(0, os.SEEK_END) < position:
            return False
        file.seek(position)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return True


def encode_record(record: Any) -> bytes:
    try:
        return msgspec.json.encode(record) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate that the caller should have replaced
        return msgspec.json.encode(replace_lone_surrogates(msgspec.to_builtins(record))) + b"\n"


def replace_lone_surrogates(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {
                replace_lone_surrogates(key): replace_lone_surrogates(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [replace_lone_surrogates(item) for item in value]
        case _:
            return value
