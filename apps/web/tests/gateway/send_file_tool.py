"""A tool with which an agent sends files; the gateway does the sending."""

from typing import ClassVar

from crabtalk.hooks.tool import AgentTool, ToolHook
from crabtalk.runtime import ToolDispatch, ToolError


class WebSendFileTool(AgentTool):
    """Send a file to the person."""

    name: ClassVar[str] = "send_file"
    path: str

    async def run(self, call: ToolDispatch, hook: "WebSendFileHook") -> str:
        if self.path == "refused":
            raise ToolError("permission denied: not this one")
        return "sent"


class WebSendFileHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (WebSendFileTool,)
