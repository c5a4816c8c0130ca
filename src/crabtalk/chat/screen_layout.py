"""The content of the live display: the lines of each part, and how many rows it may take.

All parts together are never higher than the terminal.
"""

import time

from prompt_toolkit.utils import get_cwidth

from crabtalk.service.command_line import to_one_line

from .controller import ChatController
from .form import StyledLine, truncate_text
from .form_queue import FormQueue
from .input_prompt import InputPrompt
from .live_display import MIN_ROWS_ABOVE, count_gap_rows, is_roomy
from .terminal_output import TerminalOutput

LIVE_ROWS_BESIDE_FORM = 2
MAX_QUEUED_ROWS = 2  # messages of each kind


class ScreenLayout:
    def __init__(
        self,
        output: TerminalOutput,
        prompt: InputPrompt,
        forms: FormQueue,
        controller: ChatController,
    ) -> None:
        self.hint = ""  # what a key does at the moment
        self._output = output
        self._prompt = prompt
        self._forms = forms
        self._controller = controller
        self._latest_live: list[str] = []

    @property
    def columns(self) -> int:
        return self._output.get_size().columns

    @property
    def rows(self) -> int:
        return self._output.get_size().rows

    def refresh_live(self) -> None:
        """Render the unfinished answer again. Key presses only redraw the last result."""
        transcript, now = self._controller.transcript, time.monotonic()
        self._latest_live = transcript.live_lines(self.columns, self._count_live_rows(), now)

    def live_lines(self) -> list[str]:
        rows = self._count_live_rows()
        return self._latest_live[-rows:] if rows else []

    def queued_lines(self) -> list[StyledLine]:
        """Render some of the messages that wait."""
        limit = MAX_QUEUED_ROWS if is_roomy(self._output) else 0
        queued = [turn.text for turn in self._controller.queued_turns]
        mark = f"{self._controller.transcript.theme.glyphs.prompt} "
        room = max(self.columns - get_cwidth(mark), 1)
        return [
            [("class:waiting", mark + truncate_text(to_one_line(text), room))]
            for text in (*self._controller.pending_steers[:limit], *queued[:limit])
        ]

    def form_lines(self) -> list[StyledLine] | None:
        form = self._forms.form
        return form.render_lines(self.columns, self.max_form_rows) if form is not None else None

    def status_lines(self) -> list[StyledLine]:
        status = self._controller.build_status(self.hint, is_filling=self._forms.form is not None)
        return [status.render_line(self.columns)]

    @property
    def max_form_rows(self) -> int:
        """The rows a form may take."""
        is_high = is_roomy(self._output)
        above = MIN_ROWS_ABOVE + LIVE_ROWS_BESIDE_FORM if is_high else 0
        return max(self.rows - above - count_gap_rows(self._output) - 1, 3)

    def _count_live_rows(self) -> int:
        is_high = is_roomy(self._output)
        if self._forms.form is not None:
            return LIVE_ROWS_BESIDE_FORM if is_high else 0
        others = self._prompt.visible_rows + self._prompt.menu_rows + len(self.queued_lines()) + 1
        room = (
            self.rows - others - count_gap_rows(self._output) - (MIN_ROWS_ABOVE if is_high else 0)
        )
        return max(min(room, self.rows // 2), 0)
