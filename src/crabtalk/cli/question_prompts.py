"""Put an agent's questions to the person at the terminal, line by line, on stderr."""

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


def ask_questions(event: "wire.AskUserEvent", agent_name: str) -> str:
    """Return the person's answers in the format of forms: JSON from question to label.

    Raises click.Abort for Ctrl+C and for the end of input.
    """
    answers = [
        (question.question, ask_question(question, agent_name)) for question in event.questions
    ]
    return json.dumps(combine_answers(answers), ensure_ascii=False)


def ask_question(question: "wire.AskQuestion", agent_name: str) -> str:
    if is_approval(question):
        return ask_approval(question)
    print_to_stderr(
        f"{to_one_line(agent_name)} asks: {escape_controls(question.question, layout=True)}"
    )
    labels = [option.label for option in question.options]
    for number, option in enumerate(question.options, 1):
        description = f"  {to_one_line(option.description)}" if option.description else ""
        print_to_stderr(f"  {number}  {to_one_line(option.label)}{description}")
    while True:
        answer = str(click.prompt(choose_prompt(labels, question.multi_select), err=True)).strip()
        choice = parse_choice(answer, labels, question.multi_select)
        if choice is not None:
            return choice
        print_to_stderr(f"there is no such number; there are {len(labels)}")


def ask_approval(question: "wire.AskQuestion") -> str:
    """Show the whole call and return the chosen label."""
    print_to_stderr(render_approval(question, width=shutil.get_terminal_size().columns))
    options = list_approval_options(question)
    for number, (label, description) in enumerate(options, 1):
        more = f"  {to_one_line(description)}" if description else ""
        print_to_stderr(f"  {number}  {to_one_line(label)}{more}")
    labels = [label for label, _ in options]
    while True:
        answer = str(click.prompt("a number, or its word", err=True)).strip()
        choice = match_option(answer, labels)
        if choice is not None:
            return choice
        print_to_stderr(f"answer with a number from 1 to {len(labels)}, or the word beside it")


def choose_prompt(labels: Sequence[str], several: bool) -> str:
    if not labels:
        return "answer"
    return "numbers, or your own words" if several else "a number, or your own words"


def parse_choice(answer: str, labels: Sequence[str], several: bool) -> str | None:
    """Return labels for numbers, and other text as it is. None for a number out of range."""
    if not labels or not NUMBERS.fullmatch(answer):
        return answer
    numbers = [int(number) for number in re.findall(r"\d+", answer)]
    if len(numbers) > 1 and not several:
        return answer
    if not all(1 <= number <= len(labels) for number in numbers):
        return None
    return ", ".join(labels[number - 1] for number in dict.fromkeys(numbers))


def summarize_questions(event: "wire.AskUserEvent") -> str:
    """Return the questions in one line, for a turn without a terminal."""
    summary = " ".join(to_one_line(question.question, 200) for question in event.questions)
    if any(map(is_approval, event.questions)):
        return f"{summary} (`crabtalk ask --mode auto` runs it without asking)"
    return summary
