"""The mcp hook: each tool of each server an agent declared, as a tool of its own (RFC 0193).

What servers are, and how they are reached, is not known here. The tool `mcp` of older agents, which
calls any of them by name, is carried out but not offered.
"""

import json
from collections.abc import Awaitable, Callable, Collection

from crabtalk.mcp import Known, Mcp, McpCallError, Picture, Progress
from crabtalk.model import Image
from crabtalk.model import Tool as Schema
from crabtalk.runtime import Access, Hook, ToolDispatch, ToolError, ToolOutput, ToolProgress
from crabtalk.storage import Agent

from .images import picture_of

META = "mcp"


class McpHook(Hook):
    """`taken` are the names of all tools that are no server's."""

    def __init__(self, mcp: Mcp, taken: Callable[[], Collection[str]] = frozenset) -> None:
        self._mcp = mcp
        self._taken = taken
        self._agents: dict[str, Agent] = {}

    # ── What there is ───────────────────────────────────────────────────────────────────────

    def agent_tools(self, agent: Agent) -> list[Schema]:
        return [
            Schema(
                known.name,
                known.tool.description
                or known.tool.title
                or f"{known.tool.name} of {known.server}",
                known.tool.parameters,
            )
            for known in self._offered(agent)
        ]

    def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
        """A server that is declared may be used: the declaration is the gate (RFC 0082)."""
        names = [name for known in self._offered(agent) for name in (known.name, known.full_name)]
        line = f"mcp servers: {', '.join(server.name for server in agent.mcps)}"
        return [*dict.fromkeys(names), META], line if agent.mcps else None

    def names_of(self, call: ToolDispatch) -> tuple[str, ...]:
        known = self._find(call)
        if known is not None:
            return known.names
        return (META,) if self._is_meta(call) else ()

    def _offered(self, agent: Agent) -> list[Known]:
        return [known for known in self._mcp.toolbox(agent, self._taken()).offered if known.name]

    def _is_meta(self, call: ToolDispatch) -> bool:
        return call.name == META and META not in self._taken()

    def _find(self, call: ToolDispatch) -> Known | None:
        """The tool a call means, directly or through `mcp`."""
        agent = self._agents.get(call.agent)
        if agent is None:
            return None
        name = meta_of(call)[0] if self._is_meta(call) else call.name
        return self._mcp.toolbox(agent, self._taken()).find(name)

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self._agents[name] = agent
        self._mcp.declare(name, agent.mcps)

    def on_unregister_agent(self, name: str) -> None:
        self._agents.pop(name, None)
        self._mcp.release(name)

    async def prepare(self, agent: Agent) -> None:
        await self._mcp.settled(agent.name)

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    def tool_names(self, agent: Agent, name: str) -> tuple[str, ...]:
        known = self._mcp.toolbox(agent, self._taken()).find(name)
        return known.names if known is not None else (name,)

    def tool_kind(self, name: str) -> str:
        return "mcp"

    def access(self, call: ToolDispatch) -> Access:
        known = self._find(call)
        return Access("mcp", known.full_name if known is not None else "")

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        known = self._find(call)
        if known is not None:
            arguments = meta_of(call)[1] if self._is_meta(call) else call.arguments
            return self._call(known, arguments, call)
        return self._list(call) if self._is_meta(call) else None

    async def _call(self, known: Known, arguments: str, call: ToolDispatch) -> str | ToolOutput:
        """Cancelled, the server is told that nobody waits any more."""

        def progressed(word: Progress) -> None:
            call.run.emit(ToolProgress(call.call_id, word.text, word.progress, word.total))

        try:
            result = await self._mcp.call(
                known.peer, known.tool.name, object_in(arguments), progressed
            )
        except McpCallError as error:
            raise ToolError(f"mcp call failed: {error}") from None
        if result.is_error:
            raise ToolError(f"mcp tool error: {result.text}")
        return shown(result.text, result.pictures)

    async def _list(self, call: ToolDispatch) -> str:
        if name := meta_of(call)[0]:
            raise ToolError(f"tool not available: {name}")
        agent = self._agents.get(call.agent)
        known = self._offered(agent) if agent is not None else []
        lines = [f"{one.name}: {' '.join(one.tool.description.split())}" for one in known]
        return "\n".join(lines) or "no tools found"


def meta_of(call: ToolDispatch) -> tuple[str, str]:
    """Name and arguments that a call of `mcp` is about."""
    try:
        given = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(given, dict):
        return "", ""
    arguments = given.get("args") or ""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return str(given.get("name") or ""), text


def object_in(arguments: str) -> bytes:
    """As strict JSON: models also write NaN, and escapes of half a character."""
    try:
        found = json.loads(arguments or "{}")
        text = json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolError(f"invalid arguments: {error}") from None
    if not isinstance(found, dict):
        raise ToolError("invalid arguments: they must be a JSON object")
    return text


def shown(text: str, pictures: Collection[Picture]) -> str | ToolOutput:
    """Images that a model takes, and a line about each."""
    lines = [text] if text else []
    images = []
    for picture in pictures:
        found = picture_of(picture.data)
        if found is None:
            lines.append(f"[image: {picture.media_type}, of a kind that cannot be shown]")
        elif not found.is_fit(len(picture.data)):
            lines.append(f"[{found}, too large to be shown]")
        else:
            lines.append(f"[{found}]")
            images.append(Image(found.media_type, picture.data))
    said = "\n".join(lines)
    return ToolOutput(said, tuple(images)) if images else said
