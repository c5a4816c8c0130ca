"""The text of crons.toml: on which line things are said, and how an entry is taken out of it.

The file is a person's. TOML is read by tomllib; here it is only cut into the pieces that tomllib
takes one by one, which is what tells a line that begins a table from one inside a long string.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TABLE = "cron"
LINE = re.compile(r"[^\n]*\n|[^\n]+")  # TOML's lines, which are fewer than Python's
# What the last line of a value that has several is bound to have.
ENDS = re.compile(r"\"\"\"|'''|\]")
PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


class DocumentError(ValueError):
    """Not TOML, and the line from which on it is not."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Statement:
    """A header, a key with its value, a comment or an empty line; and its first line, from 1."""

    line: int
    text: str
    said: dict[str, Any]

    @property
    def is_header(self) -> bool:
        return self.text.lstrip().startswith("[")

    @property
    def begins_entry(self) -> bool:
        return self.is_header and self.said == {TABLE: [{}]}


def read(text: str) -> dict[str, Any]:
    """What it says. Raises DocumentError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = PLACE.search(str(error))
        line = int(found[1]) if found and found[1] else len(LINE.findall(text))
        raise DocumentError(line, PLACE.sub("", str(error))) from None
    except RecursionError:
        raise DocumentError(1, "it nests too deeply") from None


def entry_lines(text: str) -> list[dict[str, int]]:
    """For each entry the line of each of its keys, and under "" that of its header."""
    found: list[dict[str, int]] = []
    inside = False
    for statement in statements(text):
        if statement.is_header:
            inside = statement.begins_entry
            if inside:
                found.append({"": statement.line})
        elif inside:
            found[-1].update(dict.fromkeys(statement.said, statement.line))
    return found


def without(text: str, number: int) -> str:
    """The text but for one entry, counted from 0; every comment that is not inside it stays.

    Raises ValueError when an entry is written in a way that this cannot undo.
    """
    wanted = read(text)
    del wanted[TABLE][number]
    kept: list[str] = []
    entry: list[Statement] = []
    count = -1
    inside = False
    for statement in statements(text):
        if statement.is_header:
            count += statement.begins_entry
            # A table within the entry goes with it.
            inside = count == number and TABLE in statement.said
        if inside:
            entry.append(statement)
        else:
            kept += [*after(entry), statement.text]
            entry = []
    left = "".join([*kept, *after(entry)])
    if {TABLE: [], **read(left)} != wanted:
        raise ValueError(f"it is not a [[{TABLE}]] table of its own")
    return left


def after(entry: list[Statement]) -> list[str]:
    """What stands below the last line of an entry that says something, if that is a comment."""
    said = [place for place, statement in enumerate(entry) if statement.said]
    below = [statement.text for statement in entry[said[-1] + 1 :]] if said else []
    while below and not below[0].strip():
        del below[0]
    return below


def statements(text: str) -> Iterator[Statement]:
    """All of it, in pieces that are TOML each. The text as a whole must be."""
    piece = ""
    first = 1
    for number, line in enumerate(LINE.findall(text), 1):
        piece += line
        if number > first and not ENDS.search(line):
            continue
        try:
            said = tomllib.loads(piece)
        except tomllib.TOMLDecodeError:  # goes on in the next line
            continue
        yield Statement(first, piece, said)
        piece = ""
        first = number + 1
