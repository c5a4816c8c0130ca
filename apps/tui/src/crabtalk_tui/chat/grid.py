"""Grid: a table in columns, as wide as they must be and the terminal allows.

Rows come one at a time. The first few decide on the widths; after that each row is settled when it
comes, and what is too wide for its column is wrapped in it. Where columns would be too narrow to
read, each row is a list of its cells instead.
"""

import re
from collections.abc import Sequence

from .flow import Flow, Span, cells
from .inline import read_whole
from .look import Look

DECIDING = 8  # rows
NARROWEST = 5  # columns are made no narrower, if what they hold is wider
MOST = 64  # columns
PIECE = re.compile(r"\\.|`[^`]*`|[^|\\`]+|.")
RULE = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")

Cell = list[Span]


class Grid:
    """`lines` takes what is settled, `live` shows the rest."""

    def __init__(self, look: Look, header: str, rule: str) -> None:
        self._look = look
        style = look.styles.strong
        self._header = [read_whole(cell, look, style) for cell in split(header)]
        self._sides = [side_of(cell) for cell in split(rule)]
        self._deciding: list[list[Cell]] = []  # the rows that decide on the widths
        self._rows: list[list[Cell]] = []  # those not given out
        self._is_begun = False
        self.partial = ""  # a row that is not whole

    def add(self, row: str) -> None:
        found = self._read(row)
        if len(self._deciding) < DECIDING:
            self._deciding.append(found)
        self._rows.append(found)

    def lines(self, width: int, *, final: bool) -> list[list[Span]]:
        if not final and not self._is_begun and len(self._rows) <= DECIDING:
            return []
        lines = self._laid_out(self._rows, width, with_header=not self._is_begun)
        self._is_begun = True
        self._rows = []
        return lines

    def live(self, width: int) -> list[list[Span]]:
        rows = [*self._rows, self._read(self.partial)] if self.partial else self._rows
        if self._is_begun and not rows:
            return []
        return self._laid_out(rows, width, with_header=not self._is_begun)

    def _read(self, row: str) -> list[Cell]:
        found = [read_whole(cell, self._look) for cell in split(row)][: len(self._header)]
        return found + [[] for _ in range(len(self._header) - len(found))]

    def _laid_out(
        self, rows: Sequence[list[Cell]], width: int, *, with_header: bool
    ) -> list[list[Span]]:
        widths = self._widths(width)
        if widths is None:
            return [line for row in rows for line in self._listed(row, width)]
        lines: list[list[Span]] = []
        if with_header:
            lines += self._row(self._header, widths)
            lines.append([(self._rule(widths), self._look.styles.dim)])
        for row in rows:
            lines += self._row(row, widths)
        return lines

    def _widths(self, width: int) -> list[int] | None:
        """None if there is no room for all columns."""
        sample = [self._header, *self._deciding]
        wanted = [max(1, *(natural(row[i]) for row in sample)) for i in range(len(self._header))]
        room = width - 3 * (len(wanted) - 1)
        if len(self._deciding) == DECIDING:
            wanted = with_slack(wanted, room)
        if sum(wanted) <= room:
            return wanted
        least = [min(NARROWEST, want) for want in wanted]
        return shrunk(wanted, least, room) if sum(least) <= room else None

    def _row(self, row: list[Cell], widths: list[int]) -> list[list[Span]]:
        columns = [wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        bar = (f" {self._look.glyphs.bar} ", self._look.styles.dim)
        lines: list[list[Span]] = []
        for number in range(max(1, *map(len, columns))):
            line: list[Span] = []
            for column, width, side in zip(columns, widths, self._sides, strict=True):
                line += [bar] if line else []
                line += aligned(column[number] if number < len(column) else [], width, side)
            lines.append(without_trailing_space(line))
        return lines

    def _rule(self, widths: list[int]) -> str:
        glyphs = self._look.glyphs
        return f"{glyphs.rule}{glyphs.cross}{glyphs.rule}".join(
            glyphs.rule * width for width in widths
        )

    def _listed(self, row: list[Cell], width: int) -> list[list[Span]]:
        lines: list[list[Span]] = []
        for name, cell in zip(self._header, row, strict=True):
            lines += wrapped([*name, (": ", ""), *cell], width)
        return [*lines, [(self._look.glyphs.rule * min(width, NARROWEST), self._look.styles.dim)]]


def is_header(line: str) -> bool:
    return line.startswith("|") and len(split(line)) <= MOST


def is_rule(line: str, header: str) -> bool:
    """Whether it makes a table of the line before it."""
    return (
        "-" in line and RULE.fullmatch(line) is not None and len(split(line)) == len(split(header))
    )


def split(row: str) -> list[str]:
    """Cells; a bar in code or behind a backslash is none between cells."""
    found = [""]
    for piece in PIECE.findall(row.strip().removeprefix("|")):
        if piece == "|":
            found.append("")
        else:
            found[-1] += piece
    if len(found) > 1 and not found[-1].strip():
        found.pop()
    return [cell.strip().replace("\\|", "|") for cell in found]


def side_of(rule: str) -> str:
    if rule.endswith(":"):
        return "^" if rule.startswith(":") else ">"
    return "<"


def natural(cell: Cell) -> int:
    """As wide as its widest line."""
    lines = "".join(text for text, _ in cell).split("\n")
    return max(cells(" ".join(line.split())) for line in lines)


def with_slack(wanted: list[int], room: int) -> list[int]:
    """More than they need, where there is room: rows to come may hold more."""
    left = max(0, room - sum(wanted))
    widths = []
    for number, want in enumerate(wanted):
        extra = min(want // 2 + 2, left // (len(wanted) - number))
        widths.append(want + extra)
        left -= extra
    return widths


def shrunk(wanted: list[int], least: list[int], room: int) -> list[int]:
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


def wrapped(cell: Cell, width: int) -> list[list[Span]]:
    flow = Flow()
    flow.push(cell)
    return flow.lines(width, final=True)


def aligned(line: list[Span], width: int, side: str) -> list[Span]:
    space = width - sum(cells(text) for text, _ in line)
    before = {"<": 0, ">": space, "^": space // 2}[side]
    return [(" " * before, ""), *line, (" " * (space - before), "")]


def without_trailing_space(line: list[Span]) -> list[Span]:
    while line and not line[-1][0].strip() and not line[-1][1]:
        line.pop()
    return line
