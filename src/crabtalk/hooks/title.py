"""set_title: the tool with which an agent names its conversation, so that people find it."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from crabtalk.runtime import ToolDispatch, ToolError

from .tool import AgentTool, ToolHook

SetTitleCallback = Callable[[str, str, str], Awaitable[None]]  # agent, title, sender


class SetTitleTool(AgentTool):
    """Name this conversation."""

    name: ClassVar[str] = "set_title"
    kind: ClassVar[str] = "conversation"
    title: str

    async def run(self, call: ToolDispatch, hook: "TitleHook") -> str:
        if not self.title.strip():
            raise ToolError("invalid arguments: the title is empty")
        await hook.set_title(call.agent, self.title, call.sender)
        return "ok"


class TitleHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (SetTitleTool,)

    def __init__(self, set_title: SetTitleCallback) -> None:
        self.set_title = set_title
