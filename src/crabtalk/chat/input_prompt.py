"""The prompt: where one writes, with what was typed before, long pastes and a menu of completions.

It knows nothing of agents and turns: what was written is taken by whoever reads it.
"""

import re
from collections.abc import Callable, Iterable

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    Window,
)
from prompt_toolkit.utils import get_cwidth

from crabtalk.service.command_line import escape_controls

from .completion import CompletionCandidate
from .form import truncate_text

# What is pasted beyond this is shown by its size.
LONG_LINES = 8
LONG_TEXT = 1500
MAX_PASTED = 8 << 20  # two of them fit a frame
MAX_UNDO_TEXT = 4 << 20  # characters, of all that can be come back to
MENU_ROWS = 6
PREFIX = "> "

FindCandidates = Callable[[str, int], Iterable[CompletionCandidate]]

PASTE_MARK = re.compile(r"\[pasted [\d,]+ (?:lines|characters) #(\d+)\]")
# Two ways in which terminals tell Shift+Enter apart, where they were told to.
SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")


class InputPrompt:
    def __init__(
        self, history: History, complete: FindCandidates, size: Callable[[], Size]
    ) -> None:
        """`size` is that of the terminal, just now."""
        for keys in SHIFT_ENTER:
            ANSI_SEQUENCES[keys] = (Keys.Escape, Keys.ControlM)
        self._pastes: list[str] = []
        self._size = size
        self.buffer = PromptBuffer(
            multiline=True,
            history=history,
            completer=ThreadedCompleter(PromptCompleter(complete)),
            complete_while_typing=Condition(self._is_completing_name),
            name="prompt",
        )
        self.window = Window(
            BufferControl(self.buffer),
            height=lambda: Dimension(min=1, max=self.max_rows),
            get_line_prefix=self._get_line_prefix,
            wrap_lines=True,
            dont_extend_height=True,
        )
        self.menu = ConditionalContainer(
            Window(
                FormattedTextControl(self._render_menu),
                height=lambda: Dimension.exact(self.menu_rows),
                dont_extend_height=True,
            ),
            Condition(lambda: self.has_menu),
        )

    @property
    def text(self) -> str:
        """All of it, pastes in full."""
        return PASTE_MARK.sub(self._expand_paste, self.buffer.text)

    @property
    def max_rows(self) -> int:
        return max(self._size().rows // 3, 1)

    @property
    def visible_rows(self) -> int:
        """It takes on the terminal."""
        width = max(self._size().columns - len(PREFIX), 1)
        taken = 0
        for line in self.buffer.document.lines:
            taken += (get_cwidth(line) + 1) // width + 1  # with room for the cursor behind it
            if taken >= self.max_rows:
                return self.max_rows
        return taken

    @property
    def menu_rows(self) -> int:
        state = self.buffer.complete_state
        count = len(state.completions) if state is not None else 0
        return min(count, MENU_ROWS, self.max_rows)

    @property
    def has_menu(self) -> bool:
        """Whether there is a menu to choose from."""
        state = self.buffer.complete_state
        return state is not None and bool(state.completions)

    def take_text(self) -> str:
        """What was written, which is thereby history."""
        text = self.text
        if text.strip():
            self.buffer.history.append_string(text)
        self.clear()
        return text

    def clear(self) -> None:
        self.buffer.reset()
        self._pastes.clear()

    def restore(self, text: str) -> None:
        """Puts back what could not be sent, before what was written since."""
        shown = self._abbreviate_paste(text)
        if self.buffer.text.strip():
            shown = f"{shown}\n{self.buffer.text}"
        self.buffer.set_document(Document(shown), bypass_readonly=True)

    def paste(self, text: str) -> bool:
        """False for what is too long to be sent."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) + sum(map(len, self._pastes)) > MAX_PASTED:
            return False
        self.buffer.insert_text(self._abbreviate_paste(text))
        return True

    def erase_paste(self) -> bool:
        """A paste shown by its size goes as it came: at once. False where there is none."""
        before = self.buffer.document.text_before_cursor
        for found in PASTE_MARK.finditer(before):
            if found.end() == len(before) and self._expand_paste(found) != found[0]:
                self.buffer.delete_before_cursor(len(found[0]))
                return True
        return False

    def accept_completion(self) -> bool:
        """Takes what is marked in the menu; False where nothing is."""
        state = self.buffer.complete_state
        if state is None or state.current_completion is None:
            return False
        self.buffer.apply_completion(state.current_completion)
        return True

    def insert_line_break(self) -> None:
        """As it is: an indentation of our own would change what was meant."""
        self.buffer.newline(copy_margin=False)

    def complete(self) -> None:
        if self.buffer.complete_state is not None:
            self.buffer.complete_next()
        else:
            self.buffer.start_completion(insert_common_part=True)

    # ── Its parts ───────────────────────────────────────────────────────────────────────────

    def _abbreviate_paste(self, text: str) -> str:
        """What stands for it: itself, or when it is long, its size."""
        lines = text.count("\n") + (not text.endswith("\n"))
        if lines <= LONG_LINES and len(text) <= LONG_TEXT:
            return text
        self._pastes.append(text)
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted {size} #{len(self._pastes)}]"

    def _expand_paste(self, found: re.Match[str]) -> str:
        number = int(found[1])
        return self._pastes[number - 1] if 0 < number <= len(self._pastes) else found[0]

    def _is_completing_name(self) -> bool:
        """Names, after a command or an @, are offered as they are typed; paths when asked for."""
        before = self.buffer.document.text_before_cursor
        if before.startswith("/"):
            return before.count(" ") <= 1 and "\n" not in before
        return before.startswith("@") and not any(map(str.isspace, before))

    @staticmethod
    def _get_line_prefix(line: int, wrap_count: int) -> StyleAndTextTuples:
        is_first = line == 0 and wrap_count == 0
        return [("class:prompt", PREFIX) if is_first else ("", " " * len(PREFIX))]

    def _render_menu(self) -> StyleAndTextTuples:
        state = self.buffer.complete_state
        if state is None:
            return []
        marked = state.complete_index
        rows = self.menu_rows
        first = min(max((marked or 0) - rows // 2, 0), max(len(state.completions) - rows, 0))
        shown = state.completions[first : first + rows]
        width = max(get_cwidth(each.display_text) for each in shown)
        lines: StyleAndTextTuples = []
        for number, each in enumerate(shown, first):
            style = "class:menu.current" if number == marked else "class:menu"
            name = each.display_text
            lines.append((style, f"  {name}{' ' * (width - get_cwidth(name))} "))
            about = truncate_text(each.display_meta_text, max(self._size().columns - width - 5, 0))
            lines.append(("class:menu.meta", f" {about}\n"))
        return lines


class PromptBuffer(Buffer):
    """What can be undone is the whole text as it was, once for every key: so only some of it."""

    def save_to_undo_stack(self, clear_redo_stack: bool = True) -> None:
        super().save_to_undo_stack(clear_redo_stack)
        most = MAX_UNDO_TEXT // (len(self.text) + 1)
        del self._undo_stack[: -max(most, 1)]


class PromptCompleter(Completer):
    """Ours, in prompt_toolkit's words."""

    def __init__(self, complete: FindCandidates) -> None:
        self._find_candidates = complete

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        for each in self._find_candidates(document.text, document.cursor_position):
            yield Completion(
                each.text,
                start_position=-each.length,
                display=escape_controls(each.display),
                display_meta=escape_controls(each.meta),
            )
