"""The board: the few lines at the bottom that still change. What is finished is on the paper above.

From top to bottom: what is being said, what waits to be heard, the prompt or a form with its menu,
the status. It is as high as it must be and leaves room for what is above it.
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
# Esc alone and the first byte of an arrow key are told apart by what follows within this time.
ESCAPE_SECONDS = 0.03
# Seconds that a drawing waits for more keys that are there already: of a paste that is not marked
# as one a thousand come at a time, and to draw after each takes far longer than to read them.
MAX_POSTPONE_SECONDS = 0.008
# The least that is left of a low terminal for what is finished.
MIN_ROWS_ABOVE = 2
ROOMY_ROWS = 12  # rows

RenderLines = Callable[[], list[StyledLine]]
T = TypeVar("T")


class LiveDisplay(Application[int]):
    def __init__(
        self,
        paper: TerminalOutput,
        prompt: InputPrompt,
        keys: KeyBindings,
        *,
        live: Callable[[], list[str]],
        waiting: RenderLines,
        form: Callable[[], list[StyledLine] | None],
        status: RenderLines,
        resized: Callable[[], None],
    ) -> None:
        """Each is asked for its lines when they are drawn. A form of None is no form."""
        self.terminal_output = paper
        self._on_size_change = resized
        self._size = paper.get_size()
        live, waiting, form, status = (
            FrameCache(live),
            FrameCache(waiting),
            FrameCache(form),
            FrameCache(status),
        )
        self._frame_caches = (live, waiting, form, status)
        is_filling = Condition(lambda: form() is not None)
        self._form_window = build_rows_window(lambda: form() or [], focusable=True)
        gap = ConditionalContainer(Window(height=1), Condition(lambda: is_roomy(paper)))
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
            output=paper,
        )
        self.ttimeoutlen = self.timeoutlen = ESCAPE_SECONDS
        self._prompt_window = prompt.window

    def focus_form(self, is_filling: bool) -> None:
        """Keys go to the form, or back to the prompt."""
        self.layout.focus(self._form_window if is_filling else self._prompt_window)
        self.invalidate()

    def print_above(self, text: str) -> None:
        """Whole lines above it, which are never touched again."""
        if not self.is_running:
            self.terminal_output.print_lines(text)
            return
        with self.terminal_output.synchronized_update():
            self._adapt_to_size()
            self.renderer.erase()
            self.terminal_output.print_lines(text)
            # invalidate() would draw it in a moment of its own, and the terminal blink.
            self._redraw()

    def _redraw(self, render_as_done: bool = False) -> None:
        with self.terminal_output.synchronized_update():
            self._adapt_to_size()
            for lines in self._frame_caches:
                lines.clear()
            # The renderer keeps the height it once had; lines that went would leave blank ones.
            drawn = self.renderer.last_rendered_screen
            if drawn is not None and not render_as_done and drawn.height > self._measure_height():
                self.renderer.erase()
            super()._redraw(render_as_done)

    def _on_resize(self) -> None:
        with self.terminal_output.synchronized_update():
            self._adapt_to_size()
            super()._on_resize()

    def _adapt_to_size(self) -> None:
        """Into the size the terminal has by now: it tells of a new one after the fact."""
        before, self._size = self._size, self.terminal_output.update_size()
        if before == self._size:
            return
        if self._size.columns < before.columns and is_rewrapping_terminal():
            self._account_for_rewrap()
        self.renderer.erase()
        self._on_size_change()

    def _account_for_rewrap(self) -> None:
        """A narrower terminal has broken what was drawn into more rows: the first is higher up."""
        drawn = self.renderer.last_rendered_screen
        if drawn is None:
            return
        width = self._size.columns
        at = self.renderer._cursor_pos
        more = at.x // width
        for y in range(at.y):
            filled = [x for x, cell in drawn.data_buffer[y].items() if cell.char.strip()]
            more += max(filled, default=0) // width
        self.renderer._cursor_pos = Point(x=at.x % width, y=at.y + more)

    def _measure_height(self) -> int:
        size = self.terminal_output.get_size()
        return self.layout.container.preferred_height(size.columns, size.rows).preferred


class FrameCache(Generic[T]):
    """Asked for once in each drawing, however often the layout wants to know."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._compute = make
        self._values: list[T] = []

    def __call__(self) -> T:
        if not self._values:
            self._values.append(self._compute())
        return self._values[0]

    def clear(self) -> None:
        self._values.clear()


class AnsiControl(FormattedTextControl):
    """Lines with escapes in them, taken apart once however often they are drawn."""

    def __init__(self, lines: Callable[[], list[str]]) -> None:
        self._last_lines: list[str] | None = None
        self._pieces: StyleAndTextTuples = []

        def pieces() -> StyleAndTextTuples:
            if (fresh := lines()) != self._last_lines:
                self._last_lines = list(fresh)
                self._pieces = to_formatted_text(ANSI("\n".join(fresh)))
            return self._pieces

        super().__init__(pieces)


def is_roomy(paper: TerminalOutput) -> bool:
    return paper.get_size().rows >= ROOMY_ROWS


def count_gap_rows(paper: TerminalOutput) -> int:
    """Between what is said and the prompt, where there is room to spare."""
    return int(is_roomy(paper))


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
