"""Reads the tasks of a delegate call from its arguments, and their outcomes from its output."""

from typing import Any

import msgspec

from .tool_text import MAX_RESULT, excerpt_text, shorten_text, to_one_line

DELEGATE_TOOL = "delegate"
# The daemon refuses an agent more than a few tasks. A call with more than this is shown as a plain
# tool call.
MAX_TASKS = 64
MAX_SUMMARY = 80


class TaskArguments(msgspec.Struct, frozen=True):
    """One task, as the arguments of the call describe it."""

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
    """Return None for any other tool, and for arguments that cannot be parsed."""
    if name != DELEGATE_TOOL:
        return None
    try:
        delegation = msgspec.json.decode(arguments, type=Delegation)
    except (msgspec.DecodeError, RecursionError):
        return None
    return delegation if 0 < len(delegation.tasks) <= MAX_TASKS else None


def parse_outcomes(output: str, count: int) -> list[TaskOutcome]:
    """Return the outcome of each task. If the output does not list them, every task gets the whole
    output."""
    try:
        outcomes = msgspec.json.decode(output, type=list[TaskOutcome])
    except (msgspec.DecodeError, RecursionError):
        outcomes = []
    if len(outcomes) == count and all(
        o.result is not None or o.error is not None for o in outcomes
    ):
        return outcomes
    return [TaskOutcome(result=output)] * count


def task_agent(task: TaskArguments) -> str:
    return to_one_line(task.agent) or "worker"


def summarize_task(task: TaskArguments) -> str:
    """Return the first line that is not blank."""
    lines = (to_one_line(line) for line in task.message[: 8 * MAX_RESULT].splitlines())
    return shorten_text(next(filter(None, lines), ""), MAX_SUMMARY)


def build_task_arguments(
    task: TaskArguments, subagent: str, *, in_background: bool
) -> dict[str, Any]:
    """Readers use `sessionSubagent` to nest the task's own envelopes below the call."""
    return {
        "description": summarize_task(task),
        "prompt": excerpt_text(task.message, MAX_RESULT),
        "subagent_type": task_agent(task),
        "sessionSubagent": subagent,
        **({"background": True} if in_background else {}),
    }
