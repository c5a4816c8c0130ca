"""AcceptedJournal: the accepted messages of a home directory, in a small file beside the logs.

It is append-only and written by the thread that writes the logs, so it shares their group commit.
A line is a CRC-32, a space and JSON: an accepted message, or the key of a settled one. Settled
lines are written without a flush, because the logs have the same information after a power cut.

When the file has grown, another one with the pending entries replaces it, so a crash may leave two
files. The order of files and lines does not matter: a settled entry is settled.
"""

import asyncio
import logging
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from . import log_file as logs
from .accepted_messages import AcceptedKey, AcceptedMessage, list_pairs
from .errors import StorageError
from .log_writer import LogWriter
from .records import Pair, replace_surrogates

log = logging.getLogger(__name__)

FILE_NAMES = ("accepted", "accepted-2")
SUFFIX = ".journal"
# A file of this many bytes is replaced, unless most of it is still pending.
REPLACE_BYTES = 256 * 1024
CHECKSUM_LENGTH = 9  # eight digits and a space


class JournalLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one of the two fields is set."""

    accepted: AcceptedMessage | None = None
    settled: tuple[str, int] | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JournalLine)


class AcceptedJournal:
    def __init__(self, directory: Path, log_writer: LogWriter) -> None:
        self._directory = directory
        self._log_writer = log_writer
        self._open_lock = asyncio.Lock()
        self._is_open = False
        self._pending: dict[AcceptedKey, AcceptedMessage] = {}
        self._orphans: dict[Pair, set[AcceptedKey]] = {}  # pending, and no run will settle them
        self._active = 0  # index of the file name that is appended to
        self._exists = False  # whether that file exists
        self._size = 0
        self._replace_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Reads the journal of an earlier process. Later calls do nothing. Raises StorageError."""
        if self._is_open:
            return
        async with self._open_lock:
            if not self._is_open:
                await self._open()

    async def _open(self) -> None:
        sizes, entries = await asyncio.to_thread(self._read_files)
        self._pending = {entry.key: entry for entry in entries}
        for entry in entries:
            self._orphans.setdefault(entry.pair, set()).add(entry.key)
        present = [number for number, size in enumerate(sizes) if size is not None]
        if present:
            self._active = present[-1]
            self._exists = True
            self._size = sizes[self._active] or 0
        self._is_open = True
        if len(present) == len(FILE_NAMES):
            self._replace(present[0])  # a crash came before the older one was removed

    async def close(self) -> None:
        """Must be called after the log writer is closed."""
        if self._replace_task is not None:
            await asyncio.wait([self._replace_task])

    async def accept(self, entry: AcceptedMessage) -> None:
        """Stores an entry; it is durable when this returns. When it raises StorageError, nothing is
        stored."""
        await self.open()
        # Before the write: a file that replaces this one meanwhile gets all pending entries.
        self._pending[entry.key] = entry
        try:
            await self._write(encode_line(JournalLine(accepted=entry)))
        except StorageError:
            self.settle([entry.key])
            raise

    def settle(self, keys: Iterable[AcceptedKey]) -> None:
        """Removes entries whose messages are in the log or were withdrawn."""
        settled = [key for key in keys if self._pending.pop(key, None) is not None]
        if not settled:
            return
        for pair in [pair for pair, orphans in self._orphans.items() if orphans & set(settled)]:
            self._orphans[pair] -= set(settled)
            if not self._orphans[pair]:
                del self._orphans[pair]
        if self._exists:
            lines = b"".join(
                encode_line(JournalLine(settled=(key.run, key.steer))) for key in settled
            )
            self._write(lines, durable=False).add_done_callback(ignore_failure)
        if self._size > REPLACE_BYTES and self._replace_task is None:
            self._replace_if_mostly_settled()

    def abandon(self, keys: Iterable[AcceptedKey]) -> None:
        """Marks entries whose runs are over; the next load of the conversation closes them."""
        for key in keys:
            if (entry := self._pending.get(key)) is not None:
                self._orphans.setdefault(entry.pair, set()).add(key)

    def list_orphans(self, pair: Pair) -> list[AcceptedMessage]:
        return [self._pending[key] for key in self._orphans.get(pair, ())]

    def list_orphaned_pairs(self) -> list[Pair]:
        """In the order they were accepted."""
        orphans = {key for keys in self._orphans.values() for key in keys}
        return list_pairs(entry for key, entry in self._pending.items() if key in orphans)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────

    def _write(self, data: bytes, *, durable: bool = True) -> asyncio.Future[None]:
        create = not self._exists
        written = self._append(self._active, data, create=create, durable=durable)
        self._size += len(data)
        if create:
            self._exists = True
            active = self._active

            def on_written(written: asyncio.Future[None]) -> None:
                if (written.cancelled() or written.exception()) and active == self._active:
                    self._exists = False

            written.add_done_callback(on_written)
        return written

    def _append(
        self, number: int, data: bytes, *, create: bool, durable: bool = True
    ) -> asyncio.Future[None]:
        name = FILE_NAMES[number]
        return self._log_writer.append(name, data, create=create, suffix=SUFFIX, durable=durable)

    def _replace_if_mostly_settled(self) -> None:
        pending = sum(len(entry.text) for entry in self._pending.values())
        if self._size > 4 * pending:
            old, self._active = self._active, 1 - self._active
            self._exists = False
            self._size = 0
            self._replace(old)

    def _replace(self, old: int) -> None:
        """Writes all pending entries to the active file, then removes the old one."""
        data = b"".join(
            encode_line(JournalLine(accepted=entry)) for entry in self._pending.values()
        )
        written = self._write(data)
        self._replace_task = asyncio.ensure_future(self._remove_old(old, written))

    async def _remove_old(self, old: int, written: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait([written])
            if (error := written.exception()) is not None:
                # The old file has all entries, and stays in use.
                log.warning("the journal of accepted texts cannot be replaced: %s", error)
                self._active, self._exists = old, True
                return
            await asyncio.to_thread(self._path(old).unlink, missing_ok=True)
        except OSError as error:
            log.warning("the old journal of accepted texts stays: %s", error.strerror)
        finally:
            self._replace_task = None

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def _path(self, number: int) -> Path:
        return self._directory / f"{FILE_NAMES[number]}{SUFFIX}"

    def _read_files(self) -> tuple[list[int | None], list[AcceptedMessage]]:
        """The size of each file, None for a missing one, and the pending entries of all files."""
        sizes: list[int | None] = []
        accepted: dict[AcceptedKey, AcceptedMessage] = {}
        settled: set[AcceptedKey] = set()
        for number in range(len(FILE_NAMES)):
            try:
                data = read_whole_lines(self._path(number))
            except FileNotFoundError:
                sizes.append(None)
                continue
            except OSError as error:
                raise StorageError(
                    f"cannot read {self._path(number)}: {error.strerror}; it holds messages that "
                    "were accepted: make it readable and start again"
                ) from None
            sizes.append(len(data))
            damaged: list[bytes] = []
            for line in data.split(b"\n")[:-1]:
                match decode_line(line):
                    case JournalLine(accepted=AcceptedMessage() as entry):
                        accepted[entry.key] = entry
                    case JournalLine(settled=(run, steer)):
                        settled.add(AcceptedKey(run, steer))
                    case _:
                        damaged.append(line)
            if damaged:
                logs.set_aside(self._path(number), damaged)
        return sizes, [entry for key, entry in accepted.items() if key not in settled]


def read_whole_lines(path: Path) -> bytes:
    """The complete lines of a file. An incomplete last line was never acknowledged; it is removed
    from the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        data = logs.read_range(descriptor, 0, size)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < size:
            os.ftruncate(descriptor, len(whole))
            os.fsync(descriptor)
        return whole
    finally:
        os.close(descriptor)


def encode_line(line: JournalLine) -> bytes:
    try:
        body = _encoder.encode(line)
    except UnicodeEncodeError:
        body = _encoder.encode(replace_surrogates(msgspec.to_builtins(line)))
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_line(line: bytes) -> JournalLine | None:
    """None for a line that is damaged."""
    body = line[CHECKSUM_LENGTH:]
    if line[:CHECKSUM_LENGTH] != b"%08x " % zlib.crc32(body):
        return None
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def ignore_failure(written: asyncio.Future[None]) -> None:
    """A missing settled line only makes the next start search the log."""
    if not written.cancelled():
        written.exception()


def list_keys(entries: Sequence[AcceptedMessage]) -> list[AcceptedKey]:
    return [entry.key for entry in entries]
