"""The terminal as output. Printed lines are never changed afterwards.

Output that belongs together is sent in one piece, between the escapes of a synchronised update, so
that the terminal shows all of it or nothing.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
# Used if the system reports no size, or zero.
DEFAULT_SIZE = Size(rows=24, columns=80)

# ASCII replacements of the characters of the live display.
ASCII_REPLACEMENTS = str.maketrans("·…↑↓←→▸●○↵█░✓", "-~^v<>>*o/#.+")

# Environment variables of terminals that rewrap lines when they become narrower.
REWRAPPING_VARIABLES = (
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


class TerminalOutput(Vt100_Output):
    def __init__(self, stdout: TextIO, *, is_plain: bool) -> None:
        self._size = read_terminal_size(stdout)
        super().__init__(
            stdout,
            lambda: self._size,
            term=os.environ.get("TERM"),
            default_color_depth=ColorDepth.DEPTH_1_BIT if is_plain else None,
            # The cursor's position is not needed: the display is only as high as its content.
            enable_cpr=False,
        )
        self._update_depth = 0
        self._replacements = {} if is_unicode(stdout) else ASCII_REPLACEMENTS

    def update_size(self) -> Size:
        """Read the current size. It is cached because it is used often and rarely changes."""
        self._size = read_terminal_size(self.stdout)
        return self._size

    def write(self, data: str) -> None:
        super().write(data.translate(self._replacements) if self._replacements else data)

    @contextmanager
    def synchronized_update(self) -> Iterator[None]:
        self._update_depth += 1
        try:
            yield
        finally:
            self._update_depth -= 1
            self.flush()

    def flush(self) -> None:
        if not self._update_depth and self._buffer:
            self._buffer = [BEGIN_UPDATE, *self._buffer, END_UPDATE]
            super().flush()

    def print_lines(self, text: str) -> None:
        """Print whole styled lines at the cursor."""
        with self.synchronized_update():
            self.write_raw(text.replace("\n", "\r\n"))


def read_terminal_size(stdout: TextIO) -> Size:
    try:
        columns, rows = os.get_terminal_size(stdout.fileno())
    except (OSError, ValueError):
        return DEFAULT_SIZE
    return Size(rows=rows or DEFAULT_SIZE.rows, columns=columns or DEFAULT_SIZE.columns)


def is_unicode(stdout: TextIO) -> bool:
    return (stdout.encoding or "").lower().replace("-", "").startswith("utf")


def is_terminal() -> bool:
    """Whether stdin and stdout are a terminal whose cursor can be moved."""
    term = os.environ.get("TERM", "")
    return sys.stdin.isatty() and sys.stdout.isatty() and term not in ("", "dumb", "unknown")


def is_rewrapping_terminal() -> bool:
    """Whether the terminal rewraps lines; False for unknown ones.

    A wrong False may draw a line twice, a wrong True may erase one.
    """
    term = os.environ.get("TERM", "")
    return any(map(os.environ.get, REWRAPPING_VARIABLES)) or term.startswith(REWRAPPING_TERMS)
