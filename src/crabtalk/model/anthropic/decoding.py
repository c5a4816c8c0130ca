"""Decodes the events of an Anthropic answer to chunks."""

from collections.abc import Mapping
from typing import Any

import msgspec

from crabtalk.model.errors import ApiError, ErrorKind
from crabtalk.model.messages import Chunk, FinishReason, ToolCallDelta, Usage
from crabtalk.model.response_reading import build_usage, decode_json
from crabtalk.model.sse import SseDecoder

from .errors import read_stream_error
from .generations import OPAQUE_KEY, THINKING_BLOCKS

FINISHES: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "filtered",
}


class AnthropicDecoder:
    """Decodes named events up to `message_stop`. Unknown events, blocks and deltas are ignored.

    The layout of an answer with thinking is stored in `opaque`: one entry for each block, in order.
    An entry for thinking is the block itself; an entry for text or a call only says which part of
    the message it is, since the message contains it.
    """

    def __init__(self) -> None:
        self._events = SseDecoder()
        self.is_over = False
        self._usage: dict[str, int] = {}
        self._open: dict[int, AnthropicBlock] = {}  # by the vendor's index
        self._layout: list[AnthropicBlock] = []
        self._calls = 0

    def feed(self, data: bytes) -> list[Chunk]:
        return [
            chunk
            for name, event in self._events.feed(data)
            if (chunk := self._read(name, event)) is not None
        ]

    def end(self) -> list[Chunk]:
        chunks = [
            chunk
            for name, event in self._events.end()
            if (chunk := self._read(name, event)) is not None
        ]
        if not self.is_over:
            raise ApiError(ErrorKind.CONNECTION, "the stream ended before the answer did")
        return chunks

    def _read(self, name: str, event: bytes) -> Chunk | None:
        if name and name not in EVENT_NAMES:
            return None
        document = decode_json(event)
        if not isinstance(document, dict):
            raise ApiError(ErrorKind.PROTOCOL, "the stream holds something other than objects")
        match "error" if name == "error" else document.get("type"):
            case "content_block_delta":
                return self._delta(document)
            case "content_block_start":
                return self._start(document)
            case "content_block_stop":
                return self._stop(document)
            case "message_start":
                self._count_tokens(get_object(document, "message"))
            case "message_delta":
                return self._read_message_delta(document)
            case "message_stop":
                self.is_over = True
            case "error":
                raise read_stream_error(event)
        return None

    def _start(self, document: dict[str, Any]) -> Chunk | None:
        content_block = get_object(document, "content_block")
        block = AnthropicBlock(content_block)
        if block.kind not in BLOCK_TYPES:
            return None
        self._open[get_index(document)] = block
        self._layout.append(block)
        if block.kind == "text" and (text := get_text(content_block, "text")):
            return block.add_text(text)
        if block.kind == "thinking" and (thought := get_text(content_block, "thinking")):
            return block.add_thought(thought)
        if block.kind == "tool_use":
            block.call = self._calls
            self._calls += 1
            call_id, name = get_text(content_block, "id"), get_text(content_block, "name")
            return Chunk(tool_calls=(ToolCallDelta(block.call, call_id, name),))
        return None

    def _delta(self, document: dict[str, Any]) -> Chunk | None:
        block = self._open.get(get_index(document))
        if block is None:
            return None
        delta = get_object(document, "delta")
        match delta.get("type"):
            case "text_delta" if text := get_text(delta, "text"):
                return block.add_text(text)
            case "thinking_delta" if thought := get_text(delta, "thinking"):
                return block.add_thought(thought)
            case "signature_delta":
                block.signature += get_text(delta, "signature")
            case "input_json_delta" if block.call is not None:
                piece = get_text(delta, "partial_json")
                return block.add_arguments(piece) if piece else None
        return None

    def _stop(self, document: dict[str, Any]) -> Chunk | None:
        block = self._open.pop(get_index(document), None)
        if block is None:
            return None
        if block.call is not None and not block.length:
            # No arguments came in deltas: they were in the start event, or there are none.
            arguments = msgspec.json.encode(get_object(block.start, "input"))
            return block.add_arguments(arguments.decode())
        if block.kind in THINKING_BLOCKS and (opaque := self._build_opaque()):
            return Chunk(opaque=opaque)  # now, so that an interruption does not lose it
        return None

    def _read_message_delta(self, document: dict[str, Any]) -> Chunk:
        self._count_tokens(document)
        reason = get_text(get_object(document, "delta"), "stop_reason")
        return Chunk(
            finish=FINISHES.get(reason, "stop") if reason else "",
            usage=read_usage(self._usage),
            opaque=self._build_opaque(),
        )

    def _count_tokens(self, document: dict[str, Any]) -> None:
        """Update the counts. They are running totals; missing ones are unchanged."""
        usage = get_object(document, "usage")
        self._usage |= {name: count for name, count in usage.items() if isinstance(count, int)}
        details = get_object(usage, "output_tokens_details")
        if isinstance(thought := details.get("thinking_tokens"), int):
            self._usage["thinking_tokens"] = thought

    def _build_opaque(self) -> dict[str, Any]:
        layout = [
            entry for block in self._layout if (entry := block.build_layout_entry()) is not None
        ]
        if not any(entry["type"] in THINKING_BLOCKS for entry in layout):
            return {}
        return {OPAQUE_KEY: layout}


BLOCK_TYPES = THINKING_BLOCKS | {"text", "tool_use"}
EVENT_NAMES = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)


class AnthropicBlock:
    """A content block that is being received. `length` counts the characters from deltas."""

    __slots__ = ("_thoughts", "call", "kind", "length", "signature", "start")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start  # the block in its start event
        self.kind = get_text(start, "type")
        self.call: int | None = None  # its number among the calls
        self.length = 0
        self.signature = get_text(start, "signature")
        self._thoughts: list[str] = []

    def add_text(self, text: str) -> Chunk:
        self.length += len(text)
        return Chunk(text=text)

    def add_thought(self, thought: str) -> Chunk:
        self._thoughts.append(thought)
        return Chunk(reasoning=thought)

    def add_arguments(self, piece: str) -> Chunk:
        self.length += len(piece)
        return Chunk(tool_calls=(ToolCallDelta(self.call or 0, arguments=piece),))

    def build_layout_entry(self) -> dict[str, Any] | None:
        """Return its entry in the layout. None for unsigned thinking: the API refuses it."""
        match self.kind:
            case "text":
                return {"type": "text", "length": self.length}
            case "tool_use":
                return {"type": "tool_use", "id": get_text(self.start, "id")}
            case "redacted_thinking":
                return {"type": "redacted_thinking", "data": get_text(self.start, "data")}
        if not self.signature:
            return None
        thinking = "".join(self._thoughts)
        return {"type": "thinking", "thinking": thinking, "signature": self.signature}


def get_object(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def get_text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def get_index(document: dict[str, Any]) -> int:
    value = document.get("index")
    return value if isinstance(value, int) else -1


def read_usage(usage: Mapping[str, int]) -> Usage:
    return build_usage(
        fresh=usage.get("input_tokens", 0),
        cached=usage.get("cache_read_input_tokens"),
        stored=usage.get("cache_creation_input_tokens", 0),
        completion=usage.get("output_tokens", 0),
        reasoning=usage.get("thinking_tokens"),
    )
