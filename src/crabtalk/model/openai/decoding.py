"""Decodes the events of a streamed chat completion to chunks."""

from typing import Any

import msgspec

from crabtalk.model.errors import ApiError, ErrorKind
from crabtalk.model.messages import Chunk, FinishReason, ToolCallDelta, Usage
from crabtalk.model.response_reading import decode_json
from crabtalk.model.sse import SseDecoder

from .errors import read_stream_error

FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "filtered",
}


class OpenAiDelta(msgspec.Struct, gc=False):
    """The delta of an event. Of fields other than the text only the presence is checked."""

    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class OpenAiChoice(msgspec.Struct, gc=False):
    delta: OpenAiDelta
    finish_reason: Any = None


class OpenAiEvent(msgspec.Struct, gc=False):
    choices: tuple[OpenAiChoice]
    usage: Any = None
    error: Any = None


class OpenAiDecoder:
    """Decodes `data:` lines of JSON up to `[DONE]`, which some servers omit."""

    _text_event_decoder = msgspec.json.Decoder(OpenAiEvent)

    def __init__(self) -> None:
        self._events = SseDecoder()
        self._start = b""
        self._finished = False
        self.is_over = False  # [DONE] has arrived; later data is ignored
        self._indexes: dict[str, int] = {}  # call id → index, if the server sends no indexes

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        if self.is_over:
            return chunks
        self._start = self._start or data[:80].lstrip()
        for name, event in self._events.feed(data):
            if event == b"[DONE]":
                self._finished = self.is_over = True
                break
            chunk = self._read(name, event)
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def end(self) -> list[Chunk]:
        chunks = self.feed(b"\n\n")  # some servers omit the last blank line
        if not self._finished:
            raise self._build_incomplete_error()
        return chunks

    def _build_incomplete_error(self) -> ApiError:
        if self._start.startswith((b"{", b"[", b"<")):
            start = self._start.decode(errors="replace")
            return ApiError(
                ErrorKind.PROTOCOL, f"answered with no stream, but with {start!r}; check base_url"
            )
        return ApiError(ErrorKind.CONNECTION, "the stream ended before the answer did")

    def _read(self, name: str, event: bytes) -> Chunk | None:
        return self._read_text_event(name, event) or self._read_any_event(name, event)

    def _read_text_event(self, name: str, event: bytes) -> Chunk | None:
        """Decode an event that is only a piece of text, as most are. Decoding it to a fixed type
        costs a third of decoding it to any JSON."""
        try:
            event_data = self._text_event_decoder.decode(event)
        except (ValueError, RecursionError):
            return None
        choice = event_data.choices[0]
        delta = choice.delta
        if (
            not delta.content
            or choice.finish_reason
            or event_data.usage
            or event_data.error
            or delta.reasoning_content
            or delta.reasoning
            or delta.tool_calls
            or name == "error"
        ):
            return None
        return Chunk(delta.content)

    def _read_any_event(self, name: str, event: bytes) -> Chunk | None:
        document = decode_json(event)
        if not isinstance(document, dict):
            raise ApiError(ErrorKind.PROTOCOL, "the stream holds something other than objects")
        if name == "error" or document.get("error"):
            raise read_stream_error(document)
        try:
            return self._build_chunk(document)
        except (AttributeError, KeyError, TypeError):  # JSON of another form
            start = event[:80].decode(errors="replace")
            raise ApiError(
                ErrorKind.PROTOCOL, f"the stream is not one of this kind: {start!r}; check base_url"
            ) from None

    def _build_chunk(self, document: dict[str, Any]) -> Chunk | None:
        usage = read_usage(document.get("usage"))
        choices = document.get("choices")
        if not choices:
            return Chunk(usage=usage) if usage is not None else None
        choice = choices[0]
        delta = choice.get("delta") or {}
        finish = choice.get("finish_reason")
        if finish:
            self._finished = True
        text = delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        calls = delta.get("tool_calls")
        if not (text or reasoning or calls or finish or usage):
            return None
        if type(text) is not str or type(reasoning) is not str:
            raise TypeError
        return Chunk(
            text=text,
            reasoning=reasoning,
            tool_calls=self._read_calls(calls) if calls else (),
            finish=FINISHES.get(finish, "stop") if finish else "",
            usage=usage,
        )

    def _read_calls(self, calls: list[dict[str, Any]]) -> tuple[ToolCallDelta, ...]:
        return tuple(
            ToolCallDelta(
                index=self._find_index(call),
                id=get_text(call, "id"),
                name=get_text(function := call.get("function") or {}, "name"),
                arguments=get_text(function, "arguments"),
            )
            for call in calls
        )

    def _find_index(self, call: dict[str, Any]) -> int:
        index = call.get("index")
        if isinstance(index, int):
            return index
        return self._indexes.setdefault(get_text(call, "id"), len(self._indexes))


def get_text(part: dict[str, Any], name: str) -> str:
    text = part.get(name) or ""
    if type(text) is not str:
        raise TypeError
    return text


def read_usage(usage: Any) -> Usage | None:
    """Read the usage. Values that are not numbers are ignored: the answer is worth more than its
    usage."""
    if not isinstance(usage, dict):
        return None
    prompt = get_count(usage, "prompt_tokens") or 0
    completion = get_count(usage, "completion_tokens") or 0
    hit = get_count(usage.get("prompt_tokens_details"), "cached_tokens")
    if hit is None:
        hit = get_count(usage, "prompt_cache_hit_tokens")  # DeepSeek's name for it
    return Usage(
        prompt=prompt,
        completion=completion,
        total=get_count(usage, "total_tokens") or prompt + completion,
        cache_hit=hit,
        cache_miss=None if hit is None else max(prompt - hit, 0),
        reasoning=get_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def get_count(numbers: Any, name: str) -> int | None:
    value = numbers.get(name) if isinstance(numbers, dict) else None
    return int(value) if isinstance(value, int | float) else None
