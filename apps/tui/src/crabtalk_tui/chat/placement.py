"""Placement: where a line of markdown belongs, and what it is there. Changes nothing.

CommonMark's rules for quotes, lists, headings, fences and rules; tables where a line begins with a
bar. A line of `=` or `-` below a paragraph is a rule, not a reason to make a heading of what has
been read already. Part of a line is placed too, if the rest of it cannot change the answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

LONG = 2000  # characters; what is longer is prose, whatever it began with
DEEPEST = 8  # quotes and lists inside one another

HEADING = re.compile(r"(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
FENCE = re.compile(r"(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>.*)")
RULE = re.compile(r"([-_*])[ \t]*(?:\1[ \t]*){2,}")
UNDERLINE = re.compile(r"(?:=+|-+)[ \t]*")
ITEM = re.compile(r"(?P<mark>[-+*]|(?P<number>\d{1,9})[.)])(?:(?P<space>[ \t]+)(?=\S)|[ \t]*$)")
TASK = re.compile(r"\[(?P<done>[ xX])\][ \t]+(?=\S)")
# What could still become something else than prose.
BEGUN = re.compile(
    r"#{1,6}|(?:[-+*]|\d{1,9}(?:[.)][ \t]*)?)|([-_*])[ \t]*(?:\1[ \t]*)*|=+[ \t]*|`{1,2}|~{1,2}"
    r"|\[(?:[ xX](?:\][ \t]*)?)?"
)


class Kind(Enum):
    BLANK = auto()
    PROSE = auto()
    HEADING = auto()
    FENCE = auto()
    FENCED = auto()  # a line between two fences
    FENCE_END = auto()
    INDENTED = auto()  # code without fences
    RULE = auto()
    BARS = auto()  # a row of a table, if it turns out to be one


@dataclass(slots=True)
class Container:
    """A quote, or an item of a list; `indent` is how far its content stands in."""

    indent: int = 0
    mark: str = ""
    number: int | None = None
    is_done: bool | None = None  # of a task
    is_shown: bool = False  # its mark

    def follow(self, item: "Container") -> None:
        """Of numbered items that do not count, each is one more than the last."""
        if self.number is not None and item.number is not None and self.mark[-1] == item.mark[-1]:
            self.number = max(self.number, item.number + 1)

    @property
    def is_quote(self) -> bool:
        return not self.mark


class Placement(NamedTuple):
    """`kept` of the open containers hold the line, and `opened` are new."""

    kept: int
    opened: tuple[Container, ...]
    kind: Kind
    text: str
    detail: str = ""  # the marks of a heading or fence


class Open(NamedTuple):
    """What is open when a line comes."""

    containers: Sequence[Container]
    fence: str = ""
    has_prose: bool = False


def place(line: str, state: Open) -> Placement:
    """A whole line."""
    kept, text, indent = keep(line, state.containers)
    is_long = len(line) > LONG
    if state.fence and kept == len(state.containers):
        return Placement(kept, (), *fenced(text, indent, state.fence, is_long=is_long))
    text, indent, opened = opened_by(text, indent, state, kept)
    has_prose = state.has_prose and not opened
    kind, text, detail = leaf(text, indent, has_prose=has_prose, is_long=is_long)
    if kind is Kind.PROSE and has_prose:
        kept = len(state.containers)  # it goes on, though the marks of its quote or list are gone
    if kind is Kind.PROSE and opened and opened[-1].mark and (task := TASK.match(text)):
        opened[-1].is_done = task["done"] != " "
        text = text[task.end() :]
    return Placement(kept, tuple(opened), kind, text, detail)


def place_begun(line: str, state: Open) -> Placement | None:
    """The beginning of a line; None if the rest of it could make it something else. Otherwise it is
    prose, or long."""
    if len(line) > LONG:
        return place(line, state)
    kept, text, indent = keep(line, state.containers)
    if state.fence and kept == len(state.containers):
        return None
    text, _, _ = opened_by(text, indent, state, kept)
    if not text or BEGUN.fullmatch(text):
        return None
    placement = place(line, state)
    return placement if placement.kind is Kind.PROSE else None


def opened_by(text: str, indent: int, state: Open, kept: int) -> tuple[str, int, list[Container]]:
    """The containers that a line opens, after what is left of it, with its indent."""
    has_prose = state.has_prose and kept == len(state.containers)
    opened: list[Container] = []
    while indent < 4 and kept + len(opened) < DEEPEST:
        found = container(text, indent, has_prose=has_prose)
        if found is None:
            break
        opened.append(found[0])
        has_prose = False
        text, indent = measured(found[1])
    return text, indent, opened


def measured(text: str) -> tuple[str, int]:
    """Without the blanks before it, and how many places those take."""
    rest = text.lstrip(" \t")
    return rest, len(text[: len(text) - len(rest)].expandtabs(4))


def keep(line: str, containers: Sequence[Container]) -> tuple[int, str, int]:
    """How many of the containers hold the line, and what is left of it, with its indent."""
    text, indent = measured(line)
    for number, held in enumerate(containers):
        if held.is_quote:
            if indent > 3 or not text.startswith(">"):
                return number, text, indent
            text, indent = measured(text[1:])
            indent = max(0, indent - 1)
        elif not text:
            continue
        elif indent >= held.indent:
            indent -= held.indent
        else:
            return number, text, indent
    return len(containers), text, indent


def container(text: str, indent: int, *, has_prose: bool) -> tuple[Container, str] | None:
    """The one that begins here, and what it holds."""
    if text.startswith(">"):
        return Container(), text[1:].removeprefix(" ")
    item = ITEM.match(text)
    if item is None or RULE.fullmatch(text):
        return None
    number = int(item["number"]) if item["number"] else None
    # A paragraph is not cut short by what may be its own: a dash, or a year that begins a line.
    if has_prose and (item["space"] is None or number not in (None, 1)):
        return None
    space = len((item["space"] or " ").expandtabs(4))
    space = 1 if space > 4 else space
    indent += len(item["mark"]) + space
    rest, blanks = measured(text[item.end("mark") :])
    return Container(indent, item["mark"], number), " " * (blanks - space) + rest


def fenced(text: str, indent: int, fence: str, *, is_long: bool) -> tuple[Kind, str]:
    mark = text.rstrip()
    if not is_long and indent < 4 and len(mark) >= len(fence) and mark == fence[0] * len(mark):
        return Kind.FENCE_END, ""
    return Kind.FENCED, " " * indent + text


def leaf(text: str, indent: int, *, has_prose: bool, is_long: bool) -> tuple[Kind, str, str]:
    if is_long:
        return Kind.PROSE, text, ""
    if not text:
        return Kind.BLANK, "", ""
    if indent >= 4 and not has_prose:
        return Kind.INDENTED, " " * (indent - 4) + text, ""
    if indent < 4:
        if heading := HEADING.fullmatch(text):
            return Kind.HEADING, heading[2] or "", heading[1]
        if (fence := FENCE.fullmatch(text)) and not ("`" in fence["info"] and text[0] == "`"):
            return Kind.FENCE, fence["info"], " " * indent + fence["mark"]
        if RULE.fullmatch(text) or (has_prose and UNDERLINE.fullmatch(text)):
            return Kind.RULE, "", ""
        if text.startswith("|"):
            return Kind.BARS, text, ""
    return Kind.PROSE, text, ""
