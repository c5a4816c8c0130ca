"""Approval: calls that a person must allow first, as the agent's file says."""

import json
import logging
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from crabtalk.runtime import AskOption, AskQuestion, ToolDispatch
from crabtalk.storage import Agent, Pair, StorageError

log = logging.getLogger(__name__)

SHOWN = 2000
YES, NO, ALWAYS = "Yes", "No", "Always here"
OPTIONS = (
    AskOption(YES, "this once"),
    AskOption(NO, "the agent is told so"),
    AskOption(ALWAYS, "this tool, in this conversation"),
)


class Allowed(Protocol):
    """What people allowed for good, as each conversation remembers it."""

    def approved(self, pair: Pair) -> Collection[str]: ...

    async def approve(self, pair: Pair, tool: str) -> None:
        """Raises an error when it cannot be remembered."""
        ...


class Forgetful:
    """Remembers nothing: every call is asked about."""

    def approved(self, pair: Pair) -> Collection[str]:
        return ()

    async def approve(self, pair: Pair, tool: str) -> None:
        pass


class Approvals:
    """What needs a yes."""

    def __init__(self, allowed: Callable[[], Allowed] = Forgetful) -> None:
        self._patterns: dict[str, tuple[str, ...]] = {}
        self._allowed = allowed

    def register(self, agent: Agent) -> None:
        self._patterns[agent.name] = agent.approve

    def unregister(self, name: str) -> None:
        self._patterns.pop(name, None)

    def is_needed(self, call: ToolDispatch, names: Sequence[str]) -> bool:
        """`names` are all the tool has; none of a tool that does not exist."""
        patterns = self._patterns.get(call.agent, ())
        if not any(fnmatchcase(name, pattern) for pattern in patterns for name in names):
            return False
        return names[0] not in self._allowed().approved(call.run.pair)

    def question(self, call: ToolDispatch) -> AskQuestion:
        """Names the call by its id, so that two of the same tool can be told apart."""
        return AskQuestion(
            question=f"May {call.agent} call {call.name}? [{call.call_id}]\n{shown(call)}",
            header=call.name,
            options=OPTIONS,
        )

    async def is_granted(self, call: ToolDispatch, names: Sequence[str], reply: str | None) -> bool:
        """No answer, and any answer but a yes, is a no."""
        answer = answer_to(self.question(call).question, reply)
        if answer == ALWAYS.lower():
            try:
                await self._allowed().approve(call.run.pair, names[0])
            except StorageError as error:
                # This once it was allowed in any case; the next call asks again.
                log.warning("an approval could not be remembered: %s", error)
        return answer in (YES.lower(), "y", ALWAYS.lower())


def shown(call: ToolDispatch) -> str:
    """The arguments as a person reads them; what an edit takes away and puts in its place."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments[:SHOWN]
    if call.name == "edit" and isinstance(arguments, dict):
        old = [f"- {line}" for line in str(arguments.get("old_string", "")).splitlines()]
        new = [f"+ {line}" for line in str(arguments.get("new_string", "")).splitlines()]
        return "\n".join([str(arguments.get("path", "")), *old, *new])[:SHOWN]
    if isinstance(arguments, dict):
        return "\n".join(f"{key}: {value}" for key, value in arguments.items())[:SHOWN]
    return call.arguments[:SHOWN]


def answer_to(question: str, reply: str | None) -> str:
    """Forms answer with a JSON object from question to label; people may just say yes."""
    if reply is None:
        return ""
    try:
        given = json.loads(reply)
    except ValueError:
        given = reply
    if isinstance(given, dict):
        given = given.get(question, "")
    return str(given).strip().lower()
