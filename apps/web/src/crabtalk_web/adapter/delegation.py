"""Delegation: the tasks of one call, told from its arguments, and what came of them."""

from typing import Any

import msgspec

from .words import RESULT, excerpt, line, shortened

TOOL = "delegate"
# An agent is refused more than a few; a call that asks for more than this is shown as it is.
MOST = 64
SUMMARY = 80


class Told(msgspec.Struct, frozen=True):
    """One task, as its call tells it."""

    message: str
    agent: str = ""


class Delegation(msgspec.Struct, frozen=True):
    tasks: tuple[Told, ...]
    background: bool = False


class Outcome(msgspec.Struct, frozen=True):
    agent: str = ""
    result: str | None = None
    error: str | None = None


def delegation(name: str, arguments: str) -> Delegation | None:
    """None for any other call, and for one that nobody can make out."""
    if name != TOOL:
        return None
    try:
        told = msgspec.json.decode(arguments, type=Delegation)
    except (msgspec.DecodeError, RecursionError):
        return None
    return told if 0 < len(told.tasks) <= MOST else None


def outcomes(output: str, count: int) -> list[Outcome]:
    """What each task came to, where the output says so; else each has all of the output."""
    try:
        told = msgspec.json.decode(output, type=list[Outcome])
    except (msgspec.DecodeError, RecursionError):
        told = []
    if len(told) == count and all(o.result is not None or o.error is not None for o in told):
        return told
    return [Outcome(result=output)] * count


def agent_of(task: Told) -> str:
    return line(task.agent) or "worker"


def summary(task: Told) -> str:
    """The first line that has words in it."""
    lines = (line(one) for one in task.message[: 8 * RESULT].splitlines())
    return shortened(next(filter(None, lines), ""), SUMMARY)


def task_arguments(task: Told, subagent: str, *, in_background: bool) -> dict[str, Any]:
    """`sessionSubagent` is what readers nest the task's own envelopes by."""
    return {
        "description": summary(task),
        "prompt": excerpt(task.message, RESULT),
        "subagent_type": agent_of(task),
        "sessionSubagent": subagent,
        **({"background": True} if in_background else {}),
    }
