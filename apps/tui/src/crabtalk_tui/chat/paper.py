"""The paper: the terminal, to be written on downwards. What is printed stays as it was printed.

Whatever belongs together reaches the terminal in one piece, between the marks of a synchronised
update: it shows all of it or nothing.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
# Where the system does not say, or says what no terminal is.
USUAL = Size(rows=24, columns=80)

# What the board is drawn with, for terminals that only know what a typewriter has.
TYPEWRITER = str.maketrans("·…↑↓←→▸●○↵█░✓", "-~^v<>>*o/#.+")

# How terminals make themselves known that wrap lines anew when they become narrower.
REWRAPPING = (
    "ALACRITTY_WINDOW_ID",
    "GHOSTTY_RESOURCES_DIR",
    "ITERM_SESSION_ID",
    "KITTY_WINDOW_ID",
    "KONSOLE_VERSION",
    "TMUX",
    "VTE_VERSION",
    "WEZTERM_PANE",
    "WT_SESSION",
)
REWRAPPING_TERMS = ("alacritty", "foot", "tmux", "xterm-ghostty", "xterm-kitty")


class Paper(Vt100_Output):
    def __init__(self, stdout: TextIO, *, is_plain: bool) -> None:
        self._size = size_of(stdout)
        super().__init__(
            stdout,
            lambda: self._size,
            term=os.environ.get("TERM"),
            default_color_depth=ColorDepth.DEPTH_1_BIT if is_plain else None,
            # Where the cursor is makes no difference: what is drawn is as high as it must be.
            enable_cpr=False,
        )
        self._held = 0
        self._letters = {} if is_unicode(stdout) else TYPEWRITER

    def measure(self) -> Size:
        """The size it has now. It is asked for very often, and changes hardly ever."""
        self._size = size_of(self.stdout)
        return self._size

    def write(self, data: str) -> None:
        super().write(data.translate(self._letters) if self._letters else data)

    @contextmanager
    def in_one_piece(self) -> Iterator[None]:
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.flush()

    def flush(self) -> None:
        if not self._held and self._buffer:
            self._buffer = [BEGIN, *self._buffer, END]
            super().flush()

    def print(self, text: str) -> None:
        """Whole lines, styled, where the cursor is."""
        with self.in_one_piece():
            self.write_raw(text.replace("\n", "\r\n"))


def size_of(stdout: TextIO) -> Size:
    try:
        columns, rows = os.get_terminal_size(stdout.fileno())
    except (OSError, ValueError):
        return USUAL
    return Size(rows=rows or USUAL.rows, columns=columns or USUAL.columns)


def is_unicode(stdout: TextIO) -> bool:
    return (stdout.encoding or "").lower().replace("-", "").startswith("utf")


def is_terminal() -> bool:
    """Whether one can be drawn on: both ends of it are here, and its cursor can be moved."""
    term = os.environ.get("TERM", "")
    return sys.stdin.isatty() and sys.stdout.isatty() and term not in ("", "dumb", "unknown")


def rewraps() -> bool:
    """Of one that is not known, the answer is no: a line that is drawn twice is a blemish, one that
    is erased by mistake a loss."""
    term = os.environ.get("TERM", "")
    return any(map(os.environ.get, REWRAPPING)) or term.startswith(REWRAPPING_TERMS)
