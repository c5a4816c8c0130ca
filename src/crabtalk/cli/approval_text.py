"""The text of an approval: a tool call that waits for a yes, as a person must read it.

Everything is literal text. Nothing is left out, nothing is Markdown, and control and invisible
characters are spelled out. The caller wraps and scrolls the lines.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from crabtalk.invisible_characters import is_invisible
from crabtalk.service.command_line import measure_width, to_one_line

if TYPE_CHECKING:
    from crabtalk.protocol import wire

ALLOW, DENY, ALWAYS = "Allow", "Deny", "Always"
TAB_WIDTH = 4  # columns
# Prefixes of the lines of a call, for output without styles: GUTTER for a new line, GUTTER_NEXT for
# the continuation of a line that is wider than the screen.
GUTTER, GUTTER_NEXT = "| ", ": "
LABEL_WIDTH = 11  # columns of a label with the space after it
INDENT = "    "  # prefix of a wrapped title or fact, because labels begin at the left
SUMMARY_LENGTH = 160  # characters of a call in a notice

PRINTABLE_ASCII = re.compile(r"[ -~]*")

ApprovalLineKind = Literal["title", "fact", "call"]


class ApprovalLine(NamedTuple):
    kind: ApprovalLineKind
    text: str


def spell_out(text: str) -> str:
    """Return one line with invisible and control characters escaped and tabs expanded."""
    if PRINTABLE_ASCII.fullmatch(text):
        return text
    pieces: list[str] = []
    column = 0
    for character in text:
        if character == "\t":
            visible = "→".ljust(TAB_WIDTH - column % TAB_WIDTH)
        elif is_invisible(character):
            visible = ascii(character)[1:-1]
        else:
            visible = character
        pieces.append(visible)
        column += len(visible)
    return "".join(pieces)


def split_literal_lines(text: str) -> list[str]:
    """Split at newlines only, and spell out each line."""
    return [spell_out(line) for line in text.split("\n")]


def build_approval_lines(question: "wire.AskQuestion", asker: str = "") -> list[ApprovalLine]:
    """List everything a person must know to answer; `asker` names a delegate and its task."""
    approval = question.approval
    subject = asker or approval.agent or "the agent"
    title = f"{subject} asks to use {approval.tool or question.header}"
    if approval.for_owner:
        title += f" for {approval.requested_by}, who is not an owner"
    lines = [ApprovalLine("title", spell_out(title))]
    facts = [("directory", approval.cwd)]
    facts += [("variable", f"{name}={value}") for name, value in sorted(approval.env.items())]
    facts += [("reason", approval.reason), ("Always", approval.always)]
    for label, value in facts:
        if value:
            # Newlines in a value are escaped: the rest could pass for a fact of its own.
            lines.append(ApprovalLine("fact", label.ljust(LABEL_WIDTH) + spell_out(value)))
    call = approval.call or question.question
    lines += [ApprovalLine("call", line) for line in split_literal_lines(call)]
    return lines


def render_approval(question: "wire.AskQuestion", asker: str = "", width: int = 0) -> str:
    """Render an approval for plain terminals, and for pipes, which have no width (0).

    Lines are wrapped here and continuation lines get a prefix: a terminal would begin them at the
    left, where text of the call could pass for a reason or an option.
    """
    rows: list[str] = []
    for line in build_approval_lines(question, asker):
        first, rest = (GUTTER, GUTTER_NEXT) if line.kind == "call" else ("", INDENT)
        room = max(width - len(rest), 2)
        pieces = split_cells(line.text, room) if width else [line.text]
        rows += [f"{rest if number else first}{piece}" for number, piece in enumerate(pieces)]
    return "\n".join(rows)


def split_cells(text: str, width: int, measure: Callable[[str], int] = measure_width) -> list[str]:
    """Split into pieces that fit and keep every character, also spaces: they may hide something."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    pieces, start, used = [], 0, 0
    for index, character in enumerate(text):
        size = measure(character)
        if used + size > width and index > start:
            pieces.append(text[start:index])
            start, used = index, 0
        used += size
    return [*pieces, text[start:]]


def list_approval_options(question: "wire.AskQuestion") -> list[tuple[str, str]]:
    """Return labels and their meanings. Approvals accept no free text."""
    if question.options:
        return [(option.label, option.description) for option in question.options]
    options = [(ALLOW, "this call, once"), (DENY, "the call does not run")]
    if question.approval.always:
        options.append((ALWAYS, question.approval.always))
    return options


def match_option(typed: str, labels: list[str]) -> str | None:
    """Return the label the person typed, by its number or its name; None for anything else."""
    if typed.isascii() and typed.isdecimal() and len(typed) < 5:  # int() refuses very long ones
        return labels[int(typed) - 1] if 1 <= int(typed) <= len(labels) else None
    return next((label for label in labels if label.casefold() == typed.casefold()), None)


def is_approval(question: "wire.AskQuestion") -> bool:
    return question.HasField("approval")


def needs_owner(ask: "wire.AskUserEvent") -> bool:
    """Whether only the owner can answer it."""
    return any(question.approval.for_owner for question in ask.questions)


def summarize_ask(ask: "wire.AskUserEvent") -> str:
    """Describe an ask of a stranger's run in one line, for a notice. Cut text ends in `…`."""
    question = ask.questions[0]
    approval = question.approval
    call = to_one_line(" ".join(split_literal_lines(approval.call)), SUMMARY_LENGTH)
    more = f" and {len(ask.questions) - 1} more" if len(ask.questions) > 1 else ""
    return (
        f"{spell_out(approval.requested_by)} asks {spell_out(approval.agent)} to use "
        f"{spell_out(approval.tool)}: {call}{more}"
    )


def combine_answers(pairs: "list[tuple[str, str]]") -> dict[str, str]:
    """Map the text of each question to its answer.

    Two questions with the same text share one entry. If one of them was denied, both are.
    """
    answers: dict[str, str] = {}
    for text, answer in pairs:
        if answers.get(text, answer) != answer and DENY in (answer, answers[text]):
            answer = DENY
        answers[text] = answer
    return answers
