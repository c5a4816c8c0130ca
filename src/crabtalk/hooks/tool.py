"""AgentTool and ToolHook: tools as classes, whose fields are the parameters a model passes.

One class is schema, parser and code, so the three cannot disagree. A ToolHook owns a few of them.
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
    # The kind of access (see crabtalk.policy.defaults), and the argument that names its target.
    kind: ClassVar[str] = "other"
    target: ClassVar[str] = ""

    async def run(self, call: ToolDispatch, hook: Any) -> str | ToolOutput:
        """Execute the call and return the output for the agent. Raises ToolError."""
        raise NotImplementedError

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """Raises ToolError if the arguments do not fit the schema."""
        try:
            return msgspec.json.decode(arguments or "{}", type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ToolError(f"invalid arguments: {error}") from None


@cache
def build_tool_schema(tool: type[AgentTool]) -> Schema:
    """Return the schema for models. It is cached, since every request carries it."""
    text = " ".join((tool.__doc__ or "").split())
    return Schema(name=tool.name, description=text, parameters=build_parameters_schema(tool))


class ToolHook(Hook):
    """A hook made of tools. It holds the state they share."""

    tools: ClassVar[tuple[type[AgentTool], ...]] = ()

    def schema(self) -> list[Schema]:
        return [build_tool_schema(tool) for tool in self.tools]

    def tool_kind(self, name: str) -> str:
        return next((tool.kind for tool in self.tools if tool.name == name), "other")

    def describe_access(self, call: ToolDispatch) -> ToolAccess:
        """Return the kind and target of a call. A call that does not parse has no target: it fails
        before it does anything."""
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
