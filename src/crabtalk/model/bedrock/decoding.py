"""Decodes the events of a Bedrock answer to chunks."""

import base64
from typing import Any

import msgspec

from crabtalk.model.bedrock.event_stream import EventStreamDecoder, EventStreamMessage
from crabtalk.model.errors import ApiError, ErrorKind
from crabtalk.model.messages import Chunk, FinishReason, ToolCallDelta, Usage
from crabtalk.model.response_reading import build_usage

from .errors import read_stream_error
from .model_families import OPAQUE_KEY

FINISHES: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "filtered",
    "content_filtered": "filtered",
}


class BedrockStruct(msgspec.Struct, rename="camel"):
    """A piece of Bedrock's JSON. Unknown fields are ignored."""


class BedrockToolStart(BedrockStruct):
    tool_use_id: str = ""
    name: str = ""


class BedrockBlockStart(BedrockStruct):
    tool_use: BedrockToolStart | None = None


class BedrockToolDelta(BedrockStruct):
    input: str = ""


class BedrockThoughtDelta(BedrockStruct):
    text: str = ""
    signature: str = ""
    redacted_content: bytes = b""


class BedrockDelta(BedrockStruct):
    text: str = ""
    tool_use: BedrockToolDelta | None = None
    reasoning_content: BedrockThoughtDelta | None = None


class BedrockTokenUsage(BedrockStruct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None


class BedrockPayload(BedrockStruct):
    """The payload of any event. Which fields are set depends on its type."""

    content_block_index: int = 0
    start: BedrockBlockStart | None = None
    delta: BedrockDelta | None = None
    stop_reason: str = ""
    usage: BedrockTokenUsage | None = None


PAYLOAD_DECODER = msgspec.json.Decoder(BedrockPayload)
EVENT_TYPES = frozenset(
    {"contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)


class BedrockBlock:
    """A content block that is being received: text, a call, or a thought."""

    __slots__ = ("call", "length", "redacted", "signature", "thoughts")

    def __init__(self) -> None:
        self.call: str | None = None  # its id
        self.length = 0  # of its text
        self.thoughts: list[str] = []
        self.signature = ""
        self.redacted = b""

    def build_layout_entry(self) -> dict[str, Any] | None:
        """Return its entry in the layout. None for an unsigned thought: it is not sent back."""
        if self.call is not None:
            return {"toolUse": self.call}
        if self.redacted:
            data = base64.b64encode(self.redacted).decode()
            return {"reasoningContent": {"redactedContent": data}}
        if self.signature:
            thought = {"text": "".join(self.thoughts), "signature": self.signature}
            return {"reasoningContent": {"reasoningText": thought}}
        return {"text": self.length} if self.length else None


class BedrockDecoder:
    """Decodes events up to `messageStop`, and the usage after it.

    The layout of an answer with a signed thought is stored in `opaque`: one entry for each block,
    in order. An entry for a thought is the block itself; an entry for text or a call only says
    which part of the message it is, since the message contains it.
    """

    def __init__(self, model: str) -> None:
        self.is_over = False  # Bedrock sends no end marker
        self._events = EventStreamDecoder()
        self._model = model
        self._blocks: dict[int, BedrockBlock] = {}
        self._calls: dict[int, int] = {}  # block index → call number
        self._stopped = False

    def feed(self, data: bytes) -> list[Chunk]:
        return [
            chunk
            for message in self._events.feed(data)
            if (chunk := self._read(message)) is not None
        ]

    def end(self) -> list[Chunk]:
        if not self._stopped or not self._events.is_between_messages:
            raise ApiError(ErrorKind.CONNECTION, "the stream ended before the answer did")
        return []

    def _read(self, message: EventStreamMessage) -> Chunk | None:
        if message.headers.get(":message-type") != "event":
            raise read_stream_error(message)
        if (event := message.headers.get(":event-type")) not in EVENT_TYPES:
            return None
        try:
            payload = PAYLOAD_DECODER.decode(message.payload)
        except (
            ValueError,
            RecursionError,
        ) as error:  # not JSON, UTF-8 or this type; or nested too deeply
            raise ApiError(ErrorKind.PROTOCOL, f"{event} cannot be read: {error}") from None
        index = payload.content_block_index
        if payload.delta is not None:
            return self._delta(index, payload.delta)
        if payload.start is not None and payload.start.tool_use is not None:
            return self._start(index, payload.start.tool_use)
        if event == "contentBlockStop":
            return self._block_stop(index)
        if event == "messageStop":
            self._stopped = True
            return Chunk(
                finish=parse_finish_reason(payload.stop_reason), opaque=self._build_opaque()
            )
        return Chunk(usage=read_usage(payload.usage)) if payload.usage is not None else None

    def _start(self, index: int, call: BedrockToolStart) -> Chunk:
        self._get_block(index).call = call.tool_use_id
        number = self._calls.setdefault(index, len(self._calls))
        return Chunk(tool_calls=(ToolCallDelta(number, call.tool_use_id, call.name),))

    def _delta(self, index: int, delta: BedrockDelta) -> Chunk | None:
        block = self._get_block(index)
        if delta.text:
            block.length += len(delta.text)
            return Chunk(text=delta.text)
        if delta.tool_use is not None and delta.tool_use.input:
            number = self._calls.setdefault(index, len(self._calls))
            return Chunk(tool_calls=(ToolCallDelta(number, arguments=delta.tool_use.input),))
        if (thought := delta.reasoning_content) is not None:
            block.signature += thought.signature
            block.redacted += thought.redacted_content
            if thought.text:
                block.thoughts.append(thought.text)
                return Chunk(reasoning=thought.text)
        return None

    def _block_stop(self, index: int) -> Chunk | None:
        block = self._blocks.get(index)
        if block is None or not (block.signature or block.redacted):
            return None
        return Chunk(opaque=self._build_opaque())  # now, so that an interruption does not lose it

    def _get_block(self, index: int) -> BedrockBlock:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = BedrockBlock()
        return block

    def _build_opaque(self) -> dict[str, Any]:
        layout = [entry for block in self._blocks.values() if (entry := block.build_layout_entry())]
        if not any("reasoningContent" in entry for entry in layout):
            return {}
        return {OPAQUE_KEY: {"model": self._model, "layout": layout}}


def parse_finish_reason(reason: str) -> FinishReason:
    if reason.startswith("malformed"):  # malformed_model_output, malformed_tool_use
        raise ApiError(ErrorKind.SERVER, f"the model's answer came out broken ({reason})")
    return FINISHES.get(reason, "stop")


def read_usage(usage: BedrockTokenUsage) -> Usage:
    return build_usage(
        fresh=usage.input_tokens,
        cached=usage.cache_read_input_tokens,
        stored=usage.cache_write_input_tokens or 0,
        completion=usage.output_tokens,
    )


def is_usable_model(entry: dict[str, Any]) -> bool:
    """Whether a model outputs text, can stream, and is available without provisioned capacity."""
    inference_types = entry.get("inferenceTypesSupported") or []
    return (
        isinstance(entry.get("modelId"), str)
        and ("ON_DEMAND" in inference_types or "INFERENCE_PROFILE" in inference_types)
        and "TEXT" in (entry.get("outputModalities") or [])
        and entry.get("responseStreamingSupported") is True
    )
