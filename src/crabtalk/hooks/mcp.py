"""McpHook: offers each tool of the MCP servers an agent declares as a tool of its own (RFC 0193).

crabtalk.mcp knows the servers and how to reach them. The older tool `mcp`, which calls any server
tool by name, still works but is not offered to models.
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
    """`taken` returns the names of all tools that do not come from a server."""

    def __init__(
        self, mcp: McpServerManager, taken: Callable[[], Collection[str]] = frozenset
    ) -> None:
        self._mcp = mcp
        self._get_reserved_names = taken
        self._agents: dict[str, Agent] = {}

    # ── Tools ───────────────────────────────────────────────────────────────────────────────

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
        """Allow all tools of declared servers: declaring a server grants its use (RFC 0082)."""
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
        """Return the server tool a call names, directly or through `mcp`."""
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
        """Call the tool. When this is cancelled, the server receives a cancellation."""

        def report_progress(progress: McpProgress) -> None:
            call.run.emit(
                ToolProgress(call.call_id, progress.text, progress.progress, progress.total)
            )

        try:
            result = await self._mcp.call(
                known.peer, known.tool.name, encode_arguments(arguments), report_progress
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
        lines = [f"{tool.name}: {' '.join(tool.tool.description.split())}" for tool in known]
        return "\n".join(lines) or "no tools found"


def parse_meta_call(call: ToolDispatch) -> tuple[str, str]:
    """Return the tool name and the arguments inside a call of `mcp`; both empty if unreadable."""
    try:
        parsed = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(parsed, dict):
        return "", ""
    arguments = parsed.get("args") or ""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return str(parsed.get("name") or ""), text


def encode_arguments(arguments: str) -> bytes:
    """Encode as strict JSON. Models also write NaN and lone surrogates, which are refused."""
    try:
        parsed = json.loads(arguments or "{}")
        text = json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolError(f"invalid arguments: {error}") from None
    if not isinstance(parsed, dict):
        raise ToolError("invalid arguments: they must be a JSON object")
    return text


def build_tool_output(text: str, pictures: Collection[McpImage]) -> str | ToolOutput:
    """Return the text, a line about each image, and the images that a model accepts."""
    lines = [text] if text else []
    images = []
    for picture in pictures:
        info = detect_image(picture.data)
        if info is None:
            lines.append(f"[image: {picture.media_type}, of a kind that cannot be shown]")
        elif not info.is_fit(len(picture.data)):
            lines.append(f"[{info}, too large to be shown]")
        else:
            lines.append(f"[{info}]")
            images.append(Image(info.media_type, picture.data))
    output = "\n".join(lines)
    return ToolOutput(output, tuple(images)) if images else output
