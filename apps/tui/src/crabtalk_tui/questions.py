"""Questions: what an agent asks the person at the terminal, line by line, on stderr."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from crabtalk.component.command import one_line, say, visible

if TYPE_CHECKING:
    from crabtalk.protocol import wire

NUMBERS = re.compile(r"\d+([,\s]+\d+)*")


def answered(asked: "wire.AskUserEvent", who: str) -> str:
    """The answers of the person, as forms give them: JSON, from question to label.

    Raises click.Abort for Ctrl+C and for the end of input.
    """
    return json.dumps(
        {question.question: answer(question, who) for question in asked.questions},
        ensure_ascii=False,
    )


def answer(question: "wire.AskQuestion", who: str) -> str:
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
    return " ".join(one_line(question.question, 200) for question in asked.questions)
