"""Readings: what crons.toml says as a whole, and every mistake in it with its line."""

import re
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from .entry import (
    DEFAULT_SENDER,
    KINDS,
    OWNER,
    CronEntry,
    EntryError,
    choose_default_creator,
    parse_entry,
    parse_zone,
)
from .time_zones import LOCAL_ZONE
from .toml_document import TABLE_NAME, DocumentError, find_entry_lines, parse_document

DEFAULT_AT_ONCE = 8
MAX_AT_ONCE = 1000
TOP_KEYS = {TABLE_NAME, "tz", "at_once"}


@dataclass(frozen=True, slots=True, order=True)
class FileRemark:
    """About one line of the file."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(slots=True)
class CronsFile:
    """What was understood. Entries with a mistake are not among the entries."""

    entries: list[CronEntry] = field(default_factory=list)
    table_numbers: list[int] = field(default_factory=list)  # of each of them among the tables
    at_once: int = DEFAULT_AT_ONCE
    mistakes: list[FileRemark] = field(default_factory=list)
    remarks: list[FileRemark] = field(default_factory=list)  # odd, but clear enough


def parse_crons_file(text: str) -> CronsFile:
    """Never raises: what is wrong is among the mistakes."""
    found = CronsFile()
    try:
        document = parse_document(text)
    except DocumentError as error:
        found.mistakes.append(FileRemark(error.line, f"{error}; this is not TOML"))
        return found
    tables = document.get(TABLE_NAME, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        found.mistakes.append(FileRemark(1, f"write each entry as a [[{TABLE_NAME}]] table"))
        return found
    CronsFileParser(text, document, found).parse(tables)
    found.mistakes.sort()
    found.remarks.sort()
    return found


class CronsFileParser:
    """Reads the tables of one document into a Reading."""

    def __init__(self, text: str, document: dict[str, Any], found: CronsFile) -> None:
        self._text = text
        self._document = document
        self._result = found
        self._lines: list[dict[str, int]] | None = None
        self._places_by_id: dict[int, int] = {}  # by id

    def parse(self, tables: list[dict[str, Any]]) -> None:
        zone = self._parse_top_level()
        for place, table in enumerate(tables):
            try:
                entry = parse_entry(table, zone)
                self._check_id_is_new(entry, tables)
            except EntryError as error:
                self._result.mistakes.append(
                    FileRemark(self._find_line(place, error.key), str(error))
                )
            else:
                self._places_by_id[entry.id] = place
                self._result.entries.append(entry)
                self._result.table_numbers.append(place)
                self._remark_on(place, table)

    def _check_id_is_new(self, entry: CronEntry, tables: list[dict[str, Any]]) -> None:
        if entry.id in self._places_by_id:
            first = self._find_line(self._places_by_id[entry.id], "")
            free = max(table["id"] for table in tables if type(table.get("id")) is int) + 1
            raise EntryError(
                "id", f"the entry at line {first} has the id {entry.id} already; take {free}"
            )

    def _parse_top_level(self) -> tzinfo:
        """What is said for all entries: the zone, and how many are fired at once."""
        at_once = self._document.get("at_once", DEFAULT_AT_ONCE)
        if type(at_once) is int and 1 <= at_once <= MAX_AT_ONCE:
            self._result.at_once = at_once
        else:
            self._add_top_mistake("at_once", f"at_once is a number from 1 to {MAX_AT_ONCE}")
        for key in sorted(self._document.keys() - TOP_KEYS):
            self._result.remarks.append(FileRemark(self._find_top_line(key), describe_ignored(key)))
        try:
            return parse_zone(self._document, LOCAL_ZONE)
        except EntryError as error:
            self._add_top_mistake(error.key, str(error))
            return LOCAL_ZONE

    def _remark_on(self, place: int, table: dict[str, Any]) -> None:
        for key in table.keys() - KINDS.keys():
            self._result.remarks.append(
                FileRemark(self._find_line(place, key), describe_ignored(key))
            )
        if "created_by" not in table:
            self._remark_on_creator(
                place, choose_default_creator(table.get("sender", DEFAULT_SENDER))
            )
        ends = [key for key in ("quiet_start", "quiet_end") if key in table]
        if len(ends) == 1:
            self._result.remarks.append(
                FileRemark(
                    self._find_line(place, ends[0]),
                    f"{ends[0]} alone means nothing and is ignored; set both ends of quiet hours",
                )
            )

    def _remark_on_creator(self, place: int, creator: str) -> None:
        if creator != OWNER:
            text = (
                f"its turns have the rights of {creator}, not yours, as they speak in that "
                f'conversation; add created_by = "{OWNER}" to give them yours'
            )
            self._result.remarks.append(FileRemark(self._find_line(place, "sender"), text))

    def _add_top_mistake(self, key: str, message: str) -> None:
        self._result.mistakes.append(FileRemark(self._find_top_line(key), message))

    def _find_line(self, place: int, key: str) -> int:
        if self._lines is None:
            self._lines = find_entry_lines(self._text)
        if place >= len(self._lines):  # entries written as one array
            return self._find_top_line(TABLE_NAME)
        lines = self._lines[place]
        return lines.get(key, lines[""])

    def _find_top_line(self, key: str) -> int:
        """That of a key of no table."""
        said = re.search(
            rf'^[ \t]*["\']?{re.escape(key)}["\']?[ \t]*[=.]', self._text, re.MULTILINE
        )
        return self._text.count("\n", 0, said.start()) + 1 if said else 1


def describe_ignored(key: str) -> str:
    return f"{key} means nothing here and is ignored; see docs/cron.md for what does"
