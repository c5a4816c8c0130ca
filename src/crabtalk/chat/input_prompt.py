"""The input prompt, with history, long pastes and a menu of completions.

It knows nothing of agents and turns.
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

# Pasted text longer than this is shown by its size.
LONG_LINES = 8
LONG_TEXT = 1500
MAX_PASTED = 8 << 20  # two of them fit a frame
MAX_UNDO_TEXT = 4 << 20  # characters of all undo steps
MENU_ROWS = 6
PREFIX = "> "

FindCandidates = Callable[[str, int], Iterable[CompletionCandidate]]

PASTE_MARK = re.compile(r"\[pasted [\d,]+ (?:lines|characters) #(\d+)\]")
# Shift+Enter as two kinds of terminals send it, if configured to.
SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")


class InputPrompt:
    def __init__(
        self, history: History, find_candidates: FindCandidates, size: Callable[[], Size]
    ) -> None:
        """`size` returns the current size of the terminal."""
        for keys in SHIFT_ENTER:
            ANSI_SEQUENCES[keys] = (Keys.Escape, Keys.ControlM)
        self._pastes: list[str] = []
        self._size = size
        self.buffer = PromptBuffer(
            multiline=True,
            history=history,
            completer=ThreadedCompleter(PromptCompleter(find_candidates)),
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
        """The whole text, with pastes in full."""
        return PASTE_MARK.sub(self._expand_paste, self.buffer.text)

    @property
    def max_rows(self) -> int:
        return max(self._size().rows // 3, 1)

    @property
    def visible_rows(self) -> int:
        """The rows of the text on the terminal, at most `max_rows`."""
        width = max(self._size().columns - len(PREFIX), 1)
        rows = 0
        for line in self.buffer.document.lines:
            rows += (get_cwidth(line) + 1) // width + 1  # with room for the cursor behind it
            if rows >= self.max_rows:
                return self.max_rows
        return rows

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
        """Return the text, clear the input, and add the text to the history."""
        text = self.text
        if text.strip():
            self.buffer.history.append_string(text)
        self.clear()
        return text

    def clear(self) -> None:
        self.buffer.reset()
        self._pastes.clear()

    def restore(self, text: str) -> None:
        """Put back text that could not be sent, before what was typed since."""
        shown = self._abbreviate_paste(text)
        if self.buffer.text.strip():
            shown = f"{shown}\n{self.buffer.text}"
        self.buffer.set_document(Document(shown), bypass_readonly=True)

    def paste(self, text: str) -> bool:
        """Insert pasted text. Returns False if it is too long to be sent."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) + sum(map(len, self._pastes)) > MAX_PASTED:
            return False
        self.buffer.insert_text(self._abbreviate_paste(text))
        return True

    def erase_paste(self) -> bool:
        """Erase a paste shown by its size as a whole. Returns False if none is at the cursor."""
        before = self.buffer.document.text_before_cursor
        for match in PASTE_MARK.finditer(before):
            if match.end() == len(before) and self._expand_paste(match) != match[0]:
                self.buffer.delete_before_cursor(len(match[0]))
                return True
        return False

    def accept_completion(self) -> bool:
        """Accept the selected completion. Returns False if none is selected."""
        state = self.buffer.complete_state
        if state is None or state.current_completion is None:
            return False
        self.buffer.apply_completion(state.current_completion)
        return True

    def insert_line_break(self) -> None:
        """Insert a newline without auto-indentation, which would change the text."""
        self.buffer.newline(copy_margin=False)

    def complete(self) -> None:
        if self.buffer.complete_state is not None:
            self.buffer.complete_next()
        else:
            self.buffer.start_completion(insert_common_part=True)

    # ── Helpers ─────────────────────────────────────────────────────────────────────────────

    def _abbreviate_paste(self, text: str) -> str:
        """Return the text itself, or for a long text a mark with its size."""
        lines = text.count("\n") + (not text.endswith("\n"))
        if lines <= LONG_LINES and len(text) <= LONG_TEXT:
            return text
        self._pastes.append(text)
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted {size} #{len(self._pastes)}]"

    def _expand_paste(self, mark: re.Match[str]) -> str:
        number = int(mark[1])
        return self._pastes[number - 1] if 0 < number <= len(self._pastes) else mark[0]

    def _is_completing_name(self) -> bool:
        """Names after a command or an @ are completed while typing; paths only on Tab."""
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
        selected = state.complete_index
        rows = self.menu_rows
        first = min(max((selected or 0) - rows // 2, 0), max(len(state.completions) - rows, 0))
        completions = state.completions[first : first + rows]
        width = max(get_cwidth(completion.display_text) for completion in completions)
        lines: StyleAndTextTuples = []
        for number, completion in enumerate(completions, first):
            style = "class:menu.current" if number == selected else "class:menu"
            name = completion.display_text
            lines.append((style, f"  {name}{' ' * (width - get_cwidth(name))} "))
            description = truncate_text(
                completion.display_meta_text, max(self._size().columns - width - 5, 0)
            )
            lines.append(("class:menu.meta", f" {description}\n"))
        return lines


class PromptBuffer(Buffer):
    """A buffer with bounded undo: prompt_toolkit stores the whole text for every key."""

    def save_to_undo_stack(self, clear_redo_stack: bool = True) -> None:
        super().save_to_undo_stack(clear_redo_stack)
        limit = MAX_UNDO_TEXT // (len(self.text) + 1)
        del self._undo_stack[: -max(limit, 1)]


class PromptCompleter(Completer):
    """Adapts our candidates to prompt_toolkit."""

    def __init__(self, find_candidates: FindCandidates) -> None:
        self._find_candidates = find_candidates

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        for candidate in self._find_candidates(document.text, document.cursor_position):
            yield Completion(
                candidate.text,
                start_position=-candidate.length,
                display=escape_controls(candidate.display),
                display_meta=escape_controls(candidate.meta),
            )
