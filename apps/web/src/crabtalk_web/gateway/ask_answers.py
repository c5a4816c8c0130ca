"""Converts the answer of a device into the text for the daemon, and into the receipt that is
stored.

A question about a tool call accepts exactly one of the labels it offers. Anything else denies it:
an answer that is unclear, empty or free text never allows a call.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crabtalk_web.adapter import AgentQuestion, OpenAsk

from .errors import WebGatewayError

ALLOW, DENY, ALWAYS = "Allow", "Deny", "Always"
# From the most restrictive answer to the most permissive.
STRICTNESS = (DENY, ALLOW, ALWAYS)
DISMISSED_TEXT = "The person dismissed the question without answering it."
CALL_CHANGED = "this is not the call that was shown; look at it again"


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """`text` is what the daemon gets, `receipt` describes the decisions about calls."""

    text: str
    receipt: str = ""
    allows: bool = False  # it allows at least one call


def parse_form_answers(ask: OpenAsk, answers: object) -> AskAnswer:
    """Parse the chosen labels and custom texts, keyed by question number.

    Raises WebGatewayError if the answer was given for another call than the pending one.
    """
    given_answers = answers if isinstance(answers, dict) else {}
    texts = []
    for number, question in enumerate(ask.questions):
        entry = given_answers.get(f"q{number}")
        entry = entry if isinstance(entry, dict) else {}
        options = entry.get("options")
        labels = [str(label) for label in options] if isinstance(options, list) else []
        custom_text = entry.get("custom")
        free_texts = [custom_text] if isinstance(custom_text, str) and custom_text.strip() else []
        check_digest(question, entry.get("digest"))
        if question.approval is not None:
            texts.append(choose_label(question, [] if free_texts else labels))
        else:
            texts.append(", ".join(labels + free_texts))
    return build_answer(ask, texts)


def parse_label_answers(ask: OpenAsk, answers: object) -> AskAnswer:
    """Parse the older form: labels keyed by question text, or a plain yes to all questions."""
    given_answers = answers if isinstance(answers, dict) else {}
    texts = []
    for question in ask.questions:
        default = "Yes" if question.approval is None else DENY if given_answers else ALLOW
        label = str(given_answers.get(question.question, default))
        texts.append(choose_label(question, [label]) if question.approval else label)
    return build_answer(ask, texts)


def refuse_ask(ask: OpenAsk) -> AskAnswer:
    """Return an answer that says no to every question."""
    if ask.is_approval:
        return build_answer(ask, [DENY if question.approval else "" for question in ask.questions])
    if all(any(option.label == "No" for option in q.options) for q in ask.questions):
        return build_answer(ask, ["No"] * len(ask.questions))
    return AskAnswer(DISMISSED_TEXT)


def check_digest(question: AgentQuestion, digest: object) -> None:
    """Check the digest of the call that the device showed, if the device sends one."""
    approval = question.approval
    if approval is not None and isinstance(digest, str) and digest != approval.digest:
        raise WebGatewayError(CALL_CHANGED)


def choose_label(question: AgentQuestion, labels: Sequence[str]) -> str:
    offered = {option.label for option in question.options}
    return labels[0] if len(labels) == 1 and labels[0] in offered else DENY


def build_answer(ask: OpenAsk, texts: Sequence[str]) -> AskAnswer:
    """The daemon reads answers by question text. Two calls with the same text get one answer, the
    more restrictive one."""
    text_by_question: dict[str, str] = {}
    for question, text in zip(ask.questions, texts, strict=True):
        previous = text_by_question.get(question.question, text)
        text_by_question[question.question] = (
            choose_stricter(previous, text) if question.approval else text
        )
    decisions = [(q, text_by_question[q.question]) for q in ask.questions if q.approval is not None]
    return AskAnswer(
        text=json.dumps(text_by_question, ensure_ascii=False),
        receipt=describe_decisions(decisions),
        allows=any(label != DENY for _, label in decisions),
    )


def choose_stricter(first: str, second: str) -> str:
    ordered = [label for label in STRICTNESS if label in (first, second)]
    return ordered[0] if ordered else DENY


def describe_decisions(decisions: Sequence[tuple[AgentQuestion, str]]) -> str:
    """One line for each call; with several calls, each line names its tool."""
    lines = [describe_decision(question, label) for question, label in decisions]
    if len(lines) == 1:
        return lines[0]
    tools = [join_lines(q.approval.tool) if q.approval is not None else "" for q, _ in decisions]
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
    """Return the entry for the agent state of an answered question."""
    outcome = {"status": "answered", "answers": answers if isinstance(answers, dict) else {}}
    return {**outcome, "receipt": answer.receipt} if answer.receipt else outcome
