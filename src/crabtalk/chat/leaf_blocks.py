"""Leaf blocks of a Markdown document (paragraphs, code and rules) and their layout.

Each gives out its settled lines and renders the others live. Tables are in `tables`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from .code_highlighting import CodeHighlighter
from .inline_renderer import InlineRenderer
from .line_wrapping import LineWrapper, Span, break_lines, measure_text, render_ansi
from .theme import Theme

MAX_COLOURED_LINES = 5000  # lines of one block; longer code is not read in a chat
MIN_TEXT_WIDTH = 10  # columns for text however deep in lists it is, but at most half of the width
TINY_WIDTH = 6  # columns; narrower terminals use the whole width for text


class LeafBlock(Protocol):
    def take_lines(self, width: int, *, final: bool) -> list[list[Span]]:
        """Take the settled lines; with `final` all of them."""

    def live_lines(self, width: int) -> list[list[Span]]:
        """Render the lines that are not settled."""


class MarkdownParagraph:
    def __init__(self, theme: Theme, style: str = "") -> None:
        self._inline = InlineRenderer(theme, style)
        self._wrapper = LineWrapper()

    def feed(self, text: str) -> None:
        self._inline.feed(text)

    def take_lines(self, width: int, *, final: bool) -> list[list[Span]]:
        self._wrapper.push(self._inline.take_settled(final=final))
        return self._wrapper.take_lines(width, final=final)

    def live_lines(self, width: int) -> list[list[Span]]:
        wrapper = self._wrapper.copy()
        wrapper.push(self._inline.preview_tail())
        return wrapper.take_lines(width, final=True)


@dataclass(slots=True)
class CodeLine:
    text: str
    is_long: bool = False
    is_complete: bool = True


class MarkdownCodeBlock:
    """Code, given out line by line. A long line has no colours and comes in pieces."""

    def __init__(self, theme: Theme, language: str = "") -> None:
        self._highlighter = CodeHighlighter(theme, language)
        self._lines: deque[CodeLine] = deque()
        label = f"{theme.glyphs.rule * 3} {language}".rstrip()
        self._label: Span | None = (label, theme.styles.dim)
        self._line_count = 0
        self.partial = ""  # the beginning of an unfinished line

    def add_line(self, text: str) -> None:
        self._lines.append(CodeLine(text.expandtabs(4)))

    def add_long_text(self, text: str, *, is_whole: bool) -> None:
        text = text.replace("\t", "    ")
        if self._lines and not self._lines[-1].is_complete:
            self._lines[-1].text += text
        else:
            self._lines.append(CodeLine(text, is_long=True))
        self._lines[-1].is_complete = is_whole

    def take_lines(self, width: int, *, final: bool) -> list[list[Span]]:
        lines: list[list[Span]] = []
        if self._label and (self._lines or final):
            lines += break_lines([self._label], width)
            self._label = None
        while self._lines:
            line = self._lines[0]
            if not line.is_long:
                lines += break_lines(self._highlight_line(line.text), width)
            else:
                rows = break_lines([(line.text, "")], width)
                if not (line.is_complete or final):
                    line.text = "".join(text for text, _ in rows.pop())
                    return lines + rows
                lines += rows
            self._lines.popleft()
        return lines

    def _highlight_line(self, line: str) -> list[Span]:
        self._line_count += 1
        return (
            self._highlighter.highlight_line(line)
            if self._line_count <= MAX_COLOURED_LINES
            else [(line, "")]
        )

    def live_lines(self, width: int) -> list[list[Span]]:
        spans = [(line.text, "") for line in self._lines]  # at most one, and long
        if not spans and self.partial:
            text = self.partial.expandtabs(4)
            spans = (
                self._highlighter.preview_line(text)
                if self._line_count < MAX_COLOURED_LINES
                else [(text, "")]
            )
        label = break_lines([self._label], width) if self._label else []
        return label + (break_lines(spans, width) if spans else [])


class MarkdownRule:
    def __init__(self, theme: Theme) -> None:
        self._theme = theme

    def take_lines(self, width: int, *, final: bool) -> list[list[Span]]:
        return [[(self._theme.glyphs.rule * width, self._theme.styles.dim)]]

    def live_lines(self, width: int) -> list[list[Span]]:
        return self.take_lines(width, final=False)


class PlacedBlock:
    """A leaf with the prefixes of its lines. `first_prefix` and `prefix` have the same width.

    `gap` is the line before the block, if there is one.
    """

    def __init__(
        self, leaf: LeafBlock, first_prefix: list[Span], prefix: list[Span], gap: list[Span] | None
    ) -> None:
        self.leaf = leaf
        self.is_closed = False
        self._first_prefix = first_prefix
        self._prefix = prefix
        self._gap = gap
        self._has_output = False

    def take_lines(self, width: int) -> list[str]:
        lines = self.leaf.take_lines(self._compute_width(width), final=self.is_closed)
        if self.is_closed and not lines and not self._has_output and self._first_prefix:
            lines = [[]]
        rendered = self._render(lines, width)
        self._has_output = self._has_output or bool(lines)
        return rendered

    def live_lines(self, width: int) -> list[str]:
        return self._render(self.leaf.live_lines(self._compute_width(width)), width)

    def _compute_width(self, width: int) -> int:
        minimum = min(MIN_TEXT_WIDTH, width // 2 + 1) if width >= TINY_WIDTH else width
        return max(width - measure_spans(self._prefix), minimum)

    def _render(self, lines: list[list[Span]], width: int) -> list[str]:
        if not lines:
            return []
        max_width = width - self._compute_width(width)
        first_prefix = self._prefix if self._has_output else self._first_prefix
        out = [render_trimmed([*drop_first_spans(first_prefix, max_width), *lines[0]])]
        if self._gap is not None and not self._has_output:
            out.insert(0, render_trimmed(drop_first_spans(self._gap, max_width)))
        prefix = drop_first_spans(self._prefix, max_width)
        return out + [render_trimmed([*prefix, *line]) for line in lines[1:]]


def render_trimmed(line: list[Span]) -> str:
    """Render without trailing space, which would be copied with the text."""
    while line:
        text, style = line[-1]
        line = line[:-1]
        if text := text.rstrip():
            return render_ansi([*line, (text, style)])
    return ""


def measure_spans(spans: Iterable[Span]) -> int:
    return sum(measure_text(text) for text, _ in spans)


def drop_first_spans(spans: list[Span], width: int) -> list[Span]:
    """Drop spans at the beginning until the rest fits."""
    while spans and measure_spans(spans) > width:
        spans = spans[1:]
    return spans
