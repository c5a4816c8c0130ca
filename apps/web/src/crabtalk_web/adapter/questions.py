"""Asks: questions that wait for a person, as whoever shows them needs them.

A question about a tool call carries an `approval` with all of that call. Readers that do not know
the key show the question's text, which holds the call as well.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from .run_events import AgentQuestion, CallApproval
from .tool_text import excerpt_text, format_inline_code, measure_json, shorten_text, to_one_line

# The names under which questions are shown.
QUESTION_TOOLS = ("ask-user", "AskUserQuestion")
# Bytes of JSON that the questions of one ask may take. Larger calls are cut, and say so.
MAX_FORM_BYTES = 262_144
# Bytes of the other texts of a call that was cut, and how many variables are shown of it.
CUT_TEXT_BYTES, MAX_CUT_VARIABLES = 500, 20


class OpenAsk(msgspec.Struct, frozen=True, kw_only=True):
    """`call` is the call that is shown for it. A reply goes to `agent` and `sender`, which for a
    delegated run are not those of the conversation that people see."""

    id: str
    call: str
    agent: str
    sender: str
    run: str
    at: int
    questions: tuple[AgentQuestion, ...]

    @property
    def is_approval(self) -> bool:
        return any(question.approval is not None for question in self.questions)

    @property
    def is_for_owner(self) -> bool:
        """Whether it is about somebody else's run, and takes only the owner's answer."""
        approvals = [question.approval for question in self.questions]
        return any(one is not None and one.for_owner for one in approvals)


def build_form(questions: Sequence[AgentQuestion], most: int = MAX_FORM_BYTES) -> dict[str, Any]:
    """The arguments of the call that asks. Approvals are whole, or marked with `isWhole` false."""
    room = most // max(len(questions), 1)
    return {"questions": [describe_question(question, room) for question in questions]}


def describe_question(question: AgentQuestion, most: int = MAX_FORM_BYTES) -> dict[str, Any]:
    described: dict[str, Any] = {
        "question": question.question,
        "header": question.header,
        "options": [msgspec.to_builtins(option) for option in question.options],
        "multiSelect": question.multi_select,
    }
    if question.approval is None:
        return described
    described["approval"] = describe_approval(question.approval)
    if measure_json(described) <= most:
        return described
    room = min(most // 4, MAX_FORM_BYTES // 4)
    return {
        **described,
        "question": excerpt_text(question.question, room),
        "approval": describe_cut_approval(question.approval, room),
    }


def describe_approval(approval: CallApproval) -> dict[str, Any]:
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


def describe_cut_approval(approval: CallApproval, room: int) -> dict[str, Any]:
    """The beginning and the end of a call that is too large. It cannot be allowed from here."""
    short = {
        key: excerpt_text(value, CUT_TEXT_BYTES) for key, value in approval.env[:MAX_CUT_VARIABLES]
    }
    return {
        **describe_approval(approval),
        "call": excerpt_text(approval.call, room),
        "cwd": excerpt_text(approval.cwd, CUT_TEXT_BYTES),
        "env": {excerpt_text(key, CUT_TEXT_BYTES): value for key, value in short.items()},
        "always": excerpt_text(approval.always, CUT_TEXT_BYTES),
        "reason": excerpt_text(approval.reason, CUT_TEXT_BYTES),
        "isWhole": False,
    }


def is_whole(described: dict[str, Any]) -> bool:
    """Whether whoever reads this question sees all of the call it is about."""
    approval = described.get("approval")
    return not isinstance(approval, dict) or approval.get("isWhole") is True


def has_approval(args: dict[str, Any]) -> bool:
    """Whether these arguments of a call that asks are about other calls."""
    questions = args.get("questions")
    told = questions if isinstance(questions, list) else []
    return any(isinstance(one, dict) and "approval" in one for one in told)


def without_approvals(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a model's own question, which must not look like an approval."""
    if not has_approval(args):
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


def build_approval_title(questions: Sequence[AgentQuestion], room: int) -> str:
    """What an approval is called in the history: its tools, and who asked for them."""
    approvals = [question.approval for question in questions if question.approval is not None]
    tools = ", ".join(dict.fromkeys(to_one_line(one.tool) or "a tool" for one in approvals))
    strangers = dict.fromkeys(to_one_line(one.requested_by) for one in approvals if one.for_owner)
    by = f" for {format_inline_code(', '.join(strangers), room // 2)}" if any(strangers) else ""
    return f"Approve {format_inline_code(tools, room - len(by) - 8)}{by}"


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
    question = shorten_text(text, CUT_TEXT_BYTES) if isinstance(text, str) else ""
    return {**described, "question": question, "approval": approval}
