"""Questions: what an agent asks the person at the terminal, line by line, on stderr."""

import json
import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from crabtalk.component.command import one_line, say, visible

from .approval_text import (
    approval_options,
    approval_text,
    combine_answers,
    is_approval,
    match_option,
)

if TYPE_CHECKING:
    from crabtalk.protocol import wire

NUMBERS = re.compile(r"\d+([,\s]+\d+)*")


def answered(asked: "wire.AskUserEvent", who: str) -> str:
    """The answers of the person, as forms give them: JSON, from question to label.

    Raises click.Abort for Ctrl+C and for the end of input.
    """
    given = [(question.question, answer(question, who)) for question in asked.questions]
    return json.dumps(combine_answers(given), ensure_ascii=False)


def answer(question: "wire.AskQuestion", who: str) -> str:
    if is_approval(question):
        return answer_approval(question)
    say(f"{one_line(who)} asks: {visible(question.question, layout=True)}")
    labels = [option.label for option in question.options]
    for number, option in enumerate(question.options, 1):
        more = f"  {one_line(option.description)}" if option.description else ""
        say(f"  {number}  {one_line(option.label)}{more}")
    while True:
        given = str(click.prompt(hint(labels, question.multi_select), err=True)).strip()
        chosen = choice(given, labels, question.multi_select)
        if chosen is not None:
            return chosen
        say(f"there is no such number; there are {len(labels)}")


def answer_approval(question: "wire.AskQuestion") -> str:
    """The answer to an approval: one of its labels, after the whole call was shown."""
    say(approval_text(question, width=shutil.get_terminal_size().columns))
    options = approval_options(question)
    for number, (label, about) in enumerate(options, 1):
        say(f"  {number}  {one_line(label)}{f'  {one_line(about)}' if about else ''}")
    labels = [label for label, _ in options]
    while True:
        given = str(click.prompt("a number, or its word", err=True)).strip()
        chosen = match_option(given, labels)
        if chosen is not None:
            return chosen
        say(f"answer with a number from 1 to {len(labels)}, or the word beside it")


def hint(labels: Sequence[str], several: bool) -> str:
    if not labels:
        return "answer"
    return "numbers, or your own words" if several else "a number, or your own words"


def choice(given: str, labels: Sequence[str], several: bool) -> str | None:
    """Labels for numbers, and words as they are. None for a number that no label has."""
    if not labels or not NUMBERS.fullmatch(given):
        return given
    numbers = [int(number) for number in re.findall(r"\d+", given)]
    if len(numbers) > 1 and not several:
        return given
    if not all(1 <= number <= len(labels) for number in numbers):
        return None
    return ", ".join(labels[number - 1] for number in dict.fromkeys(numbers))


def as_sentence(asked: "wire.AskUserEvent") -> str:
    """For where nobody can answer."""
    asks = " ".join(one_line(question.question, 200) for question in asked.questions)
    if any(map(is_approval, asked.questions)):
        return f"{asks} (`crabtalk ask --mode auto` runs it without asking)"
    return asks
