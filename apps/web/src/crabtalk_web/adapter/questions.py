"""Questions that wait for a person, in the form in which clients show them.

A question about a tool call carries an `approval` with the whole call. Readers that do not know
this key show the question's text, which contains the call as well.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from .run_events import AgentQuestion, CallApproval
from .tool_text import excerpt_text, format_inline_code, measure_json, shorten_text, to_one_line

# The tool names under which questions are shown.
QUESTION_TOOLS = ("ask-user", "AskUserQuestion")
# Limit in JSON bytes for the questions of one ask. Larger calls are cut and marked as cut.
MAX_FORM_BYTES = 262_144
# For a call that was cut: bytes of each other text, and the number of variables shown.
CUT_TEXT_BYTES, MAX_CUT_VARIABLES = 500, 20


class OpenAsk(msgspec.Struct, frozen=True, kw_only=True):
    """`call` is the tool call under which it is shown. The reply goes to `agent` and `sender`,
    which for a delegated run differ from those of the conversation that people see."""

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
        """Whether it is about another sender's run, so that only the owner may answer it."""
        approvals = [question.approval for question in self.questions]
        return any(approval is not None and approval.for_owner for approval in approvals)


def build_form(questions: Sequence[AgentQuestion], most: int = MAX_FORM_BYTES) -> dict[str, Any]:
    """Return the arguments of the tool call that shows the questions. Approvals are whole, or have
    `isWhole` false."""
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
    """Describe only the beginning and the end of a call that is too large. It cannot be allowed
    with this form."""
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
    """Return whether a reader of this question sees the whole call it is about."""
    approval = described.get("approval")
    return not isinstance(approval, dict) or approval.get("isWhole") is True


def has_approval(args: dict[str, Any]) -> bool:
    """Return whether these arguments of a question are about tool calls."""
    questions = args.get("questions")
    entries = questions if isinstance(questions, list) else []
    return any(isinstance(entry, dict) and "approval" in entry for entry in entries)


def without_approvals(args: dict[str, Any]) -> dict[str, Any]:
    """Remove approvals from the arguments of a model's own question, so that it cannot look like
    one."""
    if not has_approval(args):
        return args
    return {
        **args,
        "questions": [
            {key: value for key, value in approval.items() if key != "approval"}
            if isinstance(approval, dict)
            else approval
            for approval in args["questions"]
        ],
    }


def build_approval_title(questions: Sequence[AgentQuestion], room: int) -> str:
    """Return the title of an approval in the history: its tools, and the senders who asked for
    them."""
    approvals = [question.approval for question in questions if question.approval is not None]
    tools = ", ".join(
        dict.fromkeys(to_one_line(approval.tool) or "a tool" for approval in approvals)
    )
    strangers = dict.fromkeys(
        to_one_line(approval.requested_by) for approval in approvals if approval.for_owner
    )
    by = f" for {format_inline_code(', '.join(strangers), room // 2)}" if any(strangers) else ""
    return f"Approve {format_inline_code(tools, room - len(by) - 8)}{by}"


def summarize_questions(form: dict[str, Any]) -> dict[str, Any]:
    """Return the form without the calls, for closed questions: the history has the calls."""
    questions = form.get("questions")
    if not isinstance(questions, list):
        return form
    return {**form, "questions": [summarize_question(question) for question in questions]}


def summarize_question(described: Any) -> Any:
    if not isinstance(described, dict) or not isinstance(described.get("approval"), dict):
        return described
    approval = {**described["approval"], "call": "", "env": {}, "isWhole": False}
    text = described.get("question")
    question = shorten_text(text, CUT_TEXT_BYTES) if isinstance(text, str) else ""
    return {**described, "question": question, "approval": approval}
