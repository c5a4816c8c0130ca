"""Forms: the questions of an agent, one at a time, answered with buttons or words. Pure.

A person presses an option, types its number or label, or writes any other text: that is an answer
too. An approval takes only its labels, and words for yes and no. The answers are sent to the agent
as a JSON object, from each question to its answer.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crabtalk.protocol import wire

from .approval_text import DENY, ApprovalText, MeasureText, build_pages, match_label, parse_approval
from .chat_service import MAX_PAYLOAD_BYTES, Button, Markdown

MAX_LABEL = 48
DONE = "done"
# Services show no more buttons than this; other options are typed.
MAX_BUTTONS = 24
# The option "Other" is left out, because people can always type.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class FormQuestion:
    question: str
    header: str
    options: tuple[tuple[str, str], ...] = ()  # label, description
    is_multiple: bool = False
    approval: ApprovalText | None = None

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.options]


@dataclass(slots=True)
class ChatForm:
    """One ask of an agent. `answers` has the answers so far, a list for each question."""

    ask: str
    questions: tuple[FormQuestion, ...]
    answers: dict[int, list[str]] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)

    @classmethod
    def from_event(cls, event: wire.AskUserEvent) -> "ChatForm":
        return cls(event.ask_id, tuple(map(parse_question, event.questions)))

    @property
    def token(self) -> str:
        """Identifies the form in the payload of its buttons."""
        return hashlib.sha256(self.ask.encode()).hexdigest()[:10]

    @property
    def current_number(self) -> int | None:
        """The index of the question that is being asked; None when all are answered."""
        return next((n for n in range(len(self.questions)) if n not in self.settled), None)

    @property
    def is_complete(self) -> bool:
        return self.current_number is None

    @property
    def has_approvals(self) -> bool:
        """Whether it has a question about a tool call."""
        return any(question.approval is not None for question in self.questions)

    @property
    def is_asking_approval(self) -> bool:
        """Whether the current question is an approval."""
        return (
            self.current_number is not None
            and self.questions[self.current_number].approval is not None
        )

    def accepts_text(self, text: str) -> bool:
        """Whether the text can answer the current question."""
        if self.current_number is None:
            return False
        if not self.is_asking_approval:
            return True
        return bool(match_label(self.questions[self.current_number].labels, text))

    def press_button(self, payload: str) -> bool:
        """False for a button that does not belong to the current question."""
        number, chosen = parse_payload(payload)
        question = self.questions[number] if number == self.current_number else None
        if question is None or not payload.startswith(f"{self.token}:"):
            return False
        if chosen == DONE:
            if question.is_multiple:
                self.settled.add(number)
            return question.is_multiple
        if not chosen.isdecimal() or int(chosen) >= len(question.options):
            return False
        self._choose_option(number, question.options[int(chosen)][0])
        return True

    def answer_text(self, text: str) -> None:
        """Answer the current question with words."""
        number = self.current_number
        if number is None:
            return
        question = self.questions[number]
        if question.approval is not None:
            if label := match_label(question.labels, text):
                self._choose_option(number, label)
            return
        chosen = parse_labels(question, text)
        if question.is_multiple:
            before = self.answers.get(number, [])
            new = [label for label in chosen or [text.strip()] if label not in before]
            self.answers[number] = [*before, *new]
        else:
            self.answers[number] = chosen[:1] or [text.strip()]
        self.settled.add(number)

    def _choose_option(self, number: int, label: str) -> None:
        if not self.questions[number].is_multiple:
            self.answers[number] = [label]
            self.settled.add(number)
            return
        chosen = self.answers.setdefault(number, [])
        if label in chosen:
            chosen.remove(label)
        else:
            chosen.append(label)

    def build_reply(self) -> str:
        """The reply for the agent. Of two approvals with the same text, a no holds for both."""
        answers_by_question: dict[str, str] = {}
        for number, question in enumerate(self.questions):
            answer = ", ".join(self.answers.get(number, []))
            if question.approval is None or answers_by_question.get(question.question) != DENY:
                answers_by_question[question.question] = answer
        return json.dumps(answers_by_question, ensure_ascii=False)

    # ── Rendering ───────────────────────────────────────────────────────────────────────────

    def render_text(self, *, has_buttons: bool, is_open: bool = True) -> Markdown:
        lines = [self._render_answered(number) for number in sorted(self.settled)]
        number = self.current_number
        if number is not None:
            lines.append(self._render_question(number, has_buttons=has_buttons, is_open=is_open))
        return "\n\n".join(lines)

    def render_approval_pages(
        self, number: int, limit: int, measure: MeasureText, *, end: str
    ) -> list[str]:
        """The messages that show one question of a form with approvals, as literal text."""
        question = self.questions[number]
        progress = f" {number + 1}/{len(self.questions)}" if len(self.questions) > 1 else ""
        if question.approval is not None:
            return build_pages(f"Approval{progress}", question.approval.text, end, limit, measure)
        # One step of an agent may ask for approvals and ask something else as well.
        text = "\n".join([question.question, *list_options(question)])
        return build_pages(f"Question{progress}", text, end, limit, measure)

    def render_approval_hint(self, number: int, *, has_buttons: bool) -> str:
        question = self.questions[number]
        if question.approval is None:
            return self._render_hint(question, has_buttons=has_buttons)
        labels = question.labels
        if has_buttons:
            return f"Press {' or '.join(labels)}. You can also write yes or no."
        listed = "  ".join(f"{progress}. {label}" for progress, label in enumerate(labels, 1))
        return f"Send a number, or write yes or no:  {listed}"

    def render_approval_outcome(self, number: int) -> str:
        answer = shorten_label(", ".join(self.answers.get(number, [])))
        return f"Answer: {answer or 'none (closed)'}"

    def _render_answered(self, number: int) -> str:
        question = self.questions[number]
        answer = ", ".join(self.answers.get(number, [])) or "nothing"
        return f"✓ **{question.header or question.question}**: {answer}"

    def _render_question(self, number: int, *, has_buttons: bool, is_open: bool) -> str:
        question = self.questions[number]
        progress = f" ({number + 1}/{len(self.questions)})" if len(self.questions) > 1 else ""
        title = f"**{question.header}**{progress}\n" if question.header else ""
        lines = [f"❓ {title}{question.question}"]
        lines += list_options(question, all_of_them=not has_buttons)
        lines.append(
            self._render_hint(question, has_buttons=has_buttons) if is_open else "(closed)"
        )
        return "\n".join(lines)

    def _render_hint(self, question: FormQuestion, *, has_buttons: bool) -> str:
        if not question.options:
            return "(Write your answer.)"
        if question.is_multiple:
            how = "Press what applies, then Done" if has_buttons else "Send numbers, such as 1, 3"
        else:
            how = "Press one" if has_buttons else "Send its number"
        return f"({how}, or write your own answer.)"

    def build_buttons(self) -> list[Button]:
        number = self.current_number
        if number is None or not self.questions[number].options:
            return []
        question = self.questions[number]
        chosen = self.answers.get(number, [])
        buttons = [
            Button(
                shorten_label(f"{'☑ ' if label in chosen else '☐ '}{label}")
                if question.is_multiple
                else shorten_label(label),
                f"{self.token}:{number}:{option}",
            )
            for option, (label, _) in enumerate(question.options[:MAX_BUTTONS])
        ]
        if question.is_multiple:
            buttons.append(Button("Done", f"{self.token}:{number}:{DONE}"))
        return buttons


def parse_question(question: wire.AskQuestion) -> FormQuestion:
    if question.HasField("approval"):
        return build_approval_question(question)
    options = tuple(
        (option.label, option.description)
        for option in question.options
        if option.label.strip() and option.label.strip().lower() != OTHER
    )
    return FormQuestion(question.question, question.header, options, question.multi_select)


def build_approval_question(question: wire.AskQuestion) -> FormQuestion:
    """A call that cannot be shown can only be denied."""
    approval = parse_approval(question.approval)
    labels = [option.label for option in question.options if option.label.strip()]
    if not approval.is_displayable:
        labels = [label for label in labels if label.casefold() == DENY.casefold()]
    options = tuple((label, "") for label in labels)
    return FormQuestion(question.question, question.header, options, approval=approval)


def list_options(question: FormQuestion, *, all_of_them: bool = True) -> list[str]:
    """A numbered line for each option, or only for those with a description."""
    return [
        f"{number}. {label}{f': {description}' if description else ''}"
        for number, (label, description) in enumerate(question.options, 1)
        if description or all_of_them
    ]


def parse_labels(question: FormQuestion, text: str) -> list[str]:
    """The options a person typed, by number or by label; empty for any other text."""
    labels = [label for label, _ in question.options]
    by_name = {label.lower(): label for label in labels}
    if text.strip().lower() in by_name:
        return [by_name[text.strip().lower()]]
    words = [word.strip() for word in text.replace("，", ",").replace("、", ",").split(",")]  # noqa: RUF001
    if len(words) == 1:
        words = text.split()
    labels_typed: list[str] = []
    for word in words:
        if len(word) < 5 and word.isdecimal() and 1 <= int(word) <= len(labels):
            labels_typed.append(labels[int(word) - 1])
        elif word.lower() in by_name:
            labels_typed.append(by_name[word.lower()])
        else:
            return []
    return list(dict.fromkeys(labels_typed))


def parse_payload(payload: str) -> tuple[int, str]:
    """The question and option of a button; -1 if the payload is not one of a form."""
    parts = payload.split(":")
    if len(payload) > MAX_PAYLOAD_BYTES or len(parts) != 3 or not parts[1].isdecimal():
        return -1, ""
    return int(parts[1]), parts[2]


def shorten_label(label: str) -> str:
    line = " ".join(label.split())
    return line if len(line) <= MAX_LABEL else f"{line[: MAX_LABEL - 1]}…"


def restore_form(
    form: ChatForm, answers: Mapping[int, Sequence[str]], settled: Sequence[int]
) -> ChatForm:
    """Put back the answers from before a restart."""
    form.answers = {number: list(labels) for number, labels in answers.items()}
    form.settled = set(settled)
    return form
