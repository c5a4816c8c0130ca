"""A terminal's screen as an SVG picture."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

CELL_WIDTH, ROW_HEIGHT, MARGIN, TITLE_BAR_HEIGHT = 8.4, 18, 14, 30  # pixels
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
BACKGROUND, FOREGROUND = "#1b1e28", "#d6dae4"
COLOURS = {
    "default": FOREGROUND,
    "black": "#3b4252",
    "red": "#ef7a85",
    "green": "#9ccf8f",
    "brown": "#ebc17a",
    "blue": "#82aaff",
    "magenta": "#d09af0",
    "cyan": "#79d4e0",
    "white": "#e6e9f0",
    "brightblack": "#7c849c",
}
DOTS = ("#ef7a85", "#ebc17a", "#9ccf8f")

Cell = Any  # a pyte cell: a character and its style


def render_svg(rows: Sequence[Sequence[Cell]], title: str) -> str:
    width = MARGIN * 2 + CELL_WIDTH * max(map(len, rows))
    height = TITLE_BAR_HEIGHT + MARGIN * 2 + ROW_HEIGHT * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{height}" rx="9" fill="{BACKGROUND}"/>',
        *(
            f'<circle cx="{20 + 18 * number}" cy="16" r="5.5" fill="{colour}"/>'
            for number, colour in enumerate(DOTS)
        ),
        f'<g font-family="{FONT}" font-size="14">',
    ]
    for y, row in enumerate(rows):
        parts += render_row(row, TITLE_BAR_HEIGHT + MARGIN + ROW_HEIGHT * y)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def render_row(row: Sequence[Cell], top: int) -> list[str]:
    """Render runs of cells with the same style. Each has its own position: font widths differ."""
    parts: list[str] = []
    for look, run in groupby(range(len(row)), key=lambda x: get_cell_style(row[x])):
        columns = list(run)
        ink, paper, is_bold, is_italic, is_underlined, is_faint = look
        left, wide = MARGIN + CELL_WIDTH * columns[0], CELL_WIDTH * len(columns)
        if paper != BACKGROUND:
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{ROW_HEIGHT}" '
                f'fill="{paper}"/>'
            )
        # Browsers drop spaces at both ends and would stretch the rest to the width.
        inked = [x for x in columns if row[x].data != " "]
        if not inked:
            continue
        shown = range(inked[0], inked[-1] + 1)
        left, wide = MARGIN + CELL_WIDTH * shown[0], CELL_WIDTH * len(shown)
        text = "".join(row[x].data for x in shown).replace(" ", "\N{NO-BREAK SPACE}")
        style = f'fill="{ink}"'
        style += ' font-weight="bold"' if is_bold else ""
        style += ' font-style="italic"' if is_italic else ""
        style += ' text-decoration="underline"' if is_underlined else ""
        style += ' fill-opacity="0.6"' if is_faint else ""
        parts.append(
            f'<text x="{left:.1f}" y="{top + 13}" textLength="{wide:.1f}"'
            f' lengthAdjust="spacingAndGlyphs" {style}>{escape(text)}</text>'
        )
    return parts


def get_cell_style(cell: Cell) -> tuple[str, str, bool, bool, bool, bool]:
    ink, paper = resolve_colour(cell.fg, FOREGROUND), resolve_colour(cell.bg, BACKGROUND)
    if cell.reverse:
        ink, paper = paper, ink
    # The test terminal stores faint text as blinking.
    return ink, paper, cell.bold, cell.italics, cell.underscore, cell.blink


def resolve_colour(name: str, default: str) -> str:
    if name == "default":
        return default
    if name in COLOURS:
        return COLOURS[name]
    if name.startswith("bright"):
        return COLOURS.get(name.removeprefix("bright"), default)
    return f"#{name}"  # one of the 256, or any
