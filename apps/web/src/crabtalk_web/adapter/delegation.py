"""Delegation: the tasks of one call, told from its arguments, and what came of them."""

from typing import Any

import msgspec

from .tool_text import MAX_RESULT, excerpt_text, shorten_text, to_one_line

DELEGATE_TOOL = "delegate"
# An agent is refused more than a few; a call that asks for more than this is shown as it is.
MAX_TASKS = 64
MAX_SUMMARY = 80


class TaskArguments(msgspec.Struct, frozen=True):
    """One task, as its call tells it."""

    message: str
    agent: str = ""


class Delegation(msgspec.Struct, frozen=True):
    tasks: tuple[TaskArguments, ...]
    background: bool = False


class TaskOutcome(msgspec.Struct, frozen=True):
    agent: str = ""
    result: str | None = None
    error: str | None = None


def parse_delegation(name: str, arguments: str) -> Delegation | None:
    """None for any other call, and for one that nobody can make out."""
    if name != DELEGATE_TOOL:
        return None
    try:
        told = msgspec.json.decode(arguments, type=Delegation)
    except (msgspec.DecodeError, RecursionError):
        return None
    return told if 0 < len(told.tasks) <= MAX_TASKS else None


def parse_outcomes(output: str, count: int) -> list[TaskOutcome]:
    """What each task came to, where the output says so; else each has all of the output."""
    try:
        told = msgspec.json.decode(output, type=list[TaskOutcome])
    except (msgspec.DecodeError, RecursionError):
        told = []
    if len(told) == count and all(o.result is not None or o.error is not None for o in told):
        return told
    return [TaskOutcome(result=output)] * count


def task_agent(task: TaskArguments) -> str:
    return to_one_line(task.agent) or "worker"


def summarize_task(task: TaskArguments) -> str:
    """The first line that has words in it."""
    lines = (to_one_line(one) for one in task.message[: 8 * MAX_RESULT].splitlines())
    return shorten_text(next(filter(None, lines), ""), MAX_SUMMARY)


def build_task_arguments(
    task: TaskArguments, subagent: str, *, in_background: bool
) -> dict[str, Any]:
    """`sessionSubagent` is what readers nest the task's own envelopes by."""
    return {
        "description": summarize_task(task),
        "prompt": excerpt_text(task.message, MAX_RESULT),
        "subagent_type": task_agent(task),
        "sessionSubagent": subagent,
        **({"background": True} if in_background else {}),
    }
