"""OpenAI's chat completions, and everything that speaks them: Ollama, LM Studio, vLLM,
llama-server, OpenRouter, crabllm and the like.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .errors import ApiError, ErrorKind, kind_of_status
from .http import Call
from .messages import (
    Chunk,
    Finish,
    Image,
    Message,
    ModelInfo,
    Request,
    Tool,
    ToolCallDelta,
    Usage,
)
from .reading import decode, error_words, http_phrase, read_retry_after
from .sse import SseDecoder

DEFAULT_BASE = "https://api.openai.com/v1"

FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "filtered",
}


class OpenAiDialect:
    """One endpoint. `base` is what stands before `/chat/completions`."""

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = base
        self._api_key = api_key
        self._official = base == DEFAULT_BASE
        # Servers that speak this dialect differ in what they know. Those that object to a word
        # are not told it again.
        self._ask_usage = True
        self._max_tokens = "max_completion_tokens" if self._official else "max_tokens"
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def chat(self, request: Request) -> Call:
        return Call(self.chat_url(request), self.headers(), msgspec.json.encode(self.body(request)))

    def chat_url(self, request: Request) -> str:
        return f"{self.base}/chat/completions"

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers

    def body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "messages": encode_messages(request.messages),
            "stream": True,
        }
        if self._ask_usage:
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [encode_tool(tool) for tool in request.tools]
            if request.tool_choice != "auto":  # which is what it is without being said
                body["tool_choice"] = encode_choice(request.tool_choice)
        if request.thinking:
            body["reasoning_effort"] = "high"
        if request.max_tokens is not None:
            body[self._max_tokens] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if self._official:
            # OpenAI caches prefixes by itself; the key sends those that share one to one place.
            body["prompt_cache_key"] = prefix_key(request)
        return body

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def decoder(self, request: Request) -> "OpenAiDecoder":
        return OpenAiDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        return read_error(status, headers, body)

    def list_models(self) -> Call:
        return Call(f"{self.base}/models", self.headers(), method="GET")

    def read_models(self, body: bytes) -> list[ModelInfo]:
        document = decode(body)
        entries = document.get("data") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ApiError(ErrorKind.PROTOCOL, "the list of models is not one; check base_url")
        found = []
        for entry in entries:
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                limit = context_of(entry)
                if limit is not None:
                    self._limits[entry["id"]] = limit
                found.append(ModelInfo(entry["id"], limit))
        return found

    def context_limit(self, model: str) -> int | None:
        return self._limits.get(model) or known_limit(model)

    def relax(self, error: ApiError) -> bool:
        if self._ask_usage and "stream_options" in error.message:
            self._ask_usage = False
            return True
        if self._max_tokens == "max_tokens" and "max_completion_tokens" in error.message:
            self._max_tokens = "max_completion_tokens"
            return True
        return False


class OpenAiDecoder:
    """`data:` lines of JSON up to `[DONE]`, which some servers forget."""

    def __init__(self) -> None:
        self._events = SseDecoder()
        self._start = b""
        self._finished = False
        self.is_over = False  # whatever comes now is no part of the answer
        self._indexes: dict[str, int] = {}  # of calls by id, where the server leaves them out

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
        chunks = self.feed(b"\n\n")  # servers that forget the last blank line are forgiven
        if not self._finished:
            raise self._unfinished()
        return chunks

    def _unfinished(self) -> ApiError:
        if self._start.startswith((b"{", b"[", b"<")):
            start = self._start.decode(errors="replace")
            return ApiError(
                ErrorKind.PROTOCOL, f"answered with no stream, but with {start!r}; check base_url"
            )
        return ApiError(ErrorKind.CONNECTION, "the stream ended before the answer did")

    def _read(self, name: str, event: bytes) -> Chunk | None:
        document = decode(event)
        if not isinstance(document, dict):
            raise ApiError(ErrorKind.PROTOCOL, "the stream holds something other than objects")
        if name == "error" or document.get("error"):
            raise stream_error(document)
        try:
            return self._chunk(document)
        except (AttributeError, KeyError, TypeError):  # JSON, though of another form
            start = event[:80].decode(errors="replace")
            raise ApiError(
                ErrorKind.PROTOCOL, f"the stream is not one of this kind: {start!r}; check base_url"
            ) from None

    def _chunk(self, document: dict[str, Any]) -> Chunk | None:
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
            tool_calls=self._calls(calls) if calls else (),
            finish=FINISHES.get(finish, "stop") if finish else "",
            usage=usage,
        )

    def _calls(self, calls: list[dict[str, Any]]) -> tuple[ToolCallDelta, ...]:
        return tuple(
            ToolCallDelta(
                index=self._index(call),
                id=text_of(call, "id"),
                name=text_of(function := call.get("function") or {}, "name"),
                arguments=text_of(function, "arguments"),
            )
            for call in calls
        )

    def _index(self, call: dict[str, Any]) -> int:
        index = call.get("index")
        if isinstance(index, int):
            return index
        return self._indexes.setdefault(text_of(call, "id"), len(self._indexes))


# ── Encoding ───────────────────────────────────────────────────────────────────────────────────


def encode_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A tool's message may only be text here: images it found follow the results of its step, as
    if the user had shown them."""
    encoded: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "tool" and found:
            encoded.append({"role": "user", "content": found})
            found = []
        encoded.append(encode_message(message))
        if message.role == "tool" and message.images:
            of = f"Found by {message.name or 'a tool'} ({message.call_id}):"
            found += [{"type": "text", "text": of}, *map(encode_image, message.images)]
    return [*encoded, {"role": "user", "content": found}] if found else encoded


def encode_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if message.role == "assistant" and message.tool_calls:
        return {
            "role": "assistant",
            "content": message.text or None,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments or "{}"},
                }
                for call in message.tool_calls
            ],
        }
    if message.images:
        parts: list[dict[str, Any]] = [encode_image(image) for image in message.images]
        if message.text:
            parts.insert(0, {"type": "text", "text": message.text})
        return {"role": message.role, "content": parts}
    return {"role": message.role, "content": message.text}


def encode_image(image: Image) -> dict[str, Any]:
    url = image.url or f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def encode_tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


def encode_choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def prefix_key(request: Request) -> str:
    """The same for requests that start alike: same model, system prompt and tools."""
    prefix = [m.text for m in request.messages if m.role == "system"]
    parts = msgspec.json.encode([request.model, prefix, [tool.name for tool in request.tools]])
    return hashlib.sha256(parts).hexdigest()[:32]


# ── Decoding ───────────────────────────────────────────────────────────────────────────────────


def text_of(part: dict[str, Any], name: str) -> str:
    text = part.get(name) or ""
    if type(text) is not str:
        raise TypeError
    return text


def read_usage(usage: Any) -> Usage | None:
    """What is no number in it is as good as not there: an answer is worth more than its price."""
    if not isinstance(usage, dict):
        return None
    prompt = count_of(usage, "prompt_tokens") or 0
    completion = count_of(usage, "completion_tokens") or 0
    hit = count_of(usage.get("prompt_tokens_details"), "cached_tokens")
    if hit is None:
        hit = count_of(usage, "prompt_cache_hit_tokens")  # DeepSeek's name for it
    return Usage(
        prompt=prompt,
        completion=completion,
        total=count_of(usage, "total_tokens") or prompt + completion,
        cache_hit=hit,
        cache_miss=None if hit is None else max(prompt - hit, 0),
        reasoning=count_of(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def count_of(numbers: Any, name: str) -> int | None:
    value = numbers.get(name) if isinstance(numbers, dict) else None
    return int(value) if isinstance(value, int | float) else None


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """An error of this dialect: {"error": {"message", "type", "code"}}, in many variations."""
    message, code = error_words(body)
    return ApiError(
        error_kind(status, code, message),
        message or http_phrase(status, body),
        status=status,
        retry_after=read_retry_after(headers),
    )


def error_kind(status: int, code: str, message: str) -> ErrorKind:
    lowered = f"{code} {message}".lower()
    if "insufficient_quota" in lowered or "insufficient balance" in lowered:
        return ErrorKind.QUOTA
    if (
        "context_length" in lowered
        or "context length" in lowered
        or "exceed_context_size" in lowered
        or "maximum context" in lowered
    ):
        return ErrorKind.CONTEXT
    if "content_filter" in lowered or "content_policy" in lowered:
        return ErrorKind.FILTERED
    if "model_not_found" in lowered:
        return ErrorKind.NOT_FOUND
    return kind_of_status(status)


def stream_error(document: dict[str, Any]) -> ApiError:
    """An error in mid-stream, where the status was already 200."""
    message, code = error_words(msgspec.json.encode(document))
    number = int(code) if code.isdigit() and 400 <= int(code) < 600 else 500
    kind = error_kind(number, code, message)
    if "rate_limit" in code:
        kind = ErrorKind.RATE_LIMIT
    elif "overloaded" in code:
        kind = ErrorKind.OVERLOADED
    return ApiError(kind, message or "the model failed in mid-answer")


def context_of(entry: dict[str, Any]) -> int | None:
    """The context window, by the name this server has for it."""
    for place in (entry, entry.get("meta") or {}, entry.get("top_provider") or {}):
        for name in ("context_length", "max_model_len", "context_window", "n_ctx_train"):
            if isinstance(value := place.get(name), int):
                return value
    return None


KNOWN_LIMITS = (
    ("gpt-5", 400_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
)


def known_limit(model: str) -> int | None:
    name = model.rsplit("/", 1)[-1]
    return next((limit for prefix, limit in KNOWN_LIMITS if name.startswith(prefix)), None)
