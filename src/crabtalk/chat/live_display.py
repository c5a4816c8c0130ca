"""The live lines at the bottom of the terminal. Finished text is printed above them.

From top to bottom: the unfinished answer, queued messages, the prompt with its menu or a form, and
the status line. The display is as high as needed and leaves rows above it for finished text.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import (
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.styles import Style

from .form import StyledLine
from .input_prompt import InputPrompt
from .terminal_output import TerminalOutput, is_rewrapping_terminal

STYLE = Style.from_dict(
    {
        "prompt": "bold ansicyan",
        "status": "dim",
        "status.agent": "bold",
        "status.full": "ansiyellow",
        "status.hint": "bold ansiyellow",
        "status.auto": "ansired",
        "waiting": "dim",
        "menu": "",
        "menu.current": "reverse",
        "menu.meta": "dim",
        "form.tab": "",
        "form.tab.current": "reverse",
        "form.question": "bold",
        "form.current": "bold ansicyan",
        "form.description": "dim",
        "form.missing": "ansiyellow",
        "form.hint": "dim",
        "form.call": "",
    }
)
# An Esc key and the first byte of an arrow key differ in what follows within this time.
ESCAPE_SECONDS = 0.03
# Seconds that drawing is postponed while more keys are in the input: an unmarked paste brings a
# thousand at a time, and drawing after each takes far longer than reading them.
MAX_POSTPONE_SECONDS = 0.008
# Rows left above for finished text.
MIN_ROWS_ABOVE = 2
ROOMY_ROWS = 12  # a terminal with fewer rows gets no gap lines

RenderLines = Callable[[], list[StyledLine]]
T = TypeVar("T")


class LiveDisplay(Application[int]):
    def __init__(
        self,
        output: TerminalOutput,
        prompt: InputPrompt,
        keys: KeyBindings,
        *,
        live: Callable[[], list[str]],
        waiting: RenderLines,
        form: Callable[[], list[StyledLine] | None],
        status: RenderLines,
        resized: Callable[[], None],
    ) -> None:
        """The callables return the lines of each part when it is drawn; `form` may return None."""
        self.terminal_output = output
        self._on_size_change = resized
        self._size = output.get_size()
        live, waiting, form, status = (
            FrameCache(live),
            FrameCache(waiting),
            FrameCache(form),
            FrameCache(status),
        )
        self._frame_caches = (live, waiting, form, status)
        is_filling = Condition(lambda: form() is not None)
        self._form_window = build_rows_window(lambda: form() or [], focusable=True)
        gap = ConditionalContainer(Window(height=1), Condition(lambda: is_roomy(output)))
        body = HSplit(
            [
                Window(
                    AnsiControl(live),
                    height=lambda: Dimension.exact(len(live())),
                    dont_extend_height=True,
                ),
                build_rows_window(waiting),
                ConditionalContainer(HSplit([gap, self._form_window]), is_filling),
                ConditionalContainer(HSplit([gap, prompt.window, prompt.menu]), ~is_filling),
                build_rows_window(status),
            ]
        )
        super().__init__(
            layout=Layout(body, focused_element=prompt.window),
            style=STYLE,
            key_bindings=keys,
            include_default_pygments_style=False,
            erase_when_done=True,
            max_render_postpone_time=MAX_POSTPONE_SECONDS,
            output=output,
        )
        self.ttimeoutlen = self.timeoutlen = ESCAPE_SECONDS
        self._prompt_window = prompt.window

    def focus_form(self, is_filling: bool) -> None:
        """Send keys to the form, or back to the prompt."""
        self.layout.focus(self._form_window if is_filling else self._prompt_window)
        self.invalidate()

    def print_above(self, text: str) -> None:
        """Print whole lines above the display. They are never redrawn."""
        if not self.is_running:
            self.terminal_output.print_lines(text)
            return
        with self.terminal_output.synchronized_update():
            self._adapt_to_size()
            self.renderer.erase()
            self.terminal_output.print_lines(text)
            # invalidate() would draw in a separate update, and the terminal would flicker.
            self._redraw()

    def _redraw(self, render_as_done: bool = False) -> None:
        with self.terminal_output.synchronized_update():
            self._adapt_to_size()
            for cache in self._frame_caches:
                cache.clear()
            # The renderer keeps its former height; removed lines would leave blank ones.
            last_screen = self.renderer.last_rendered_screen
            if (
                last_screen is not None
                and not render_as_done
                and last_screen.height > self._measure_height()
            ):
                self.renderer.erase()
            super()._redraw(render_as_done)

    def _on_resize(self) -> None:
        with self.terminal_output.synchronized_update():
            self._adapt_to_size()
            super()._on_resize()

    def _adapt_to_size(self) -> None:
        """Adapt to the terminal's current size: SIGWINCH comes after the change."""
        before, self._size = self._size, self.terminal_output.update_size()
        if before == self._size:
            return
        if self._size.columns < before.columns and is_rewrapping_terminal():
            self._account_for_rewrap()
        self.renderer.erase()
        self._on_size_change()

    def _account_for_rewrap(self) -> None:
        """Correct the cursor position: a narrower terminal has wrapped the drawn rows into more."""
        last_screen = self.renderer.last_rendered_screen
        if last_screen is None:
            return
        width = self._size.columns
        cursor = self.renderer._cursor_pos
        extra_rows = cursor.x // width
        for y in range(cursor.y):
            filled = [x for x, cell in last_screen.data_buffer[y].items() if cell.char.strip()]
            extra_rows += max(filled, default=0) // width
        self.renderer._cursor_pos = Point(x=cursor.x % width, y=cursor.y + extra_rows)

    def _measure_height(self) -> int:
        size = self.terminal_output.get_size()
        return self.layout.container.preferred_height(size.columns, size.rows).preferred


class FrameCache(Generic[T]):
    """Caches a value during one drawing, because the layout asks for it several times."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._values: list[T] = []

    def __call__(self) -> T:
        if not self._values:
            self._values.append(self._compute())
        return self._values[0]

    def clear(self) -> None:
        self._values.clear()


class AnsiControl(FormattedTextControl):
    """Shows lines with ANSI escapes, and parses them only when they have changed."""

    def __init__(self, lines: Callable[[], list[str]]) -> None:
        self._last_lines: list[str] | None = None
        self._pieces: StyleAndTextTuples = []

        def pieces() -> StyleAndTextTuples:
            if (fresh := lines()) != self._last_lines:
                self._last_lines = list(fresh)
                self._pieces = to_formatted_text(ANSI("\n".join(fresh)))
            return self._pieces

        super().__init__(pieces)


def is_roomy(output: TerminalOutput) -> bool:
    return output.get_size().rows >= ROOMY_ROWS


def count_gap_rows(output: TerminalOutput) -> int:
    """Count the blank rows above the prompt: one if there is room."""
    return int(is_roomy(output))


def build_rows_window(lines: RenderLines, *, focusable: bool = False) -> Window:
    def pieces() -> StyleAndTextTuples:
        joined: StyleAndTextTuples = []
        for number, line in enumerate(lines()):
            joined += [("", "\n"), *line] if number else line
        return joined

    return Window(
        FormattedTextControl(pieces, focusable=focusable),
        height=lambda: Dimension.exact(len(lines())),
        dont_extend_height=True,
    )
