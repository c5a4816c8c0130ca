"""The head of a SKILL.md: the little YAML that the format needs.

Scalars (plain, quoted, block), lists of them, and maps of one level; every scalar is a string.
Whatever else is met is an error of that one skill.
"""

import re
from collections.abc import Sequence

MOST_LINES = 500  # in the head
KEY = re.compile(r"""("[^"\\]*"|'[^']*'|[A-Za-z0-9_][\w./-]*)[ \t]*:(?:[ \t]+(.*))?""", re.ASCII)
BLOCK = re.compile(r"([|>])(?:([+-]?)([1-9]?)|([1-9])([+-]))(?:[ \t]+#.*)?")
COMMENT = re.compile(r"(?:^|[ \t])#.*")
SINGLE = re.compile(r"'((?:[^']++|'')*+)'")
DOUBLE = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", " ": " ", '"': '"', "/": "/", "\\": "\\"}
UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
LONGEST_HEAD = 16 * 1024  # characters before the body; all heads stay in memory

Node = str | list[str] | dict[str, str]


class SkillError(Exception):
    """A SKILL.md cannot be used, with what to write instead."""


class Head:
    """The lines between the dashes, read once from first to last."""

    def __init__(self, lines: list[str]) -> None:
        if len(lines) > MOST_LINES or sum(map(len, lines)) > LONGEST_HEAD:
            raise SkillError(
                f"what is before the body has more than {MOST_LINES} lines or {LONGEST_HEAD} "
                "characters; move some of it below"
            )
        self._lines = lines
        self._at = 0

    def read(self) -> dict[str, Node]:
        result: dict[str, Node] = {}
        while (line := self._peek()) is not None:
            key, rest = self._key(line, 0)
            if key in result:
                raise self._error(f"a second {key}")
            result[key] = self._value(rest)
        return result

    def _value(self, rest: str) -> Node:
        """What follows a key at the left edge; `rest` is what is on its line."""
        if uncommented(rest):
            return self._list_in(rest) if rest.startswith("[") else self._scalar(rest, 0)
        line = self._peek()
        if line is not None and is_entry(line):
            return self._entries(indent_of(line))
        if line is not None and indent_of(line):
            return self._map(indent_of(line))
        return ""

    def _entries(self, indent: int) -> list[str]:
        result = []
        while (line := self._peek()) is not None and is_entry(line) and indent_of(line) == indent:
            self._at += 1
            result.append(self._entry(line[indent + 1 :].strip(" \t")))
        return result

    def _entry(self, text: str) -> str:
        entry = uncommented(text)
        if not entry or KEY.fullmatch(entry) or (entry[0] not in "\"'" and has_colon(entry)):
            raise self._error("an entry of a list must be a word or a sentence")
        return self._one_line(text)

    def _map(self, indent: int) -> dict[str, str]:
        result: dict[str, str] = {}
        while (line := self._peek()) is not None and indent_of(line):
            key, rest = self._key(line, indent)
            if key in result:
                raise self._error(f"a second {key}")
            if rest.startswith("["):
                raise self._error("lists inside a map are not read")
            result[key] = self._scalar(rest, indent) if uncommented(rest) else ""
        return result

    def _key(self, line: str, indent: int) -> tuple[str, str]:
        self._at += 1
        found = KEY.fullmatch(line[indent:])
        if indent_of(line) != indent or found is None:
            raise self._error("expected `key: value`, at the same distance as the keys before")
        key, rest = found.groups(default="")
        return key[1:-1] if key[0] in "\"'" else key, rest.strip(" \t")

    # Scalars. `indent` is that of the key; deeper lines belong to it.

    def _scalar(self, rest: str, indent: int) -> str:
        if rest[0] in "|>":
            return self._block(rest, indent)
        if rest[0] in "\"'":
            closed = SINGLE if rest[0] == "'" else DOUBLE
            while closed.match(rest) is None:
                line = self._lines[self._at] if self._at < len(self._lines) else "end"
                # A \ at the end would join lines, which nobody writes here.
                if (closed is DOUBLE and rest.endswith("\\")) or (
                    line.strip() and indent_of(line) <= indent
                ):
                    raise self._error(f"the {rest[0]} is not closed")
                rest = continued(rest, line)
                self._at += 1
            return self._one_line(rest)
        text = self._one_line(rest)
        whole = text == rest  # a comment ends it
        while self._deeper(indent) and not self._lines[self._at].strip().startswith("#"):
            line = self._lines[self._at].strip(" \t")
            self._at += 1
            # The same words could be a map that lacks its line break.
            if not whole or has_colon(line):
                raise self._error("text that goes on here must be in quotes, or after a |")
            whole = uncommented(line) == line
            text = continued(text, uncommented(line))
        return text.rstrip("\n")

    def _one_line(self, rest: str) -> str:
        """A scalar that is all there; only a comment may follow it."""
        if rest[0] in "\"'":
            found = (SINGLE if rest[0] == "'" else DOUBLE).match(rest)
            if found is None or uncommented(rest[found.end() :]):
                raise self._error(f"the {rest[0]} is not closed where the text ends")
            inside = found[1].replace("''", "'") if rest[0] == "'" else self._unescaped(found[1])
            return self._seen(inside)
        # These mean something else in YAML. A colon inside does too, but is so often meant as
        # itself, and so clearly, that it is let through.
        if rest[0] in "&*!|>%@`{}[],?" or is_entry(rest) or rest[0] == ":":
            raise self._error(f"text that starts with {rest[0]} must be in quotes")
        text = uncommented(rest)
        return "" if text in ("~", "null") else self._seen(text)

    def _unescaped(self, text: str) -> str:
        def one(found: re.Match[str]) -> str:
            code = found[1]
            if code in ESCAPES:
                return ESCAPES[code]
            if len(code) == 1 or int(code[1:], 16) > 0x10FFFF:
                raise self._error(f"\\{code} is not known")
            return chr(int(code[1:], 16))

        return ESCAPE.sub(one, text)

    def _block(self, header: str, indent: int) -> str:
        found = BLOCK.fullmatch(header)
        if found is None:
            raise self._error(f"{header!r} is not known; use |, |-, > or >-")
        style, chomp, width = found[1], found[2] or found[5], found[3] or found[4]
        lines: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip(" ") and indent_of(line) <= indent:
                break
            lines.append(line)
            self._at += 1
        filled = [indent_of(line) for line in lines if line.strip(" ")]
        edge = indent + int(width) if width else next(iter(filled), max(map(len, lines), default=0))
        first = next((number for number, line in enumerate(lines) if line.strip(" ")), 0)
        if any(distance < edge for distance in filled) or any(
            line[edge:] for line in lines[:first]
        ):
            raise self._error("a line of the text starts too far left")
        lines = [self._seen(line[edge:]) for line in lines]
        blank = 0
        while lines and not lines[-1]:
            lines.pop()
            blank += 1
        text = "\n".join(lines) if style == "|" else folded(lines)
        if chomp == "+":
            return text + "\n" * (blank + bool(lines))
        return text + "\n" if lines and chomp != "-" else text

    def _list_in(self, rest: str) -> list[str]:
        """A list in brackets, on one line or several."""
        while self._deeper(0) or self._lines[self._at : self._at + 1] == ["]"]:
            rest += " " + self._lines[self._at].strip(" \t")
            self._at += 1
        result: list[str] = []
        at, after_entry = 1, False
        while True:
            at = len(rest) - len(rest[at:].lstrip(" \t"))
            if at >= len(rest):
                raise self._error("the [ is not closed")
            if rest[at] == "]":
                break
            if after_entry:
                if rest[at] != ",":
                    raise self._error("between the entries of a list there must be commas")
                at, after_entry = at + 1, False
                continue
            found = FLOW.match(rest, at)
            if found is None or (found[0][0] not in "\"'" and " #" in found[0]):
                raise self._error("an entry of a list must be a word or a sentence")
            result.append(self._entry(found[0].strip(" \t")))
            at, after_entry = found.end(), True
        if uncommented(rest[at + 1 :]):
            raise self._error("there is something after the ]")
        return result

    # Lines.

    def _peek(self) -> str | None:
        """The next line that says something."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if uncommented(line.strip(" \t")):
                return line
            self._at += 1
        return None

    def _deeper(self, indent: int) -> bool:
        """Whether text goes on: there is a line deeper than `indent`, maybe after empty ones."""
        for line in self._lines[self._at :]:
            if line.strip():
                return indent_of(line) > indent
        return False

    def _seen(self, text: str) -> str:
        if UNSEEN.search(text):
            raise self._error("there are characters that cannot be shown")
        return text

    def _error(self, sentence: str) -> SkillError:
        # The line above the head counts too.
        return SkillError(f"line {min(self._at, len(self._lines)) + 1}: {sentence}")


FLOW = re.compile(rf"{SINGLE.pattern}|{DOUBLE.pattern}|[^\[\]{{}},\"'][^\[\]{{}},]*", re.DOTALL)


def indent_of(line: str) -> int:
    """Spaces only: YAML has no tabs here, so a tab is text, and out of place."""
    return len(line) - len(line.lstrip(" "))


def is_entry(line: str) -> bool:
    text = line.lstrip(" ")
    return text == "-" or text.startswith(("- ", "-\t"))


def has_colon(text: str) -> bool:
    """One that makes a map of a text without quotes."""
    return re.search(r":(?:[ \t]|$)", text) is not None


def uncommented(text: str) -> str:
    return COMMENT.sub("", text).rstrip(" \t")


def continued(text: str, line: str) -> str:
    """A line break between words is a space; empty lines are kept, as one break each."""
    line = line.strip(" \t")
    if not line:
        return text + "\n"
    return text + line if text.endswith("\n") else f"{text} {line}"


def folded(lines: Sequence[str]) -> str:
    """Lines of a > block: joined by spaces, except around those that are indented further."""
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
