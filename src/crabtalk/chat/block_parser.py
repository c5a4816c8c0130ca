"""Parse a line of Markdown: which blocks contain it and what kind of line it is. Keeps no state.

It follows CommonMark for quotes, lists, headings, fences and rules; a table line begins with a bar.
A line of `=` or `-` below a paragraph is a rule: the paragraph was shown already and cannot become
a heading. Part of a line is parsed too, if the rest of it cannot change the result.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

MAX_LINE = 2000  # characters; a longer line is prose, whatever it began with
MAX_DEPTH = 8  # quotes and lists inside one another

HEADING = re.compile(r"(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
FENCE = re.compile(r"(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>.*)")
RULE = re.compile(r"([-_*])[ \t]*(?:\1[ \t]*){2,}")
HEADING_UNDERLINE = re.compile(r"(?:=+|-+)[ \t]*")
LIST_ITEM = re.compile(
    r"(?P<mark>[-+*]|(?P<number>\d{1,9})[.)])(?:(?P<space>[ \t]+)(?=\S)|[ \t]*$)"
)
TASK = re.compile(r"\[(?P<done>[ xX])\][ \t]+(?=\S)")
# The beginning of a line that could still become something other than prose.
UNDECIDED_LINE = re.compile(
    r"#{1,6}|(?:[-+*]|\d{1,9}(?:[.)][ \t]*)?)|([-_*])[ \t]*(?:\1[ \t]*)*|=+[ \t]*|`{1,2}|~{1,2}"
    r"|\[(?:[ xX](?:\][ \t]*)?)?"
)


class LineKind(Enum):
    BLANK = auto()
    PARAGRAPH = auto()
    HEADING = auto()
    FENCE = auto()
    FENCED_CODE = auto()  # a line between two fences
    FENCE_END = auto()
    INDENTED_CODE = auto()  # code without fences
    RULE = auto()
    TABLE_ROW = auto()  # a row of a table, if it turns out to be one


@dataclass(slots=True)
class ContainerBlock:
    """A quote, or an item of a list; `indent` is the indentation of its content."""

    indent: int = 0
    mark: str = ""
    number: int | None = None
    is_done: bool | None = None  # of a task item
    is_shown: bool = False  # its mark was shown

    def continue_numbering(self, item: "ContainerBlock") -> None:
        """Number an item one more than the last one, if the source repeats the same number."""
        if self.number is not None and item.number is not None and self.mark[-1] == item.mark[-1]:
            self.number = max(self.number, item.number + 1)

    @property
    def is_quote(self) -> bool:
        return not self.mark


class ParsedLine(NamedTuple):
    """The first `matched` open containers hold the line, and `new_containers` begin with it."""

    matched: int
    new_containers: tuple[ContainerBlock, ...]
    kind: LineKind
    text: str
    detail: str = ""  # the marks of a heading or fence


class OpenBlocks(NamedTuple):
    """The blocks that are open when a line comes."""

    containers: Sequence[ContainerBlock]
    fence: str = ""
    has_prose: bool = False


def parse_line(line: str, state: OpenBlocks) -> ParsedLine:
    """Parse a whole line."""
    matched, text, indent = match_containers(line, state.containers)
    is_long = len(line) > MAX_LINE
    if state.fence and matched == len(state.containers):
        return ParsedLine(
            matched, (), *parse_fenced_line(text, indent, state.fence, is_long=is_long)
        )
    text, indent, new_containers = parse_new_containers(text, indent, state, matched)
    has_prose = state.has_prose and not new_containers
    kind, text, detail = parse_leaf(text, indent, has_prose=has_prose, is_long=is_long)
    if kind is LineKind.PARAGRAPH and has_prose:
        matched = len(state.containers)  # a lazy continuation: it needs no marks
    if (
        kind is LineKind.PARAGRAPH
        and new_containers
        and new_containers[-1].mark
        and (task := TASK.match(text))
    ):
        new_containers[-1].is_done = task["done"] != " "
        text = text[task.end() :]
    return ParsedLine(matched, tuple(new_containers), kind, text, detail)


def parse_partial_line(line: str, state: OpenBlocks) -> ParsedLine | None:
    """Parse the beginning of a line that is prose or long; None if the rest could change that."""
    if len(line) > MAX_LINE:
        return parse_line(line, state)
    matched, text, indent = match_containers(line, state.containers)
    if state.fence and matched == len(state.containers):
        return None
    text, _, _ = parse_new_containers(text, indent, state, matched)
    if not text or UNDECIDED_LINE.fullmatch(text):
        return None
    parsed = parse_line(line, state)
    return parsed if parsed.kind is LineKind.PARAGRAPH else None


def parse_new_containers(
    text: str, indent: int, state: OpenBlocks, matched: int
) -> tuple[str, int, list[ContainerBlock]]:
    """Return the rest of the line, its indent, and the containers that the line opens."""
    has_prose = state.has_prose and matched == len(state.containers)
    new_containers: list[ContainerBlock] = []
    while indent < 4 and matched + len(new_containers) < MAX_DEPTH:
        container = parse_container(text, indent, has_prose=has_prose)
        if container is None:
            break
        new_containers.append(container[0])
        has_prose = False
        text, indent = split_indent(container[1])
    return text, indent, new_containers


def split_indent(text: str) -> tuple[str, int]:
    """Return the text without leading blanks, and how many columns those take."""
    rest = text.lstrip(" \t")
    return rest, len(text[: len(text) - len(rest)].expandtabs(4))


def match_containers(line: str, containers: Sequence[ContainerBlock]) -> tuple[int, str, int]:
    """Return how many containers hold the line, the rest of the line, and its indent."""
    text, indent = split_indent(line)
    for number, container in enumerate(containers):
        if container.is_quote:
            if indent > 3 or not text.startswith(">"):
                return number, text, indent
            text, indent = split_indent(text[1:])
            indent = max(0, indent - 1)
        elif not text:
            continue
        elif indent >= container.indent:
            indent -= container.indent
        else:
            return number, text, indent
    return len(containers), text, indent


def parse_container(
    text: str, indent: int, *, has_prose: bool
) -> tuple[ContainerBlock, str] | None:
    """Return the container that begins here, and the text in it."""
    if text.startswith(">"):
        return ContainerBlock(), text[1:].removeprefix(" ")
    item = LIST_ITEM.match(text)
    if item is None or RULE.fullmatch(text):
        return None
    number = int(item["number"]) if item["number"] else None
    # Inside a paragraph, a dash or a year at the beginning of a line is text, not a list item.
    if has_prose and (item["space"] is None or number not in (None, 1)):
        return None
    space = len((item["space"] or " ").expandtabs(4))
    space = 1 if space > 4 else space
    indent += len(item["mark"]) + space
    rest, blanks = split_indent(text[item.end("mark") :])
    return ContainerBlock(indent, item["mark"], number), " " * (blanks - space) + rest


def parse_fenced_line(text: str, indent: int, fence: str, *, is_long: bool) -> tuple[LineKind, str]:
    mark = text.rstrip()
    if not is_long and indent < 4 and len(mark) >= len(fence) and mark == fence[0] * len(mark):
        return LineKind.FENCE_END, ""
    return LineKind.FENCED_CODE, " " * indent + text


def parse_leaf(
    text: str, indent: int, *, has_prose: bool, is_long: bool
) -> tuple[LineKind, str, str]:
    if is_long:
        return LineKind.PARAGRAPH, text, ""
    if not text:
        return LineKind.BLANK, "", ""
    if indent >= 4 and not has_prose:
        return LineKind.INDENTED_CODE, " " * (indent - 4) + text, ""
    if indent < 4:
        if heading := HEADING.fullmatch(text):
            return LineKind.HEADING, heading[2] or "", heading[1]
        if (fence := FENCE.fullmatch(text)) and not ("`" in fence["info"] and text[0] == "`"):
            return LineKind.FENCE, fence["info"], " " * indent + fence["mark"]
        if RULE.fullmatch(text) or (has_prose and HEADING_UNDERLINE.fullmatch(text)):
            return LineKind.RULE, "", ""
        if text.startswith("|"):
            return LineKind.TABLE_ROW, text, ""
    return LineKind.PARAGRAPH, text, ""
