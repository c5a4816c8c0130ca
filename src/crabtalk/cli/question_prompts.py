"""Questions: what an agent asks the person at the terminal, line by line, on stderr."""

import json
import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from crabtalk.service.command_line import escape_controls, print_to_stderr, to_one_line

from .approval_text import (
    combine_answers,
    is_approval,
    list_approval_options,
    match_option,
    render_approval,
)

if TYPE_CHECKING:
    from crabtalk.protocol import wire

NUMBERS = re.compile(r"\d+([,\s]+\d+)*")


def ask_questions(asked: "wire.AskUserEvent", who: str) -> str:
    """The answers of the person, as forms give them: JSON, from question to label.

    Raises click.Abort for Ctrl+C and for the end of input.
    """
    given = [(question.question, ask_question(question, who)) for question in asked.questions]
    return json.dumps(combine_answers(given), ensure_ascii=False)


def ask_question(question: "wire.AskQuestion", who: str) -> str:
    if is_approval(question):
        return ask_approval(question)
    print_to_stderr(f"{to_one_line(who)} asks: {escape_controls(question.question, layout=True)}")
    labels = [option.label for option in question.options]
    for number, option in enumerate(question.options, 1):
        more = f"  {to_one_line(option.description)}" if option.description else ""
        print_to_stderr(f"  {number}  {to_one_line(option.label)}{more}")
    while True:
        given = str(click.prompt(choose_prompt(labels, question.multi_select), err=True)).strip()
        chosen = parse_choice(given, labels, question.multi_select)
        if chosen is not None:
            return chosen
        print_to_stderr(f"there is no such number; there are {len(labels)}")


def ask_approval(question: "wire.AskQuestion") -> str:
    """The answer to an approval: one of its labels, after the whole call was shown."""
    print_to_stderr(render_approval(question, width=shutil.get_terminal_size().columns))
    options = list_approval_options(question)
    for number, (label, about) in enumerate(options, 1):
        print_to_stderr(
            f"  {number}  {to_one_line(label)}{f'  {to_one_line(about)}' if about else ''}"
        )
    labels = [label for label, _ in options]
    while True:
        given = str(click.prompt("a number, or its word", err=True)).strip()
        chosen = match_option(given, labels)
        if chosen is not None:
            return chosen
        print_to_stderr(f"answer with a number from 1 to {len(labels)}, or the word beside it")


def choose_prompt(labels: Sequence[str], several: bool) -> str:
    if not labels:
        return "answer"
    return "numbers, or your own words" if several else "a number, or your own words"


def parse_choice(given: str, labels: Sequence[str], several: bool) -> str | None:
    """Labels for numbers, and words as they are. None for a number that no label has."""
    if not labels or not NUMBERS.fullmatch(given):
        return given
    numbers = [int(number) for number in re.findall(r"\d+", given)]
    if len(numbers) > 1 and not several:
        return given
    if not all(1 <= number <= len(labels) for number in numbers):
        return None
    return ", ".join(labels[number - 1] for number in dict.fromkeys(numbers))


def summarize_questions(asked: "wire.AskUserEvent") -> str:
    """For where nobody can answer."""
    asks = " ".join(to_one_line(question.question, 200) for question in asked.questions)
    if any(map(is_approval, asked.questions)):
        return f"{asks} (`crabtalk ask --mode auto` runs it without asking)"
    return asks
