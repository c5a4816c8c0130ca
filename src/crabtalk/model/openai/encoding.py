"""Encodes a conversation and its tools for chat completions."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from crabtalk.model.messages import Image, Message, Request, Tool


def encode_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Encode messages. Tool messages can only contain text in this API, so the images of tools
    follow the results of their step in a user message."""
    encoded: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "tool" and images:
            encoded.append({"role": "user", "content": images})
            images = []
        encoded.append(encode_message(message))
        if message.role == "tool" and message.images:
            caption = f"Found by {message.name or 'a tool'} ({message.call_id}):"
            images += [{"type": "text", "text": caption}, *map(encode_image, message.images)]
    return [*encoded, {"role": "user", "content": images}] if images else encoded


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


def encode_tool_choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def compute_cache_key(request: Request) -> str:
    """Return the same key for requests with the same model, system prompt and tools."""
    prefix = [m.text for m in request.messages if m.role == "system"]
    parts = msgspec.json.encode([request.model, prefix, [tool.name for tool in request.tools]])
    return hashlib.sha256(parts).hexdigest()[:32]
