"""The search component: `search` and `fetch` as tools of an MCP server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crabtalk.service import ComponentPaths, McpService
from crabtalk.transport import default_home

from .config import SearchConfig, load_config, warn_of_unknown_keys

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from .tools import SearchTools

NAME = "search"
DESCRIPTION = "Web search and readable pages for agents"


def make_service(home: Path | None = None) -> McpService:
    """Raises SearchConfigError when its configuration cannot be read."""
    config = load_config(find_config_path(home))
    return McpService(NAME, DESCRIPTION, partial(make_server, config))


def find_config_path(home: Path | None) -> Path:
    return ComponentPaths(home or default_home(), NAME).config_path


def make_server(config: SearchConfig) -> "MCPServer[SearchTools]":
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
    from mcp.types import CallToolResult, TextContent, ToolAnnotations

    from .errors import FetchError, SearchError
    from .tools import SearchTools, open_tools, to_json

    warn_of_unknown_keys(config)

    @asynccontextmanager
    async def lifespan(_: MCPServer[SearchTools]) -> AsyncIterator[SearchTools]:
        async with open_tools(config) as tools:
            yield tools

    server = MCPServer(NAME, instructions=DESCRIPTION, lifespan=lifespan)
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=True)

    def answer(text: str, *, is_error: bool = False) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)

    @server.tool(annotations=read_only)
    async def search(
        query: str, context: Context[SearchTools, object], page: int | None = 0
    ) -> CallToolResult:
        """Search the web with several engines at once. Page 0 holds the best results."""
        tools = context.request_context.lifespan_context
        try:
            return answer(to_json(await tools.search(query, page or 0)))
        except SearchError as error:
            return answer(str(error), is_error=True)

    @server.tool(annotations=read_only)
    async def fetch(url: str, context: Context[SearchTools, object]) -> CallToolResult:
        """Read a web page as Markdown. Only public http and https addresses."""
        tools = context.request_context.lifespan_context
        try:
            return answer(to_json(await tools.fetch(url)))
        except FetchError as error:
            return answer(str(error), is_error=True)

    return server
