"""Anthropic's messages: Claude, and the servers that speak as Anthropic does.

What Claude thought comes signed and must go back as it came, so it travels in `opaque`. Models
differ by generation in how thinking is asked for; all of that is in the constants below.
"""

import base64
import re
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
    ToolCall,
    ToolCallDelta,
    Usage,
)
from .reading import decode, error_words, http_phrase, read_retry_after, usage_by_parts
from .sse import SseDecoder

DEFAULT_BASE = "https://api.anthropic.com"
# The version of the wire. The next one, 2026-10-21, has no temperature for any model.
VERSION = "2023-06-01"
KIND = "anthropic"  # our key in `opaque`

# From this generation on a model sets its own thinking budget, refuses one that is set for it,
# refuses a temperature, and may think without being asked.
ADAPTIVE = (4, 7)
# From this one on it also cannot be made to call a tool, and its thinking is valid only after the
# very history it was thought in.
BOUND = (5, 1)

# The API wants a limit in every request. Ours by generation, newest first: what every model of it
# allows, and of the newer ones half, since some want prompt and limit to fit the window together.
MAX_TOKENS = (
    ((4, 6), 64_000),
    ((3, 7), 32_000),
    ((3, 5), 8_192),
    ((3, 0), 4_096),
    ((0, 0), 8_192),  # not a Claude
)
THINKING_BUDGET = 16_000
MIN_BUDGET = 1_024  # the API's own minimum
LONG_CONTEXT = (4, 6)  # a million tokens from here on, 200,000 before

# A call whose arguments are no JSON object goes back as an object with this one key, which holds
# the text as the model wrote it: the API takes objects only, and the model sees its mistake.
INVALID_ARGUMENTS = "invalid_arguments"

BINDING_BETA = "thinking-binding-controls-2026-08-01"

FINISHES: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "filtered",
}


class AnthropicDialect:
    """One endpoint. `base` is what stands before `/v1/messages`."""

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = base.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        # Set once the API objects to thinking from a history that was since changed.
        self._drop_unbound = False
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def chat(self, request: Request) -> Call:
        headers = self.headers()
        if self._drops(request):
            headers["anthropic-beta"] = BINDING_BETA
        body = msgspec.json.encode(self.body(request))
        return Call(f"{self.base}/v1/messages", headers, body)

    def headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "anthropic-version": VERSION,
        }
        if self._api_key:
            headers["x-api-key"] = self._api_key
        return headers

    def body(self, request: Request) -> dict[str, Any]:
        born = generation(request.model)
        turns = encode_turns(request.messages, restore=request.thinking or born >= ADAPTIVE)
        thinking = request.thinking
        if thinking and born < ADAPTIVE and not may_think(turns):
            thinking = False
            turns = encode_turns(request.messages, restore=False)
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": max_tokens(request),
            "messages": turns,
            "stream": True,
        }
        if system := encode_system(request.messages):
            body["system"] = system
        if request.tools:
            forced = request.tool_choice not in ("auto", "none")
            # With thinking the API refuses to force a call. Better a free choice than no answer.
            free = forced and (thinking or born >= BOUND)
            body["tools"] = [encode_tool(tool) for tool in request.tools]
            body["tool_choice"] = encode_choice("auto" if free else request.tool_choice)
        if thinking:
            body |= ask_to_think(born, body["max_tokens"])
        elif request.temperature is not None and born < ADAPTIVE:
            body["temperature"] = request.temperature
        if self._drops(request):
            asked = body.setdefault("thinking", {"type": "adaptive"})
            asked["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
        mark_prefix(body)
        return body

    def _drops(self, request: Request) -> bool:
        return self._drop_unbound and generation(request.model) >= BOUND

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def decoder(self, request: Request) -> "AnthropicDecoder":
        return AnthropicDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        message, code = error_words(body)
        return ApiError(
            error_kind(status, code, message),
            message or http_phrase(status, body),
            status=status,
            retry_after=read_retry_after(headers),
        )

    def list_models(self) -> Call:
        # A thousand is the most a page holds, and more than there are.
        return Call(f"{self.base}/v1/models?limit=1000", self.headers(), method="GET")

    def read_models(self, body: bytes) -> list[ModelInfo]:
        document = decode(body)
        entries = document.get("data") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ApiError(ErrorKind.PROTOCOL, "the list of models is not one; check base_url")
        found = []
        for entry in entries:
            if isinstance(entry, dict) and isinstance(name := entry.get("id"), str):
                limit = entry.get("max_input_tokens")
                if isinstance(limit, int):
                    self._limits[name] = limit
                found.append(ModelInfo(name, self._limits.get(name)))
        return found

    def context_limit(self, model: str) -> int | None:
        return self._limits.get(model) or known_limit(model)

    def relax(self, error: ApiError) -> bool:
        """A history that was shortened or edited keeps its answers, if not all of their thinking.

        The API names the switch in the sentence it refuses with; it is thrown for good, because
        nothing is lost by it where histories are whole.
        """
        if self._drop_unbound or error.status != 400:
            return False
        self._drop_unbound = "prefix_mismatch_behavior" in error.message
        return self._drop_unbound


class AnthropicDecoder:
    """Named events up to `message_stop`. Events, blocks and deltas it does not know are no matter.

    An answer with thinking in it leaves its layout in `opaque`: one entry a block, in order. An
    entry of thinking is the block itself; of text and calls it says only which part of the message
    they are, since the message has them.
    """

    def __init__(self) -> None:
        self._events = SseDecoder()
        self._finished = False
        self._usage: dict[str, int] = {}
        self._open: dict[int, Block] = {}  # by the vendor's index
        self._layout: list[Block] = []
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
        if not self._finished:
            raise ApiError(ErrorKind.CONNECTION, "the stream ended before the answer did")
        return chunks

    def _read(self, name: str, event: bytes) -> Chunk | None:
        if name and name not in EVENTS:
            return None
        document = decode(event)
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
                self._count(part(document, "message"))
            case "message_delta":
                return self._message(document)
            case "message_stop":
                self._finished = True
            case "error":
                raise stream_error(event)
        return None

    def _start(self, document: dict[str, Any]) -> Chunk | None:
        given = part(document, "content_block")
        block = Block(given)
        if block.kind not in BLOCKS:
            return None
        self._open[index_of(document)] = block
        self._layout.append(block)
        if block.kind == "text" and (text := words(given, "text")):
            return block.add_text(text)
        if block.kind == "thinking" and (thought := words(given, "thinking")):
            return block.add_thought(thought)
        if block.kind == "tool_use":
            block.call = self._calls
            self._calls += 1
            call = ToolCallDelta(block.call, words(given, "id"), words(given, "name"))
            return Chunk(tool_calls=(call,))
        return None

    def _delta(self, document: dict[str, Any]) -> Chunk | None:
        block = self._open.get(index_of(document))
        if block is None:
            return None
        delta = part(document, "delta")
        match delta.get("type"):
            case "text_delta" if text := words(delta, "text"):
                return block.add_text(text)
            case "thinking_delta" if thought := words(delta, "thinking"):
                return block.add_thought(thought)
            case "signature_delta":
                block.signature += words(delta, "signature")
            case "input_json_delta" if block.call is not None:
                piece = words(delta, "partial_json")
                return block.add_arguments(piece) if piece else None
        return None

    def _stop(self, document: dict[str, Any]) -> Chunk | None:
        block = self._open.pop(index_of(document), None)
        if block is None:
            return None
        if block.call is not None and not block.length:
            # No arguments in pieces: they were in the beginning, or there are none.
            given = msgspec.json.encode(part(block.given, "input"))
            return block.add_arguments(given.decode())
        if block.kind in THINKING and (opaque := self._opaque()):
            return Chunk(opaque=opaque)  # at once, lest an interruption lose it
        return None

    def _message(self, document: dict[str, Any]) -> Chunk:
        self._count(document)
        reason = words(part(document, "delta"), "stop_reason")
        return Chunk(
            finish=FINISHES.get(reason, "stop") if reason else "",
            usage=read_usage(self._usage),
            opaque=self._opaque(),
        )

    def _count(self, document: dict[str, Any]) -> None:
        """Counts are running totals, and those left out are as they were."""
        usage = part(document, "usage")
        self._usage |= {name: count for name, count in usage.items() if isinstance(count, int)}
        details = part(usage, "output_tokens_details")
        if isinstance(thought := details.get("thinking_tokens"), int):
            self._usage["thinking_tokens"] = thought

    def _opaque(self) -> dict[str, Any]:
        layout = [entry for block in self._layout if (entry := block.entry()) is not None]
        if not any(entry["type"] in THINKING for entry in layout):
            return {}
        return {KIND: layout}


THINKING = frozenset({"thinking", "redacted_thinking"})
BLOCKS = THINKING | {"text", "tool_use"}
EVENTS = frozenset(
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


class Block:
    """A content block as it grows. `length` counts the characters that came in deltas."""

    __slots__ = ("_thoughts", "call", "given", "kind", "length", "signature")

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given  # as it started
        self.kind = words(given, "type")
        self.call: int | None = None  # its number among the calls
        self.length = 0
        self.signature = words(given, "signature")
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

    def entry(self) -> dict[str, Any] | None:
        """Its place in the layout. None for thinking without a signature: nobody takes it back."""
        match self.kind:
            case "text":
                return {"type": "text", "length": self.length}
            case "tool_use":
                return {"type": "tool_use", "id": words(self.given, "id")}
            case "redacted_thinking":
                return {"type": "redacted_thinking", "data": words(self.given, "data")}
        if not self.signature:
            return None
        thinking = "".join(self._thoughts)
        return {"type": "thinking", "thinking": thinking, "signature": self.signature}


# ── Encoding ───────────────────────────────────────────────────────────────────────────────────


def encode_system(messages: Sequence[Message]) -> list[dict[str, Any]]:
    texts = [message.text for message in messages if message.role == "system"]
    return [block for text in texts for block in encode_text(text)]


def encode_turns(messages: Sequence[Message], *, restore: bool) -> list[dict[str, Any]]:
    """User and assistant by turns. `restore` puts back what the assistant thought."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = encode_blocks(message, restore)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            # The API wants the results of a step first, before what was said meanwhile.
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    return turns


def encode_blocks(message: Message, restore: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [encode_result(message)]
    if message.role == "user":
        return [*map(encode_image, message.images), *encode_text(message.text)]
    layout = message.opaque.get(KIND) if restore else None
    if not layout:
        return [*encode_text(message.text), *map(encode_call, message.tool_calls)]
    return encode_layout(message, layout)


def encode_layout(message: Message, layout: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks in the order they came in; newer models check that nothing was moved."""
    calls = {call.id: call for call in message.tool_calls}
    whole = sum(entry["length"] for entry in layout if entry["type"] == "text")
    ids = [entry["id"] for entry in layout if entry["type"] == "tool_use"]
    if whole != len(message.text) or ids != list(calls):
        # Interrupted, or changed since: thinking comes first, where it is always allowed.
        thinking = [dict(entry) for entry in layout if entry["type"] in THINKING]
        return [*thinking, *encode_text(message.text), *map(encode_call, message.tool_calls)]
    blocks: list[dict[str, Any]] = []
    at = 0
    for entry in layout:
        if entry["type"] == "text":
            blocks += encode_text(message.text[at : at + entry["length"]])
            at += entry["length"]
        elif entry["type"] == "tool_use":
            blocks.append(encode_call(calls[entry["id"]]))
        else:
            blocks.append(dict(entry))
    return blocks


def encode_text(text: str) -> list[dict[str, Any]]:
    """One block, or none: the API refuses text that is empty or all blanks."""
    return [{"type": "text", "text": text}] if text.strip() else []


def encode_image(image: Image) -> dict[str, Any]:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    data = base64.b64encode(image.data).decode()
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    return {"type": "image", "source": source}


def encode_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {INVALID_ARGUMENTS: call.arguments}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def encode_result(message: Message) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id}
    if message.images:
        block["content"] = [*encode_text(message.text), *map(encode_image, message.images)]
    elif message.text.strip():
        block["content"] = message.text
    if message.is_error:
        block["is_error"] = True
    return block


def encode_tool(tool: Tool) -> dict[str, Any]:
    encoded: dict[str, Any] = {"name": tool.name, "input_schema": tool.parameters}
    if tool.description:
        encoded["description"] = tool.description
    return encoded


def encode_choice(choice: str) -> dict[str, Any]:
    if choice in ("auto", "none"):
        return {"type": choice}
    return {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}


def mark_prefix(body: dict[str, Any]) -> None:
    """Says where to cache: after the tools, the system prompt, and each of the last two user turns.

    Four marks are all the API takes. Of the two in the history the older one finds what the last
    request stored, the newer one stores for the next.
    """
    users = [turn["content"] for turn in body["messages"] if turn["role"] == "user"]
    for blocks in (body.get("tools"), body.get("system"), *users[-2:]):
        if blocks:
            blocks[-1]["cache_control"] = {"type": "ephemeral"}


# ── Thinking ───────────────────────────────────────────────────────────────────────────────────


def generation(model: str) -> tuple[int, int]:
    """(4, 5) of claude-sonnet-4-5-20250929, (3, 7) of claude-3-7-sonnet, (0, 0) of a stranger."""
    name = model.rsplit("/", 1)[-1]
    found = re.match(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?", name)
    if found:
        return int(found[1]), int(found[2] or 0)
    return ADAPTIVE if name.startswith("claude-mythos") else (0, 0)  # claude-mythos-preview


def max_tokens(request: Request) -> int:
    born = generation(request.model)
    limit = request.max_tokens
    if limit is None:
        limit = next(tokens for since, tokens in MAX_TOKENS if born >= since)
    if request.thinking and born < ADAPTIVE:
        # Thinking counts too, and even the least of it must leave room for an answer.
        return max(limit, 2 * MIN_BUDGET)
    return limit


def ask_to_think(born: tuple[int, int], limit: int) -> dict[str, Any]:
    if born >= ADAPTIVE:
        # Left alone, these models think but do not show it.
        return {"thinking": {"type": "adaptive", "display": "summarized"}}
    return {"thinking": {"type": "enabled", "budget_tokens": min(THINKING_BUDGET, limit // 2)}}


def may_think(turns: list[dict[str, Any]]) -> bool:
    """False when calls are under way that were made without thinking.

    The API refuses thinking there: another model made them, or thinking was off at the time.
    """
    for turn in reversed(turns):
        kinds = {block["type"] for block in turn["content"]}
        if kinds & THINKING:
            return True
        if turn["role"] == "user" and "tool_result" not in kinds:
            return turn is turns[-1]
    return not turns


# ── Decoding ───────────────────────────────────────────────────────────────────────────────────


def part(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def words(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def index_of(document: dict[str, Any]) -> int:
    value = document.get("index")
    return value if isinstance(value, int) else -1


def read_usage(usage: Mapping[str, int]) -> Usage:
    return usage_by_parts(
        fresh=usage.get("input_tokens", 0),
        cached=usage.get("cache_read_input_tokens"),
        stored=usage.get("cache_creation_input_tokens", 0),
        completion=usage.get("output_tokens", 0),
        reasoning=usage.get("thinking_tokens"),
    )


# `invalid_request_error` is not here: it stands for several things, and the status says which.
ERROR_KINDS = {
    "authentication_error": ErrorKind.AUTH,
    "permission_error": ErrorKind.AUTH,
    "not_found_error": ErrorKind.NOT_FOUND,
    "request_too_large": ErrorKind.CONTEXT,
    "billing_error": ErrorKind.QUOTA,
    "rate_limit_error": ErrorKind.RATE_LIMIT,
    "overloaded_error": ErrorKind.OVERLOADED,
    "timeout_error": ErrorKind.TIMEOUT,
    "api_error": ErrorKind.SERVER,
}
# What the API has no type for, and says in words.
SENTENCES = (
    ("prompt is too long", ErrorKind.CONTEXT),
    ("exceed context limit", ErrorKind.CONTEXT),
    ("credit balance is too low", ErrorKind.QUOTA),
    ("api usage limits", ErrorKind.QUOTA),
    ("content filtering policy", ErrorKind.FILTERED),
)


def error_kind(status: int, code: str, message: str) -> ErrorKind:
    if code in ERROR_KINDS:
        return ERROR_KINDS[code]
    lowered = message.lower()
    said = next((kind for words, kind in SENTENCES if words in lowered), None)
    return said or kind_of_status(status)


def stream_error(event: bytes) -> ApiError:
    """An error in mid-stream, where the status was already 200."""
    message, code = error_words(event)
    kind = error_kind(400 if code == "invalid_request_error" else 500, code, message)
    return ApiError(kind, message or "the model failed in mid-answer")


def known_limit(model: str) -> int | None:
    if not model.rsplit("/", 1)[-1].startswith("claude-"):
        return None
    return 1_000_000 if generation(model) >= LONG_CONTEXT else 200_000
