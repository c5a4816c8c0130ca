"""Answers: what a device chose or wrote, as the daemon reads it, and the receipt that is kept.

A question about a tool call takes exactly one of the labels it offers. Anything else is a refusal:
no answer that is unclear, empty or in free words allows a call.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crabtalk_web.adapter import AgentQuestion, OpenAsk

from .errors import WebGatewayError

ALLOW, DENY, ALWAYS = "Allow", "Deny", "Always"
# From the answer that allows least to the one that allows most.
STRICTNESS = (DENY, ALLOW, ALWAYS)
DISMISSED_TEXT = "The person dismissed the question without answering it."
CALL_CHANGED = "this is not the call that was shown; look at it again"


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """`text` is what the daemon is sent, `receipt` what was decided about calls."""

    text: str
    receipt: str = ""
    allows: bool = False  # a call may be made because of it


def parse_form_answers(ask: OpenAsk, answers: object) -> AskAnswer:
    """Chosen labels and own words by the number of the question.

    Raises GatewayError when the answer names another call than the one that waits.
    """
    given = answers if isinstance(answers, dict) else {}
    words = []
    for number, question in enumerate(ask.questions):
        one = given.get(f"q{number}")
        one = one if isinstance(one, dict) else {}
        options = one.get("options")
        labels = [str(label) for label in options] if isinstance(options, list) else []
        custom = one.get("custom")
        own_words = [custom] if isinstance(custom, str) and custom.strip() else []
        check_digest(question, one.get("digest"))
        if question.approval is not None:
            words.append(choose_label(question, [] if own_words else labels))
        else:
            words.append(", ".join(labels + own_words))
    return build_answer(ask, words)


def parse_label_answers(ask: OpenAsk, answers: object) -> AskAnswer:
    """The older way: labels by the text of the question, or just a yes to all of it."""
    given = answers if isinstance(answers, dict) else {}
    words = []
    for question in ask.questions:
        default = "Yes" if question.approval is None else DENY if given else ALLOW
        label = str(given.get(question.question, default))
        words.append(choose_label(question, [label]) if question.approval else label)
    return build_answer(ask, words)


def refuse_ask(ask: OpenAsk) -> AskAnswer:
    """A no to everything that was asked."""
    if ask.is_approval:
        return build_answer(ask, [DENY if question.approval else "" for question in ask.questions])
    if all(any(option.label == "No" for option in q.options) for q in ask.questions):
        return build_answer(ask, ["No"] * len(ask.questions))
    return AskAnswer(DISMISSED_TEXT)


def check_digest(question: AgentQuestion, digest: object) -> None:
    """Devices that know digests say which call they showed."""
    approval = question.approval
    if approval is not None and isinstance(digest, str) and digest != approval.digest:
        raise WebGatewayError(CALL_CHANGED)


def choose_label(question: AgentQuestion, labels: Sequence[str]) -> str:
    offered = {option.label for option in question.options}
    return labels[0] if len(labels) == 1 and labels[0] in offered else DENY


def build_answer(ask: OpenAsk, words: Sequence[str]) -> AskAnswer:
    """The daemon reads answers by the text of the question. Two calls that read the same get one
    answer, the one that allows less."""
    told: dict[str, str] = {}
    for question, word in zip(ask.questions, words, strict=True):
        before = told.get(question.question, word)
        told[question.question] = choose_stricter(before, word) if question.approval else word
    decided = [(q, told[q.question]) for q in ask.questions if q.approval is not None]
    return AskAnswer(
        text=json.dumps(told, ensure_ascii=False),
        receipt=describe_decisions(decided),
        allows=any(label != DENY for _, label in decided),
    )


def choose_stricter(one: str, other: str) -> str:
    known = [label for label in STRICTNESS if label in (one, other)]
    return known[0] if known else DENY


def describe_decisions(decided: Sequence[tuple[AgentQuestion, str]]) -> str:
    """One line for each call; with several, which tool it was."""
    lines = [describe_decision(question, label) for question, label in decided]
    if len(lines) == 1:
        return lines[0]
    tools = [join_lines(q.approval.tool) if q.approval is not None else "" for q, _ in decided]
    return "\n".join(f"{tool}: {line}" for tool, line in zip(tools, lines, strict=True))


def describe_decision(question: AgentQuestion, label: str) -> str:
    if label == ALLOW:
        return "Allowed once"
    if label != ALWAYS:
        return "Denied"
    always = join_lines(question.approval.always) if question.approval is not None else ""
    return f"Always allowed: {always}" if always else "Always allowed"


def join_lines(text: str) -> str:
    return " ".join(text.split())


def build_outcome(answer: AskAnswer, answers: Any) -> dict[str, Any]:
    """What the agent state says of a question that was answered."""
    told = {"status": "answered", "answers": answers if isinstance(answers, dict) else {}}
    return {**told, "receipt": answer.receipt} if answer.receipt else told
