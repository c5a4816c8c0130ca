"""The text of an approval in a form: wraps and scrolls it, and knows whether it was read.

A yes is accepted only after the end of the text was on the screen. It touches no terminal.
"""

from bisect import bisect_right

from prompt_toolkit.utils import get_cwidth

from crabtalk.cli.approval_text import INDENT, ApprovalLine, build_approval_lines, split_cells
from crabtalk.protocol import wire

# Prefixes of a line of the call, and of its continuation if it is wider than the screen.
CALL_GUTTER, CALL_GUTTER_NEXT = "│ ", "┆ "
STYLES = {"title": "class:form.question", "fact": "", "call": "class:form.call"}
SCROLL_KEYS = {"pageup", "pagedown", "home", "end", " "}

Row = list[tuple[str, str]]


class ApprovalView:
    def __init__(self, question: wire.AskQuestion, asker: str = "") -> None:
        self.is_read = False  # its last row has been in view
        self._lines = build_approval_lines(question, asker)
        self._rows: list[Row] = []
        self._row_offsets: list[int] = []  # where in the text each row begins
        self._width = 0
        self._top = 0
        self._height = 0  # rows in view when it was last drawn

    def count_rows(self, width: int) -> int:
        return len(self._wrap(width))

    def visible_rows(self, width: int, height: int) -> list[Row]:
        """Return the rows in view, at most `height`."""
        rows = self._wrap(width)
        self._height = height
        self._top = max(min(self._top, len(rows) - height), 0)
        self.is_read = self.is_read or self._top + height >= len(rows)
        return rows[self._top : self._top + height]

    @property
    def position(self) -> str:
        """Say which rows are in view; empty when all are."""
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

    def _wrap(self, width: int) -> list[Row]:
        """Wrap the text, again if the width has changed.

        The text at the top stays at the top: a window that gets wider must not skip unread text.
        """
        if width != self._width:
            offset = self._row_offsets[self._top] if self._row_offsets else 0
            self._width = width
            self._rows, self._row_offsets, start = [], [], 0
            for line in self._lines:
                for row in wrap_line(line, width):
                    self._rows.append(row)
                    self._row_offsets.append(start)
                    start += len(row[-1][1])
            self._top = bisect_right(self._row_offsets, offset) - 1
        return self._rows


def wrap_line(line: ApprovalLine, width: int) -> list[Row]:
    style = STYLES[line.kind]
    first, rest = (CALL_GUTTER, CALL_GUTTER_NEXT) if line.kind == "call" else ("", INDENT)
    pieces = split_cells(line.text, max(width - len(rest), 2), get_cwidth)
    return [
        [("class:form.hint", rest if number else first), (style, piece)]
        for number, piece in enumerate(pieces)
    ]
