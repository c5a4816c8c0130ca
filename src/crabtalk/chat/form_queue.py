"""The form in view, and the forms that the person has postponed."""

from collections.abc import Iterable

from .form import FormOutcome, TerminalForm
from .pending_questions import ChatQuestion


class FormQueue:
    """At most one form at a time, the oldest question first."""

    def __init__(self) -> None:
        self.form: TerminalForm | None = None
        self.is_reviewing = False  # approvals of other people's runs open too
        self._postponed: dict[str, TerminalForm] = {}  # by ask id, with the answers so far

    def find_next(self, questions: Iterable[ChatQuestion]) -> ChatQuestion | None:
        """Return the oldest question that is not postponed."""
        return next((q for q in questions if q.ask_id not in self._postponed), None)

    def open_form(self, question: ChatQuestion, asker: str = "") -> TerminalForm:
        self.form = self._postponed.pop(question.ask_id, None) or TerminalForm(question.ask, asker)
        return self.form

    def press_key(self, key: str) -> FormOutcome:
        """Press a key in the form. A sent form stays postponed until the daemon has its answer."""
        form = self.form
        outcome = form.press_key(key) if form is not None else ""
        if form is not None and outcome:
            self.is_reviewing = self.is_reviewing and outcome == "sent"
            self._postponed[form.ask_id] = form
            self.form = None
        return outcome

    def find_first(self, questions: Iterable[ChatQuestion]) -> ChatQuestion | None:
        """Return the oldest question, postponed or not."""
        return next(iter(questions), None)

    def discard_answered(self, questions: Iterable[ChatQuestion]) -> bool:
        """Remove forms whose questions no longer wait. Returns whether the form in view was one."""
        waiting = {question.ask_id for question in questions}
        self._postponed = {ask: form for ask, form in self._postponed.items() if ask in waiting}
        if self.form is None or self.form.ask_id in waiting:
            return False
        self.form = None
        return True
