"""Grid: a table in columns, as wide as they must be and the terminal allows.

Rows come one at a time. The first few decide on the widths; after that each row is settled when it
comes, and what is too wide for its column is wrapped in it. Where columns would be too narrow to
read, each row is a list of its cells instead.
"""

import re
from collections.abc import Sequence

from .inline_renderer import render_inline
from .line_wrapping import LineWrapper, Span, measure_text
from .theme import Theme

SAMPLE_ROWS = 8  # rows
MIN_COLUMN_WIDTH = 5  # columns are made no narrower, if what they hold is wider
MAX_COLUMNS = 64  # columns
CELL_PIECE = re.compile(r"\\.|`[^`]*`|[^|\\`]+|.")
DELIMITER_ROW = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")

Cell = list[Span]


class MarkdownTable:
    """`lines` takes what is settled, `live` shows the rest."""

    def __init__(self, look: Theme, header: str, rule: str) -> None:
        self._theme = look
        style = look.styles.strong
        self._header = [render_inline(cell, look, style) for cell in split_cells(header)]
        self._alignments = [parse_alignment(cell) for cell in split_cells(rule)]
        self._sample_rows: list[list[Cell]] = []  # the rows that decide on the widths
        self._rows: list[list[Cell]] = []  # those not given out
        self._has_output = False
        self.partial = ""  # a row that is not whole

    def add_row(self, row: str) -> None:
        found = self._parse_row(row)
        if len(self._sample_rows) < SAMPLE_ROWS:
            self._sample_rows.append(found)
        self._rows.append(found)

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
        found = [render_inline(cell, self._theme) for cell in split_cells(row)][: len(self._header)]
        return found + [[] for _ in range(len(self._header) - len(found))]

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
        """None if there is no room for all columns."""
        sample = [self._header, *self._sample_rows]
        wanted = [
            max(1, *(measure_cell(row[i]) for row in sample)) for i in range(len(self._header))
        ]
        room = width - 3 * (len(wanted) - 1)
        if len(self._sample_rows) == SAMPLE_ROWS:
            wanted = add_slack(wanted, room)
        if sum(wanted) <= room:
            return wanted
        least = [min(MIN_COLUMN_WIDTH, want) for want in wanted]
        return shrink_widths(wanted, least, room) if sum(least) <= room else None

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
    """Whether it makes a table of the line before it."""
    return (
        "-" in line
        and DELIMITER_ROW.fullmatch(line) is not None
        and len(split_cells(line)) == len(split_cells(header))
    )


def split_cells(row: str) -> list[str]:
    """Cells; a bar in code or behind a backslash is none between cells."""
    found = [""]
    for piece in CELL_PIECE.findall(row.strip().removeprefix("|")):
        if piece == "|":
            found.append("")
        else:
            found[-1] += piece
    if len(found) > 1 and not found[-1].strip():
        found.pop()
    return [cell.strip().replace("\\|", "|") for cell in found]


def parse_alignment(rule: str) -> str:
    if rule.endswith(":"):
        return "^" if rule.startswith(":") else ">"
    return "<"


def measure_cell(cell: Cell) -> int:
    """As wide as its widest line."""
    lines = "".join(text for text, _ in cell).split("\n")
    return max(measure_text(" ".join(line.split())) for line in lines)


def add_slack(wanted: list[int], room: int) -> list[int]:
    """More than they need, where there is room: rows to come may hold more."""
    left = max(0, room - sum(wanted))
    widths = []
    for number, want in enumerate(wanted):
        extra = min(want // 2 + 2, left // (len(wanted) - number))
        widths.append(want + extra)
        left -= extra
    return widths


def shrink_widths(wanted: list[int], least: list[int], room: int) -> list[int]:
    """The widest give way first."""
    widths = list(wanted)
    over = sum(widths) - room
    while over > 0:
        widest = max(width for width, low in zip(widths, least, strict=True) if width > low)
        at = [i for i, width in enumerate(widths) if width == widest and width > least[i]]
        below = max((w for w in widths if w < widest), default=0)
        step = max(1, min(widest - max(below, max(least[i] for i in at)), over // len(at)))
        for i in at:
            if over <= 0:
                break
            widths[i] -= step
            over -= step
    return widths


def wrap_cell(cell: Cell, width: int) -> list[list[Span]]:
    flow = LineWrapper()
    flow.push(cell)
    return flow.take_lines(width, final=True)


def align_line(line: list[Span], width: int, side: str) -> list[Span]:
    space = width - sum(measure_text(text) for text, _ in line)
    before = {"<": 0, ">": space, "^": space // 2}[side]
    return [(" " * before, ""), *line, (" " * (space - before), "")]


def strip_trailing_space(line: list[Span]) -> list[Span]:
    while line and not line[-1][0].strip() and not line[-1][1]:
        line.pop()
    return line
