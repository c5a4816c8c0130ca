"""Journal: the book on disk. Appends only, a record a line; written anew when most is history.

What is noted counts at once, and survives a crash once it was flushed: nothing that must not happen
twice, or be forgotten, leaves this process before that.
"""

import asyncio
import logging
import os
from io import FileIO
from pathlib import Path

import msgspec

from crabtalk.transport import replace_file

from .book import Book
from .entries import AnyRecord
from .errors import GatewayError

# Written anew when it is larger than this, and twice what it was when it was last written anew.
WORTH_SHORTENING = 1024 * 1024
TIMES = 2

log = logging.getLogger(__name__)
reader = msgspec.json.Decoder(AnyRecord)


class Journal:
    """One process has it at a time, which is for others to see to."""

    def __init__(
        self, path: Path, book: Book | None = None, *, worth_shortening: int = WORTH_SHORTENING
    ) -> None:
        self.path = path
        self.book = book or Book()
        self._worth_shortening = worth_shortening
        self._lines: list[bytes] = []
        self._file: FileIO | None = None
        self._size = 0
        self._least = 0  # what it came to when it was last written anew
        self._lock = asyncio.Lock()

    @property
    def size(self) -> int:
        return self._size

    def open(self) -> None:
        """Raises GatewayError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open_private(self.path)
            data = self._file.read()
            self._size = self._replay(data)
            if self._size < len(data):
                self._keep_aside(data[self._size :])
                self._file.truncate(self._size)
        except OSError as error:
            raise GatewayError(
                f"cannot use {self.path}: {error.strerror}; see to its permissions"
            ) from None

    @classmethod
    def peek(cls, path: Path) -> Book:
        """What is on disk, for one who changes nothing. Raises OSError."""
        journal = cls(path)
        journal._replay(path.read_bytes())
        return journal.book

    def _keep_aside(self, data: bytes) -> None:
        if b"\n" in data:  # more than the last line, torn by a crash
            log.error("%s is damaged; what cannot be read is kept aside", self.path)
            replace_file(self.path.with_suffix(".damaged"), data)

    def _replay(self, data: bytes) -> int:
        """How much of it makes sense."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            try:
                self.book.apply(reader.decode(data[start:end]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                break
            start = end + 1
        return start

    def note(self, *records: AnyRecord) -> None:
        for record in records:
            self.book.apply(record)
            self._lines.append(encoded(record))

    async def keep(self, *records: AnyRecord) -> None:
        """Notes and flushes."""
        self.note(*records)
        await self.flush()

    async def flush(self) -> None:
        """All that was noted is on disk. Raises OSError. Cancelled, it is carried out first."""
        work = asyncio.ensure_future(self._flush())
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

    async def _flush(self) -> None:
        async with self._lock:  # what somebody else is writing counts as well
            if self._file is None or not self._lines:
                return
            lines, self._lines = self._lines, []
            data = b"".join(lines)
            try:
                if self._is_long(self._size + len(data)):
                    await self._shorten()
                else:
                    await asyncio.to_thread(write, self._file, self._size, data)
                    self._size += len(data)
            except OSError:
                self._lines = lines + self._lines
                raise

    def _is_long(self, size: int) -> bool:
        return size > self._worth_shortening and size > TIMES * self._least

    async def _shorten(self) -> None:
        data = encoded(self.book.whole())
        await asyncio.to_thread(replace_file, self.path, data)
        if self._file is not None:
            self._file.close()
        self._file = open_private(self.path)
        self._size = self._least = len(data)

    def close(self) -> None:
        """What was not flushed is gone."""
        if self._file is not None:
            self._file.close()
            self._file = None


def open_private(path: Path) -> FileIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "r+")


def write(file: FileIO, place: int, data: bytes) -> None:
    """Over whatever an earlier try has left there."""
    file.seek(place)
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def encoded(record: AnyRecord) -> bytes:
    try:
        return msgspec.json.encode(record) + b"\n"
    except UnicodeEncodeError:  # half a character, which a service should not have let through
        return msgspec.json.encode(plain(msgspec.to_builtins(record))) + b"\n"


def plain(value: object) -> object:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case dict():
            return {plain(key): plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case _:
            return value
