"""Reads parts of a log file: the records after a position, and the messages around a message.

Everything here blocks, writes nothing, and works on a log that is being written.
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
# Bytes that are read for a window on each side of its message: at first, and at most.
WINDOW_BYTES = 6 * 1024
MAX_WINDOW_BYTES = 1024 * 1024


def read_records_after(
    path: Path, position: int, limit: int, *, with_events: bool = False
) -> RecordSlice | None:
    """Returns only complete lines, since an incomplete one at the end may be a write in progress.
    None when the log does not say whose it is."""
    with open_log(path) as file:
        descriptor = file.fileno()
        status = os.fstat(descriptor)
        size = status.st_size
        beginning = read_beginning(descriptor, path)
        if beginning is None:
            return None
        if position > size or (position and os.pread(descriptor, 1, position - 1) != b"\n"):
            position = 0
        data = read_range(descriptor, position, min(size, position + limit))
        whole = data.rfind(b"\n") + 1
        if not whole and position + len(data) < size:  # a line beyond the limit comes alone
            data = read_first_line(descriptor, position, size)
            whole = len(data)
    return RecordSlice(
        *beginning,
        position,
        tuple(decode_placed(data[:whole], position, with_events)),
        position + whole,
        compute_version(status),
        has_more=bool(whole) and position + len(data) < size,
    )


def compute_version(status: os.stat_result) -> int:
    """A number that differs when the file has changed, or another file has its name."""
    return hash((status.st_size, status.st_mtime_ns, status.st_ino))


def decode_placed(data: bytes, position: int, with_events: bool) -> Iterator[tuple[int, Record]]:
    """The records of complete lines, each with its position; the first line is at `position`."""
    for line in data.split(b"\n"):
        if line and (with_events or not line.startswith(EVENT)):
            # Unreadable lines are skipped here; the log's owner sets them aside.
            for record in decode_lines(line, []):
                yield position, record
        position += len(line) + 1


def read_beginning(descriptor: int, path: Path) -> tuple[Pair, str] | None:
    """The pair and creation time of a log. Usually the first line has both."""
    head = os.pread(descriptor, GLANCE_BYTES, 0)
    for record in decode_lines(head[: head.find(b"\n") + 1], []):
        if isinstance(record, MetaRecord) and (pair := find_pair([record])) is not None:
            return pair, record.created_at or ""
    pair = read_owner(path)
    return (pair, "") if pair is not None else None


def read_first_line(descriptor: int, start: int, size: int) -> bytes:
    """The complete line that begins at `start`; empty when its end is not written yet."""
    length = BLOCK_BYTES
    while True:
        data = read_range(descriptor, start, min(size, start + length))
        end = data.find(b"\n") + 1
        if end or start + length >= size:
            return data[:end]
        length *= 4


def read_window(path: Path, request: WindowRequest) -> tuple[MessageRecord, ...]:
    """Usually takes one read of the log; more when lines are long or the position is wrong."""
    with open_log(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        start = max(0, request.position - WINDOW_BYTES)
        data = read_range(descriptor, start, min(size, request.position + WINDOW_BYTES))
        at = request.position
        line = data[at - start : data.find(b"\n", at - start) + 1]
        if not line:
            line = read_first_line(descriptor, at, size)
        message = find_message([line], request.id)
        if message is None:
            at = start = seek_message(descriptor, size, request.id)
            data = b""
            file.seek(at)
            for line in file:
                if (message := find_message([line], request.id)) is not None:
                    break
                at = start = at + len(line)
        if message is None:
            return ()
        end = at + len(line)
        before = read_preceding(descriptor, data[: at - start], start, request.before)
        after = read_following(descriptor, data[end - start :], end, size, request.after)
    first, last = request.id - request.before, request.id + request.after
    return (
        *[record for record in before if first <= record.id < request.id],
        message,
        *[record for record in after if request.id < record.id <= last],
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
    """The last `count` messages of `data`, which begins at `start`; reads what is before it if that
    has too few."""
    end = start + len(data)
    length = WINDOW_BYTES
    while True:
        # The block may begin in the middle of a line.
        lines = data.split(b"\n")[1 if start else 0 :]
        messages = take_messages(decode_messages(reversed(lines)), count)
        if len(messages) >= count or start == 0 or length >= MAX_WINDOW_BYTES:
            return messages[::-1]
        length *= 4
        start = max(0, end - length)
        data = read_range(descriptor, start, end)


def read_following(
    descriptor: int, data: bytes, start: int, size: int, count: int
) -> list[MessageRecord]:
    """The first `count` messages of `data`, which begins at `start`; reads what is after it if that
    has too few."""
    length = WINDOW_BYTES
    while True:
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")
        messages = take_messages(decode_messages(lines), count)
        if len(messages) >= count or start + len(data) >= size or length >= MAX_WINDOW_BYTES:
            return messages
        length *= 4
        data = read_range(descriptor, start, min(size, start + length))


def take_messages(messages: Iterator[MessageRecord], count: int) -> list[MessageRecord]:
    return [message for _, message in zip(range(count), messages, strict=False)]
