"""The text of crons.toml: on which line things are said, and how an entry is taken out of it.

The file is a person's. TOML is read by tomllib; here it is only cut into the pieces that tomllib
takes one by one, which is what tells a line that begins a table from one inside a long string.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TABLE_NAME = "cron"
LINE_PATTERN = re.compile(r"[^\n]*\n|[^\n]+")  # TOML's lines, which are fewer than Python's
# What the last line of a value that has several is bound to have.
VALUE_END_PATTERN = re.compile(r"\"\"\"|'''|\]")
ERROR_PLACE_PATTERN = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


class DocumentError(ValueError):
    """Not TOML, and the line from which on it is not."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class CronsStatement:
    """A header, a key with its value, a comment or an empty line; and its first line, from 1."""

    line: int
    text: str
    values: dict[str, Any]

    @property
    def is_header(self) -> bool:
        return self.text.lstrip().startswith("[")

    @property
    def begins_entry(self) -> bool:
        return self.is_header and self.values == {TABLE_NAME: [{}]}


def parse_document(text: str) -> dict[str, Any]:
    """What it says. Raises DocumentError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = ERROR_PLACE_PATTERN.search(str(error))
        line = int(found[1]) if found and found[1] else len(LINE_PATTERN.findall(text))
        raise DocumentError(line, ERROR_PLACE_PATTERN.sub("", str(error))) from None
    except RecursionError:
        raise DocumentError(1, "it nests too deeply") from None


def find_entry_lines(text: str) -> list[dict[str, int]]:
    """For each entry the line of each of its keys, and under "" that of its header."""
    found: list[dict[str, int]] = []
    inside = False
    for statement in iterate_statements(text):
        if statement.is_header:
            inside = statement.begins_entry
            if inside:
                found.append({"": statement.line})
        elif inside:
            found[-1].update(dict.fromkeys(statement.values, statement.line))
    return found


def remove_entry(text: str, number: int) -> str:
    """The text but for one entry, counted from 0; every comment that is not inside it stays.

    Raises ValueError when an entry is written in a way that this cannot undo.
    """
    wanted = parse_document(text)
    del wanted[TABLE_NAME][number]
    kept: list[str] = []
    entry: list[CronsStatement] = []
    count = -1
    inside = False
    for statement in iterate_statements(text):
        if statement.is_header:
            count += statement.begins_entry
            # A table within the entry goes with it.
            inside = count == number and TABLE_NAME in statement.values
        if inside:
            entry.append(statement)
        else:
            kept += [*find_trailing_comments(entry), statement.text]
            entry = []
    left = "".join([*kept, *find_trailing_comments(entry)])
    if {TABLE_NAME: [], **parse_document(left)} != wanted:
        raise ValueError(f"it is not a [[{TABLE_NAME}]] table of its own")
    return left


def find_trailing_comments(entry: list[CronsStatement]) -> list[str]:
    """What stands below the last line of an entry that says something, if that is a comment."""
    said = [place for place, statement in enumerate(entry) if statement.values]
    below = [statement.text for statement in entry[said[-1] + 1 :]] if said else []
    while below and not below[0].strip():
        del below[0]
    return below


def iterate_statements(text: str) -> Iterator[CronsStatement]:
    """All of it, in pieces that are TOML each. The text as a whole must be."""
    piece = ""
    first = 1
    for number, line in enumerate(LINE_PATTERN.findall(text), 1):
        piece += line
        if number > first and not VALUE_END_PATTERN.search(line):
            continue
        try:
            said = tomllib.loads(piece)
        except tomllib.TOMLDecodeError:  # goes on in the next line
            continue
        yield CronsStatement(first, piece, said)
        piece = ""
        first = number + 1
