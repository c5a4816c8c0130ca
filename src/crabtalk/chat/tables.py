"""Lay out a Markdown table while its rows come in.

The first rows decide the widths of the columns. After that each row is settled when it comes, and
text too wide for its column is wrapped. If columns would be too narrow to read, each row is shown
as a list of its cells.
"""

import re
from collections.abc import Sequence

from .inline_renderer import render_inline
from .line_wrapping import LineWrapper, Span, measure_text
from .theme import Theme

SAMPLE_ROWS = 8  # rows that decide the widths
MIN_COLUMN_WIDTH = 5  # wider columns are not shrunk below this
MAX_COLUMNS = 64
CELL_PIECE = re.compile(r"\\.|`[^`]*`|[^|\\`]+|.")
DELIMITER_ROW = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")

Cell = list[Span]


class MarkdownTable:
    """`take_lines` takes the settled lines, `live_lines` renders the rest."""

    def __init__(self, theme: Theme, header: str, rule: str) -> None:
        self._theme = theme
        style = theme.styles.strong
        self._header = [render_inline(cell, theme, style) for cell in split_cells(header)]
        self._alignments = [parse_alignment(cell) for cell in split_cells(rule)]
        self._sample_rows: list[list[Cell]] = []  # the rows that decide the widths
        self._rows: list[list[Cell]] = []  # rows not given out yet
        self._has_output = False
        self.partial = ""  # the beginning of an unfinished row

    def add_row(self, row: str) -> None:
        cells = self._parse_row(row)
        if len(self._sample_rows) < SAMPLE_ROWS:
            self._sample_rows.append(cells)
        self._rows.append(cells)

    def take_lines(self, width: int, *, final: bool) -> list[list[Span]]:
        if not final and not self._has_output and len(self._rows) <= SAMPLE_ROWS:
            return []
        lines = self._lay_out(self._rows, width, with_header=not self._has_output)
        self._has_output = True
        self._rows = []
        return lines

    def live_lines(self, width: int) -> list[list[Span]]:
        rows = [*self._rows, self._parse_row(self.partial)] if self.partial else self._rows
        if self._has_output and not rows:
            return []
        return self._lay_out(rows, width, with_header=not self._has_output)

    def _parse_row(self, row: str) -> list[Cell]:
        cells = [render_inline(cell, self._theme) for cell in split_cells(row)][: len(self._header)]
        return cells + [[] for _ in range(len(self._header) - len(cells))]

    def _lay_out(
        self, rows: Sequence[list[Cell]], width: int, *, with_header: bool
    ) -> list[list[Span]]:
        widths = self._compute_widths(width)
        if widths is None:
            return [line for row in rows for line in self._render_as_list(row, width)]
        lines: list[list[Span]] = []
        if with_header:
            lines += self._render_row(self._header, widths)
            lines.append([(self._render_rule(widths), self._theme.styles.dim)])
        for row in rows:
            lines += self._render_row(row, widths)
        return lines

    def _compute_widths(self, width: int) -> list[int] | None:
        """Compute the widths of the columns; None if there is no room for all."""
        sample = [self._header, *self._sample_rows]
        wanted = [
            max(1, *(measure_cell(row[i]) for row in sample)) for i in range(len(self._header))
        ]
        room = width - 3 * (len(wanted) - 1)
        if len(self._sample_rows) == SAMPLE_ROWS:
            wanted = add_slack(wanted, room)
        if sum(wanted) <= room:
            return wanted
        minimums = [min(MIN_COLUMN_WIDTH, want) for want in wanted]
        return shrink_widths(wanted, minimums, room) if sum(minimums) <= room else None

    def _render_row(self, row: list[Cell], widths: list[int]) -> list[list[Span]]:
        columns = [wrap_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
        bar = (f" {self._theme.glyphs.bar} ", self._theme.styles.dim)
        lines: list[list[Span]] = []
        for number in range(max(1, *map(len, columns))):
            line: list[Span] = []
            for column, width, side in zip(columns, widths, self._alignments, strict=True):
                line += [bar] if line else []
                line += align_line(column[number] if number < len(column) else [], width, side)
            lines.append(strip_trailing_space(line))
        return lines

    def _render_rule(self, widths: list[int]) -> str:
        glyphs = self._theme.glyphs
        return f"{glyphs.rule}{glyphs.cross}{glyphs.rule}".join(
            glyphs.rule * width for width in widths
        )

    def _render_as_list(self, row: list[Cell], width: int) -> list[list[Span]]:
        lines: list[list[Span]] = []
        for name, cell in zip(self._header, row, strict=True):
            lines += wrap_cell([*name, (": ", ""), *cell], width)
        return [
            *lines,
            [(self._theme.glyphs.rule * min(width, MIN_COLUMN_WIDTH), self._theme.styles.dim)],
        ]


def is_header_row(line: str) -> bool:
    return line.startswith("|") and len(split_cells(line)) <= MAX_COLUMNS


def is_delimiter_row(line: str, header: str) -> bool:
    """Whether the line makes the line before it the header of a table."""
    return (
        "-" in line
        and DELIMITER_ROW.fullmatch(line) is not None
        and len(split_cells(line)) == len(split_cells(header))
    )


def split_cells(row: str) -> list[str]:
    """Split a row into cells. A bar in code or after a backslash does not separate cells."""
    cells = [""]
    for piece in CELL_PIECE.findall(row.strip().removeprefix("|")):
        if piece == "|":
            cells.append("")
        else:
            cells[-1] += piece
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [cell.strip().replace("\\|", "|") for cell in cells]


def parse_alignment(rule: str) -> str:
    if rule.endswith(":"):
        return "^" if rule.startswith(":") else ">"
    return "<"


def measure_cell(cell: Cell) -> int:
    """Return the width of the widest line."""
    lines = "".join(text for text, _ in cell).split("\n")
    return max(measure_text(" ".join(line.split())) for line in lines)


def add_slack(wanted: list[int], room: int) -> list[int]:
    """Widen columns where there is room: later rows may be wider."""
    spare = max(0, room - sum(wanted))
    widths = []
    for number, want in enumerate(wanted):
        extra = min(want // 2 + 2, spare // (len(wanted) - number))
        widths.append(want + extra)
        spare -= extra
    return widths


def shrink_widths(wanted: list[int], minimums: list[int], room: int) -> list[int]:
    """Shrink the widest columns first."""
    widths = list(wanted)
    over = sum(widths) - room
    while over > 0:
        widest = max(
            width for width, minimum in zip(widths, minimums, strict=True) if width > minimum
        )
        widest_columns = [
            i for i, width in enumerate(widths) if width == widest and width > minimums[i]
        ]
        below = max((w for w in widths if w < widest), default=0)
        step = max(
            1,
            min(
                widest - max(below, max(minimums[i] for i in widest_columns)),
                over // len(widest_columns),
            ),
        )
        for i in widest_columns:
            if over <= 0:
                break
            widths[i] -= step
            over -= step
    return widths


def wrap_cell(cell: Cell, width: int) -> list[list[Span]]:
    wrapper = LineWrapper()
    wrapper.push(cell)
    return wrapper.take_lines(width, final=True)


def align_line(line: list[Span], width: int, side: str) -> list[Span]:
    space = width - sum(measure_text(text) for text, _ in line)
    before = {"<": 0, ">": space, "^": space // 2}[side]
    return [(" " * before, ""), *line, (" " * (space - before), "")]


def strip_trailing_space(line: list[Span]) -> list[Span]:
    while line and not line[-1][0].strip() and not line[-1][1]:
        line.pop()
    return line
