"""Google's Gemini API, as `streamGenerateContent` speaks it with `alt=sse`.

Gemini caches prefixes that requests have in common by itself, so there is no hint to give: a
stable prefix is enough, and `cachedContentTokenCount` tells how much of it was found again.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

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
from .reading import decode, http_phrase, read_retry_after
from .sse import SseDecoder

DEFAULT_BASE = "https://generativelanguage.googleapis.com/v1beta"

# Gemini 3 refuses calls without a signature. This is Google's own word for "another model made
# this call", see ai.google.dev/gemini-api/docs/thought-signatures.
FOREIGN_SIGNATURE = "skip_thought_signature_validator"

FINISHES: dict[str, Finish] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "filtered",
    "RECITATION": "filtered",
    "PROHIBITED_CONTENT": "filtered",
    "BLOCKLIST": "filtered",
    "SPII": "filtered",
    "IMAGE_SAFETY": "filtered",
    "IMAGE_PROHIBITED_CONTENT": "filtered",
    "IMAGE_RECITATION": "filtered",
    "LANGUAGE": "filtered",
    # Cut off for a reason Google keeps to itself; "stop" would say the model had come to its end.
    "OTHER": "filtered",
}

# The model wrote something that the API could not make an answer of.
BROKEN = frozenset(
    {
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
    }
)

KINDS = {
    "INVALID_ARGUMENT": ErrorKind.INVALID,
    "FAILED_PRECONDITION": ErrorKind.INVALID,
    "UNAUTHENTICATED": ErrorKind.AUTH,
    "PERMISSION_DENIED": ErrorKind.AUTH,
    "NOT_FOUND": ErrorKind.NOT_FOUND,
    "RESOURCE_EXHAUSTED": ErrorKind.RATE_LIMIT,
    "UNAVAILABLE": ErrorKind.OVERLOADED,
    "INTERNAL": ErrorKind.SERVER,
    "DEADLINE_EXCEEDED": ErrorKind.TIMEOUT,
}

TOO_LONG = ("token count", "maximum number of tokens", "payload size exceeds")

# An error outside of any event is no longer than this.
MAX_TAIL = 64 * 1024


class GoogleDialect:
    """One endpoint. `base` ends in the API's version; one that names none gets `/v1beta`.

    The key travels in a header, never in the URL, which others log.
    """

    def __init__(self, name: str, *, base: str = DEFAULT_BASE, api_key: str = "") -> None:
        self.name = name
        self.base = versioned(base)
        self._api_key = api_key
        # Only models that insist on signatures get one for calls that other models made.
        self._sign_foreign = False
        self._limits: dict[str, int] = {}

    # ── Sending ─────────────────────────────────────────────────────────────────────────────

    def chat(self, request: Request) -> Call:
        url = f"{self.base}/{resource(request.model)}:streamGenerateContent?alt=sse"
        return Call(url, self.headers(), msgspec.json.encode(self.body(request)))

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._api_key:
            headers["x-goog-api-key"] = self._api_key
        return headers

    def body(self, request: Request) -> dict[str, Any]:
        foreign = FOREIGN_SIGNATURE if self._sign_foreign else ""
        body: dict[str, Any] = {"contents": encode_contents(request.messages, foreign)}
        system = [{"text": m.text} for m in request.messages if m.role == "system" and m.text]
        if system:
            body["systemInstruction"] = {"parts": system}
        if request.tools:
            body["tools"] = [{"functionDeclarations": [encode_tool(t) for t in request.tools]}]
            body["toolConfig"] = {"functionCallingConfig": encode_choice(request.tool_choice)}
        if generation := encode_generation(request):
            body["generationConfig"] = generation
        return body

    # ── Reading ─────────────────────────────────────────────────────────────────────────────

    def decoder(self, request: Request) -> "GoogleDecoder":
        return GoogleDecoder(turn=len(request.messages))

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
        return read_error(status, headers, body)

    def list_models(self) -> Call:
        """One page: 1000 is the most the API gives, and many times what it has."""
        return Call(f"{self.base}/models?pageSize=1000", self.headers(), method="GET")

    def read_models(self, body: bytes) -> list[ModelInfo]:
        document = decode(body)
        entries = document.get("models") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ApiError(ErrorKind.PROTOCOL, "the list of models is not one; check base_url")
        found = [info for entry in entries if (info := read_model(entry)) is not None]
        self._limits |= {i.name: i.context_limit for i in found if i.context_limit is not None}
        return found

    def context_limit(self, model: str) -> int | None:
        name = model.removeprefix("models/")
        return self._limits.get(name) or known_limit(name)

    def relax(self, error: ApiError) -> bool:
        if (
            not self._sign_foreign
            and error.status == 400
            and "missing a thought_signature" in error.message
        ):
            self._sign_foreign = True
            return True
        return False


# ── What the wire holds, as far as anybody here reads it ───────────────────────────────────────


class Wire(msgspec.Struct, rename="camel"):
    """Camel case outside; anything may be left out or null."""


class FunctionCall(Wire):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class Part(Wire):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(Wire):
    parts: list[Part] | None = None


class Candidate(Wire):
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class PromptFeedback(Wire):
    block_reason: str | None = None
    block_reason_message: str | None = None


class UsageMetadata(Wire):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None
    cached_content_token_count: int | None = None


class Event(Wire):
    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: UsageMetadata | None = None
    response_id: str | None = None
    error: Any = None


EVENTS = msgspec.json.Decoder(Event)


class GoogleDecoder:
    """Events up to the end of the body; complete once one of them had a finish reason.

    Gemini seldom gives its calls an id. They get `call_<response id>_<n>`, which is the same
    whenever the same bytes are read and different in every answer. Where a server names no
    response either, `turn`, the number of messages before this answer, stands in for it: unique
    as long as the history grows.
    """

    def __init__(self, turn: int = 0) -> None:
        self._events = SseDecoder()
        self._finished = False
        self._response = str(turn)
        self._calls = 0
        self._signatures = Signatures()
        self._tail = bytearray()  # where an error outside of any event would be

    def feed(self, data: bytes) -> list[Chunk]:
        chunks = []
        for _, event in self._events.feed(data):
            chunk = self._read(event)
            if chunk is not None:
                chunks.append(chunk)
        self._tail += data
        del self._tail[:-MAX_TAIL]
        return chunks

    def end(self) -> list[Chunk]:
        chunks = [
            chunk for _, event in self._events.end() if (chunk := self._read(event)) is not None
        ]
        if not self._finished:
            raise loose_error(bytes(self._tail)) or ApiError(
                ErrorKind.CONNECTION, "the stream ended before the answer did"
            )
        return chunks

    def _read(self, data: bytes) -> Chunk | None:
        event = read_event(data)
        if event.error:
            raise stream_error(event.error)
        if event.prompt_feedback is not None and event.prompt_feedback.block_reason:
            raise blocked(event.prompt_feedback)
        if event.response_id:
            self._response = event.response_id
        usage = read_usage(event.usage_metadata)
        # One candidate is all that is ever asked for.
        candidate = event.candidates[0] if event.candidates else Candidate()
        parts = (candidate.content and candidate.content.parts) or []
        text, reasoning, calls = self._parts(parts)
        finish = self._finish(candidate)
        is_signed = any(part.thought_signature for part in parts)
        if not (text or reasoning or calls or finish or usage or is_signed):
            return None
        return Chunk(
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            finish=finish,
            usage=usage,
            opaque={"google": self._signatures.opaque()} if is_signed else {},
        )

    def _parts(self, parts: list[Part]) -> tuple[str, str, tuple[ToolCallDelta, ...]]:
        text = reasoning = ""
        calls = []
        for part in parts:
            signature = part.thought_signature or ""
            piece = part.text or ""
            if part.function_call is not None:
                calls.append(self._call(part.function_call, signature))
            elif part.thought:
                reasoning += piece
                self._signatures.add_span("reasoning", len(piece), signature)
            else:
                text += piece
                self._signatures.add_span("text", len(piece), signature)
        return text, reasoning, tuple(calls)

    def _call(self, call: FunctionCall, signature: str) -> ToolCallDelta:
        """Calls come whole."""
        index = self._calls
        self._calls += 1
        call_id = call.id or f"call_{self._response}_{index}"
        self._signatures.add_call(call_id, signature)
        return ToolCallDelta(
            index=index,
            id=call_id,
            name=call.name or "",
            arguments=msgspec.json.encode(call.args or {}).decode(),
        )

    def _finish(self, candidate: Candidate) -> Finish:
        reason = candidate.finish_reason
        if not reason or reason == "FINISH_REASON_UNSPECIFIED":
            return ""
        if reason in BROKEN:
            words = reason.lower().replace("_", " ")
            raise ApiError(
                ErrorKind.PROTOCOL,
                candidate.finish_message or f"the model's answer cannot be used: {words}",
            )
        self._finished = True
        finish = FINISHES.get(reason, "stop")
        return "tool_calls" if finish == "stop" and self._calls else finish


class Signatures:
    """The thought signatures of one answer, by what they stand on, as `opaque["google"]` has them.

    A call's by its id. A text's by the stretch it covers, [start, end, signature], because a
    signed piece is not to be joined with an unsigned one. The stretch is often empty: in a stream
    the signature tends to come last, on a part of its own.
    """

    def __init__(self) -> None:
        self._calls: dict[str, str] = {}
        self._spans: dict[str, list[list[Any]]] = {"text": [], "reasoning": []}
        self._lengths = {"text": 0, "reasoning": 0}

    def add_call(self, call_id: str, signature: str) -> None:
        if signature:
            self._calls[call_id] = signature

    def add_span(self, field: str, length: int, signature: str) -> None:
        start = self._lengths[field]
        self._lengths[field] = end = start + length
        if signature:
            self._spans[field].append([start, end, signature])

    def opaque(self) -> dict[str, Any]:
        """All so far, since a later chunk's replaces an earlier one's; only what there is."""
        found: dict[str, Any] = {"calls": dict(self._calls)} if self._calls else {}
        return found | {field: list(spans) for field, spans in self._spans.items() if spans}


# ── Encoding ───────────────────────────────────────────────────────────────────────────────────


def versioned(base: str) -> str:
    base = base.rstrip("/")
    return base if re.search(r"/v\d+(alpha|beta)?\d*$", base) else f"{base}/v1beta"


def resource(model: str) -> str:
    name = quote(model, safe="/")
    return name if name.startswith(("models/", "tunedModels/")) else f"models/{name}"


def encode_contents(messages: Iterable[Message], foreign: str = "") -> list[dict[str, Any]]:
    """The history in turns: what the same side said in a row is one content.

    `foreign` is the signature for calls that have none, if that is wanted.
    """
    contents: list[dict[str, Any]] = []
    for message in messages:
        role = "model" if message.role == "assistant" else "user"
        parts = encode_parts(message, foreign)
        if not parts:  # the API refuses a content without any
            continue
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    for content in contents:
        if content["role"] == "user":
            # The results of a step first, then the images they found and what was said meanwhile.
            content["parts"].sort(key=lambda part: "functionResponse" not in part)
    return contents


def encode_parts(message: Message, foreign: str) -> list[dict[str, Any]]:
    if message.role == "system":
        return []
    if message.role == "assistant":
        return encode_answer(message, foreign)
    if message.role == "tool":
        return [encode_result(message), *map(encode_image, message.images)]
    text = [{"text": message.text}] if message.text else []
    return text + [encode_image(image) for image in message.images]


def encode_answer(message: Message, foreign: str) -> list[dict[str, Any]]:
    """Thoughts go back only where they are signed: nobody reads the others."""
    state = message.opaque.get("google") or {}
    parts = [
        {"text": message.reasoning[start:end], "thought": True, "thoughtSignature": signature}
        for start, end, signature in state.get("reasoning", ())
    ]
    parts += encode_text(message.text, state.get("text", ()))
    signatures = state.get("calls") or {}
    if foreign and message.tool_calls and not signatures:
        # Of calls made side by side, the first carries the signature.
        signatures = {message.tool_calls[0].id: foreign}
    return parts + [encode_call(call, signatures.get(call.id, "")) for call in message.tool_calls]


def encode_text(text: str, spans: Iterable[tuple[int, int, str]]) -> list[dict[str, Any]]:
    parts = []
    at = 0
    for start, end, signature in spans:
        if unsigned := text[at:start]:
            parts.append({"text": unsigned})
        parts.append({"text": text[start:end], "thoughtSignature": signature})
        at = end
    if rest := text[at:]:
        parts.append({"text": rest})
    return parts


def encode_call(call: ToolCall, signature: str) -> dict[str, Any]:
    part: dict[str, Any] = {
        "functionCall": {"id": call.id, "name": call.name, "args": encode_arguments(call.arguments)}
    }
    if signature:
        part["thoughtSignature"] = signature
    return part


def encode_arguments(text: str) -> dict[str, Any]:
    """The API takes objects only. What is none is shown to the model as the text it was."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}


def encode_result(message: Message) -> dict[str, Any]:
    key = "error" if message.is_error else "output"
    return {
        "functionResponse": {
            "id": message.call_id,
            "name": message.name,
            "response": {key: message.text},
        }
    }


def encode_image(image: Image) -> dict[str, Any]:
    if image.url:
        return {"fileData": {"mimeType": image.media_type, "fileUri": image.url}}
    data = base64.b64encode(image.data).decode()
    return {"inlineData": {"mimeType": image.media_type, "data": data}}


def encode_tool(tool: Tool) -> dict[str, Any]:
    """`parametersJsonSchema` takes any JSON Schema; `parameters` knows a dialect of its own."""
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": tool.parameters,
    }


def encode_choice(choice: str) -> dict[str, Any]:
    modes = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
    if choice in modes:
        return {"mode": modes[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def encode_generation(request: Request) -> dict[str, Any]:
    generation: dict[str, Any] = {}
    if request.thinking:
        generation["thinkingConfig"] = {"includeThoughts": True}
    if request.max_tokens is not None:
        generation["maxOutputTokens"] = request.max_tokens
    if request.temperature is not None:
        generation["temperature"] = request.temperature
    return generation


# ── Decoding ───────────────────────────────────────────────────────────────────────────────────


def read_event(data: bytes) -> Event:
    try:
        return EVENTS.decode(data)
    except msgspec.ValidationError as error:
        raise ApiError(
            ErrorKind.PROTOCOL, f"the stream holds something other than answers: {error}"
        ) from None
    except (ValueError, RecursionError):
        start = data[:80].decode(errors="replace")
        raise ApiError(ErrorKind.PROTOCOL, f"the answer is not JSON: {start!r}") from None


def read_usage(usage: UsageMetadata | None) -> Usage | None:
    """Repeated with nearly every event, each time for all that came before."""
    if usage is None:
        return None
    prompt = usage.prompt_token_count or 0
    completion = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    hit = usage.cached_content_token_count
    return Usage(
        prompt=prompt,
        completion=completion,
        total=usage.total_token_count or prompt + completion,
        cache_hit=hit,
        cache_miss=None if hit is None else max(prompt - hit, 0),
        reasoning=usage.thoughts_token_count,
    )


def read_model(entry: Any) -> ModelInfo | None:
    """None for what is no model that answers: embeddings, say."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return None
    if "generateContent" not in (entry.get("supportedGenerationMethods") or ()):
        return None
    limit = entry.get("inputTokenLimit")
    return ModelInfo(
        entry["name"].removeprefix("models/"), limit if isinstance(limit, int) else None
    )


def blocked(feedback: PromptFeedback) -> ApiError:
    return ApiError(
        ErrorKind.FILTERED,
        feedback.block_reason_message or f"the prompt was blocked ({feedback.block_reason})",
    )


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """{"error": {"code", "message", "status", "details": […]}}, sometimes wrapped in a list."""
    error = error_of(parse(body))
    message = str(error.get("message") or "")
    delay = retry_delay(error)
    return ApiError(
        error_kind(status, error, message),
        message or http_phrase(status, body),
        status=status,
        retry_after=read_retry_after(headers) if delay is None else delay,
    )


def stream_error(document: Any) -> ApiError:
    """An error in mid-stream, where the status was already 200."""
    error = error_of(document)
    code = error.get("code")
    message = str(error.get("message") or "")
    return ApiError(
        error_kind(code if isinstance(code, int) else 500, error, message),
        message or "the model failed in mid-answer",
        retry_after=retry_delay(error),
    )


def loose_error(body: bytes) -> ApiError | None:
    """An error that stands in the stream as plain JSON, outside of any event.

    Google ends a stream it cannot go on with in this way, and its SDKs look for it too. It begins
    where a line does, and nothing follows it.
    """
    starts = re.finditer(rb"^[\[{]", body, re.MULTILINE)
    for match in islice(starts, 8):  # more than two or three, and it is something else
        document = parse(body[match.start() :])
        inner = document[0] if isinstance(document, list) and document else document
        if isinstance(inner, dict) and inner.get("error"):
            return stream_error(inner)
    return None


def parse(body: bytes) -> Any:
    """The JSON of a body, None where it is none."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def error_of(document: Any) -> dict[str, Any]:
    """The error itself; empty where there is none that we understand."""
    if isinstance(document, list) and document:
        document = document[0]
    if isinstance(document, dict):
        document = document.get("error", document)
    if isinstance(document, str):
        return {"message": document}
    return document if isinstance(document, dict) else {}


def error_kind(status: int, error: dict[str, Any], message: str) -> ErrorKind:
    kind = KINDS.get(str(error.get("status"))) or kind_of_status(status)
    lowered = message.lower()
    if kind is ErrorKind.INVALID:
        if any(words in lowered for words in TOO_LONG):
            return ErrorKind.CONTEXT
        # A wrong key and a forbidden country are INVALID_ARGUMENT and FAILED_PRECONDITION.
        if "api key" in lowered or "location is not supported" in lowered:
            return ErrorKind.AUTH
    if kind is ErrorKind.RATE_LIMIT and "credits are depleted" in lowered:
        return ErrorKind.QUOTA
    return kind


def retry_delay(error: dict[str, Any]) -> float | None:
    """Seconds, from a RetryInfo among the details: {"retryDelay": "7s"}."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and str(detail.get("@type")).endswith("RetryInfo"):
            try:
                return max(0.0, float(str(detail.get("retryDelay")).removesuffix("s")))
            except ValueError:
                return None
    return None


# All plain text models since 2.0 read as much; those for images and speech read less.
MILLION = re.compile(r"gemini-[23](\.\d+)?-(pro|flash|flash-lite)(-(preview|latest|exp|\d[\d-]*))*")


def known_limit(name: str) -> int | None:
    return 1_048_576 if MILLION.fullmatch(name) else None
