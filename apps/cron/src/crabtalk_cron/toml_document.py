"""The text of crons.toml: the lines of its keys, and the removal of an entry.

People edit the file, so its comments must survive. tomllib parses it; here it is only cut into
pieces that tomllib parses one by one, which tells a table header from a line of a long string.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TABLE_NAME = "cron"
LINE_PATTERN = re.compile(r"[^\n]*\n|[^\n]+")  # TOML's lines, which are fewer than Python's
# The last line of a value that spans several lines has one of these.
VALUE_END_PATTERN = re.compile(r"\"\"\"|'''|\]")
ERROR_PLACE_PATTERN = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


class DocumentError(ValueError):
    """Not TOML, and the line of the error."""

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
    """Parse the document. Raises DocumentError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = ERROR_PLACE_PATTERN.search(str(error))
        line = int(match[1]) if match and match[1] else len(LINE_PATTERN.findall(text))
        raise DocumentError(line, ERROR_PLACE_PATTERN.sub("", str(error))) from None
    except RecursionError:
        raise DocumentError(1, "it nests too deeply") from None


def find_entry_lines(text: str) -> list[dict[str, int]]:
    """For each entry the line of each key; the header's line is under ""."""
    entries: list[dict[str, int]] = []
    is_in_entry = False
    for statement in iterate_statements(text):
        if statement.is_header:
            is_in_entry = statement.begins_entry
            if is_in_entry:
                entries.append({"": statement.line})
        elif is_in_entry:
            entries[-1].update(dict.fromkeys(statement.values, statement.line))
    return entries


def remove_entry(text: str, number: int) -> str:
    """The text without one entry, counted from 0. All comments that are not inside it stay.

    Raises ValueError if the entry is not a [[cron]] table of its own.
    """
    wanted = parse_document(text)
    del wanted[TABLE_NAME][number]
    texts: list[str] = []
    entry: list[CronsStatement] = []
    count = -1
    is_in_entry = False
    for statement in iterate_statements(text):
        if statement.is_header:
            count += statement.begins_entry
            # A subtable of the entry is removed with it.
            is_in_entry = count == number and TABLE_NAME in statement.values
        if is_in_entry:
            entry.append(statement)
        else:
            texts += [*find_trailing_comments(entry), statement.text]
            entry = []
    remaining = "".join([*texts, *find_trailing_comments(entry)])
    if {TABLE_NAME: [], **parse_document(remaining)} != wanted:
        raise ValueError(f"it is not a [[{TABLE_NAME}]] table of its own")
    return remaining


def find_trailing_comments(entry: list[CronsStatement]) -> list[str]:
    """The comments below the last key of an entry."""
    with_values = [index for index, statement in enumerate(entry) if statement.values]
    trailing = [statement.text for statement in entry[with_values[-1] + 1 :]] if with_values else []
    while trailing and not trailing[0].strip():
        del trailing[0]
    return trailing


def iterate_statements(text: str) -> Iterator[CronsStatement]:
    """The whole text in pieces, each of which is TOML. The text must be valid TOML."""
    piece = ""
    first = 1
    for number, line in enumerate(LINE_PATTERN.findall(text), 1):
        piece += line
        if number > first and not VALUE_END_PATTERN.search(line):
            continue
        try:
            values = tomllib.loads(piece)
        except tomllib.TOMLDecodeError:  # the statement goes on in the next line
            continue
        yield CronsStatement(first, piece, values)
        piece = ""
        first = number + 1
