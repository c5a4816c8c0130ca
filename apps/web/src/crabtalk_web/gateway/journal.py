"""Journal: a book on disk. Appends only, a record a line; shortened when most of it is history.

What is noted counts at once, and survives a crash once it was flushed: nothing that must not happen
twice, or be forgotten, leaves this machine before that.
"""

import asyncio
import logging
import os
from io import FileIO
from pathlib import Path

import msgspec

from crabtalk.transport import replace_file
from crabtalk_web.stream import plain

from .book import Book
from .entries import AnyRecord
from .errors import GatewayError

# A journal is shortened when it is larger than this, and four times what it has to say.
WORTH_SHORTENING = 256 * 1024
TIMES = 4

log = logging.getLogger(__name__)
reader = msgspec.json.Decoder(AnyRecord)


class Journal:
    """One process has it open at a time, which is for others to see to. Between two writes the file
    is closed: of a thousand agents, most say nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.book = Book()
        self._lines: list[bytes] = []
        self._is_open = False
        self._size = 0
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Raises GatewayError."""
        try:
            with open_private(self.path) as file:
                data = file.read()
                self._size = self._replay(data)
                if self._size < len(data):
                    self._keep_aside(data[self._size :])
                    file.truncate(self._size)
        except OSError as error:
            raise GatewayError(
                f"cannot use {self.path}: {error.strerror}; see to its permissions"
            ) from None
        self._is_open = True

    def _keep_aside(self, data: bytes) -> None:
        if b"\n" in data:  # more than the last line, torn by a crash
            log.error("%s is damaged; what cannot be read is kept aside", self.path)
            replace_file(self.path.with_suffix(".damaged"), data)

    @classmethod
    def peek(cls, path: Path) -> Book:
        """What is on disk, for one who changes nothing. Raises OSError."""
        journal = cls(path)
        journal._replay(path.read_bytes())
        return journal.book

    def _replay(self, data: bytes) -> int:
        """How much of it makes sense."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            try:
                self.book.apply(reader.decode(data[start:end]))
            except msgspec.DecodeError:
                break
            start = end + 1
        return start

    def note(self, record: AnyRecord) -> None:
        self.book.apply(record)
        self._lines.append(encoded(record))

    async def flush(self) -> None:
        """All that was noted is on disk. Raises OSError. Cancelled, it is carried out first."""
        if not self._lines:
            async with self._lock:  # what somebody else is writing counts as well
                return
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
        async with self._lock:
            if not self._is_open or not self._lines:
                return
            lines, self._lines = self._lines, []
            data = b"".join(lines)
            try:
                if self._is_long(self._size + len(data)):
                    await self._shorten()
                else:
                    await asyncio.to_thread(write, self.path, self._size, data)
                    self._size += len(data)
            except OSError:
                self._lines = lines + self._lines
                raise

    def _is_long(self, size: int) -> bool:
        return size > WORTH_SHORTENING and size > TIMES * self.book.weight

    async def _shorten(self) -> None:
        data = encoded(self.book.whole())
        await asyncio.to_thread(replace_file, self.path, data)
        self._size = len(data)

    def close(self) -> None:
        """What was not flushed is gone."""
        self._is_open = False


def open_private(path: Path) -> FileIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return FileIO(os.open(path, flags, 0o600), "r+")


def write(path: Path, place: int, data: bytes) -> None:
    """Over whatever an earlier try has left there."""
    with open_private(path) as file:
        file.seek(place)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def encoded(record: AnyRecord) -> bytes:
    try:
        return msgspec.json.encode(record) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(plain(msgspec.to_builtins(record))) + b"\n"
