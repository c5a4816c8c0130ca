"""The values that flow between the engine and a model, whoever the vendor is.

Nothing here knows a vendor's JSON. `opaque` fields are the one concession: what a vendor wants to
see again (a signature over its reasoning, say) travels with a message under that vendor's kind,
and nobody else looks inside.
"""

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["", "stop", "length", "tool_calls", "filtered"]


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """Immutable, compared by content, encoded without what is at its default."""


class Image(Value, frozen=True):
    """An image somebody shows the model: its bytes, or where a vendor can fetch it."""

    media_type: str = "image/png"
    data: bytes = b""
    url: str = ""


class ToolCall(Value, frozen=True):
    """A call as the model made it. `arguments` is JSON text, valid or not."""

    id: str
    name: str
    arguments: str = ""


class Message(Value, frozen=True):
    """One entry of a history. Which fields make sense depends on the role."""

    role: Role
    text: str = ""
    images: tuple[Image, ...] = ()  # user, tool
    reasoning: str = ""  # assistant
    tool_calls: tuple[ToolCall, ...] = ()  # assistant
    call_id: str = ""  # tool: the call this answers
    name: str = ""  # tool: the tool that was called
    is_error: bool = False  # tool
    agent: str = ""  # assistant: the guest that spoke; empty for the conversation's own agent
    opaque: dict[str, Any] = {}  # assistant: by provider kind


class Tool(Value, frozen=True):
    """What a model may call. `parameters` is a JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class Usage(Value, frozen=True):
    """Tokens of one model call. None where the vendor does not say."""

    prompt: int = 0
    completion: int = 0
    total: int = 0
    cache_hit: int | None = None
    cache_miss: int | None = None
    reasoning: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            total=self.total + other.total,
            cache_hit=add_counts(self.cache_hit, other.cache_hit),
            cache_miss=add_counts(self.cache_miss, other.cache_miss),
            reasoning=add_counts(self.reasoning, other.reasoning),
        )


def add_counts(left: int | None, right: int | None) -> int | None:
    """The sum of what is known; unknown only when both are."""
    if left is None or right is None:
        return left if right is None else right
    return left + right


class Request(Value, frozen=True):
    """One call of a model."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"  # "auto", "none", "required", or the name of a tool
    thinking: bool = False
    max_tokens: int | None = None
    temperature: float | None = None


class ToolCallDelta(Value, frozen=True):
    """A piece of a tool call. `index` says of which; id and name come once, arguments in pieces."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Chunk(Value, frozen=True):
    """What arrived since the last chunk. Often one field, never none."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish: FinishReason = ""
    usage: Usage | None = None
    opaque: dict[str, Any] = {}  # merged into the message's


class Response(Value, frozen=True):
    """A complete answer."""

    message: Message
    finish: FinishReason
    usage: Usage
    model: str


class ModelInfo(Value, frozen=True):
    """A model a provider offers. `context_limit` in tokens, None when unknown."""

    name: str
    context_limit: int | None = None
