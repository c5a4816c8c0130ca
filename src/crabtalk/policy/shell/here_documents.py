"""Here-documents: finds where bash ends the body, and the commands that expanding it would run."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .commands import UnreadableCommandError
from .grammar import WORD_SEPARATOR
from .words import DISAGREEMENT, read_word

SPECIAL_CHARACTER = re.compile(rb"\\.|`|\$", re.DOTALL)
BACKTICK_TEXT = re.compile(rb"((?:[^`\\]|\\.)*)`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HereDocument:
    """The body is source[first:last]; `text` is the body without the tabs that <<- removes."""

    first: int
    last: int
    text: str
    is_quoted: bool


def read_here_document(
    source: bytes, delimiter: tuple[int, int], position: int, end: int, has_tabs: bool
) -> HereDocument:
    """Read the document that starts on the line after `position`.

    tree-sitter found its last line at `end`. Raises UnreadableCommandError if bash would end it
    elsewhere.
    """
    raw = source[slice(*delimiter)]
    is_quoted = bool(re.search(rb"['\"\\]", raw))
    closing = read_word(source, *delimiter, {}).text.encode()
    first = source.find(b"\n", position) + 1
    last = source.rfind(b"\n", 0, end) + 1
    last_line = source[last:].split(b"\n", 1)[0]
    if (
        not first
        or last < first
        or WORD_SEPARATOR.fullmatch(source[position : first - 1]) is None
        or (last_line.lstrip(b"\t") if has_tabs else last_line) != closing
    ):
        raise UnreadableCommandError(DISAGREEMENT)
    joined = b""
    for line in source[first:last].split(b"\n")[:-1]:
        joined += line.lstrip(b"\t") if has_tabs and not joined else line
        if not is_quoted and (len(line) - len(line.rstrip(b"\\"))) % 2:
            joined = joined[:-1]
            continue
        if joined == closing:
            raise UnreadableCommandError(DISAGREEMENT)
        joined = b""
    if joined:
        raise UnreadableCommandError("a here-document ends in a backslash")
    body = source[first:last]
    if has_tabs:
        body = re.sub(rb"(?m)^\t+", b"", body)
    return HereDocument(first, last, body.decode(), is_quoted)


def find_backticks(
    source: bytes, document: HereDocument, expansions: Mapping[int, tuple[int, str]]
) -> Iterator[str]:
    """Yield the commands between backticks, which tree-sitter does not find in here-documents.
    Raises UnreadableCommandError for any other expansion that tree-sitter did not find."""
    at, last = document.first, document.last
    while match := SPECIAL_CHARACTER.search(source, at, last):
        at = match.end()
        if match.start() in expansions:
            at = expansions[match.start()][0]
        elif match[0] == b"`":
            inner = BACKTICK_TEXT.match(source, at, last)
            if inner is None:
                raise UnreadableCommandError("a substitution is not closed")
            at = inner.end()
            yield unescape_backticks(inner[1])
        elif match[0] == b"$" and re.match(rb"[({\w@*#?!$-]", source[at : at + 1]):
            raise UnreadableCommandError(DISAGREEMENT)


def unescape_backticks(text: bytes) -> str:
    return re.sub(rb"\\([$`\\])", rb"\1", text).decode()
