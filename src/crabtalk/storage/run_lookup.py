"""Finds the records of one run in a log file.

A log is searched from its end, since clients mostly ask for recent runs. Everything here blocks and
writes nothing; the interpreter lock is never held for more than one slice of the file.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from .log_file import (
    BLOCK_BYTES,
    META,
    TAIL_BYTES,
    decode_lines,
    find_lines_end,
    open_log,
    read_range,
)
from .records import EventRecord, MarkerRecord, MessageRecord, Record

SLICE_BYTES = 1024 * 1024


class OpenRun(NamedTuple):
    """A run without an end record."""

    run: str
    speaker: str  # the guest that answered; empty for the conversation's agent, or without answer


def find_run(path: Path, run: str, key: str) -> list[Record]:
    """The messages and events of a run in order; empty when the log has no such run."""
    with open_log(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if key:
            run = find_run_of_key(descriptor, size, key)
        if not run:
            return []
        needle = encode_field("run", run)
        offset = find_last(descriptor, size, needle)
        if offset is None:
            return []
        lines: list[bytes] = []
        for line in read_lines_backwards(descriptor, find_line_end(descriptor, offset, size)):
            # The records of a run are consecutive, except for meta records between them.
            if needle in line:
                lines.append(line)
            elif not line.startswith(META):
                break
    decoded = decode_lines(b"\n".join(reversed(lines)), [])
    return [r for r in decoded if isinstance(r, MessageRecord | EventRecord) and r.run == run]


def find_open_run(path: Path) -> OpenRun | None:
    """The last run of a log, if it has no end record. It is in flight, or its process died: only
    the process that owns the conversation can tell. Reads only the end of the file."""
    speaker = ""
    with open_log(path) as file:
        size = find_lines_end(file.fileno(), os.fstat(file.fileno()).st_size)
        run = ""
        for line in read_lines_backwards(file.fileno(), max(0, size - 1), TAIL_BYTES):
            for record in decode_lines(line, []):
                match record:
                    case MarkerRecord():
                        return OpenRun(run, speaker) if run else None
                    case EventRecord(event="done") if not run:
                        return None
                    case MessageRecord() | EventRecord() if not run or record.run == run:
                        if not record.run:
                            return None  # a log of an earlier version
                        run = record.run
                        if isinstance(record, MessageRecord):
                            speaker = speaker or record.message.agent
                            if record.message.role == "user" and not record.steer:
                                return OpenRun(run, speaker)
                    case MessageRecord() | EventRecord():
                        return OpenRun(run, speaker)
    return OpenRun(run, speaker) if run else None


def find_run_of_key(descriptor: int, size: int, key: str) -> str:
    """The id of the run that a message with this key belongs to; empty without one."""
    needle = encode_field("key", key)
    while (offset := find_last(descriptor, size, needle)) is not None:
        line = next(read_lines_backwards(descriptor, find_line_end(descriptor, offset, size)), b"")
        for record in decode_lines(line, []):
            if isinstance(record, MessageRecord) and record.key == key:
                return record.run
        size = offset  # it was something else, such as a tool's arguments: search before it
    return ""


def encode_field(name: str, value: str) -> bytes:
    """A field as it is written in a line. Inside a JSON string its quotes would be escaped."""
    return b'"%s":%s' % (name.encode(), msgspec.json.encode(value))


def find_last(descriptor: int, size: int, needle: bytes) -> int | None:
    """The offset of the last occurrence of the needle."""
    end = size
    while end > 0:
        start = max(0, end - SLICE_BYTES)
        data = read_range(descriptor, start, min(size, end + len(needle) - 1))
        at = data.rfind(needle)
        if at >= 0:
            return start + at
        end = start
    return None


def find_line_end(descriptor: int, at: int, size: int) -> int:
    """The offset of the line feed that ends the line at `at`."""
    while at < size:
        data = read_range(descriptor, at, min(size, at + BLOCK_BYTES))
        index = data.find(b"\n")
        if index >= 0:
            return at + index
        at += len(data)
        if not data:
            break
    return size


def read_lines_backwards(descriptor: int, end: int, length: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The lines up to the offset `end`, the last one first."""
    rest = b""
    while end > 0:
        start = max(0, end - length)
        data = read_range(descriptor, start, end) + rest
        first, *whole = data.split(b"\n")
        yield from reversed(whole)
        rest = first
        end = start
        length = max(BLOCK_BYTES, 2 * len(rest))  # so that a long line does not take many reads
    if rest:
        yield rest
