"""Here-documents: where bash ends a body, and the commands that expanding it would run."""

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
    """The body is source[first:last]; `text` is without the tabs that <<- takes off."""

    first: int
    last: int
    text: str
    is_quoted: bool


def read_here_document(
    source: bytes, delimiter: tuple[int, int], position: int, end: int, has_tabs: bool
) -> HereDocument:
    """Read the document that begins on the line after `position`. The parser says that its last
    line is at `end`; if bash would end it elsewhere, it raises UnreadableCommandError."""
    raw = source[slice(*delimiter)]
    is_quoted = bool(re.search(rb"['\"\\]", raw))
    closing = read_word(source, *delimiter, {}).text.encode()
    first = source.find(b"\n", position) + 1
    last = source.rfind(b"\n", 0, end) + 1
    found = source[last:].split(b"\n", 1)[0]
    if (
        not first
        or last < first
        or WORD_SEPARATOR.fullmatch(source[position : first - 1]) is None
        or (found.lstrip(b"\t") if has_tabs else found) != closing
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
    """The commands between backticks, which the parser does not see in here-documents. Raises
    UnreadableCommandError for an expansion that the parser did not see either."""
    at, last = document.first, document.last
    while found := SPECIAL_CHARACTER.search(source, at, last):
        at = found.end()
        if found.start() in expansions:
            at = expansions[found.start()][0]
        elif found[0] == b"`":
            inner = BACKTICK_TEXT.match(source, at, last)
            if inner is None:
                raise UnreadableCommandError("a substitution is not closed")
            at = inner.end()
            yield unescape_backticks(inner[1])
        elif found[0] == b"$" and re.match(rb"[({\w@*#?!$-]", source[at : at + 1]):
            raise UnreadableCommandError(DISAGREEMENT)


def unescape_backticks(text: bytes) -> str:
    return re.sub(rb"\\([$`\\])", rb"\1", text).decode()
