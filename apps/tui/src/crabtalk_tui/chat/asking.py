"""Asking: which of the questions that wait is in view as a form, and which were put off for now."""

from collections.abc import Iterable

from .form import Form, Outcome
from .questions import Question


class Asking:
    """At most one form at a time, the oldest question first."""

    def __init__(self) -> None:
        self.form: Form | None = None
        self.is_reviewing = False  # approvals of other people's runs are put too
        self._put_off: dict[str, Form] = {}  # by ask, as they were left

    def next_of(self, questions: Iterable[Question]) -> Question | None:
        """The oldest that nobody has put off."""
        return next((each for each in questions if each.ask_id not in self._put_off), None)

    def open(self, question: Question, asker: str = "") -> Form:
        self.form = self._put_off.pop(question.ask_id, None) or Form(question.ask, asker)
        return self.form

    def press(self, key: str) -> Outcome:
        """One that was sent is put off as well: it waits until the daemon has taken the answer."""
        form = self.form
        outcome = form.press(key) if form is not None else ""
        if form is not None and outcome:
            self.is_reviewing = self.is_reviewing and outcome == "sent"
            self._put_off[form.ask_id] = form
            self.form = None
        return outcome

    def take_up(self, questions: Iterable[Question]) -> Question | None:
        """The oldest there is, put off or not."""
        return next(iter(questions), None)

    def settle(self, questions: Iterable[Question]) -> bool:
        """Forgets what nobody asks any more; whether that was in view."""
        asked = {question.ask_id for question in questions}
        self._put_off = {ask: form for ask, form in self._put_off.items() if ask in asked}
        if self.form is None or self.form.ask_id in asked:
            return False
        self.form = None
        return True
