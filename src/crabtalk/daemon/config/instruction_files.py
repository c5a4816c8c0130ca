"""InstructionLoader: reads the user's instruction files, in the home and above a run's directory.

The files are called Crab.md; a directory without one may have an AGENTS.md. Which agents get the
instructions, and how they are introduced in a prompt, is decided elsewhere.
"""

import asyncio
import codecs
import errno
import logging
import os
import stat
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

FILE_NAME = "Crab.md"
FILE_NAMES = (FILE_NAME, "AGENTS.md")
BLANK_LINE = b"\n\n"
# Files in the cache; each takes at most the limit.
MAX_CACHED_FILES = 256

Value = TypeVar("Value")

log = logging.getLogger(__name__)


class InstructionFile(msgspec.Struct, frozen=True):
    """The text of one file, in UTF-8. `unread_bytes` counts what the limit cut off."""

    path: Path
    file_id: tuple[int, int]
    version: tuple[int, int]
    text: bytes
    unread_bytes: int


class InstructionLoader:
    """One per home. A file is read again when its time, size or inode changes."""

    def __init__(self, home: Path, *, limit: int = 64 * 1024) -> None:
        self._home = home
        self._limit = limit
        self._lock = threading.Lock()
        self._cache: dict[Path, InstructionFile] = {}
        self._warned: dict[Path, None] = {}

    async def load(self, cwd: Path) -> str:
        """The home's instructions, then those from / down to `cwd`: at most `limit` bytes of UTF-8.

        There is no deadline, because a run must not start without its instructions. Cancelled, it
        returns at once; the thread ends when the file system answers, and only changes the cache.
        """
        return await asyncio.to_thread(self._load, cwd)

    def _load(self, cwd: Path) -> str:
        home = os.path.realpath(self._home)
        candidates = [self._load_file(self._home, FILE_NAME)]
        for directory in list_ancestors(cwd):
            if not is_directory(directory):
                self._drop_cached_below(directory)
                break
            if not Path(os.path.realpath(directory)).is_relative_to(home):
                candidates.append(self._load_file(directory, *FILE_NAMES))
        # By file id, because links in several directories can lead to one file.
        layers: dict[tuple[int, int], InstructionFile] = {}
        for layer in candidates:
            if layer is not None and (layer.text or layer.unread_bytes):
                layers.setdefault(layer.file_id, layer)
        return fit_to_limit(list(layers.values()), self._limit)

    def _load_file(self, directory: Path, *names: str) -> InstructionFile | None:
        for name in names:
            path = directory / name
            try:
                return self._read_cached(path)
            except (FileNotFoundError, NotADirectoryError):
                with self._lock:
                    self._cache.pop(path, None)
                    self._warned.pop(path, None)
            except OSError as error:
                self._warn_once(path, error)
                return None
        return None

    def _read_cached(self, path: Path) -> InstructionFile:
        status = path.stat()
        with self._lock:
            layer = self._cache.get(path)
        if layer is None or (layer.file_id, layer.version) != (
            get_file_id(status),
            get_file_version(status),
        ):
            require_trusted_file(status)  # before opening, which has side effects for some devices
            layer = read_instruction_file(path, self._limit)
        with self._lock:
            put_latest(self._cache, path, layer)
            self._warned.pop(path, None)
        return layer

    def _drop_cached_below(self, directory: Path) -> None:
        with self._lock:
            for path in [path for path in self._cache if path.is_relative_to(directory)]:
                del self._cache[path]

    def _warn_once(self, path: Path, error: OSError) -> None:
        with self._lock:
            was_warned = path in self._warned
            put_latest(self._warned, path, None)
        if not was_warned:
            log.warning("%s cannot be read and is left out: %s", path, error.strerror or error)


def put_latest(store: dict[Path, Value], path: Path, value: Value) -> None:
    """Put as the latest of at most `MAX_CACHED_FILES` entries."""
    store.pop(path, None)
    store[path] = value
    if len(store) > MAX_CACHED_FILES:
        del store[next(iter(store))]


def list_ancestors(cwd: Path) -> Iterator[Path]:
    """The directories from / to `cwd`, whether or not they exist."""
    path = cwd.absolute()
    if ".." in path.parts:  # after a link, .. is not the directory written before it
        path = Path(os.path.realpath(path))
    return chain(reversed(path.parents), [path])


def is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):  # ValueError for names that no file system accepts
        return False


def read_instruction_file(path: Path, limit: int) -> InstructionFile:
    # Without O_NONBLOCK, a FIFO created since the check would block the thread for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        require_trusted_file(status)
        data = b""
        while len(data) <= limit and (more := os.read(descriptor, limit + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    # A character that the limit cuts in half is left out, not replaced.
    text, used = codecs.utf_8_decode(data, "replace", len(data) <= limit)
    text = text.removeprefix("\ufeff").lstrip("\r\n").rstrip()
    unread_bytes = max(0, status.st_size - used)
    return InstructionFile(
        path, get_file_id(status), get_file_version(status), text.encode(), unread_bytes
    )


def require_trusted_file(status: os.stat_result) -> None:
    """Raises OSError unless it is a regular file of ours or root's: anyone can put one in /tmp."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, "it belongs to another user")


def get_file_id(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def get_file_version(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def fit_to_limit(layers: list[InstructionFile], limit: int) -> str:
    """Join the layers, outermost first. The innermost are the most specific and get room first,
    but always leave room for a note about each of the others.
    """
    room = limit + len(BLANK_LINE)
    reserved = sum(map(compute_least_room, layers))
    pieces: list[bytes] = []
    for layer in reversed(layers):
        reserved -= compute_least_room(layer)
        piece = truncate_file(layer, room - reserved - len(BLANK_LINE))
        if len(piece) + len(BLANK_LINE) <= room:
            pieces.append(piece)
            room -= len(piece) + len(BLANK_LINE)
    return BLANK_LINE.join(reversed(pieces)).decode()


def compute_least_room(layer: InstructionFile) -> int:
    """The bytes of a note, or of the layer if that is shorter."""
    note = len(format_truncation_note(layer, 0))
    return len(BLANK_LINE) + (note if layer.unread_bytes else min(note, len(layer.text)))


def truncate_file(layer: InstructionFile, room: int) -> bytes:
    """The layer if it fits, else its beginning and a note, else the note alone."""
    if not layer.unread_bytes and len(layer.text) <= room:
        return layer.text
    begin = layer.text[: max(0, room - len(b"\n" + format_truncation_note(layer, 0)))]
    begin = begin.decode(errors="ignore").encode()  # without half a character at the end
    note = format_truncation_note(layer, len(begin))
    return begin + b"\n" + note if begin else note


def format_truncation_note(layer: InstructionFile, kept_bytes: int) -> bytes:
    # Directory names may contain line breaks and bytes that are not text.
    path = " ".join(os.fsencode(layer.path).decode(errors="replace").splitlines())
    left_out = len(layer.text) - kept_bytes + layer.unread_bytes
    return f"[{path} was cut: {left_out} bytes left out]".encode()
