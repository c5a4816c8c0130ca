"""A log file for somebody who reads along: what came after a position, what is around a message.

Everything here blocks, writes nothing, and may be asked about a log that is being written.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .following import Followed, Place
from .log import (
    BLOCK,
    GLANCE,
    named_pair,
    open_log,
    owner,
    read_range,
    records,
    seek_message,
)
from .log_reader import MESSAGE
from .records import MessageRecord, MetaRecord, Pair, Record

EVENT = b'{"kind":"event"'
# What a window is read from on each side of its message: at first, and at most.
SLICE = 6 * 1024
SLICES = 1024 * 1024


def follow(path: Path, position: int, limit: int, *, with_events: bool = False) -> Followed | None:
    """Only whole lines: what comes after them may be one that is being written."""
    with open_log(path) as file:
        descriptor = file.fileno()
        status = os.fstat(descriptor)
        size = status.st_size
        begun = beginning(descriptor, path)
        if begun is None:
            return None
        if position > size or (position and os.pread(descriptor, 1, position - 1) != b"\n"):
            position = 0
        data = read_range(descriptor, position, min(size, position + limit))
        whole = data.rfind(b"\n") + 1
        if not whole and position + len(data) < size:  # a line larger than that comes alone
            data = first_line(descriptor, position, size)
            whole = len(data)
    found = tuple(placed(data[:whole], position, with_events))
    more = bool(whole) and position + len(data) < size
    return Followed(*begun, position, found, position + whole, version_of(status), more)


def version_of(status: os.stat_result) -> int:
    """Another file of the same name has another one, be it as long."""
    return hash((status.st_size, status.st_mtime_ns, status.st_ino))


def placed(data: bytes, position: int, with_events: bool) -> Iterator[tuple[int, Record]]:
    """The records of complete lines that begin at `position`, each with its own."""
    for line in data.split(b"\n"):
        if line and (with_events or not line.startswith(EVENT)):
            # What cannot be read is set aside by whoever owns the log.
            for record in records(line, []):
                yield position, record
        position += len(line) + 1


def beginning(descriptor: int, path: Path) -> tuple[Pair, str] | None:
    """Whose log it is, and since when. As a rule the first line says both."""
    head = os.pread(descriptor, GLANCE, 0)
    for record in records(head[: head.find(b"\n") + 1], []):
        if isinstance(record, MetaRecord) and (pair := named_pair([record])) is not None:
            return pair, record.created_at or ""
    pair = owner(path)
    return (pair, "") if pair is not None else None


def first_line(descriptor: int, start: int, size: int) -> bytes:
    """The whole line that begins there; empty when its end is not written yet."""
    length = BLOCK
    while True:
        data = read_range(descriptor, start, min(size, start + length))
        end = data.find(b"\n") + 1
        if end or start + length >= size:
            return data[:end]
        length *= 4


def read_window(path: Path, place: Place) -> tuple[MessageRecord, ...]:
    """As a rule from one slice of the log; from more where lines are long or the hint is wrong."""
    with open_log(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        start = max(0, place.position - SLICE)
        data = read_range(descriptor, start, min(size, place.position + SLICE))
        at = place.position
        line = data[at - start : data.find(b"\n", at - start) + 1]
        if not line:
            line = first_line(descriptor, at, size)
        message = wanted([line], place.id)
        if message is None:
            at = start = seek_message(descriptor, size, place.id)
            data = b""
            file.seek(at)
            for line in file:
                if (message := wanted([line], place.id)) is not None:
                    break
                at = start = at + len(line)
        if message is None:
            return ()
        end = at + len(line)
        before = preceding(descriptor, data[: at - start], start, place.before)
        after = following(descriptor, data[end - start :], end, size, place.after)
    first, last = place.id - place.before, place.id + place.after
    return (
        *[record for record in before if first <= record.id < place.id],
        message,
        *[record for record in after if place.id < record.id <= last],
    )


def wanted(lines: Iterable[bytes], number: int) -> MessageRecord | None:
    return next((message for message in messages(lines) if message.id == number), None)


def messages(lines: Iterable[bytes]) -> Iterator[MessageRecord]:
    for line in lines:
        if line.startswith(MESSAGE):
            for record in records(line, []):
                if isinstance(record, MessageRecord):
                    yield record


def preceding(descriptor: int, data: bytes, start: int, count: int) -> list[MessageRecord]:
    """The last `count` messages of `data`, which begins at `start`, or of what is before it."""
    end = start + len(data)
    length = SLICE
    while True:
        # What the block begins with may be the rest of a line.
        lines = data.split(b"\n")[1 if start else 0 :]
        found = taken(messages(reversed(lines)), count)
        if len(found) >= count or start == 0 or length >= SLICES:
            return found[::-1]
        length *= 4
        start = max(0, end - length)
        data = read_range(descriptor, start, end)


def following(
    descriptor: int, data: bytes, start: int, size: int, count: int
) -> list[MessageRecord]:
    """The first `count` messages of `data`, which begins at `start`, or of what comes after it."""
    length = SLICE
    while True:
        found = taken(messages(data[: data.rfind(b"\n") + 1].split(b"\n")), count)
        if len(found) >= count or start + len(data) >= size or length >= SLICES:
            return found
        length *= 4
        data = read_range(descriptor, start, min(size, start + length))


def taken(found: Iterator[MessageRecord], count: int) -> list[MessageRecord]:
    return [message for _, message in zip(range(count), found, strict=False)]
