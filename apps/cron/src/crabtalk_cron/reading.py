"""Readings: what crons.toml says as a whole, and every mistake in it with its line."""

import re
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from .document import TABLE, DocumentError, entry_lines, read
from .entry import (
    KINDS,
    OWNER,
    SENDER,
    Entry,
    MistakeError,
    default_creator,
    read_table,
    zone_of,
)
from .zones import LOCAL

AT_ONCE = 8
MOST_AT_ONCE = 1000
TOP_KEYS = {TABLE, "tz", "at_once"}


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
        if "created_by" not in table:
            self._remark_on_creator(place, default_creator(table.get("sender", SENDER)))
        ends = [key for key in ("quiet_start", "quiet_end") if key in table]
        if len(ends) == 1:
            self._found.remarks.append(
                Remark(
                    self._line(place, ends[0]),
                    f"{ends[0]} alone means nothing and is ignored; set both ends of quiet hours",
                )
            )

    def _remark_on_creator(self, place: int, creator: str) -> None:
        if creator != OWNER:
            text = (
                f"its turns have the rights of {creator}, not yours, as they speak in that "
                f'conversation; add created_by = "{OWNER}" to give them yours'
            )
            self._found.remarks.append(Remark(self._line(place, "sender"), text))

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


def ignored(key: str) -> str:
    return f"{key} means nothing here and is ignored; see docs/cron.md for what does"
