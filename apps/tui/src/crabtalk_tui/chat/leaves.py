"""Leaves: what holds the text of a document, paragraphs, code and rules, and how they are laid out.

Each gives out the lines that are settled, and shows those that are not. Tables are in `grid`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from .flow import Flow, Span, cells, filled, paint
from .highlight import Highlight
from .inline import Inline
from .look import Look

COLOURED = 5000  # lines of one block; who has more does not read them here
LEAST = 10  # places a text is laid out in, however deep in lists it is, or half of all
TINY = 6  # places; where there are fewer, all of them are for text


class Leaf(Protocol):
    def lines(self, width: int, *, final: bool) -> list[list[Span]]:
        """Takes what is settled; with `final` all there is."""

    def live(self, width: int) -> list[list[Span]]:
        """What is not settled."""


class Prose:
    def __init__(self, look: Look, style: str = "") -> None:
        self._inline = Inline(look, style)
        self._flow = Flow()

    def feed(self, text: str) -> None:
        self._inline.feed(text)

    def lines(self, width: int, *, final: bool) -> list[list[Span]]:
        self._flow.push(self._inline.settled(final=final))
        return self._flow.lines(width, final=final)

    def live(self, width: int) -> list[list[Span]]:
        flow = self._flow.copy()
        flow.push(self._inline.tail())
        return flow.lines(width, final=True)


@dataclass(slots=True)
class CodeLine:
    text: str
    is_long: bool = False
    is_whole: bool = True


class Code:
    """A line at a time; one that is long has no colours, and comes in pieces."""

    def __init__(self, look: Look, language: str = "") -> None:
        self._highlight = Highlight(look, language)
        self._lines: deque[CodeLine] = deque()
        label = f"{look.glyphs.rule * 3} {language}".rstrip()
        self._label: Span | None = (label, look.styles.dim)
        self._count = 0
        self.partial = ""  # of a line that is not whole

    def add(self, text: str) -> None:
        self._lines.append(CodeLine(text.expandtabs(4)))

    def add_long(self, text: str, *, is_whole: bool) -> None:
        text = text.replace("\t", "    ")
        if self._lines and not self._lines[-1].is_whole:
            self._lines[-1].text += text
        else:
            self._lines.append(CodeLine(text, is_long=True))
        self._lines[-1].is_whole = is_whole

    def lines(self, width: int, *, final: bool) -> list[list[Span]]:
        lines: list[list[Span]] = []
        if self._label and (self._lines or final):
            lines += filled([self._label], width)
            self._label = None
        while self._lines:
            line = self._lines[0]
            if not line.is_long:
                lines += filled(self._spans(line.text), width)
            else:
                rows = filled([(line.text, "")], width)
                if not (line.is_whole or final):
                    line.text = "".join(text for text, _ in rows.pop())
                    return lines + rows
                lines += rows
            self._lines.popleft()
        return lines

    def _spans(self, line: str) -> list[Span]:
        self._count += 1
        return self._highlight.line(line) if self._count <= COLOURED else [(line, "")]

    def live(self, width: int) -> list[list[Span]]:
        spans = [(line.text, "") for line in self._lines]  # at most one, and long
        if not spans and self.partial:
            text = self.partial.expandtabs(4)
            spans = self._highlight.peek(text) if self._count < COLOURED else [(text, "")]
        label = filled([self._label], width) if self._label else []
        return label + (filled(spans, width) if spans else [])


class Rule:
    def __init__(self, look: Look) -> None:
        self._look = look

    def lines(self, width: int, *, final: bool) -> list[list[Span]]:
        return [[(self._look.glyphs.rule * width, self._look.styles.dim)]]

    def live(self, width: int) -> list[list[Span]]:
        return self.lines(width, final=False)


class Placed:
    """A leaf with what stands before each of its lines. The first and the others are as wide.
    `gap` is the line before it, if there is one."""

    def __init__(
        self, leaf: Leaf, first: list[Span], others: list[Span], gap: list[Span] | None
    ) -> None:
        self.leaf = leaf
        self.is_closed = False
        self._first = first
        self._others = others
        self._gap = gap
        self._is_begun = False

    def take(self, width: int) -> list[str]:
        lines = self.leaf.lines(self._room(width), final=self.is_closed)
        if self.is_closed and not lines and not self._is_begun and self._first:
            lines = [[]]
        taken = self._painted(lines, width)
        self._is_begun = self._is_begun or bool(lines)
        return taken

    def live(self, width: int) -> list[str]:
        return self._painted(self.leaf.live(self._room(width)), width)

    def _room(self, width: int) -> int:
        least = min(LEAST, width // 2 + 1) if width >= TINY else width
        return max(width - span_cells(self._others), least)

    def _painted(self, lines: list[list[Span]], width: int) -> list[str]:
        if not lines:
            return []
        most = width - self._room(width)
        first = self._others if self._is_begun else self._first
        out = [painted([*cut(first, most), *lines[0]])]
        if self._gap is not None and not self._is_begun:
            out.insert(0, painted(cut(self._gap, most)))
        others = cut(self._others, most)
        return out + [painted([*others, *line]) for line in lines[1:]]


def painted(line: list[Span]) -> str:
    """Without the space at its end, which nobody sees and everybody copies."""
    while line:
        text, style = line[-1]
        line = line[:-1]
        if text := text.rstrip():
            return paint([*line, (text, style)])
    return ""


def span_cells(spans: Iterable[Span]) -> int:
    return sum(cells(text) for text, _ in spans)


def cut(spans: list[Span], width: int) -> list[Span]:
    """What of it fits, from its end."""
    while spans and span_cells(spans) > width:
        spans = spans[1:]
    return spans
