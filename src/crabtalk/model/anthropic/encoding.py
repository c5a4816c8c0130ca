"""Encodes a conversation as Anthropic's turns and content blocks."""

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from crabtalk.model.messages import Image, Message, Tool, ToolCall

from .generations import OPAQUE_KEY, THINKING_BLOCKS

# The API accepts only objects as arguments. If the model wrote something else, its text is sent
# back under this key, so that the model sees its mistake.
INVALID_ARGUMENTS = "invalid_arguments"


def encode_system(messages: Sequence[Message]) -> list[dict[str, Any]]:
    texts = [message.text for message in messages if message.role == "system"]
    return [block for text in texts for block in encode_text(text)]


def encode_turns(messages: Sequence[Message], *, restore: bool) -> list[dict[str, Any]]:
    """Encode alternating user and assistant turns. `restore` includes the assistant's thinking."""
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
            # The API requires tool results first, before messages that arrived meanwhile.
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    return turns


def encode_blocks(message: Message, restore: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [encode_result(message)]
    if message.role == "user":
        return [*map(encode_image, message.images), *encode_text(message.text)]
    layout = message.opaque.get(OPAQUE_KEY) if restore else None
    if not layout:
        return [*encode_text(message.text), *map(encode_call, message.tool_calls)]
    return encode_layout(message, layout)


def encode_layout(message: Message, layout: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks in their original order; newer models check that nothing was moved."""
    calls = {call.id: call for call in message.tool_calls}
    whole = sum(entry["length"] for entry in layout if entry["type"] == "text")
    ids = [entry["id"] for entry in layout if entry["type"] == "tool_use"]
    if whole != len(message.text) or ids != list(calls):
        # Interrupted or edited: thinking goes first, where it is always allowed.
        thinking = [dict(entry) for entry in layout if entry["type"] in THINKING_BLOCKS]
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
    """Return one block, or none: the API refuses text that is empty or blank."""
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


def encode_tool_choice(choice: str) -> dict[str, Any]:
    if choice in ("auto", "none"):
        return {"type": choice}
    return {"type": "any"} if choice == "required" else {"type": "tool", "name": choice}


def mark_cache_points(body: dict[str, Any]) -> None:
    """Mark where to cache: after the tools, the system prompt, and each of the last two user turns.

    The API allows four marks. The older one in the history finds the cache entry of the last
    request, the newer one creates the entry for the next.
    """
    users = [turn["content"] for turn in body["messages"] if turn["role"] == "user"]
    for blocks in (body.get("tools"), body.get("system"), *users[-2:]):
        if blocks:
            blocks[-1]["cache_control"] = {"type": "ephemeral"}
