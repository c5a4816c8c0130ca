"""Entries: what crons.toml says, as values, and every mistake in it with its line."""

import re
from dataclasses import dataclass, field
from datetime import time, tzinfo
from typing import Any

from .document import TABLE, DocumentError, entry_lines, read
from .expression import Expression, ExpressionError
from .schedule import Quiet, Schedule
from .zones import LOCAL, zone_called

SENDER = "cron"
AT_ONCE = 8
MOST_AT_ONCE = 1000
MOST_JITTER = 3600
TOP_KEYS = {TABLE, "tz", "at_once"}
KINDS: dict[str, type | tuple[type, ...]] = {
    "id": int,
    "schedule": str,
    "agent": str,
    "skill": str,
    "message": str,
    "sender": str,
    "tz": str,
    "quiet_start": str,
    "quiet_end": str,
    "once": bool,
    "jitter": (int, float),
}
KIND_NAMES = {int: "a whole number", str: 'text, in "quotes"', bool: "true or false"}
CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Entry:
    """`agent` is told `content` whenever the schedule says so."""

    id: int
    schedule: Schedule
    agent: str
    content: str
    sender: str = SENDER
    once: bool = False
    jitter: float = 0.0  # seconds it may come later

    @property
    def title(self) -> str:
        """For logs: which one it is, and nothing of what a message says."""
        what = self.content if self.content.startswith("/") else "a message"
        return f"cron {self.id} ({what} to {self.agent})"


@dataclass(frozen=True, slots=True, order=True)
class Remark:
    """About one line of the file."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(slots=True)
class Reading:
    """What was understood. Entries with a mistake are not among the entries."""

    entries: list[Entry] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of each of them among the tables
    at_once: int = AT_ONCE
    mistakes: list[Remark] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)  # odd, but clear enough


class MistakeError(ValueError):
    """What is wrong with an entry, and which key it is about."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def read_entries(text: str) -> Reading:
    """Never raises: what is wrong is among the mistakes."""
    found = Reading()
    try:
        document = read(text)
    except DocumentError as error:
        found.mistakes.append(Remark(error.line, f"{error}; this is not TOML"))
        return found
    tables = document.get(TABLE, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        found.mistakes.append(Remark(1, f"write each entry as a [[{TABLE}]] table"))
        return found
    Reader(text, document, found).read(tables)
    found.mistakes.sort()
    found.remarks.sort()
    return found


class Reader:
    """Reads the tables of one document into a Reading."""

    def __init__(self, text: str, document: dict[str, Any], found: Reading) -> None:
        self._text = text
        self._document = document
        self._found = found
        self._lines: list[dict[str, int]] | None = None
        self._places: dict[int, int] = {}  # by id

    def read(self, tables: list[dict[str, Any]]) -> None:
        zone = self._top()
        for place, table in enumerate(tables):
            try:
                entry = read_table(table, zone)
                self._must_be_new(entry, tables)
            except MistakeError as error:
                self._found.mistakes.append(Remark(self._line(place, error.key), str(error)))
            else:
                self._places[entry.id] = place
                self._found.entries.append(entry)
                self._found.places.append(place)
                self._remark_on(place, table)

    def _must_be_new(self, entry: Entry, tables: list[dict[str, Any]]) -> None:
        if entry.id in self._places:
            first = self._line(self._places[entry.id], "")
            free = max(table["id"] for table in tables if type(table.get("id")) is int) + 1
            raise MistakeError(
                "id", f"the entry at line {first} has the id {entry.id} already; take {free}"
            )

    def _top(self) -> tzinfo:
        """What is said for all entries: the zone, and how many are fired at once."""
        at_once = self._document.get("at_once", AT_ONCE)
        if type(at_once) is int and 1 <= at_once <= MOST_AT_ONCE:
            self._found.at_once = at_once
        else:
            self._mistake_above("at_once", f"at_once is a number from 1 to {MOST_AT_ONCE}")
        for key in sorted(self._document.keys() - TOP_KEYS):
            self._found.remarks.append(Remark(self._line_above(key), ignored(key)))
        try:
            return zone_of(self._document, LOCAL)
        except MistakeError as error:
            self._mistake_above(error.key, str(error))
            return LOCAL

    def _remark_on(self, place: int, table: dict[str, Any]) -> None:
        for key in table.keys() - KINDS.keys():
            self._found.remarks.append(Remark(self._line(place, key), ignored(key)))
        ends = [key for key in ("quiet_start", "quiet_end") if key in table]
        if len(ends) == 1:
            self._found.remarks.append(
                Remark(
                    self._line(place, ends[0]),
                    f"{ends[0]} alone means nothing and is ignored; set both ends of quiet hours",
                )
            )

    def _mistake_above(self, key: str, message: str) -> None:
        self._found.mistakes.append(Remark(self._line_above(key), message))

    def _line(self, place: int, key: str) -> int:
        if self._lines is None:
            self._lines = entry_lines(self._text)
        if place >= len(self._lines):  # entries written as one array
            return self._line_above(TABLE)
        lines = self._lines[place]
        return lines.get(key, lines[""])

    def _line_above(self, key: str) -> int:
        """That of a key of no table."""
        said = re.search(
            rf'^[ \t]*["\']?{re.escape(key)}["\']?[ \t]*[=.]', self._text, re.MULTILINE
        )
        return self._text.count("\n", 0, said.start()) + 1 if said else 1


def read_table(table: dict[str, Any], zone: tzinfo) -> Entry:
    """Raises MistakeError."""
    for key, kind in KINDS.items():
        check_kind(table, key, kind)
    for key in ("id", "schedule", "agent"):
        if key not in table:
            raise MistakeError(key, f"this entry has no {key}; add one")
    if not 0 <= table["id"] < 2**64:
        raise MistakeError("id", f"the id {table['id']} is not within 0 and 2^64")
    for key in ("agent", "sender"):
        if table.get(key) == "":
            raise MistakeError(key, f"{key} is empty; name one, or leave the line out")
    return Entry(
        id=table["id"],
        schedule=Schedule(expression_of(table), zone_of(table, zone), quiet_of(table)),
        agent=table["agent"],
        content=content_of(table),
        sender=table.get("sender", SENDER),
        once=table.get("once", False),
        jitter=jitter_of(table),
    )


def check_kind(table: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> None:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # By type and not by isinstance: to Python, true is a number.
    if key in table and type(table[key]) not in kinds:
        raise MistakeError(key, f"{key} must be {KIND_NAMES[kinds[0]]}")


def expression_of(table: dict[str, Any]) -> Expression:
    try:
        return Expression.parse(table["schedule"])
    except ExpressionError as error:
        raise MistakeError("schedule", f"schedule {table['schedule']!r}: {error}") from None


def zone_of(table: dict[str, Any], default: tzinfo) -> tzinfo:
    if "tz" not in table:
        return default
    try:
        return zone_called(table["tz"])
    except (TypeError, ValueError) as error:
        raise MistakeError("tz", f"tz: {error}") from None


def quiet_of(table: dict[str, Any]) -> Quiet | None:
    """None unless both ends are there, as RFC 0080 has it."""
    ends = [clock_of(table, key) for key in ("quiet_start", "quiet_end") if key in table]
    return Quiet(*ends) if len(ends) == 2 else None


def clock_of(table: dict[str, Any], key: str) -> time:
    found = CLOCK.fullmatch(table[key])
    if not found:
        raise MistakeError(key, f"{key} {table[key]!r} is no time; write one like 23:00")
    return time(int(found[1]), int(found[2]))


def content_of(table: dict[str, Any]) -> str:
    skill, message = table.get("skill"), table.get("message")
    if (skill is None) == (message is None):
        key = "skill" if skill is not None else ""
        raise MistakeError(key, "an entry has a skill or a message: one of them, and not both")
    if message is not None:
        if not message.strip():
            raise MistakeError("message", "message is empty; say something")
        return str(message)
    if not skill or skill != skill.strip() or skill.startswith("/") or "\n" in skill:
        raise MistakeError("skill", f"skill {skill!r}: write its name, without the slash")
    return f"/{skill}"


def jitter_of(table: dict[str, Any]) -> float:
    jitter = float(table.get("jitter", 0))
    if not 0 <= jitter <= MOST_JITTER:  # and so is no nan
        raise MistakeError("jitter", f"jitter is a number of seconds, {MOST_JITTER} at most")
    return jitter


def ignored(key: str) -> str:
    return f"{key} means nothing here and is ignored; see docs/cron.md for what does"
