"""Tools as classes: schema, parsing and execution."""

import json
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from msgspec import Meta

from crabtalk.hooks import AgentTool, ToolHook
from crabtalk.runtime import ToolDispatch, ToolError


class Seashell(msgspec.Struct):
    colour: Annotated[str, Meta(description="as seen")]
    kind: Literal["spiral", "flat"] = "flat"


class CollectShellsTool(AgentTool):
    """Collect shells
    from the beach."""

    name: ClassVar[str] = "collect"
    shells: Annotated[list[Seashell], Meta(min_length=1)]
    limit: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    async def run(self, call: ToolDispatch, hook: Any) -> str:
        return ", ".join(shell.colour for shell in self.shells[: self.limit])


class BeachHook(ToolHook):
    tools: ClassVar[tuple[type[AgentTool], ...]] = (CollectShellsTool,)


def build_dispatch(arguments: str, name: str = "collect") -> ToolDispatch:
    return ToolDispatch(name, arguments, "c1", "crab", "user", None, None)  # type: ignore[arg-type]


@pytest.mark.req("hooks.tool.schema")
def test_the_schema_describes_the_class_without_repetition() -> None:
    (schema,) = BeachHook().schema()
    assert (schema.name, schema.description) == ("collect", "Collect shells from the beach.")
    assert schema.parameters == {
        "type": "object",
        "properties": {
            "shells": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "colour": {"type": "string", "description": "as seen"},
                        "kind": {"type": "string", "enum": ["flat", "spiral"], "default": "flat"},
                    },
                    "required": ["colour"],
                },
            },
            "limit": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["shells"],
    }


async def test_a_valid_call_is_executed() -> None:
    arguments = json.dumps({"shells": [{"colour": "red"}, {"colour": "blue"}], "limit": 1})
    work = BeachHook().dispatch(build_dispatch(arguments))
    assert work is not None
    assert await work == "red"


@pytest.mark.req("hooks.tool.arguments")
@pytest.mark.parametrize(
    "arguments", ["", "{}", "nonsense", "[]", '{"shells": []}', '{"shells": 1}']
)
async def test_an_invalid_call_is_refused_with_the_reason(arguments: str) -> None:
    work = BeachHook().dispatch(build_dispatch(arguments))
    assert work is not None
    with pytest.raises(ToolError, match=r"^invalid arguments: "):
        await work


def test_calls_of_other_hooks_tools_are_ignored() -> None:
    assert BeachHook().dispatch(build_dispatch("{}", "other")) is None
