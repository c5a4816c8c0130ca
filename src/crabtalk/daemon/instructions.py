"""Instructions: what the user's files tell every agent, the home's and those on the way to a run.

Crab.md is the name; a directory without one may have an AGENTS.md. Who is told, and in which
words, is not decided here.
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

NAME = "Crab.md"
NAMES = (NAME, "AGENTS.md")
BLANK_LINE = b"\n\n"
# How many files are remembered; each takes at most the limit.
FILES = 256

Value = TypeVar("Value")

log = logging.getLogger(__name__)


class Layer(msgspec.Struct, frozen=True):
    """What one file says, in UTF-8. `beyond` is how much of it was not even read."""

    path: Path
    file: tuple[int, int]
    version: tuple[int, int]
    text: bytes
    beyond: int


class Instructions:
    """One per home. A file is read again when its time, size or inode says that it changed."""

    def __init__(self, home: Path, *, limit: int = 64 * 1024) -> None:
        self._home = home
        self._limit = limit
        self._lock = threading.Lock()
        self._read: dict[Path, Layer] = {}
        self._warned: dict[Path, None] = {}

    async def find(self, cwd: Path) -> str:
        """The home's instructions, then those from / down to `cwd`: at most `limit` bytes of UTF-8.

        There is no deadline, because a run without its instructions would be another run.
        Cancelled, it returns at once; the thread ends when the file system answers, and changes
        nothing but what is remembered.
        """
        return await asyncio.to_thread(self._find, cwd)

    def _find(self, cwd: Path) -> str:
        home = os.path.realpath(self._home)
        found = [self._layer(self._home, NAME)]
        for directory in down_to(cwd):
            if not is_directory(directory):
                self._forget_below(directory)
                break
            if not Path(os.path.realpath(directory)).is_relative_to(home):
                found.append(self._layer(directory, *NAMES))
        # By file, for links lead to one from many directories.
        layers: dict[tuple[int, int], Layer] = {}
        for layer in found:
            if layer is not None and (layer.text or layer.beyond):
                layers.setdefault(layer.file, layer)
        return fit(list(layers.values()), self._limit)

    def _layer(self, directory: Path, *names: str) -> Layer | None:
        for name in names:
            path = directory / name
            try:
                return self._current(path)
            except (FileNotFoundError, NotADirectoryError):
                with self._lock:
                    self._read.pop(path, None)
                    self._warned.pop(path, None)
            except OSError as error:
                self._warn(path, error)
                return None
        return None

    def _current(self, path: Path) -> Layer:
        status = path.stat()
        with self._lock:
            layer = self._read.get(path)
        if layer is None or (layer.file, layer.version) != (file_of(status), version_of(status)):
            require_regular(status)  # before the opening, which some devices take for an order
            layer = read(path, self._limit)
        with self._lock:
            remember(self._read, path, layer)
            self._warned.pop(path, None)
        return layer

    def _forget_below(self, directory: Path) -> None:
        with self._lock:
            for path in [path for path in self._read if path.is_relative_to(directory)]:
                del self._read[path]

    def _warn(self, path: Path, error: OSError) -> None:
        with self._lock:
            known = path in self._warned
            remember(self._warned, path, None)
        if not known:
            log.warning("%s cannot be read and is left out: %s", path, error.strerror or error)


def remember(store: dict[Path, Value], path: Path, value: Value) -> None:
    """As the latest of at most `FILES`."""
    store.pop(path, None)
    store[path] = value
    if len(store) > FILES:
        del store[next(iter(store))]


def down_to(cwd: Path) -> Iterator[Path]:
    """The directories from / to `cwd`, whether or not they exist."""
    path = cwd.absolute()
    if (
        ".." in path.parts
    ):  # after a link it leads elsewhere than to the directory written before it
        path = Path(os.path.realpath(path))
    return chain(reversed(path.parents), [path])


def is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):  # also a name that no file system takes
        return False


def read(path: Path, limit: int) -> Layer:
    # Without O_NONBLOCK, a FIFO put there since it was looked at would hold up the thread for good.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        require_regular(status)
        data = b""
        while len(data) <= limit and (more := os.read(descriptor, limit + 1 - len(data))):
            data += more
    finally:
        os.close(descriptor)
    # A character torn by the limit is left out, not replaced.
    text, used = codecs.utf_8_decode(data, "replace", len(data) <= limit)
    text = text.removeprefix("\ufeff").lstrip("\r\n").rstrip()
    beyond = max(0, status.st_size - used)
    return Layer(path, file_of(status), version_of(status), text.encode(), beyond)


def require_regular(status: os.stat_result) -> None:
    """A file, and nobody's who could not be trusted anyway: in /tmp anybody may leave one."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, "it belongs to another user")


def file_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def version_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def fit(layers: list[Layer], limit: int) -> str:
    """Joins the layers, outermost first; the innermost, the most specific, get the room first.

    What they always leave to each of the outer ones is room for a note.
    """
    room = limit + len(BLANK_LINE)
    reserved = sum(map(least, layers))
    pieces: list[bytes] = []
    for layer in reversed(layers):
        reserved -= least(layer)
        piece = cut(layer, room - reserved - len(BLANK_LINE))
        if len(piece) + len(BLANK_LINE) <= room:
            pieces.append(piece)
            room -= len(piece) + len(BLANK_LINE)
    return BLANK_LINE.join(reversed(pieces)).decode()


def least(layer: Layer) -> int:
    """The room of a note, or of the layer itself if that is shorter."""
    note = len(note_of(layer, 0))
    return len(BLANK_LINE) + (note if layer.beyond else min(note, len(layer.text)))


def cut(layer: Layer, room: int) -> bytes:
    """The layer if there is room for it, else its beginning and a note, else the note alone."""
    if not layer.beyond and len(layer.text) <= room:
        return layer.text
    begin = layer.text[: max(0, room - len(b"\n" + note_of(layer, 0)))]
    begin = begin.decode(errors="ignore").encode()  # without a torn last character
    note = note_of(layer, len(begin))
    return begin + b"\n" + note if begin else note


def note_of(layer: Layer, kept: int) -> bytes:
    # Names of directories may hold line breaks, and bytes that are no text.
    path = " ".join(os.fsencode(layer.path).decode(errors="replace").splitlines())
    left_out = len(layer.text) - kept + layer.beyond
    return f"[{path} was cut: {left_out} bytes left out]".encode()
