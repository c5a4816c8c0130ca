"""Amazon Bedrock's Converse API: one form for every model there, signed requests, and answers as
a binary event stream.

What a model thought may come signed and then must go back as it came, so it travels in `opaque`.
What is true of Claude wherever it runs is in `anthropic`; here is only what Bedrock adds.
"""

import base64
import hashlib
import importlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from .anthropic import INVALID_ARGUMENTS, MIN_BUDGET, THINKING_BUDGET, generation
from .errors import ApiError, ErrorKind, kind_of_status
from .eventstream import EventStreamDecoder, StreamMessage
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
from .reading import decode, http_phrase, read_retry_after, usage_by_parts
from .sigv4 import Credentials, sign

KIND = "bedrock"  # our key in `opaque`
SERVICE = "bedrock"  # in signatures: the same for models and for the list of them

# Generations of Claude: the first that thinks on demand, the first that sets its own budget, the
# first that refuses a temperature, and the first that cannot be made to call a tool.
THINKS = (3, 7)
ADAPTIVE = (4, 6)
NO_TEMPERATURE = (4, 7)
UNFORCED = (5, 1)
# Thinking counts as output. Every model that is given a budget allows this much.
THINKING_LIMIT = 32_000

FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
CACHE_POINT = {"cachePoint": {"type": "default"}}
NO_OUTPUT = "(no output)"

FINISHES: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "filtered",
    "content_filtered": "filtered",
}


class BedrockDialect:
    """One region of one account. `base` replaces the address of the region's runtime endpoint."""

    def __init__(
        self,
        name: str,
        *,
        region: str,
        credentials: Credentials,
        base: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.base = base.rstrip("/") or f"https://bedrock-runtime.{region}.amazonaws.com"
        self._region = region
        self._credentials = credentials
        self._clock = clock
        # Which models cache changes from month to month; after an objection nothing is marked.
        self._caching = True

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def chat(self, request: Request) -> Call:
        # A colon stays one: the HTTP client would undo its escape, and the signature with it.
        model = quote(request.model, safe=":")
        body = msgspec.json.encode(self.body(request))
        return self._call("POST", f"{self.base}/model/{model}/converse-stream", body)

    def _call(self, method: str, url: str, body: bytes | None = None) -> Call:
        if not re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", self._region):
            raise ApiError(
                ErrorKind.CONFIG,
                f"{self._region!r} is no AWS region; set AWS_REGION, for example to us-east-1",
            )
        headers = {"Content-Type": "application/json"}
        if self._credentials.bearer:
            headers["Authorization"] = f"Bearer {self._credentials.bearer}"
        elif self._credentials.access_key and self._credentials.secret_key:
            headers = sign(
                method,
                url,
                headers,
                body or b"",
                credentials=self._credentials,
                region=self._region,
                service=SERVICE,
                moment=self._clock(),
            )
        else:
            raise ApiError(ErrorKind.CONFIG, NO_CREDENTIALS)
        return Call(url, headers, body, method)

    def body(self, request: Request) -> dict[str, Any]:
        born = claude(request.model)
        thinking = ask_to_think(request)
        turns = encode_turns(request, restore=bool(thinking) or restores(request.model))
        if thinking.get("type") == "enabled" and not may_think(turns):
            thinking = {}
            turns = encode_turns(request, restore=False)
        body: dict[str, Any] = {"messages": turns}
        if system := encode_system(request.messages):
            body["system"] = system
        if tools := encode_tools(request, is_free=bool(thinking) or born >= UNFORCED):
            body["toolConfig"] = tools
        limits: dict[str, Any] = {}
        if request.max_tokens is not None:
            limits["maxTokens"] = request.max_tokens
        elif "budget_tokens" in thinking:
            limits["maxTokens"] = THINKING_LIMIT
        # Claude has a temperature of its own while it thinks.
        if request.temperature is not None and not thinking and born < NO_TEMPERATURE:
            limits["temperature"] = request.temperature
        if limits:
            body["inferenceConfig"] = limits
        if thinking:
            body["additionalModelRequestFields"] = {"thinking": thinking}
        if self._caching:
            mark_prefix(body, request.model)
        return body

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def decoder(self, request: Request) -> "BedrockDecoder":
        return BedrockDecoder(request.model)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        message, code = error_words(body)
        code = headers.get("x-amzn-errortype") or code
        return ApiError(
            error_kind(code, message) or kind_of_status(status),
            message or http_phrase(status, body),
            status=status,
            retry_after=read_retry_after(headers),
        )

    def list_models(self) -> Call:
        base = self.base.replace("bedrock-runtime", "bedrock")  # the control plane's address
        return self._call("GET", f"{base}/foundation-models")

    def read_models(self, body: bytes) -> list[ModelInfo]:
        document = decode(body)
        entries = document.get("modelSummaries") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ApiError(ErrorKind.PROTOCOL, "the list of models is not one; check base_url")
        return [
            ModelInfo(entry["modelId"], known_limit(entry["modelId"]))
            for entry in entries
            if isinstance(entry, dict) and is_usable(entry)
        ]

    def context_limit(self, model: str) -> int | None:
        return known_limit(model)

    def relax(self, error: ApiError) -> bool:
        said = error.message.lower()
        objects = "cachepoint" in said or "cache point" in said or "prompt caching" in said
        if self._caching and error.status in (400, 403) and objects:
            self._caching = False
            return True
        return False


# ── Credentials ────────────────────────────────────────────────────────────────────────────────

NO_CREDENTIALS = (
    "no AWS credentials; set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)


def region_from(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""


def credentials_from(environ: Mapping[str, str]) -> Credentials:
    """The credentials the environment holds, else those of its profile, single sign-on or role.

    The latter may read files and ask AWS, so keep it off the event loop. Raises ApiError.
    """
    if bearer := environ.get("AWS_BEARER_TOKEN_BEDROCK"):
        return Credentials(bearer=bearer)
    access, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if access and secret:
        return Credentials(access, secret, environ.get("AWS_SESSION_TOKEN", ""))
    return credentials_of_profile(environ.get("AWS_PROFILE"))


def credentials_of_profile(profile: str | None) -> Credentials:
    try:
        session = importlib.import_module("botocore.session")
        exceptions = importlib.import_module("botocore.exceptions")
    except ImportError:
        raise ApiError(
            ErrorKind.CONFIG,
            f"{NO_CREDENTIALS}; profiles, single sign-on and roles need crabtalk[bedrock]",
        ) from None
    try:
        found = session.Session(profile=profile).get_credentials()
        frozen = found.get_frozen_credentials() if found is not None else None
    except exceptions.BotoCoreError as error:
        raise ApiError(ErrorKind.CONFIG, f"no AWS credentials: {error}") from None
    if frozen is None:
        raise ApiError(ErrorKind.CONFIG, NO_CREDENTIALS)
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")


# ── Decoding ───────────────────────────────────────────────────────────────────────────────────


class Struct(msgspec.Struct, rename="camel"):
    """A piece of Bedrock's JSON. Fields it does not name are passed over."""


class ToolStart(Struct):
    tool_use_id: str = ""
    name: str = ""


class Start(Struct):
    tool_use: ToolStart | None = None


class ToolDelta(Struct):
    input: str = ""


class ThoughtDelta(Struct):
    text: str = ""
    signature: str = ""
    redacted_content: bytes = b""


class Delta(Struct):
    text: str = ""
    tool_use: ToolDelta | None = None
    reasoning_content: ThoughtDelta | None = None


class TokenUsage(Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None


class Payload(Struct):
    """Of every event: what it is decides which of these it has."""

    content_block_index: int = 0
    start: Start | None = None
    delta: Delta | None = None
    stop_reason: str = ""
    usage: TokenUsage | None = None


PAYLOAD = msgspec.json.Decoder(Payload)
EVENTS = frozenset(
    {"contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)


class Block:
    """A content block as it grows: text, a call, or a thought."""

    __slots__ = ("call", "length", "redacted", "signature", "thoughts")

    def __init__(self) -> None:
        self.call: str | None = None  # its id
        self.length = 0  # of its text
        self.thoughts: list[str] = []
        self.signature = ""
        self.redacted = b""

    def entry(self) -> dict[str, Any] | None:
        """Its place in the layout. None for a thought without a signature: nobody wants it back."""
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
    """Events up to `messageStop`, and usage after it.

    An answer with a signed thought leaves its layout in `opaque`: one entry a block, in order. An
    entry of a thought is the block itself; of text and calls it says only which part of the
    message they are, since the message has them.
    """

    def __init__(self, model: str) -> None:
        self._events = EventStreamDecoder()
        self._model = model
        self._blocks: dict[int, Block] = {}
        self._calls: dict[int, int] = {}  # numbers of calls, by the index of their block
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

    def _read(self, message: StreamMessage) -> Chunk | None:
        if message.headers.get(":message-type") != "event":
            raise stream_error(message)
        if (event := message.headers.get(":event-type")) not in EVENTS:
            return None
        try:
            payload = PAYLOAD.decode(message.payload)
        except (ValueError, RecursionError) as error:  # not JSON, UTF-8 or this form; or endless
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
            return Chunk(finish=read_finish(payload.stop_reason), opaque=self._opaque())
        return Chunk(usage=read_usage(payload.usage)) if payload.usage is not None else None

    def _start(self, index: int, call: ToolStart) -> Chunk:
        self._block(index).call = call.tool_use_id
        number = self._calls.setdefault(index, len(self._calls))
        return Chunk(tool_calls=(ToolCallDelta(number, call.tool_use_id, call.name),))

    def _delta(self, index: int, delta: Delta) -> Chunk | None:
        block = self._block(index)
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
        return Chunk(opaque=self._opaque())  # at once, lest an interruption lose it

    def _block(self, index: int) -> Block:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = Block()
        return block

    def _opaque(self) -> dict[str, Any]:
        layout = [entry for block in self._blocks.values() if (entry := block.entry())]
        if not any("reasoningContent" in entry for entry in layout):
            return {}
        return {KIND: {"model": self._model, "layout": layout}}


def read_finish(reason: str) -> Finish:
    if reason.startswith("malformed"):  # malformed_model_output, malformed_tool_use
        raise ApiError(ErrorKind.SERVER, f"the model's answer came out broken ({reason})")
    return FINISHES.get(reason, "stop")


def read_usage(usage: TokenUsage) -> Usage:
    return usage_by_parts(
        fresh=usage.input_tokens,
        cached=usage.cache_read_input_tokens,
        stored=usage.cache_write_input_tokens or 0,
        completion=usage.output_tokens,
    )


ERROR_KINDS = {
    "accessdenied": ErrorKind.AUTH,
    "unrecognizedclient": ErrorKind.AUTH,
    "expiredtoken": ErrorKind.AUTH,
    "invalidsignature": ErrorKind.AUTH,
    "incompletesignature": ErrorKind.AUTH,
    "missingauthenticationtoken": ErrorKind.AUTH,
    "resourcenotfound": ErrorKind.NOT_FOUND,
    "validation": ErrorKind.INVALID,
    "throttling": ErrorKind.RATE_LIMIT,
    "servicequotaexceeded": ErrorKind.OVERLOADED,
    "modelnotready": ErrorKind.OVERLOADED,
    "serviceunavailable": ErrorKind.OVERLOADED,
    "modeltimeout": ErrorKind.TIMEOUT,
    "modelerror": ErrorKind.SERVER,
    "modelstreamerror": ErrorKind.SERVER,
    "internalserver": ErrorKind.SERVER,
    "internalfailure": ErrorKind.SERVER,
}
# What Bedrock has no exception for, and says in words.
SENTENCES = (
    ("too long", ErrorKind.CONTEXT),
    ("too many input tokens", ErrorKind.CONTEXT),
    ("exceed context limit", ErrorKind.CONTEXT),
    ("maximum context length", ErrorKind.CONTEXT),
    ("model identifier is invalid", ErrorKind.NOT_FOUND),
)


def error_kind(code: str, message: str) -> ErrorKind | None:
    """`code` as a header, a body or a stream has it: with a namespace, an address, or neither."""
    name = code.split(":")[0].rsplit("#", 1)[-1].lower().removesuffix("exception")
    kind = ERROR_KINDS.get(name)
    if kind is ErrorKind.INVALID:
        lowered = message.lower()
        return next((kind for words, kind in SENTENCES if words in lowered), kind)
    return kind


def error_words(body: bytes) -> tuple[str, str]:
    """The sentence and the code of an error's body; empty where it has none."""
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(document, dict):
        return "", ""
    message = document.get("message") or document.get("Message") or document.get("originalMessage")
    return str(message or ""), str(document.get("__type") or "")


def stream_error(message: StreamMessage) -> ApiError:
    """An error in mid-stream, where the status was already 200."""
    headers = message.headers
    code = str(headers.get(":exception-type") or headers.get(":error-code") or "")
    sentence, _ = error_words(message.payload)
    sentence = sentence or str(headers.get(":error-message") or "")
    return ApiError(
        error_kind(code, sentence) or ErrorKind.SERVER,
        sentence or f"the model failed in mid-answer ({code or 'no reason given'})",
    )


def is_usable(entry: dict[str, Any]) -> bool:
    """Speaks, streams, and can be had without renting a machine for it."""
    ways = entry.get("inferenceTypesSupported") or []
    return (
        isinstance(entry.get("modelId"), str)
        and ("ON_DEMAND" in ways or "INFERENCE_PROFILE" in ways)
        and "TEXT" in (entry.get("outputModalities") or [])
        and entry.get("responseStreamingSupported") is True
    )


# ── Encoding ───────────────────────────────────────────────────────────────────────────────────


def encode_system(messages: Iterable[Message]) -> list[dict[str, Any]]:
    texts = [message.text for message in messages if message.role == "system"]
    return [block for text in texts for block in encode_text(text)]


def encode_turns(request: Request, *, restore: bool) -> list[dict[str, Any]]:
    """User and assistant by turns. `restore` puts back what the assistant thought."""
    turns: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = encode_blocks(message, request.model, restore)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            # Models want the results of a step first, before what was said meanwhile.
            turn["content"].sort(key=lambda block: "toolResult" not in block)
    return turns


def encode_blocks(message: Message, model: str, restore: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [encode_result(message, model)]
    if message.role == "user":
        return [*map(encode_image, message.images), *encode_text(message.text)]
    state = message.opaque.get(KIND)
    if restore and state and state["model"] == model:  # another model would not know the signature
        return encode_layout(message, state["layout"])
    return [*encode_text(message.text), *map(encode_call, message.tool_calls)]


def encode_layout(message: Message, layout: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks in the order they came in."""
    calls = {call.id: call for call in message.tool_calls}
    whole = sum(entry["text"] for entry in layout if "text" in entry)
    ids = [entry["toolUse"] for entry in layout if "toolUse" in entry]
    if whole != len(message.text) or ids != list(calls):
        # Interrupted, or changed since: thoughts come first, where they are always allowed.
        thoughts = [dict(entry) for entry in layout if "reasoningContent" in entry]
        return [*thoughts, *encode_text(message.text), *map(encode_call, message.tool_calls)]
    blocks: list[dict[str, Any]] = []
    at = 0
    for entry in layout:
        if "text" in entry:
            blocks += encode_text(message.text[at : at + entry["text"]])
            at += entry["text"]
        elif "toolUse" in entry:
            blocks.append(encode_call(calls[entry["toolUse"]]))
        else:
            blocks.append(dict(entry))
    return blocks


def encode_text(text: str) -> list[dict[str, Any]]:
    """One block, or none: Bedrock refuses text that is empty or all blanks."""
    return [{"text": text}] if text.strip() else []


def encode_image(image: Image) -> dict[str, Any]:
    if image.url:
        raise ApiError(
            ErrorKind.INVALID,
            f"Bedrock does not fetch images; send the bytes of {image.url} instead",
        )
    form = FORMATS.get(image.media_type.removeprefix("image/"))
    if form is None:
        raise ApiError(
            ErrorKind.INVALID,
            f"Bedrock takes images as PNG, JPEG, GIF or WebP, not as {image.media_type}",
        )
    data = base64.b64encode(image.data).decode()
    return {"image": {"format": form, "source": {"bytes": data}}}


def encode_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {INVALID_ARGUMENTS: call.arguments}
    return {"toolUse": {"toolUseId": encode_id(call.id), "name": call.name, "input": arguments}}


def encode_result(message: Message, model: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "toolUseId": encode_id(message.call_id),
        "content": [
            *(encode_text(message.text) or [{"text": NO_OUTPUT}]),
            *map(encode_image, message.images),
        ],
    }
    if message.is_error and (is_claude(model) or is_nova(model)):  # others do not know the field
        result["status"] = "error"
    return {"toolResult": result}


def encode_id(call_id: str) -> str:
    """The id of a call as Bedrock allows it. Those of other vendors may be longer or odder."""
    if re.fullmatch(r"[a-zA-Z0-9_.:-]{1,64}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()


def encode_tools(request: Request, *, is_free: bool) -> dict[str, Any]:
    """`is_free` where a model cannot be forced. Better a free choice than no answer."""
    tools = [encode_tool(tool) for tool in request.tools]
    called = {call.name: None for message in request.messages for call in message.tool_calls}
    if not called and request.tool_choice == "none":
        return {}  # there is no choice of none; without tools there is nothing to choose
    if called and not tools:
        # Bedrock refuses a history with calls in it from whoever offers no tools.
        tools = [encode_tool(Tool(name, "No longer there.")) for name in called]
    if not tools:
        return {}
    config: dict[str, Any] = {"tools": tools}
    if request.tool_choice in ("auto", "none") or is_free:
        return config  # auto is what no choice means
    if request.tool_choice == "required":
        config["toolChoice"] = {"any": {}}
    else:
        config["toolChoice"] = {"tool": {"name": request.tool_choice}}
    return config


def encode_tool(tool: Tool) -> dict[str, Any]:
    encoded: dict[str, Any] = {"name": tool.name, "inputSchema": {"json": tool.parameters}}
    if tool.description:
        encoded["description"] = tool.description
    return {"toolSpec": encoded}


# ── What models differ in ──────────────────────────────────────────────────────────────────────


def is_claude(model: str) -> bool:
    """By any of its names: us.anthropic.claude-…, arn:…/anthropic.claude-… and so on."""
    return "anthropic.claude" in model


def is_nova(model: str) -> bool:
    return "amazon.nova" in model


def claude(model: str) -> tuple[int, int]:
    """Its generation; (0, 0) of what is no Claude."""
    return generation(model[model.index("claude") :]) if is_claude(model) else (0, 0)


def mark_prefix(body: dict[str, Any], model: str) -> None:
    """Says where to cache: after the tools, the system prompt and the last of the user's turns."""
    has_tool_marks = is_claude(model)
    if not is_nova(model) and claude(model) < THINKS and "claude-3-5-haiku" not in model:
        return
    if "system" in body:
        body["system"].append(CACHE_POINT)
    if "toolConfig" in body and has_tool_marks:
        body["toolConfig"]["tools"].append(CACHE_POINT)
    for turn in reversed(body["messages"]):
        # Nova refuses a mark among its tools, and one that follows a result.
        if turn["role"] == "user" and (has_tool_marks or "toolResult" not in turn["content"][-1]):
            turn["content"].append(CACHE_POINT)
            return


def ask_to_think(request: Request) -> dict[str, Any]:
    """What Claude is told about thinking; nothing for other models, which have no common way."""
    born = claude(request.model)
    if not request.thinking or born < THINKS:
        return {}
    if born >= ADAPTIVE:
        # Left alone, the newer of these think but do not show it.
        return {"type": "adaptive", "display": "summarized"}
    budget = min(THINKING_BUDGET, (request.max_tokens or THINKING_LIMIT) // 2)
    return {"type": "enabled", "budget_tokens": budget} if budget >= MIN_BUDGET else {}


def restores(model: str) -> bool:
    """True for models that take their thoughts back though nobody asks them to think."""
    return not is_claude(model) or claude(model) >= ADAPTIVE


def may_think(turns: list[dict[str, Any]]) -> bool:
    """False when calls are under way that were made without thinking, as Claude 4.5 demands."""
    if not turns or "toolResult" not in turns[-1]["content"][0]:
        return True
    return len(turns) > 1 and "reasoningContent" in turns[-2]["content"][0]


# In tokens, by a part of the model's name: Bedrock itself does not say.
KNOWN_LIMITS = (
    ("anthropic.claude", 200_000),
    ("amazon.nova-micro", 128_000),
    ("amazon.nova-lite", 300_000),
    ("amazon.nova-pro", 300_000),
    ("amazon.nova-premier", 1_000_000),
    ("amazon.nova-2", 1_000_000),
    ("meta.llama3-1", 128_000),
    ("meta.llama3-2", 128_000),
    ("meta.llama3-3", 128_000),
    ("openai.gpt-oss", 128_000),
    ("deepseek.r1", 128_000),
    ("mistral.mistral-large", 128_000),
)


def known_limit(model: str) -> int | None:
    return next((limit for name, limit in KNOWN_LIMITS if name in model), None)
