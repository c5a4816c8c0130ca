"""Hook: how subsystems add tools and behaviour to agents. Env: what else a process provides.

Every method has a default that does nothing, so an embedded runtime needs neither.
"""

from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crabtalk.model.messages import Image, Tool
from crabtalk.storage import Agent, Archive, Pair

from .events import AskUser, Event

if TYPE_CHECKING:
    from .run import Run


class ToolError(Exception):
    """A tool failed. The agent reads the text of this error."""


class ToolOutput(msgspec.Struct, frozen=True):
    """The result of a tool that returns more than text."""

    text: str
    images: tuple[Image, ...] = ()


class ToolDispatch(msgspec.Struct, frozen=True):
    """A tool call, and the agent and sender it is made for. `arguments` is JSON text, valid or
    not."""

    name: str
    arguments: str
    call_id: str
    agent: str
    sender: str
    run: "Run"
    cwd: Path


class ToolAccess(msgspec.Struct, frozen=True):
    """What a call would access, for permission checks: a kind, and a path, command or name."""

    kind: str = "other"
    target: str = ""


class Hook:
    """What a subsystem adds to agents (RFC 0075)."""

    def schema(self) -> list[Tool]:
        """The tools of this hook."""
        return []

    def agent_tools(self, agent: Agent) -> list[Tool]:
        """The tools of this hook that an agent has now; for most hooks the same for all agents."""
        return self.schema()

    async def prepare(self, agent: Agent) -> None:
        """Called before a turn collects its tools. Must be short: the user waits for an answer."""

    def system_prompt(self) -> str | None:
        """Text that this hook adds to every agent's prompt."""
        return None

    def on_build_agent(self, agent: Agent) -> Agent:
        """Returns the agent as it will run; called when it is registered."""
        return agent

    def on_register_agent(self, name: str, agent: Agent) -> None:
        """Called before the agent can be addressed."""

    def on_unregister_agent(self, name: str) -> None:
        """Called when the agent can no longer be addressed."""

    def on_event(self, run: "Run", event: Event) -> None:
        """Called for every event of a run. Must not block."""

    def preprocess(self, agent: str, content: str) -> str | None:
        """Replaces the text of a user's message; None leaves it as it is."""
        return None

    def on_turn(self, run: "Run", content: str) -> None:
        """Called when a turn begins, with its content after all preprocessing."""

    def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
        """The tools of this hook that the agent may call, and a line for its prompt about that."""
        return [tool.name for tool in self.schema()], None

    async def collect_questions(self, calls: Sequence[ToolDispatch]) -> list[AskUser]:
        """The questions that people must answer before these calls of one step can finish."""
        return []

    def tool_names(self, agent: Agent, name: str) -> tuple[str, ...]:
        """All names that a file may use for one of this hook's tools."""
        return (name,)

    def tool_kind(self, name: str) -> str:
        """The `kind` of ToolAccess that calls of a tool of this hook have."""
        return "other"

    def describe_access(self, call: ToolDispatch) -> ToolAccess:
        """What a call of a tool of this hook would access."""
        return ToolAccess()

    def names_of_call(self, call: ToolDispatch) -> tuple[str, ...]:
        """All names of the called tool, the unambiguous name first; empty when the tool belongs to
        another hook."""
        return (call.name,) if any(tool.name == call.name for tool in self.schema()) else ()

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        """Executes a call; None when the tool belongs to another hook. Fails with ToolError."""
        return None


class Env:
    """What a process provides to the engine that it hosts."""

    def __init__(self, hook: Hook | None = None, cwd: Path | None = None) -> None:
        self.hook = hook or Hook()
        self.cwd = cwd or Path.cwd()

    def list_tools(self, agent: Agent) -> tuple[Tool, ...]:
        """The tools the agent may call, in a stable order, because providers cache by prefix."""
        allowed = set(self.hook.scoped_tools(agent)[0])
        offered = self.hook.agent_tools(agent)
        return tuple(sorted((tool for tool in offered if tool.name in allowed), key=tool_name))

    def on_event(self, run: "Run", event: Event) -> None:
        self.hook.on_event(run, event)

    def permission_mode(self, run: "Run", agent: Agent) -> str:
        """The permission mode of a run, for display; empty when there are no permissions."""
        return ""

    def working_directory(self, agent: Agent, origin: str, cwd: Path) -> Path:
        """The directory in which a run works when its client asks for `cwd`."""
        return cwd

    async def read_instructions(self, cwd: Path) -> str:
        """The instructions that people wrote for agents that work in a directory."""
        return ""

    async def store_archive(self, pair: Pair, archive: Archive) -> None:
        """Stores the archive of a compaction. If it raises, the compaction does not happen."""


def tool_name(tool: Tool) -> str:
    return tool.name
