"""A log file for somebody who reads along: what came after a position, what is around a message.

Everything here blocks, writes nothing, and may be asked about a log that is being written.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .log_file import (
    BLOCK_BYTES,
    GLANCE_BYTES,
    decode_lines,
    find_pair,
    open_log,
    read_owner,
    read_range,
    seek_message,
)
from .log_reader import MESSAGE
from .record_slices import RecordSlice, WindowRequest
from .records import MessageRecord, MetaRecord, Pair, Record

EVENT = b'{"kind":"event"'
# What a window is read from on each side of its message: at first, and at most.
WINDOW_BYTES = 6 * 1024
MAX_WINDOW_BYTES = 1024 * 1024


def read_records_after(
    path: Path, position: int, limit: int, *, with_events: bool = False
) -> RecordSlice | None:
    """Only whole lines: what comes after them may be one that is being written."""
    with open_log(path) as file:
        descriptor = file.fileno()
        status = os.fstat(descriptor)
        size = status.st_size
        begun = read_beginning(descriptor, path)
        if begun is None:
            return None
        if position > size or (position and os.pread(descriptor, 1, position - 1) != b"\n"):
            position = 0
        data = read_range(descriptor, position, min(size, position + limit))
        whole = data.rfind(b"\n") + 1
        if not whole and position + len(data) < size:  # a line larger than that comes alone
            data = read_first_line(descriptor, position, size)
            whole = len(data)
    found = tuple(decode_placed(data[:whole], position, with_events))
    more = bool(whole) and position + len(data) < size
    return RecordSlice(*begun, position, found, position + whole, compute_version(status), more)


def compute_version(status: os.stat_result) -> int:
    """Another file of the same name has another one, be it as long."""
    return hash((status.st_size, status.st_mtime_ns, status.st_ino))


def decode_placed(data: bytes, position: int, with_events: bool) -> Iterator[tuple[int, Record]]:
    """The records of complete lines that begin at `position`, each with its own."""
    for line in data.split(b"\n"):
        if line and (with_events or not line.startswith(EVENT)):
            # What cannot be read is set aside by whoever owns the log.
            for record in decode_lines(line, []):
                yield position, record
        position += len(line) + 1


def read_beginning(descriptor: int, path: Path) -> tuple[Pair, str] | None:
    """Whose log it is, and since when. As a rule the first line says both."""
    head = os.pread(descriptor, GLANCE_BYTES, 0)
    for record in decode_lines(head[: head.find(b"\n") + 1], []):
        if isinstance(record, MetaRecord) and (pair := find_pair([record])) is not None:
            return pair, record.created_at or ""
    pair = read_owner(path)
    return (pair, "") if pair is not None else None


def read_first_line(descriptor: int, start: int, size: int) -> bytes:
    """The whole line that begins there; empty when its end is not written yet."""
    length = BLOCK_BYTES
    while True:
        data = read_range(descriptor, start, min(size, start + length))
        end = data.find(b"\n") + 1
        if end or start + length >= size:
            return data[:end]
        length *= 4


def read_window(path: Path, place: WindowRequest) -> tuple[MessageRecord, ...]:
    """As a rule from one slice of the log; from more where lines are long or the hint is wrong."""
    with open_log(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        start = max(0, place.position - WINDOW_BYTES)
        data = read_range(descriptor, start, min(size, place.position + WINDOW_BYTES))
        at = place.position
        line = data[at - start : data.find(b"\n", at - start) + 1]
        if not line:
            line = read_first_line(descriptor, at, size)
        message = find_message([line], place.id)
        if message is None:
            at = start = seek_message(descriptor, size, place.id)
            data = b""
            file.seek(at)
            for line in file:
                if (message := find_message([line], place.id)) is not None:
                    break
                at = start = at + len(line)
        if message is None:
            return ()
        end = at + len(line)
        before = read_preceding(descriptor, data[: at - start], start, place.before)
        after = read_following(descriptor, data[end - start :], end, size, place.after)
    first, last = place.id - place.before, place.id + place.after
    return (
        *[record for record in before if first <= record.id < place.id],
        message,
        *[record for record in after if place.id < record.id <= last],
    )


def find_message(lines: Iterable[bytes], number: int) -> MessageRecord | None:
    return next((message for message in decode_messages(lines) if message.id == number), None)


def decode_messages(lines: Iterable[bytes]) -> Iterator[MessageRecord]:
    for line in lines:
        if line.startswith(MESSAGE):
            for record in decode_lines(line, []):
                if isinstance(record, MessageRecord):
                    yield record


def read_preceding(descriptor: int, data: bytes, start: int, count: int) -> list[MessageRecord]:
    """The last `count` messages of `data`, which begins at `start`, or of what is before it."""
    end = start + len(data)
    length = WINDOW_BYTES
    while True:
        # What the block begins with may be the rest of a line.
        lines = data.split(b"\n")[1 if start else 0 :]
        found = take_messages(decode_messages(reversed(lines)), count)
        if len(found) >= count or start == 0 or length >= MAX_WINDOW_BYTES:
            return found[::-1]
        length *= 4
        start = max(0, end - length)
        data = read_range(descriptor, start, end)


def read_following(
    descriptor: int, data: bytes, start: int, size: int, count: int
) -> list[MessageRecord]:
    """The first `count` messages of `data`, which begins at `start`, or of what comes after it."""
    length = WINDOW_BYTES
    while True:
        found = take_messages(decode_messages(data[: data.rfind(b"\n") + 1].split(b"\n")), count)
        if len(found) >= count or start + len(data) >= size or length >= MAX_WINDOW_BYTES:
            return found
        length *= 4
        data = read_range(descriptor, start, min(size, start + length))


def take_messages(found: Iterator[MessageRecord], count: int) -> list[MessageRecord]:
    return [message for _, message in zip(range(count), found, strict=False)]
