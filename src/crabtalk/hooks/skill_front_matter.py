"""Parses the front matter of a SKILL.md: the subset of YAML that the format needs.

Scalars (plain, quoted, block), lists of them, and maps of one level; every scalar is a string.
Any other YAML is an error, which affects only that skill.
"""

import re
from collections.abc import Sequence

MAX_LINES = 500  # of front matter
KEY_PATTERN = re.compile(
    r"""("[^"\\]*"|'[^']*'|[A-Za-z0-9_][\w./-]*)[ \t]*:(?:[ \t]+(.*))?""", re.ASCII
)
BLOCK_HEADER = re.compile(r"([|>])(?:([+-]?)([1-9]?)|([1-9])([+-]))(?:[ \t]+#.*)?")
COMMENT = re.compile(r"(?:^|[ \t])#.*")
SINGLE_QUOTED = re.compile(r"'((?:[^']++|'')*+)'")
DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
ESCAPE_SEQUENCE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", " ": " ", '"': '"', "/": "/", "\\": "\\"}
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
MAX_LENGTH = 16 * 1024  # characters of front matter; it stays in memory for all skills

FrontMatterValue = str | list[str] | dict[str, str]


class SkillError(Exception):
    """A SKILL.md cannot be used; the text says what to write instead."""


class FrontMatterParser:
    """Parses the lines between the dashes in one pass."""

    def __init__(self, lines: list[str]) -> None:
        if len(lines) > MAX_LINES or sum(map(len, lines)) > MAX_LENGTH:
            raise SkillError(
                f"what is before the body has more than {MAX_LINES} lines or {MAX_LENGTH} "
                "characters; move some of it below"
            )
        self._lines = lines
        self._at = 0

    def parse(self) -> dict[str, FrontMatterValue]:
        result: dict[str, FrontMatterValue] = {}
        while (line := self._peek_line()) is not None:
            key, rest = self._parse_key(line, 0)
            if key in result:
                raise self._build_error(f"a second {key}")
            result[key] = self._parse_value(rest)
        return result

    def _parse_value(self, rest: str) -> FrontMatterValue:
        """Parse the value of a top-level key; `rest` is the part on the key's own line."""
        if strip_comment(rest):
            return (
                self._parse_flow_list(rest) if rest.startswith("[") else self._parse_scalar(rest, 0)
            )
        line = self._peek_line()
        if line is not None and is_list_entry(line):
            return self._parse_entries(count_indent(line))
        if line is not None and count_indent(line):
            return self._parse_map(count_indent(line))
        return ""

    def _parse_entries(self, indent: int) -> list[str]:
        result = []
        while (
            (line := self._peek_line()) is not None
            and is_list_entry(line)
            and count_indent(line) == indent
        ):
            self._at += 1
            result.append(self._parse_entry(line[indent + 1 :].strip(" \t")))
        return result

    def _parse_entry(self, text: str) -> str:
        entry = strip_comment(text)
        if (
            not entry
            or KEY_PATTERN.fullmatch(entry)
            or (entry[0] not in "\"'" and has_key_colon(entry))
        ):
            raise self._build_error("an entry of a list must be a word or a sentence")
        return self._parse_one_line(text)

    def _parse_map(self, indent: int) -> dict[str, str]:
        result: dict[str, str] = {}
        while (line := self._peek_line()) is not None and count_indent(line):
            key, rest = self._parse_key(line, indent)
            if key in result:
                raise self._build_error(f"a second {key}")
            if rest.startswith("["):
                raise self._build_error("lists inside a map are not read")
            result[key] = self._parse_scalar(rest, indent) if strip_comment(rest) else ""
        return result

    def _parse_key(self, line: str, indent: int) -> tuple[str, str]:
        self._at += 1
        match = KEY_PATTERN.fullmatch(line[indent:])
        if count_indent(line) != indent or match is None:
            raise self._build_error(
                "expected `key: value`, at the same distance as the keys before"
            )
        key, rest = match.groups(default="")
        return key[1:-1] if key[0] in "\"'" else key, rest.strip(" \t")

    # Scalars. `indent` is that of the key; lines with a deeper indent belong to the value.

    def _parse_scalar(self, rest: str, indent: int) -> str:
        if rest[0] in "|>":
            return self._parse_block(rest, indent)
        if rest[0] in "\"'":
            closed = SINGLE_QUOTED if rest[0] == "'" else DOUBLE_QUOTED
            while closed.match(rest) is None:
                line = self._lines[self._at] if self._at < len(self._lines) else "end"
                # A \ at the end would join lines in YAML; that is not supported.
                if (closed is DOUBLE_QUOTED and rest.endswith("\\")) or (
                    line.strip() and count_indent(line) <= indent
                ):
                    raise self._build_error(f"the {rest[0]} is not closed")
                rest = join_continuation(rest, line)
                self._at += 1
            return self._parse_one_line(rest)
        text = self._parse_one_line(rest)
        whole = text == rest  # a comment ends it
        while self._is_next_line_deeper(indent) and not self._lines[self._at].strip().startswith(
            "#"
        ):
            line = self._lines[self._at].strip(" \t")
            self._at += 1
            # The same words could be a map that lacks its line break.
            if not whole or has_key_colon(line):
                raise self._build_error("text that goes on here must be in quotes, or after a |")
            whole = strip_comment(line) == line
            text = join_continuation(text, strip_comment(line))
        return text.rstrip("\n")

    def _parse_one_line(self, rest: str) -> str:
        """Parse a complete scalar; only a comment may follow it."""
        if rest[0] in "\"'":
            match = (SINGLE_QUOTED if rest[0] == "'" else DOUBLE_QUOTED).match(rest)
            if match is None or strip_comment(rest[match.end() :]):
                raise self._build_error(f"the {rest[0]} is not closed where the text ends")
            inside = match[1].replace("''", "'") if rest[0] == "'" else self._unescape(match[1])
            return self._check_printable(inside)
        # These characters have another meaning in YAML. So has a colon inside the text, but it is
        # common in descriptions and clearly meant literally, so it is allowed.
        if rest[0] in "&*!|>%@`{}[],?" or is_list_entry(rest) or rest[0] == ":":
            raise self._build_error(f"text that starts with {rest[0]} must be in quotes")
        text = strip_comment(rest)
        return "" if text in ("~", "null") else self._check_printable(text)

    def _unescape(self, text: str) -> str:
        def replace(match: re.Match[str]) -> str:
            code = match[1]
            if code in SIMPLE_ESCAPES:
                return SIMPLE_ESCAPES[code]
            if len(code) == 1 or int(code[1:], 16) > 0x10FFFF:
                raise self._build_error(f"\\{code} is not known")
            return chr(int(code[1:], 16))

        return ESCAPE_SEQUENCE.sub(replace, text)

    def _parse_block(self, header: str, indent: int) -> str:
        match = BLOCK_HEADER.fullmatch(header)
        if match is None:
            raise self._build_error(f"{header!r} is not known; use |, |-, > or >-")
        style, chomp, width = match[1], match[2] or match[5], match[3] or match[4]
        lines: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip(" ") and count_indent(line) <= indent:
                break
            lines.append(line)
            self._at += 1
        filled = [count_indent(line) for line in lines if line.strip(" ")]
        edge = indent + int(width) if width else next(iter(filled), max(map(len, lines), default=0))
        first = next((number for number, line in enumerate(lines) if line.strip(" ")), 0)
        if any(distance < edge for distance in filled) or any(
            line[edge:] for line in lines[:first]
        ):
            raise self._build_error("a line of the text starts too far left")
        lines = [self._check_printable(line[edge:]) for line in lines]
        blank = 0
        while lines and not lines[-1]:
            lines.pop()
            blank += 1
        text = "\n".join(lines) if style == "|" else fold_lines(lines)
        if chomp == "+":
            return text + "\n" * (blank + bool(lines))
        return text + "\n" if lines and chomp != "-" else text

    def _parse_flow_list(self, rest: str) -> list[str]:
        """A list in brackets, on one line or several."""
        while self._is_next_line_deeper(0) or self._lines[self._at : self._at + 1] == ["]"]:
            rest += " " + self._lines[self._at].strip(" \t")
            self._at += 1
        result: list[str] = []
        at, after_entry = 1, False
        while True:
            at = len(rest) - len(rest[at:].lstrip(" \t"))
            if at >= len(rest):
                raise self._build_error("the [ is not closed")
            if rest[at] == "]":
                break
            if after_entry:
                if rest[at] != ",":
                    raise self._build_error("between the entries of a list there must be commas")
                at, after_entry = at + 1, False
                continue
            match = FLOW_ENTRY.match(rest, at)
            if match is None or (match[0][0] not in "\"'" and " #" in match[0]):
                raise self._build_error("an entry of a list must be a word or a sentence")
            result.append(self._parse_entry(match[0].strip(" \t")))
            at, after_entry = match.end(), True
        if strip_comment(rest[at + 1 :]):
            raise self._build_error("there is something after the ]")
        return result

    # Lines.

    def _peek_line(self) -> str | None:
        """Return the next line that is not blank or a comment."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if strip_comment(line.strip(" \t")):
                return line
            self._at += 1
        return None

    def _is_next_line_deeper(self, indent: int) -> bool:
        """Whether the next line that is not blank is indented deeper than `indent`."""
        for line in self._lines[self._at :]:
            if line.strip():
                return count_indent(line) > indent
        return False

    def _check_printable(self, text: str) -> str:
        if UNPRINTABLE.search(text):
            raise self._build_error("there are characters that cannot be shown")
        return text

    def _build_error(self, sentence: str) -> SkillError:
        # + 1 for the line of dashes above the front matter.
        return SkillError(f"line {min(self._at, len(self._lines)) + 1}: {sentence}")


FLOW_ENTRY = re.compile(
    rf"{SINGLE_QUOTED.pattern}|{DOUBLE_QUOTED.pattern}|[^\[\]{{}},\"'][^\[\]{{}},]*", re.DOTALL
)


def count_indent(line: str) -> int:
    """Count leading spaces. YAML does not indent with tabs, so a tab counts as text."""
    return len(line) - len(line.lstrip(" "))


def is_list_entry(line: str) -> bool:
    text = line.lstrip(" ")
    return text == "-" or text.startswith(("- ", "-\t"))


def has_key_colon(text: str) -> bool:
    """Whether YAML would read an unquoted text as a map because of a colon."""
    return re.search(r":(?:[ \t]|$)", text) is not None


def strip_comment(text: str) -> str:
    return COMMENT.sub("", text).rstrip(" \t")


def join_continuation(text: str, line: str) -> str:
    """Append a line. A line break becomes a space; each empty line becomes a line break."""
    line = line.strip(" \t")
    if not line:
        return text + "\n"
    return text + line if text.endswith("\n") else f"{text} {line}"


def fold_lines(lines: Sequence[str]) -> str:
    """Join the lines of a > block by spaces, except around lines that are indented further."""
    result: list[str] = []
    breaks, before = 0, ""
    for line in lines:
        if not line:
            breaks += 1
            continue
        if before and (before[0] in " \t" or line[0] in " \t"):
            breaks += 1
        result.append("\n" * breaks or (" " if before else ""))
        result.append(line)
        breaks, before = 0, line
    return "".join(result)
