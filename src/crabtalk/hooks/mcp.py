"""The mcp hook: each tool of each server an agent declared, as a tool of its own (RFC 0193).

What servers are, and how they are reached, is not known here. The tool `mcp` of older agents, which
calls any of them by name, is carried out but not offered.
"""

import json
from collections.abc import Awaitable, Callable, Collection

from crabtalk.mcp import McpCallError, McpImage, McpProgress, McpServerManager, ServerTool
from crabtalk.model import Image
from crabtalk.model import Tool as Schema
from crabtalk.runtime import Hook, ToolAccess, ToolDispatch, ToolError, ToolOutput, ToolProgress
from crabtalk.storage import Agent

from .image_info import detect_image

META_TOOL = "mcp"


class McpHook(Hook):
    """`taken` are the names of all tools that are no server's."""

    def __init__(
        self, mcp: McpServerManager, taken: Callable[[], Collection[str]] = frozenset
    ) -> None:
        self._mcp = mcp
        self._get_reserved_names = taken
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
            for known in self._list_offered(agent)
        ]

    def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
        """A server that is declared may be used: the declaration is the gate (RFC 0082)."""
        names = [
            name for known in self._list_offered(agent) for name in (known.name, known.full_name)
        ]
        line = f"mcp servers: {', '.join(server.name for server in agent.mcps)}"
        return [*dict.fromkeys(names), META_TOOL], line if agent.mcps else None

    def names_of_call(self, call: ToolDispatch) -> tuple[str, ...]:
        known = self._find_tool(call)
        if known is not None:
            return known.names
        return (META_TOOL,) if self._is_meta_call(call) else ()

    def _list_offered(self, agent: Agent) -> list[ServerTool]:
        return [
            known
            for known in self._mcp.get_toolbox(agent, self._get_reserved_names()).offered
            if known.name
        ]

    def _is_meta_call(self, call: ToolDispatch) -> bool:
        return call.name == META_TOOL and META_TOOL not in self._get_reserved_names()

    def _find_tool(self, call: ToolDispatch) -> ServerTool | None:
        """The tool a call means, directly or through `mcp`."""
        agent = self._agents.get(call.agent)
        if agent is None:
            return None
        name = parse_meta_call(call)[0] if self._is_meta_call(call) else call.name
        return self._mcp.get_toolbox(agent, self._get_reserved_names()).find(name)

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    def on_register_agent(self, name: str, agent: Agent) -> None:
        self._agents[name] = agent
        self._mcp.declare(name, agent.mcps)

    def on_unregister_agent(self, name: str) -> None:
        self._agents.pop(name, None)
        self._mcp.release(name)

    async def prepare(self, agent: Agent) -> None:
        await self._mcp.wait_until_settled(agent.name)

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    def tool_names(self, agent: Agent, name: str) -> tuple[str, ...]:
        known = self._mcp.get_toolbox(agent, self._get_reserved_names()).find(name)
        return known.names if known is not None else (name,)

    def tool_kind(self, name: str) -> str:
        return "mcp"

    def describe_access(self, call: ToolDispatch) -> ToolAccess:
        known = self._find_tool(call)
        return ToolAccess("mcp", known.full_name if known is not None else "")

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        known = self._find_tool(call)
        if known is not None:
            arguments = parse_meta_call(call)[1] if self._is_meta_call(call) else call.arguments
            return self._call_tool(known, arguments, call)
        return self._list_tools(call) if self._is_meta_call(call) else None

    async def _call_tool(
        self, known: ServerTool, arguments: str, call: ToolDispatch
    ) -> str | ToolOutput:
        """Cancelled, the server is told that nobody waits any more."""

        def progressed(word: McpProgress) -> None:
            call.run.emit(ToolProgress(call.call_id, word.text, word.progress, word.total))

        try:
            result = await self._mcp.call(
                known.peer, known.tool.name, encode_arguments(arguments), progressed
            )
        except McpCallError as error:
            raise ToolError(f"mcp call failed: {error}") from None
        if result.is_error:
            raise ToolError(f"mcp tool error: {result.text}")
        return build_tool_output(result.text, result.pictures)

    async def _list_tools(self, call: ToolDispatch) -> str:
        if name := parse_meta_call(call)[0]:
            raise ToolError(f"tool not available: {name}")
        agent = self._agents.get(call.agent)
        known = self._list_offered(agent) if agent is not None else []
        lines = [f"{one.name}: {' '.join(one.tool.description.split())}" for one in known]
        return "\n".join(lines) or "no tools found"


def parse_meta_call(call: ToolDispatch) -> tuple[str, str]:
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


def encode_arguments(arguments: str) -> bytes:
    """As strict JSON: models also write NaN, and escapes of half a character."""
    try:
        found = json.loads(arguments or "{}")
        text = json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolError(f"invalid arguments: {error}") from None
    if not isinstance(found, dict):
        raise ToolError("invalid arguments: they must be a JSON object")
    return text


def build_tool_output(text: str, pictures: Collection[McpImage]) -> str | ToolOutput:
    """Images that a model takes, and a line about each."""
    lines = [text] if text else []
    images = []
    for picture in pictures:
        found = detect_image(picture.data)
        if found is None:
            lines.append(f"[image: {picture.media_type}, of a kind that cannot be shown]")
        elif not found.is_fit(len(picture.data)):
            lines.append(f"[{found}, too large to be shown]")
        else:
            lines.append(f"[{found}]")
            images.append(Image(found.media_type, picture.data))
    said = "\n".join(lines)
    return ToolOutput(said, tuple(images)) if images else said
