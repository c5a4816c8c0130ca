"""search_sessions: the tool for full-text search in this and other conversations.

The agent's file sets how far the agent may search: one person's conversations, all of the agent's,
or all there are. The tool's arguments can only narrow that down.
"""

from collections.abc import Callable
from enum import Enum
from typing import Annotated, ClassVar

import msgspec

from crabtalk.runtime import SearchScope, SessionHit, SessionIndex, ToolDispatch, WindowItem
from crabtalk.storage import Agent, AgentError

from .tool import AgentTool, ToolHook
from .tool_schema import HIDDEN_FROM_MODEL

DEFAULT_LIMIT = 5
DEFAULT_CONTEXT = 4  # messages shown before and after each hit


class SessionScope(Enum):
    """Which conversations an agent may search."""

    SENDER = "sender"  # those of the current sender, with any agent
    AGENT = "agent"  # its own, with any sender
    ALL = "all"


class SessionsSettings(msgspec.Struct, frozen=True):
    """An agent's [hooks.sessions]."""

    scope: SessionScope = SessionScope.SENDER
    index_tool_results: bool = False  # they may hold secrets


def read_sessions_settings(agent: Agent) -> SessionsSettings:
    """Raises AgentError for invalid settings."""
    try:
        return msgspec.convert(agent.hooks.get("sessions", {}), SessionsSettings)
    except msgspec.ValidationError as error:
        raise AgentError(f"hooks.sessions: {error}") from None


def read_session_scope(agent: Agent) -> SessionScope:
    return read_sessions_settings(agent).scope


class SearchSessionsTool(AgentTool):
    """Search what was said before."""

    name: ClassVar[str] = "search_sessions"
    kind: ClassVar[str] = "sessions"

    query: str
    limit: Annotated[int | None, HIDDEN_FROM_MODEL] = None
    context_before: Annotated[int | None, HIDDEN_FROM_MODEL] = None
    context_after: Annotated[int | None, HIDDEN_FROM_MODEL] = None
    agent: Annotated[str | None, HIDDEN_FROM_MODEL] = None
    sender: Annotated[str | None, HIDDEN_FROM_MODEL] = None

    async def run(self, call: ToolDispatch, hook: "SessionsHook") -> str:
        hits = await hook.index.search(
            self.query,
            scope=hook.build_search_scope(call, self.agent or "", self.sender or ""),
            limit=DEFAULT_LIMIT if self.limit is None else self.limit,
            before=DEFAULT_CONTEXT if self.context_before is None else self.context_before,
            after=DEFAULT_CONTEXT if self.context_after is None else self.context_after,
        )
        return "\n---\n".join(map(format_hit, hits)) or "no sessions found"


class SessionsHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (SearchSessionsTool,)

    def __init__(
        self, index: SessionIndex, is_owner: Callable[[str], bool] = lambda sender: True
    ) -> None:
        """Senders for which `is_owner` is false only search their own conversations."""
        self.index = index
        self._is_owner = is_owner
        self._settings: dict[str, SessionsSettings] = {}

    def on_build_agent(self, agent: Agent) -> Agent:
        read_sessions_settings(agent)
        return agent

    def on_register_agent(self, name: str, agent: Agent) -> None:
        before = self.indexes_tool_results(name)
        self._settings[name] = read_sessions_settings(agent)
        if self.indexes_tool_results(name) != before:
            self.index.rescan()

    def on_unregister_agent(self, name: str) -> None:
        self._settings.pop(name, None)

    def indexes_tool_results(self, agent: str) -> bool:
        return self._get_settings(agent).index_tool_results

    def _get_settings(self, agent: str) -> SessionsSettings:
        return self._settings.get(agent, SessionsSettings())

    def build_search_scope(self, call: ToolDispatch, agent: str, sender: str) -> SearchScope:
        """Return the requested scope, limited to what the call may search. A delegated run has the
        rights of its caller."""
        allowed = self._get_settings(call.run.memory_owner).scope
        if not self._is_owner(call.run.origin):
            allowed = SessionScope.SENDER
        match allowed:
            case SessionScope.SENDER:
                return SearchScope(agent or None, call.run.origin)
            case SessionScope.AGENT:
                return SearchScope(call.run.memory_owner, sender or None)
            case SessionScope.ALL:
                return SearchScope(agent or None, sender or None)


def format_hit(hit: SessionHit) -> str:
    """Format a hit for an agent."""
    lines = [
        f"## {hit.title or '(untitled)'}",
        f"session: {hit.handle} · agent: {hit.agent} · sender: {hit.sender}",
        f"updated: {hit.updated_at} · matched message #{hit.message_id}",
        *map(format_window_item, hit.window),
    ]
    return "\n".join(lines)


def format_window_item(item: WindowItem) -> str:
    label: str = item.role
    if item.tool_name:
        kind = "tool-call" if item.role == "assistant" else "tool"
        label = f"{kind}:{item.tool_name}"
    snippet = " ".join(item.snippet.split())
    return f"- [{label} #{item.id}] {snippet}{' …' if item.truncated else ''}"
