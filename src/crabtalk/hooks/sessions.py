"""search_sessions: what was said before, in this conversation and others, found by its words.

How far an agent may look is in its file: a person's own conversations, all of the agent's, or
everybody's. What it asks for only narrows that down.
"""

from collections.abc import Callable
from enum import Enum
from typing import Annotated, ClassVar

import msgspec

from crabtalk.runtime import Scope, SessionHit, SessionIndex, ToolDispatch, WindowItem
from crabtalk.storage import Agent, AgentError

from .schema import UNTOLD
from .tool import Tool, ToolHook

LIMIT = 5
AROUND = 4  # messages before the one that was found, and after it


class Reach(Enum):
    """Whose conversations an agent may look through."""

    SENDER = "sender"  # those of whoever it talks to, with any agent
    AGENT = "agent"  # its own, with anybody
    ALL = "all"


class Settings(msgspec.Struct, frozen=True):
    """An agent's [hooks.sessions]."""

    scope: Reach = Reach.SENDER
    index_tool_results: bool = False  # they may hold secrets


def settings_of(agent: Agent) -> Settings:
    """Raises AgentError for what cannot be meant."""
    try:
        return msgspec.convert(agent.hooks.get("sessions", {}), Settings)
    except msgspec.ValidationError as error:
        raise AgentError(f"hooks.sessions: {error}") from None


def reach_of(agent: Agent) -> Reach:
    return settings_of(agent).scope


class SearchSessions(Tool):
    """Search what was said before."""

    name: ClassVar[str] = "search_sessions"
    kind: ClassVar[str] = "sessions"

    query: str
    limit: Annotated[int | None, UNTOLD] = None
    context_before: Annotated[int | None, UNTOLD] = None
    context_after: Annotated[int | None, UNTOLD] = None
    agent: Annotated[str | None, UNTOLD] = None
    sender: Annotated[str | None, UNTOLD] = None

    async def run(self, call: ToolDispatch, hook: "SessionsHook") -> str:
        hits = await hook.index.search(
            self.query,
            scope=hook.scope(call, self.agent or "", self.sender or ""),
            limit=LIMIT if self.limit is None else self.limit,
            before=AROUND if self.context_before is None else self.context_before,
            after=AROUND if self.context_after is None else self.context_after,
        )
        return "\n---\n".join(map(shown, hits)) or "no sessions found"


class SessionsHook(ToolHook):
    tools: ClassVar[tuple[type[Tool], ...]] = (SearchSessions,)

    def __init__(
        self, index: SessionIndex, is_owner: Callable[[str], bool] = lambda sender: True
    ) -> None:
        """Only the owner looks further than the sender's own conversations."""
        self.index = index
        self._is_owner = is_owner
        self._settings: dict[str, Settings] = {}

    def on_build_agent(self, agent: Agent) -> Agent:
        settings_of(agent)
        return agent

    def on_register_agent(self, name: str, agent: Agent) -> None:
        before = self.indexes_tool_results(name)
        self._settings[name] = settings_of(agent)
        if self.indexes_tool_results(name) != before:
            self.index.refresh()

    def on_unregister_agent(self, name: str) -> None:
        self._settings.pop(name, None)

    def indexes_tool_results(self, agent: str) -> bool:
        return self._of(agent).index_tool_results

    def _of(self, agent: str) -> Settings:
        return self._settings.get(agent, Settings())

    def scope(self, call: ToolDispatch, agent: str, sender: str) -> Scope:
        """What the call asks for, as far as it may. A delegated run is in its caller's place."""
        reach = self._of(call.run.keeper).scope
        if not self._is_owner(call.run.origin):
            reach = Reach.SENDER
        match reach:
            case Reach.SENDER:
                return Scope(agent or None, call.run.origin)
            case Reach.AGENT:
                return Scope(call.run.keeper, sender or None)
            case Reach.ALL:
                return Scope(agent or None, sender or None)


def shown(hit: SessionHit) -> str:
    """A hit as an agent reads it."""
    lines = [
        f"## {hit.title or '(untitled)'}",
        f"session: {hit.handle} · agent: {hit.agent} · sender: {hit.sender}",
        f"updated: {hit.updated_at} · matched message #{hit.message_id}",
        *map(item_line, hit.window),
    ]
    return "\n".join(lines)


def item_line(item: WindowItem) -> str:
    label: str = item.role
    if item.tool_name:
        kind = "tool-call" if item.role == "assistant" else "tool"
        label = f"{kind}:{item.tool_name}"
    snippet = " ".join(item.snippet.split())
    return f"- [{label} #{item.id}] {snippet}{' …' if item.truncated else ''}"
