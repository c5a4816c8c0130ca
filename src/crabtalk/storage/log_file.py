"""A log file: lines of records, read from either end, mended where a crash cut it short.

Everything here blocks; it runs in threads. Nothing here writes but `mend` and `set_aside`.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from .checksums import is_sealed, read_link
from .log_reader import MESSAGE, LogReader, count_messages
from .records import (
    ConversationMeta,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    StoredConversation,
    decode_record,
    replay_records,
)

log = logging.getLogger(__name__)

# How lines begin: the encoder writes the kind first. Only line starts can match, since JSON has no
# raw line feed inside a string.
MARKER = b'{"kind":"compact"'
META = b'{"kind":"meta"'
TAIL_BYTES = 8 * 1024
GLANCE_BYTES = 1024
BLOCK_BYTES = 64 * 1024
TORN_SEAL_BYTES = 40


def open_log(path: Path) -> BinaryIO:
    """To read. A link is not followed: what it leads to is no log of ours."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))


def repair_log(path: Path) -> int:
    """Cuts a line that a crash left half written. Returns the size of what is whole.

    A last line that only lacks its line feed, as an editor may leave it, gets it. So does one whose
    line feed was changed: its checksum shows that the rest is whole.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        whole = find_lines_end(descriptor, size)
        if whole == size:
            return size
        torn = read_range(descriptor, whole, size)
        if is_record(torn):
            os.pwrite(descriptor, b"\n", size)
            whole = size + 1
        elif is_sealed(torn[:-1]) and is_record(torn[:-1]):
            os.pwrite(descriptor, b"\n", size - 1)
            whole = size
        else:
            if b'"sum":"' in torn[-TORN_SEAL_BYTES:]:  # written to its end, so damaged and not torn
                set_aside(path, [torn])
            os.ftruncate(descriptor, whole)
            log.warning("%s ended in half a line of %d bytes, cut", path.name, size - whole)
        os.fsync(descriptor)
        return whole
    finally:
        os.close(descriptor)


def find_lines_end(descriptor: int, size: int) -> int:
    """Where the last complete line ends."""
    end = size
    while end:
        start = max(0, end - BLOCK_BYTES)
        found = read_range(descriptor, start, end).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def measure_whole_lines(path: Path) -> int:
    """The size of what is whole; half a line after it may be one that is being written."""
    with open_log(path) as file:
        return find_lines_end(file.fileno(), os.fstat(file.fileno()).st_size)


def read_since_marker(path: Path, size: int) -> bytes:
    """From the last marker on, or all there is. Reads backwards: a long past costs nothing.

    A marker that cannot be read is none: without its summary, what it folded is still needed.
    """
    with open_log(path) as file:
        block = BLOCK_BYTES
        while True:
            start = max(0, size - block)
            data = read_range(file.fileno(), start, size)
            found = len(data)
            while (found := data.rfind(b"\n" + MARKER, 0, found)) >= 0:
                if is_record(data[found + 1 : data.find(b"\n", found + 1)]):
                    return data[found + 1 :]
            if start == 0:
                return data
            block *= 4


def read_last_link(path: Path, size: int) -> bytes:
    """What the next line has as its `"prev"`: the sum of the last one, empty in an empty log."""
    with open_log(path) as file:
        end = min(size, os.fstat(file.fileno()).st_size)
        if end == 0:
            return b""
        start = find_lines_end(file.fileno(), end - 1)
        return read_link(read_range(file.fileno(), start, end).removesuffix(b"\n"))


def read_stored(path: Path, size: int, pair: Pair) -> StoredConversation:
    """What follows the last marker. Damaged lines are reported, and left out."""
    data = read_since_marker(path, size)
    # What was patched before the marker still holds, also when no snapshot came after it.
    meta = read_meta(path, pair) or ConversationMeta(*pair)
    reader = LogReader()
    stored = replay_records(reader.read(data.split(b"\n")), meta, len(data))
    reader.finish()
    report_damage(path, reader)
    if not reader.damaged and not reader.missing:
        return stored
    count = max(stored.meta.message_count, reader.next_id or 0)
    return msgspec.structs.replace(
        stored,
        meta=msgspec.structs.replace(stored.meta, message_count=count),
        damaged=tuple(reader.missing),
    )


def report_damage(path: Path, reader: LogReader) -> None:
    if reader.damaged:
        set_aside(path, reader.damaged)
    if reader.broken_links:
        log.error(
            "%s has lines that do not follow the line before them (%d): some were removed, moved "
            "or added; `crabtalk doctor` names them",
            path.name,
            reader.broken_links,
        )


def decode_lines(data: bytes, damaged: list[bytes]) -> Iterator[Record]:
    """The records of complete lines. Those that cannot be read go to `damaged`."""
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            yield decode_record(line)
        except ValueError:
            damaged.append(line)


def set_aside(path: Path, damaged: list[bytes]) -> None:
    """Copies lines nobody could read to a file beside the log, once each, and says so."""
    aside = path.with_suffix(".damaged")
    try:
        known = set(aside.read_bytes().split(b"\n"))
    except FileNotFoundError:
        known = set()
    fresh = [line for line in dict.fromkeys(damaged) if line not in known]
    if not fresh:
        return
    log.error(
        "%s has %d unreadable lines; they stay where they are, with a copy in %s",
        path.name,
        len(fresh),
        aside.name,
    )
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"".join(line + b"\n" for line in fresh))
        file.flush()
        os.fsync(descriptor)


def read_owner(path: Path) -> Pair | None:
    """Whose log it is: what its meta says, wherever the first readable one is."""
    with open_log(path) as file:
        for line in file:
            if line.startswith(META) and (pair := find_pair(decode_lines(line, []))) is not None:
                return pair
    return None


def read_last_snapshot(path: str) -> ConversationMeta | None:
    """The meta of a log that ends in a snapshot, as one does that nothing happened to since.

    A listing reads every log, so this has one purpose: to look at as little as can be.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        data = os.pread(descriptor, GLANCE_BYTES, max(0, size - GLANCE_BYTES))
    finally:
        os.close(descriptor)
    line = data[data.rfind(b"\n", 0, -1) + 1 : -1]
    if not data.endswith(b"\n") or not line.startswith(META):
        return None
    for record in decode_lines(line, []):
        if isinstance(record, MetaRecord) and is_snapshot(record):
            return ConversationMeta(*find_pair([record]) or ("", "")).apply_record(record)
    return None


def read_meta(path: Path, pair: Pair | None = None) -> ConversationMeta | None:
    """The meta, without the summary, from the end of the log.

    `pair` has the log when no meta in it says so; without it, that makes None.
    """
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        block = TAIL_BYTES
        while True:
            start = max(0, size - block)
            data = read_range(file.fileno(), start, size)
            # What the block begins with may be the rest of a line.
            lines = data[: data.rfind(b"\n") + 1].split(b"\n")[1 if start else 0 :]
            recent, suspects = read_since_snapshot(lines)
            if start == 0 or (recent and is_snapshot(recent[0])):
                break
            block *= 8
    pair = find_pair(recent) or pair
    if pair is None or not any(lines):
        return None
    meta = ConversationMeta(*pair)
    for record in recent:
        meta = meta.apply_record(record)
    count = meta.message_count + suspects
    return msgspec.structs.replace(meta, summary="", message_count=count)


def read_since_snapshot(lines: list[bytes]) -> tuple[list[Record], int]:
    """The records from the last snapshot on, or all there are; and how many damaged lines after
    the last message were perhaps messages, whose ids are not given out again."""
    found: list[Record] = []
    suspects = 0
    is_counted = False
    for line in reversed(lines):
        damaged: list[bytes] = []
        found += decode_lines(line, damaged)
        if damaged and not is_counted:
            suspects += count_messages(line)
        elif found and says_count(found[-1]):
            is_counted = True
        if found and is_snapshot(found[-1]):
            break
    return found[::-1], suspects


def says_count(record: Record) -> bool:
    """Whether it says how many messages there are."""
    if isinstance(record, MetaRecord):
        return record.message_count is not None
    return isinstance(record, MessageRecord | MarkerRecord)


def is_snapshot(record: Record) -> bool:
    """Whether it says all a listing shows, so that no earlier patch matters."""
    if not isinstance(record, MetaRecord) or find_pair([record]) is None:
        return False
    rest = (record.created_at, record.title, record.updated_at, record.message_count)
    return None not in rest


def find_pair(records: Iterable[Record]) -> Pair | None:
    """The pair of the first meta that says whose it is; others only patch one that does."""
    for record in records:
        if isinstance(record, MetaRecord) and record.agent and record.created_by:
            return Pair(record.agent, record.created_by)
    return None


def read_markers(path: Path, damaged: list[bytes]) -> list[MarkerRecord]:
    found: list[MarkerRecord] = []
    with open_log(path) as file:
        for line in file:
            if line.startswith(MARKER) and line.endswith(b"\n"):
                found += [r for r in decode_lines(line, damaged) if isinstance(r, MarkerRecord)]
    return found


def read_messages(
    path: Path, offset: int, limit: int, room: int
) -> tuple[list[MessageRecord], LogReader]:
    """From the one with id `offset` on, at most `limit` and as many as have room. Those that are
    damaged count too; the reader has their ids, which may be lower than `offset`."""
    found: list[MessageRecord] = []
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = seek_message(file.fileno(), size, offset)
        file.seek(start)
        reader = LogReader(None if start else 0)
        for line in file:
            if len(found) >= limit or not line.endswith(b"\n"):  # full, or being written
                return found, reader
            for record in reader.read([line[:-1]]):
                if isinstance(record, MessageRecord) and record.id >= offset:
                    room -= len(line)
                    if found and room < 0:
                        return found, reader
                    found.append(record)
    reader.finish()
    return found, reader


def read_records_from(path: Path, message_id: int) -> list[Record]:
    """All records from the message with that id on, and a few of those before it."""
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = seek_message(file.fileno(), size, message_id)
        return list(decode_lines(read_range(file.fileno(), start, size), []))


def seek_message(descriptor: int, size: int, wanted: int) -> int:
    """Where to start reading so as not to miss the message with that id: ids only ever grow."""
    low, high = 0, size  # the line is at or after `low`; lines from `high` on are beyond it
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        at, number = next_message(descriptor, middle, high)
        if number is None or number >= wanted:
            high = middle
        else:
            low = at
    return low


def next_message(descriptor: int, start: int, end: int) -> tuple[int, int | None]:
    """The first message line that begins after `start`: where, and its id."""
    rest = b""
    at = start
    while at < end:
        # Twice as much each time: a long line is not put together from many pieces.
        piece = os.pread(descriptor, min(max(BLOCK_BYTES, len(rest)), end - at), at)
        if not piece:
            break
        base = at - len(rest)
        data = rest + piece
        at += len(piece)
        begin = data.find(b"\n" + MESSAGE)
        while begin >= 0:
            stop = data.find(b"\n", begin + 1)
            if stop < 0:
                break
            for record in decode_lines(data[begin + 1 : stop], []):
                if isinstance(record, MessageRecord):
                    return base + begin + 1, record.id
            begin = data.find(b"\n" + MESSAGE, stop)
        rest = data[begin:] if begin >= 0 else data[-len(MESSAGE) :]
    return end, None


def read_range(descriptor: int, start: int, end: int) -> bytes:
    """Exactly those bytes, as far as the file has them."""
    pieces: list[bytes] = []
    while start < end and (piece := os.pread(descriptor, end - start, start)):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def is_record(line: bytes) -> bool:
    try:
        decode_record(line)
    except ValueError:
        return False
    return True
