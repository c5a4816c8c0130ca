"""Asks: questions that wait for a person, as whoever shows them needs them.

A question about a tool call carries an `approval` with all of that call. Readers that do not know
the key show the question's text, which holds the call as well.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from .happenings import Approval, Question
from .words import code, excerpt, line, shortened, size

# The names under which questions are shown.
ASKING = ("ask-user", "AskUserQuestion")
# Bytes of JSON that the questions of one ask may take. Larger calls are cut, and say so.
MOST_BYTES = 262_144
# Bytes of the other texts of a call that was cut, and how many variables are shown of it.
SHORT, MOST_VARIABLES = 500, 20


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

    @property
    def is_approval(self) -> bool:
        return any(question.approval is not None for question in self.questions)

    @property
    def is_for_owner(self) -> bool:
        """Whether it is about somebody else's run, and takes only the owner's answer."""
        approvals = [question.approval for question in self.questions]
        return any(one is not None and one.for_owner for one in approvals)


def form(questions: Sequence[Question], most: int = MOST_BYTES) -> dict[str, Any]:
    """The arguments of the call that asks. Approvals are whole, or marked with `isWhole` false."""
    room = most // max(len(questions), 1)
    return {"questions": [describe_question(question, room) for question in questions]}


def describe_question(question: Question, most: int = MOST_BYTES) -> dict[str, Any]:
    described: dict[str, Any] = {
        "question": question.question,
        "header": question.header,
        "options": [msgspec.to_builtins(option) for option in question.options],
        "multiSelect": question.multi_select,
    }
    if question.approval is None:
        return described
    described["approval"] = describe_approval(question.approval)
    if size(described) <= most:
        return described
    room = min(most // 4, MOST_BYTES // 4)
    return {
        **described,
        "question": excerpt(question.question, room),
        "approval": describe_part(question.approval, room),
    }


def describe_approval(approval: Approval) -> dict[str, Any]:
    return {
        "agent": approval.agent,
        "tool": approval.tool,
        "call": approval.call,
        "cwd": approval.cwd,
        "env": dict(approval.env),
        "always": approval.always,
        "digest": approval.digest,
        "requestedBy": approval.requested_by,
        "forOwner": approval.for_owner,
        "reason": approval.reason,
        "isWhole": True,
    }


def describe_part(approval: Approval, room: int) -> dict[str, Any]:
    """The beginning and the end of a call that is too large. It cannot be allowed from here."""
    short = {key: excerpt(value, SHORT) for key, value in approval.env[:MOST_VARIABLES]}
    return {
        **describe_approval(approval),
        "call": excerpt(approval.call, room),
        "cwd": excerpt(approval.cwd, SHORT),
        "env": {excerpt(key, SHORT): value for key, value in short.items()},
        "always": excerpt(approval.always, SHORT),
        "reason": excerpt(approval.reason, SHORT),
        "isWhole": False,
    }


def is_whole(described: dict[str, Any]) -> bool:
    """Whether whoever reads this question sees all of the call it is about."""
    approval = described.get("approval")
    return not isinstance(approval, dict) or approval.get("isWhole") is True


def is_approval(args: dict[str, Any]) -> bool:
    """Whether these arguments of a call that asks are about other calls."""
    questions = args.get("questions")
    told = questions if isinstance(questions, list) else []
    return any(isinstance(one, dict) and "approval" in one for one in told)


def without_approvals(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a model's own question, which must not look like an approval."""
    if not is_approval(args):
        return args
    return {
        **args,
        "questions": [
            {key: value for key, value in one.items() if key != "approval"}
            if isinstance(one, dict)
            else one
            for one in args["questions"]
        ],
    }


def approval_title(questions: Sequence[Question], room: int) -> str:
    """What an approval is called in the history: its tools, and who asked for them."""
    approvals = [question.approval for question in questions if question.approval is not None]
    tools = ", ".join(dict.fromkeys(line(one.tool) or "a tool" for one in approvals))
    strangers = dict.fromkeys(line(one.requested_by) for one in approvals if one.for_owner)
    by = f" for {code(', '.join(strangers), room // 2)}" if any(strangers) else ""
    return f"Approve {code(tools, room - len(by) - 8)}{by}"


def summarize_questions(form: dict[str, Any]) -> dict[str, Any]:
    """A form without the calls, for questions that are over: the history has them."""
    questions = form.get("questions")
    if not isinstance(questions, list):
        return form
    return {**form, "questions": [summarize_question(one) for one in questions]}


def summarize_question(described: Any) -> Any:
    if not isinstance(described, dict) or not isinstance(described.get("approval"), dict):
        return described
    approval = {**described["approval"], "call": "", "env": {}, "isWhole": False}
    text = described.get("question")
    question = shortened(text, SHORT) if isinstance(text, str) else ""
    return {**described, "question": question, "approval": approval}
