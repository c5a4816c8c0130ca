"""The values exchanged between the engine and a model, the same for all vendors.

No vendor's JSON is known here. The one exception are `opaque` fields: data that a vendor wants back
(such as a signature over its reasoning) is stored with a message under that vendor's kind, and only
that vendor's code reads it.
"""

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["", "stop", "length", "tool_calls", "filtered"]


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """Immutable, compared by content, encoded without default values."""


class Image(Value, frozen=True):
    """An image for the model: its bytes, or a URL the vendor can fetch it from."""

    media_type: str = "image/png"
    data: bytes = b""
    url: str = ""


class ToolCall(Value, frozen=True):
    """A tool call as the model wrote it. `arguments` is JSON text that may be invalid."""

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
    agent: str = ""  # assistant: the guest that answered; empty for the conversation's own agent
    opaque: dict[str, Any] = {}  # assistant: by provider kind


class Tool(Value, frozen=True):
    """A tool the model may call. `parameters` is a JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class Usage(Value, frozen=True):
    """Tokens of one model call. None where the vendor does not report them."""

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
    """Add two counts. An unknown count adds nothing; the sum is unknown if both are."""
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
    """A piece of the tool call number `index`. Id and name come once, arguments in pieces."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Chunk(Value, frozen=True):
    """What arrived since the last chunk. At least one field is set, often only one."""

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
    """A model that a provider offers. `context_limit` is in tokens, None if unknown."""

    name: str
    context_limit: int | None = None
