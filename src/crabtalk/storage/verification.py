"""Verifies a log file without a daemon: finds lines that are not as they were written.

It detects lines that were changed, cut short, moved, added from elsewhere, repeated or removed. It
cannot detect lines missing from the end of a log, since no later line refers to them.
Everything here blocks and writes nothing; the log may be written meanwhile.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from crabtalk.model.messages import Value

from .checksums import check_sum, is_link, is_sealed, read_link, read_prev
from .log_file import open_log
from .records import decode_record

Fault = Literal["changed", "unreadable", "cut", "moved", "foreign", "repeated", "missing"]

# What can still be read from a damaged line.
MESSAGE_ID = re.compile(rb'"id":(\d{1,16}),"at":"([^"]{1,40})"')
TIMESTAMP = re.compile(rb'"(?:at|archived_at|updated_at)":"([^"]{1,40})"')
# An incomplete last line may be a write in progress: how often it is read again, and after how many
# seconds.
ATTEMPTS = 3
PAUSE = 0.05


class LogDamage(Value, frozen=True):
    """What is wrong with a line. `message_id` and `at` are from the line, if still readable."""

    line: int  # counted from 1
    fault: Fault
    text: str  # a sentence
    message_id: int | None = None
    at: str = ""


class ExaminedLine(NamedTuple):
    number: int
    prev: bytes | None
    link: bytes
    fault: Fault | None
    message_id: int | None
    at: str


def verify_log(path: Path) -> list[LogDamage]:
    """The damage in a log. An intact log takes one pass and little memory. Raises OSError."""
    damages: list[LogDamage] = []
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE)
        if is_intact(path):
            return []
        damages = find_damage([examine_line(number, line) for number, line in number_lines(path)])
        if not any(damage.fault == "cut" for damage in damages):
            break
    return damages


def is_intact(path: Path) -> bool:
    before = b""
    with open_log(path) as file:
        for line in file:
            if not line.endswith(b"\n"):
                return False
            line = line[:-1]
            if find_fault(line) is not None:
                return False
            if before:
                if not is_link(before, line) or (is_sealed(before) and not is_sealed(line)):
                    return False
            elif read_prev(line):
                return False
            before = line or before
    return True


def number_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_log(path) as file:
        for number, line in enumerate(file, 1):
            if line != b"\n":
                yield number, line


def examine_line(number: int, line: bytes) -> ExaminedLine:
    whole = line.removesuffix(b"\n")
    fault = find_fault(whole)
    if not line.endswith(b"\n") and fault is not None:
        fault = "cut"
    message_id, at = None, ""
    if (match := MESSAGE_ID.search(whole)) is not None:
        message_id, at = int(match[1]), match[2].decode(errors="replace")
    elif (match := TIMESTAMP.search(whole)) is not None:
        at = match[1].decode(errors="replace")
    return ExaminedLine(number, read_prev(whole), read_link(whole), fault, message_id, at)


def find_fault(line: bytes) -> Fault | None:
    """What is wrong with a line, apart from its place in the log."""
    try:
        check_sum(line)
    except ValueError:
        return "changed"
    if not line or is_sealed(line):
        return None
    try:
        decode_record(line)
    except ValueError:
        return "unreadable"
    return None


def find_damage(lines: list[ExaminedLine]) -> list[LogDamage]:
    """Follows the links. `head` is the link of the last line that is in its place; None after a
    damaged line, whose own link cannot be trusted."""
    by_link = {line.link: line for line in reversed(lines) if line.fault is None}
    followers = {line.prev: line for line in reversed(lines) if line.prev is not None}
    covered = find_covered_lines(lines)
    moved: dict[bytes, ExaminedLine] = {}  # by the link of the line before them
    foreign: set[bytes] = set()  # links of lines that do not belong to this log
    damages: list[LogDamage] = []
    head: bytes | None = b""
    has_seals = False
    last = 0
    for line in lines:
        if line.fault is not None:
            damages.append(to_damage(line, line.fault))
            head = None
        elif line.prev is None:
            if has_seals and line.number not in covered:
                damages.append(to_damage(line, "foreign", "it has no checksum, those before it do"))
                continue
            head = line.link
        elif by_link[line.link].number < line.number:
            damages.append(
                to_damage(line, "repeated", f"it is line {by_link[line.link].number} again")
            )
            continue
        elif head is None or line.prev == head:
            head = line.link
        elif is_after(followers.get(head), line):
            before = by_link.get(line.prev)
            if before is None or line.prev in foreign:
                foreign.add(line.link)
                damages.append(to_damage(line, "foreign", "it follows no line of this log"))
            else:
                moved[line.prev] = line
                damages.append(to_damage(line, "moved", f"it belongs after line {before.number}"))
            continue
        else:
            where = f"between line {last} and it" if last else "before it"
            damages.append(to_damage(line, "missing", where))
            head = line.link
        last = line.number
        has_seals = has_seals or line.prev is not None
        while head is not None and head in moved:
            head = moved.pop(head).link
    return damages


def is_after(other: ExaminedLine | None, line: ExaminedLine) -> bool:
    return other is not None and other.fault is None and other.number > line.number


def find_covered_lines(lines: list[ExaminedLine]) -> set[int]:
    """The numbers of unsealed lines that an older version added: the next sealed line refers to
    them."""
    covered: set[int] = set()
    following: ExaminedLine | None = None
    for line in reversed(lines):
        is_old = line.prev is None and line.fault is None
        is_linked = following is not None and (
            following.number in covered or following.prev == line.link
        )
        if is_old and is_linked:
            covered.add(line.number)
        following = line
    return covered


SENTENCES: dict[Fault, str] = {
    "changed": "was changed after it was written: its checksum does not match",
    "unreadable": "cannot be read",
    "cut": "is cut short",
    "moved": "is not where it was written",
    "foreign": "was not written here by crabtalk",
    "repeated": "is there twice",
    "missing": "does not follow the line before it: lines were removed",
}


def to_damage(line: ExaminedLine, fault: Fault, reason: str = "") -> LogDamage:
    known = "" if line.message_id is None else f"message {line.message_id}"
    known += f"{' of ' if known else ''}{line.at}" if line.at else ""
    which = f"line {line.number} ({known})" if known else f"line {line.number}"
    gap = " " if fault == "missing" else ": "
    text = f"{which} {SENTENCES[fault]}{gap if reason else ''}{reason}"
    return LogDamage(line.number, fault, text, line.message_id, line.at)
