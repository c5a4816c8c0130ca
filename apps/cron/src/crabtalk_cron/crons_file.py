"""Parses crons.toml as a whole. Every mistake is reported with its line."""

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
    """A mistake or a hint about one line of the file."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(slots=True)
class CronsFile:
    """The content of the file. Entries with a mistake are left out."""

    entries: list[CronEntry] = field(default_factory=list)
    table_numbers: list[int] = field(default_factory=list)  # each entry's index among the tables
    at_once: int = DEFAULT_AT_ONCE
    mistakes: list[FileRemark] = field(default_factory=list)
    remarks: list[FileRemark] = field(default_factory=list)  # unusual, but unambiguous


def parse_crons_file(text: str) -> CronsFile:
    """Never raises: errors are among the mistakes."""
    result = CronsFile()
    try:
        document = parse_document(text)
    except DocumentError as error:
        result.mistakes.append(FileRemark(error.line, f"{error}; this is not TOML"))
        return result
    tables = document.get(TABLE_NAME, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        result.mistakes.append(FileRemark(1, f"write each entry as a [[{TABLE_NAME}]] table"))
        return result
    CronsFileParser(text, document, result).parse(tables)
    result.mistakes.sort()
    result.remarks.sort()
    return result


class CronsFileParser:
    """Parses the tables of one document into a CronsFile."""

    def __init__(self, text: str, document: dict[str, Any], result: CronsFile) -> None:
        self._text = text
        self._document = document
        self._result = result
        self._lines: list[dict[str, int]] | None = None
        self._places_by_id: dict[int, int] = {}  # the index of each entry's table

    def parse(self, tables: list[dict[str, Any]]) -> None:
        zone = self._parse_top_level()
        for number, table in enumerate(tables):
            try:
                entry = parse_entry(table, zone)
                self._check_id_is_new(entry, tables)
            except EntryError as error:
                self._result.mistakes.append(
                    FileRemark(self._find_line(number, error.key), str(error))
                )
            else:
                self._places_by_id[entry.id] = number
                self._result.entries.append(entry)
                self._result.table_numbers.append(number)
                self._remark_on(number, table)

    def _check_id_is_new(self, entry: CronEntry, tables: list[dict[str, Any]]) -> None:
        if entry.id in self._places_by_id:
            first = self._find_line(self._places_by_id[entry.id], "")
            free = max(table["id"] for table in tables if type(table.get("id")) is int) + 1
            raise EntryError(
                "id", f"the entry at line {first} has the id {entry.id} already; take {free}"
            )

    def _parse_top_level(self) -> tzinfo:
        """The settings for all entries: the zone, and how many turns run at once."""
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

    def _remark_on(self, number: int, table: dict[str, Any]) -> None:
        for key in table.keys() - KINDS.keys():
            self._result.remarks.append(
                FileRemark(self._find_line(number, key), describe_ignored(key))
            )
        if "created_by" not in table:
            self._remark_on_creator(
                number, choose_default_creator(table.get("sender", DEFAULT_SENDER))
            )
        ends = [key for key in ("quiet_start", "quiet_end") if key in table]
        if len(ends) == 1:
            self._result.remarks.append(
                FileRemark(
                    self._find_line(number, ends[0]),
                    f"{ends[0]} alone means nothing and is ignored; set both ends of quiet hours",
                )
            )

    def _remark_on_creator(self, number: int, creator: str) -> None:
        if creator != OWNER:
            text = (
                f"its turns have the rights of {creator}, not yours, as they speak in that "
                f'conversation; add created_by = "{OWNER}" to give them yours'
            )
            self._result.remarks.append(FileRemark(self._find_line(number, "sender"), text))

    def _add_top_mistake(self, key: str, message: str) -> None:
        self._result.mistakes.append(FileRemark(self._find_top_line(key), message))

    def _find_line(self, number: int, key: str) -> int:
        if self._lines is None:
            self._lines = find_entry_lines(self._text)
        if number >= len(self._lines):  # entries written as one array
            return self._find_top_line(TABLE_NAME)
        lines = self._lines[number]
        return lines.get(key, lines[""])

    def _find_top_line(self, key: str) -> int:
        """The line of a key outside of all tables."""
        match = re.search(
            rf'^[ \t]*["\']?{re.escape(key)}["\']?[ \t]*[=.]', self._text, re.MULTILINE
        )
        return self._text.count("\n", 0, match.start()) + 1 if match else 1


def describe_ignored(key: str) -> str:
    return f"{key} means nothing here and is ignored; see docs/cron.md for what does"
