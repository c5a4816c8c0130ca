"""The view: what is on the board just now, line by line, and how many lines each part may have.

All of it together is never higher than the terminal, however low that is.
"""

import time

from prompt_toolkit.utils import get_cwidth

from crabtalk.component.command import one_line

from .asking import Asking
from .board import ROOM_ABOVE, gap_rows, is_roomy
from .form import Line, cut
from .paper import Paper
from .prompt import Prompt
from .talk import Talk

LIVE_BESIDE_FORM = 2  # lines
WAITING = 2  # messages of each kind


class View:
    def __init__(self, paper: Paper, prompt: Prompt, asking: Asking, talk: Talk) -> None:
        self.hint = ""  # what a key does just now
        self._paper = paper
        self._prompt = prompt
        self._asking = asking
        self._talk = talk
        self._live: list[str] = []

    @property
    def columns(self) -> int:
        return self._paper.get_size().columns

    @property
    def rows(self) -> int:
        return self._paper.get_size().rows

    def refresh(self) -> None:
        """Looks anew at what is being said; keys only draw again what was seen last."""
        transcript, now = self._talk.transcript, time.monotonic()
        self._live = transcript.live(self.columns, self._live_rows(), now)

    def live(self) -> list[str]:
        rows = self._live_rows()
        return self._live[-rows:] if rows else []

    def waiting(self) -> list[Line]:
        """What was said and is not heard yet, some of it."""
        most = WAITING if is_roomy(self._paper) else 0
        later = [saying.text for saying in self._talk.waiting]
        mark = f"{self._talk.transcript.look.glyphs.prompt} "
        room = max(self.columns - get_cwidth(mark), 1)
        return [
            [("class:waiting", mark + cut(one_line(text), room))]
            for text in (*self._talk.steering[:most], *later[:most])
        ]

    def form(self) -> list[Line] | None:
        form = self._asking.form
        return form.lines(self.columns, self.form_rows) if form is not None else None

    def status(self) -> list[Line]:
        status = self._talk.status(self.hint, is_filling=self._asking.form is not None)
        return [status.line(self.columns)]

    @property
    def form_rows(self) -> int:
        """That a form may have."""
        is_high = is_roomy(self._paper)
        above = ROOM_ABOVE + LIVE_BESIDE_FORM if is_high else 0
        return max(self.rows - above - gap_rows(self._paper) - 1, 3)

    def _live_rows(self) -> int:
        is_high = is_roomy(self._paper)
        if self._asking.form is not None:
            return LIVE_BESIDE_FORM if is_high else 0
        others = self._prompt.rows + self._prompt.menu_rows + len(self.waiting()) + 1
        room = self.rows - others - gap_rows(self._paper) - (ROOM_ABOVE if is_high else 0)
        return max(min(room, self.rows // 2), 0)
