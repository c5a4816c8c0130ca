"""The text of an approval: a tool call that waits for a yes, as a person must read it.

Everything is literal text. Nothing is left out, nothing is Markdown, and characters that a terminal
would obey or not show are spelled out. How it is wrapped and scrolled is up to whoever shows it.
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
# Before the lines of a call, where there are no styles to set them off, and before what is left of
# a line that is wider than the screen.
GUTTER, GUTTER_NEXT = "| ", ": "
LABEL_WIDTH = 11  # columns of a label with the space after it
INDENT = "    "  # before what is left of a title or a fact: labels begin at the left
SUMMARY_LENGTH = 160  # characters of a call in a notice

PRINTABLE_ASCII = re.compile(r"[ -~]*")

ApprovalLineKind = Literal["title", "fact", "call"]


class ApprovalLine(NamedTuple):
    kind: ApprovalLineKind
    text: str


def spell_out(text: str) -> str:
    """One line of text in which every character can be seen. Tabs are expanded."""
    if PRINTABLE_ASCII.fullmatch(text):
        return text
    pieces: list[str] = []
    column = 0
    for character in text:
        if character == "\t":
            shown = "→".ljust(TAB_WIDTH - column % TAB_WIDTH)
        elif is_invisible(character):
            shown = ascii(character)[1:-1]
        else:
            shown = character
        pieces.append(shown)
        column += len(shown)
    return "".join(pieces)


def split_literal_lines(text: str) -> list[str]:
    """The lines of a text, each spelled out. Only a newline ends a line."""
    return [spell_out(line) for line in text.split("\n")]


def build_approval_lines(question: "wire.AskQuestion", asker: str = "") -> list[ApprovalLine]:
    """All there is to know before an answer; `asker` names a delegate and its task."""
    approval = question.approval
    who = asker or approval.agent or "the agent"
    title = f"{who} asks to use {approval.tool or question.header}"
    if approval.for_owner:
        title += f" for {approval.requested_by}, who is not an owner"
    lines = [ApprovalLine("title", spell_out(title))]
    facts = [("directory", approval.cwd)]
    facts += [("variable", f"{name}={value}") for name, value in sorted(approval.env.items())]
    facts += [("reason", approval.reason), ("Always", approval.always)]
    for label, value in facts:
        if value:
            # A newline in a value is spelled out too: it could look like a fact of its own.
            lines.append(ApprovalLine("fact", label.ljust(LABEL_WIDTH) + spell_out(value)))
    call = approval.call or question.question
    lines += [ApprovalLine("call", line) for line in split_literal_lines(call)]
    return lines


def render_approval(question: "wire.AskQuestion", asker: str = "", width: int = 0) -> str:
    """For terminals that show lines and nothing else, and for pipes, which have no width.

    Lines are wrapped here, and what is left of one is set off: a terminal would begin it at the
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
    """Pieces that fit, every character kept: spaces may be what hides something."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    pieces, start, taken = [], 0, 0
    for place, character in enumerate(text):
        size = measure(character)
        if taken + size > width and place > start:
            pieces.append(text[start:place])
            start, taken = place, 0
        taken += size
    return [*pieces, text[start:]]


def list_approval_options(question: "wire.AskQuestion") -> list[tuple[str, str]]:
    """Labels and what they mean. Words of one's own are no answer to an approval."""
    if question.options:
        return [(option.label, option.description) for option in question.options]
    options = [(ALLOW, "this call, once"), (DENY, "the call does not run")]
    if question.approval.always:
        options.append((ALWAYS, question.approval.always))
    return options


def match_option(typed: str, labels: list[str]) -> str | None:
    """The label that was meant: by its number or its name. None for anything else."""
    if typed.isascii() and typed.isdecimal() and len(typed) < 5:  # int() refuses very long ones
        return labels[int(typed) - 1] if 1 <= int(typed) <= len(labels) else None
    return next((label for label in labels if label.casefold() == typed.casefold()), None)


def is_approval(question: "wire.AskQuestion") -> bool:
    return question.HasField("approval")


def needs_owner(ask: "wire.AskUserEvent") -> bool:
    """Whether only the owner can answer it."""
    return any(question.approval.for_owner for question in ask.questions)


def summarize_ask(ask: "wire.AskUserEvent") -> str:
    """An ask of a stranger's run in one line, for a notice. What is cut ends in `…`."""
    question = ask.questions[0]
    approval = question.approval
    call = to_one_line(" ".join(split_literal_lines(approval.call)), SUMMARY_LENGTH)
    more = f" and {len(ask.questions) - 1} more" if len(ask.questions) > 1 else ""
    return (
        f"{spell_out(approval.requested_by)} asks {spell_out(approval.agent)} to use "
        f"{spell_out(approval.tool)}: {call}{more}"
    )


def combine_answers(pairs: "list[tuple[str, str]]") -> dict[str, str]:
    """From the text of each question to its answer.

    Two questions with the same text share one entry. If one of them was denied, both are.
    """
    answers: dict[str, str] = {}
    for text, answer in pairs:
        if answers.get(text, answer) != answer and DENY in (answer, answers[text]):
            answer = DENY
        answers[text] = answer
    return answers
