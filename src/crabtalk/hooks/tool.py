"""Tool: a class whose fields are what a model may say, and whose `run` carries it out.

One class is schema, parser and code, so that they cannot disagree. A ToolHook owns a few of them.
"""

from collections.abc import Awaitable
from functools import cache
from typing import Any, ClassVar, Self

import msgspec

from crabtalk.model import Tool as Schema
from crabtalk.runtime import Hook, ToolAccess, ToolDispatch, ToolError, ToolOutput

from .tool_schema import build_parameters_schema


class AgentTool(msgspec.Struct):
    """Subclass it: the docstring is what the model reads, fields are parameters."""

    name: ClassVar[str] = ""
    # What its calls touch (see crabtalk.policy.defaults), and the argument that says what exactly.
    kind: ClassVar[str] = "other"
    target: ClassVar[str] = ""

    async def run(self, call: ToolDispatch, hook: Any) -> str | ToolOutput:
        """Returns what the agent reads. Fails with ToolError."""
        raise NotImplementedError

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """Raises ToolError for what does not fit the schema."""
        try:
            return msgspec.json.decode(arguments or "{}", type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ToolError(f"invalid arguments: {error}") from None


@cache
def build_tool_schema(tool: type[AgentTool]) -> Schema:
    """What a model is told of it: made once, since every request carries it."""
    text = " ".join((tool.__doc__ or "").split())
    return Schema(name=tool.name, description=text, parameters=build_parameters_schema(tool))


class ToolHook(Hook):
    """A hook made of tools. State they share lives here."""

    tools: ClassVar[tuple[type[AgentTool], ...]] = ()

    def schema(self) -> list[Schema]:
        return [build_tool_schema(tool) for tool in self.tools]

    def tool_kind(self, name: str) -> str:
        return next((tool.kind for tool in self.tools if tool.name == name), "other")

    def describe_access(self, call: ToolDispatch) -> ToolAccess:
        """Arguments that do not parse touch nothing: the call fails before it does anything."""
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        if tool is None or not tool.target:
            return ToolAccess(tool.kind if tool is not None else "other")
        try:
            return ToolAccess(tool.kind, str(getattr(tool.parse(call.arguments), tool.target)))
        except ToolError:
            return ToolAccess(tool.kind)

    def dispatch(self, call: ToolDispatch) -> Awaitable[str | ToolOutput] | None:
        for tool in self.tools:
            if tool.name == call.name:
                return self._run(tool, call)
        return None

    async def _run(self, tool: type[AgentTool], call: ToolDispatch) -> str | ToolOutput:
        return await tool.parse(call.arguments).run(call, self)
