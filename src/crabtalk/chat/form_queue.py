"""Asking: which of the questions that wait is in view as a form, and which were put off for now."""

from collections.abc import Iterable

from .form import FormOutcome, TerminalForm
from .pending_questions import ChatQuestion


class FormQueue:
    """At most one form at a time, the oldest question first."""

    def __init__(self) -> None:
        self.form: TerminalForm | None = None
        self.is_reviewing = False  # approvals of other people's runs are put too
        self._postponed: dict[str, TerminalForm] = {}  # by ask, as they were left

    def find_next(self, questions: Iterable[ChatQuestion]) -> ChatQuestion | None:
        """The oldest that nobody has put off."""
        return next((each for each in questions if each.ask_id not in self._postponed), None)

    def open_form(self, question: ChatQuestion, asker: str = "") -> TerminalForm:
        self.form = self._postponed.pop(question.ask_id, None) or TerminalForm(question.ask, asker)
        return self.form

    def press_key(self, key: str) -> FormOutcome:
        """One that was sent is put off as well: it waits until the daemon has taken the answer."""
        form = self.form
        outcome = form.press_key(key) if form is not None else ""
        if form is not None and outcome:
            self.is_reviewing = self.is_reviewing and outcome == "sent"
            self._postponed[form.ask_id] = form
            self.form = None
        return outcome

    def find_first(self, questions: Iterable[ChatQuestion]) -> ChatQuestion | None:
        """The oldest there is, put off or not."""
        return next(iter(questions), None)

    def discard_answered(self, questions: Iterable[ChatQuestion]) -> bool:
        """Forgets what nobody asks any more; whether that was in view."""
        asked = {question.ask_id for question in questions}
        self._postponed = {ask: form for ask, form in self._postponed.items() if ask in asked}
        if self.form is None or self.form.ask_id in asked:
            return False
        self.form = None
        return True
