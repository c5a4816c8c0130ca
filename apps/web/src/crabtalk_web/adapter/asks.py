"""Asks: questions that wait for a person, as whoever shows them needs them."""

from typing import Any

import msgspec

from .happenings import Question


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """`call` is the call that is shown for it. A reply goes to `agent` and `sender`, which for a
    delegated run are not those of the conversation that people see."""

    id: str
    call: str
    agent: str
    sender: str
    run: str
    at: int
    questions: tuple[Question, ...]


def form(questions: tuple[Question, ...]) -> dict[str, Any]:
    """As the arguments of a call."""
    return {
        "questions": [
            {
                "question": question.question,
                "header": question.header,
                "options": [msgspec.to_builtins(option) for option in question.options],
                "multiSelect": question.multi_select,
            }
            for question in questions
        ]
    }
