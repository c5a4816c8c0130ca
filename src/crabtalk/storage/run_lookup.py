"""The records of one run, wherever they are in a log file.

A log is searched from its end, where the runs are that somebody asks about. Everything here blocks
and writes nothing; the interpreter is never held for more than one slice of the file.
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
    """A run without an end."""

    run: str
    speaker: str  # who answered, if it was not the conversation's agent and had said something


def find_run(path: Path, run: str, key: str) -> list[Record]:
    """Its messages and events in order; empty when the log has no such run."""
    with open_log(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if key:
            run = find_run_of_key(descriptor, size, key)
        if not run:
            return []
        needle = encode_field("run", run)
        found = find_last(descriptor, size, needle)
        if found is None:
            return []
        lines: list[bytes] = []
        for line in read_lines_backwards(descriptor, find_line_end(descriptor, found, size)):
            # A run's records stand together: only patches of the meta may come between them.
            if needle in line:
                lines.append(line)
            elif not line.startswith(META):
                break
    decoded = decode_lines(b"\n".join(reversed(lines)), [])
    return [r for r in decoded if isinstance(r, MessageRecord | EventRecord) and r.run == run]


def find_open_run(path: Path) -> OpenRun | None:
    """The last run of a log, if the log does not say how it ended. It is in flight, or the process
    that ran it died: only whoever owns the conversation knows. Reads the end of the file."""
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
    while (found := find_last(descriptor, size, needle)) is not None:
        line = next(read_lines_backwards(descriptor, find_line_end(descriptor, found, size)), b"")
        for record in decode_lines(line, []):
            if isinstance(record, MessageRecord) and record.key == key:
                return record.run
        size = found  # a text that only looks like it
    return ""


def encode_field(name: str, value: str) -> bytes:
    """How a field stands in a line. Inside a JSON string its quotes would be escaped."""
    return b'"%s":%s' % (name.encode(), msgspec.json.encode(value))


def find_last(descriptor: int, size: int, needle: bytes) -> int | None:
    """Where the needle stands last."""
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
    """Where the line ends that has this place, its line feed not counted."""
    while at < size:
        data = read_range(descriptor, at, min(size, at + BLOCK_BYTES))
        found = data.find(b"\n")
        if found >= 0:
            return at + found
        at += len(data)
        if not data:
            break
    return size


def read_lines_backwards(descriptor: int, end: int, length: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The lines that end at `end` and before, the last one first."""
    rest = b""
    while end > 0:
        start = max(0, end - length)
        data = read_range(descriptor, start, end) + rest
        first, *whole = data.split(b"\n")
        yield from reversed(whole)
        rest = first
        end = start
        length = max(BLOCK_BYTES, 2 * len(rest))  # a long line is not put together from many pieces
    if rest:
        yield rest
