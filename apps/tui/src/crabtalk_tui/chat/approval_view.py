"""The text of an approval in a form: wrapped to the width, scrolled, and whether it was read.

The end of the text must have been on the screen before a yes is taken. It touches no terminal.
"""

from prompt_toolkit.utils import get_cwidth

from crabtalk.protocol import wire
from crabtalk_tui.approval_text import ApprovalLine, approval_lines

# Before a line of the call, and before what is left of one that is wider than the screen.
FIRST, NEXT = "│ ", "┆ "
STYLES = {"title": "class:form.question", "fact": "", "call": "class:form.call"}
KEYS = {"pageup", "pagedown", "home", "end", " "}

Row = list[tuple[str, str]]


class ApprovalView:
    def __init__(self, question: wire.AskQuestion, asker: str = "") -> None:
        self.is_read = False  # its last row has been in view
        self._lines = approval_lines(question, asker)
        self._rows: list[Row] = []
        self._width = 0
        self._top = 0
        self._height = 0  # rows in view when it was last drawn

    def count(self, width: int) -> int:
        """How many rows it has."""
        return len(self._wrapped(width))

    def rows(self, width: int, height: int) -> list[Row]:
        """Those in view, at most `height`."""
        rows = self._wrapped(width)
        self._height = height
        self._top = max(min(self._top, len(rows) - height), 0)
        self.is_read = self.is_read or self._top + height >= len(rows)
        return rows[self._top : self._top + height]

    @property
    def position(self) -> str:
        """Which rows are in view, in words; empty when all are."""
        total, bottom = len(self._rows), self._top + self._height
        if self._height >= total:
            return ""
        return f"lines {self._top + 1}-{min(bottom, total)} of {total}"

    def scroll(self, key: str) -> None:
        page = max(self._height - 1, 1)  # one row stays in view
        match key:
            case "pagedown" | " ":
                self._top += page
            case "pageup":
                self._top -= page
            case "home":
                self._top = 0
            case "end":
                self._top = len(self._rows)
        self._top = max(min(self._top, len(self._rows) - self._height), 0)

    def _wrapped(self, width: int) -> list[Row]:
        if width != self._width:
            self._width = width
            self._rows = [row for line in self._lines for row in wrap_line(line, width)]
        return self._rows


def wrap_line(line: ApprovalLine, width: int) -> list[Row]:
    style = STYLES[line.kind]
    if line.kind != "call":
        return [[(style, piece)] for piece in split_cells(line.text, width)]
    pieces = split_cells(line.text, max(width - len(FIRST), 2))
    return [
        [("class:form.hint", NEXT if number else FIRST), (style, piece)]
        for number, piece in enumerate(pieces)
    ]


def split_cells(text: str, width: int) -> list[str]:
    """Pieces that fit, every character kept: spaces may be what hides something."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    pieces, start, taken = [], 0, 0
    for place, character in enumerate(text):
        size = get_cwidth(character)
        if taken + size > width and place > start:
            pieces.append(text[start:place])
            start, taken = place, 0
        taken += size
    return [*pieces, text[start:]]
