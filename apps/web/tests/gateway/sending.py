"""A tool that sends files, as an agent may have one; the gateway does the sending."""

from typing import ClassVar

from crabtalk.hooks.tool import Tool, ToolHook
from crabtalk.runtime import ToolDispatch, ToolError


class SendFile(Tool):
    """Send a file to the person."""

    name: ClassVar[str] = "send_file"
    path: str

    async def run(self, call: ToolDispatch, hook: "Sending") -> str:
        if self.path == "refused":
            raise ToolError("permission denied: not this one")
        return "sent"


class Sending(ToolHook):
    tools: ClassVar[tuple[type[Tool], ...]] = (SendFile,)
