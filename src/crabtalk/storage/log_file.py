"""Reads log files from either end, and repairs what a crash left incomplete.

Everything here blocks; it runs in threads. Only `repair_log` and `set_aside` write.
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

# The beginnings of lines: the encoder writes the kind first. After a line feed, these match only at
# line starts, since JSON strings have no raw line feed.
MARKER = b'{"kind":"compact"'
META = b'{"kind":"meta"'
TAIL_BYTES = 8 * 1024
GLANCE_BYTES = 1024
BLOCK_BYTES = 64 * 1024
TORN_SEAL_BYTES = 40


def open_log(path: Path) -> BinaryIO:
    """Opens a log for reading. Symbolic links are not followed, because logs never are links."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))


def repair_log(path: Path) -> int:
    """Removes an incomplete last line. Returns the size of the complete lines.

    If the line only lacks its line feed, as an editor may leave it, the line feed is added. The
    same happens when another byte stands in place of the line feed and the checksum is right.
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
            if b'"sum":"' in torn[-TORN_SEAL_BYTES:]:  # it was written completely, then damaged
                set_aside(path, [torn])
            os.ftruncate(descriptor, whole)
            log.warning("%s ended in half a line of %d bytes, cut", path.name, size - whole)
        os.fsync(descriptor)
        return whole
    finally:
        os.close(descriptor)


def find_lines_end(descriptor: int, size: int) -> int:
    """The offset after the last complete line."""
    end = size
    while end:
        start = max(0, end - BLOCK_BYTES)
        index = read_range(descriptor, start, end).rfind(b"\n")
        if index >= 0:
            return start + index + 1
        end = start
    return 0


def measure_whole_lines(path: Path) -> int:
    """The size of the complete lines; an incomplete line after them may be a write in progress."""
    with open_log(path) as file:
        return find_lines_end(file.fileno(), os.fstat(file.fileno()).st_size)


def read_since_marker(path: Path, size: int) -> bytes:
    """The lines from the last marker on, or all lines. Reads backwards, so a long log costs no
    more than a short one.

    A damaged marker does not count: without its summary, the messages before it are still needed.
    """
    with open_log(path) as file:
        block = BLOCK_BYTES
        while True:
            start = max(0, size - block)
            data = read_range(file.fileno(), start, size)
            index = len(data)
            while (index := data.rfind(b"\n" + MARKER, 0, index)) >= 0:
                if is_record(data[index + 1 : data.find(b"\n", index + 1)]):
                    return data[index + 1 :]
            if start == 0:
                return data
            block *= 4


def read_last_link(path: Path, size: int) -> bytes:
    """The `"prev"` for the next line: the sum of the last line, empty in an empty log."""
    with open_log(path) as file:
        end = min(size, os.fstat(file.fileno()).st_size)
        if end == 0:
            return b""
        start = find_lines_end(file.fileno(), end - 1)
        return read_link(read_range(file.fileno(), start, end).removesuffix(b"\n"))


def read_stored(path: Path, size: int, pair: Pair) -> StoredConversation:
    """The conversation from the last marker on. Damaged lines are reported and left out."""
    data = read_since_marker(path, size)
    # Patches before the marker still apply, also when no snapshot came after them.
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
    """The records of complete lines. Lines that cannot be decoded are added to `damaged`."""
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            yield decode_record(line)
        except ValueError:
            damaged.append(line)


def set_aside(path: Path, damaged: list[bytes]) -> None:
    """Copies unreadable lines to a file beside the log, once each, and logs an error."""
    copies = path.with_suffix(".damaged")
    try:
        known = set(copies.read_bytes().split(b"\n"))
    except FileNotFoundError:
        known = set()
    fresh = [line for line in dict.fromkeys(damaged) if line not in known]
    if not fresh:
        return
    log.error(
        "%s has %d unreadable lines; they stay where they are, with a copy in %s",
        path.name,
        len(fresh),
        copies.name,
    )
    descriptor = os.open(copies, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"".join(line + b"\n" for line in fresh))
        file.flush()
        os.fsync(descriptor)


def read_owner(path: Path) -> Pair | None:
    """The pair that a log belongs to, from its first readable meta record."""
    with open_log(path) as file:
        for line in file:
            if line.startswith(META) and (pair := find_pair(decode_lines(line, []))) is not None:
                return pair
    return None


def read_last_snapshot(path: str) -> ConversationMeta | None:
    """The meta of a log that ends in a snapshot, as logs of idle conversations do; otherwise None.

    A listing calls this for every log, so it reads as little as possible.
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

    `pair` is used when no meta record names the owner; without it, the result is None then.
    """
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        block = TAIL_BYTES
        while True:
            start = max(0, size - block)
            data = read_range(file.fileno(), start, size)
            # The block may begin in the middle of a line.
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
    """The records from the last snapshot on, or all records; and how many damaged lines after the
    last message may have been messages, so that their ids are not used again."""
    records: list[Record] = []
    suspects = 0
    is_counted = False
    for line in reversed(lines):
        damaged: list[bytes] = []
        records += decode_lines(line, damaged)
        if damaged and not is_counted:
            suspects += count_messages(line)
        elif records and has_message_count(records[-1]):
            is_counted = True
        if records and is_snapshot(records[-1]):
            break
    return records[::-1], suspects


def has_message_count(record: Record) -> bool:
    """Whether the record determines how many messages there are."""
    if isinstance(record, MetaRecord):
        return record.message_count is not None
    return isinstance(record, MessageRecord | MarkerRecord)


def is_snapshot(record: Record) -> bool:
    """Whether the record has everything a listing shows, so that no earlier patch matters."""
    if not isinstance(record, MetaRecord) or find_pair([record]) is None:
        return False
    fields = (record.created_at, record.title, record.updated_at, record.message_count)
    return None not in fields


def find_pair(records: Iterable[Record]) -> Pair | None:
    """The pair in the first meta record that has one; other meta records are patches without it."""
    for record in records:
        if isinstance(record, MetaRecord) and record.agent and record.created_by:
            return Pair(record.agent, record.created_by)
    return None


def read_markers(path: Path, damaged: list[bytes]) -> list[MarkerRecord]:
    markers: list[MarkerRecord] = []
    with open_log(path) as file:
        for line in file:
            if line.startswith(MARKER) and line.endswith(b"\n"):
                markers += [r for r in decode_lines(line, damaged) if isinstance(r, MarkerRecord)]
    return markers


def read_messages(
    path: Path, offset: int, limit: int, max_bytes: int
) -> tuple[list[MessageRecord], LogReader]:
    """Messages from id `offset` on, at most `limit` and about `max_bytes`. Damaged ones count too;
    the reader has their ids, which may be lower than `offset`."""
    messages: list[MessageRecord] = []
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = seek_message(file.fileno(), size, offset)
        file.seek(start)
        reader = LogReader(None if start else 0)
        for line in file:
            # The page is full, or the line is being written.
            if len(messages) >= limit or not line.endswith(b"\n"):
                return messages, reader
            for record in reader.read([line[:-1]]):
                if isinstance(record, MessageRecord) and record.id >= offset:
                    max_bytes -= len(line)
                    if messages and max_bytes < 0:
                        return messages, reader
                    messages.append(record)
    reader.finish()
    return messages, reader


def read_records_from(path: Path, message_id: int) -> list[Record]:
    """All records from the message with that id on, and possibly some before it."""
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = seek_message(file.fileno(), size, message_id)
        return list(decode_lines(read_range(file.fileno(), start, size), []))


def seek_message(descriptor: int, size: int, wanted: int) -> int:
    """An offset at or before the message with that id, by binary search: ids always increase."""
    low, high = 0, size  # the line is at or after `low` and before `high`
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        at, number = next_message(descriptor, middle, high)
        if number is None or number >= wanted:
            high = middle
        else:
            low = at
    return low


def next_message(descriptor: int, start: int, end: int) -> tuple[int, int | None]:
    """The first message line that begins after `start`: its offset and message id."""
    rest = b""
    at = start
    while at < end:
        # Double the size each time, so that a long line does not take many reads.
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
    """The bytes from `start` to `end`, fewer if the file is shorter."""
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
