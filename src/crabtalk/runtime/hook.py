"""Hook: the one way from the engine to what agents can do. Env: the rest of the outside world.

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
    """A tool failed; its text is what the agent reads."""


class ToolOutput(msgspec.Struct, frozen=True):
    """What a tool found, where that is more than text."""

    text: str
    images: tuple[Image, ...] = ()


class ToolDispatch(msgspec.Struct, frozen=True):
    """A call to carry out, and in whose name. `arguments` is JSON text, valid or not."""

    name: str
    arguments: str
    call_id: str
    agent: str
    sender: str
    run: "Run"
    cwd: Path


class ToolAccess(msgspec.Struct, frozen=True):
    """What a call would touch, for whoever judges it: a kind, and a path, command or name."""

    kind: str = "other"
    target: str = ""


class Hook:
    """What a subsystem adds to agents (RFC 0075)."""

    def schema(self) -> list[Tool]:
        """The tools it owns."""
        return []

    def agent_tools(self, agent: Agent) -> list[Tool]:
        """What an agent is offered of it now; of most hooks the same as everybody."""
        return self.schema()

    async def prepare(self, agent: Agent) -> None:
        """A turn is about to take its tools. Must be short: somebody waits for an answer."""

    def system_prompt(self) -> str | None:
        """What it adds to every agent's prompt."""
        return None

    def on_build_agent(self, agent: Agent) -> Agent:
        """The agent as it will run; called when it is registered."""
        return agent

    def on_register_agent(self, name: str, agent: Agent) -> None:
        """Before the agent can be addressed."""

    def on_unregister_agent(self, name: str) -> None:
        """After it no longer can."""

    def on_event(self, run: "Run", event: Event) -> None:
        """Something happened in a run. Must not block."""

    def preprocess(self, agent: str, content: str) -> str | None:
        """Another text for what the user said; None leaves it."""
        return None

    def on_turn(self, run: "Run", content: str) -> None:
        """A turn begins, with this content after all preprocessing."""

    def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
        """Which of its tools the agent may call, and a line for its prompt about that."""
        return [tool.name for tool in self.schema()], None

    async def collect_questions(self, calls: Sequence[ToolDispatch]) -> list[AskUser]:
        """What people have to answer before these calls of one step can finish."""
        return []

    def tool_names(self, agent: Agent, name: str) -> tuple[str, ...]:
        """All names that a file may use for one of its tools."""
        return (name,)

    def tool_kind(self, name: str) -> str:
        """What calls of one of its tools touch, as `access` says it."""
        return "other"

    def describe_access(self, call: ToolDispatch) -> ToolAccess:
        """What a call of one of its tools would touch."""
        return ToolAccess()

    def names_of_call(self, call: ToolDispatch) -> tuple[str, ...]:
        """What the tool of a call is called, the name that means no other first; nothing when it
        is not its own."""
        return (call.name,) if any(tool.name == call.name for tool in self.schema()) else ()

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        """Carries a call out; None when the tool is not its own. Fails with ToolError."""
        return None


class Env:
    """What a process gives to the engine it hosts."""

    def __init__(self, hook: Hook | None = None, cwd: Path | None = None) -> None:
        self.hook = hook or Hook()
        self.cwd = cwd or Path.cwd()

    def list_tools(self, agent: Agent) -> tuple[Tool, ...]:
        """What the agent may call, in a stable order: providers cache by prefix."""
        allowed = set(self.hook.scoped_tools(agent)[0])
        offered = self.hook.agent_tools(agent)
        return tuple(sorted((tool for tool in offered if tool.name in allowed), key=tool_name))

    def on_event(self, run: "Run", event: Event) -> None:
        self.hook.on_event(run, event)

    def permission_mode(self, run: "Run", agent: Agent) -> str:
        """The permission mode a run has, for those who show it; empty where nothing is asked."""
        return ""

    def working_directory(self, agent: Agent, origin: str, cwd: Path) -> Path:
        """Where a run works that was asked to work in `cwd`."""
        return cwd

    async def read_instructions(self, cwd: Path) -> str:
        """What people wrote down for agents that work in a directory."""
        return ""

    async def store_archive(self, pair: Pair, archive: Archive) -> None:
        """Keeps what a compaction made. If it raises, the compaction does not happen."""


def tool_name(tool: Tool) -> str:
    return tool.name
