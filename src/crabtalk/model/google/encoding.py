"""Encodes a conversation as Gemini's contents and parts, with thought signatures."""

import base64
from collections.abc import Iterable
from typing import Any

import msgspec

from crabtalk.model.messages import Image, Message, Request, Tool, ToolCall

# Gemini 3 refuses calls without a signature. Google defines this value for calls made by another
# model, see ai.google.dev/gemini-api/docs/thought-signatures.
FOREIGN_SIGNATURE = "skip_thought_signature_validator"


class ThoughtSignatures:
    """The thought signatures of one answer, in the form stored in `opaque["google"]`.

    A call's signature is stored by the call's id. A text's signature is stored with the range it
    covers, [start, end, signature], because signed and unsigned text must not be joined. The range
    is often empty: in a stream the signature tends to come last, in a part of its own.
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
        """Return all signatures so far: the value of a later chunk replaces earlier ones."""
        state: dict[str, Any] = {"calls": dict(self._calls)} if self._calls else {}
        return state | {field: list(spans) for field, spans in self._spans.items() if spans}


def encode_contents(messages: Iterable[Message], foreign: str = "") -> list[dict[str, Any]]:
    """Encode the history. Consecutive messages of the same side become one content.

    `foreign` is the signature to use for calls that have none.
    """
    contents: list[dict[str, Any]] = []
    for message in messages:
        role = "model" if message.role == "assistant" else "user"
        parts = encode_parts(message, foreign)
        if not parts:  # the API refuses a content without parts
            continue
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    for content in contents:
        if content["role"] == "user":
            # Tool results come first, then their images and messages that arrived meanwhile.
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
    """Encode an assistant message. Only signed thoughts are sent back: the API ignores others."""
    state = message.opaque.get("google") or {}
    parts = [
        {"text": message.reasoning[start:end], "thought": True, "thoughtSignature": signature}
        for start, end, signature in state.get("reasoning", ())
    ]
    parts += encode_text(message.text, state.get("text", ()))
    signatures = state.get("calls") or {}
    if foreign and message.tool_calls and not signatures:
        # Of parallel calls, the first has the signature.
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
    """Decode arguments. The API accepts only objects, so any other text is wrapped in one."""
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
    """`parametersJsonSchema` accepts any JSON Schema; `parameters` has its own dialect."""
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": tool.parameters,
    }


def encode_tool_choice(choice: str) -> dict[str, Any]:
    modes = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
    if choice in modes:
        return {"mode": modes[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def encode_generation_config(request: Request) -> dict[str, Any]:
    generation: dict[str, Any] = {}
    if request.thinking:
        generation["thinkingConfig"] = {"includeThoughts": True}
    if request.max_tokens is not None:
        generation["maxOutputTokens"] = request.max_tokens
    if request.temperature is not None:
        generation["temperature"] = request.temperature
    return generation
