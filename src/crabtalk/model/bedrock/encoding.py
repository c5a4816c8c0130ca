"""Encodes a conversation for the Converse API."""

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from crabtalk.model.anthropic.encoding import INVALID_ARGUMENTS
from crabtalk.model.errors import ApiError, ErrorKind
from crabtalk.model.messages import Image, Message, Request, Tool, ToolCall

from .model_families import (
    OPAQUE_KEY,
    THINKING_ON_DEMAND,
    is_claude,
    is_nova,
    parse_claude_generation,
)

FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
CACHE_POINT = {"cachePoint": {"type": "default"}}
NO_OUTPUT = "(no output)"


def encode_system(messages: Iterable[Message]) -> list[dict[str, Any]]:
    texts = [message.text for message in messages if message.role == "system"]
    return [block for text in texts for block in encode_text(text)]


def encode_turns(request: Request, *, restore: bool) -> list[dict[str, Any]]:
    """Encode alternating user and assistant turns. `restore` includes the assistant's thinking."""
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
            # Models require tool results first, before messages that arrived meanwhile.
            turn["content"].sort(key=lambda block: "toolResult" not in block)
    return turns


def encode_blocks(message: Message, model: str, restore: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [encode_result(message, model)]
    if message.role == "user":
        return [*map(encode_image, message.images), *encode_text(message.text)]
    state = message.opaque.get(OPAQUE_KEY)
    if restore and state and state["model"] == model:  # signatures are valid for one model
        return encode_layout(message, state["layout"])
    return [*encode_text(message.text), *map(encode_call, message.tool_calls)]


def encode_layout(message: Message, layout: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks in their original order."""
    calls = {call.id: call for call in message.tool_calls}
    whole = sum(entry["text"] for entry in layout if "text" in entry)
    ids = [entry["toolUse"] for entry in layout if "toolUse" in entry]
    if whole != len(message.text) or ids != list(calls):
        # Interrupted or edited: thoughts go first, where they are always allowed.
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
    """Return one block, or none: Bedrock refuses text that is empty or blank."""
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
    """Return an id that Bedrock accepts. Ids of other vendors may be longer or have other
    characters."""
    if re.fullmatch(r"[a-zA-Z0-9_.:-]{1,64}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()


def encode_tools(request: Request, *, is_free: bool) -> dict[str, Any]:
    """Encode tools. With `is_free` the model cannot be forced to call one, so it may choose."""
    tools = [encode_tool(tool) for tool in request.tools]
    called = {call.name: None for message in request.messages for call in message.tool_calls}
    if not called and request.tool_choice == "none":
        return {}  # the API has no choice "none", so the tools are left out
    if called and not tools:
        # Bedrock refuses a history with calls if the request has no tools.
        tools = [encode_tool(Tool(name, "No longer there.")) for name in called]
    if not tools:
        return {}
    config: dict[str, Any] = {"tools": tools}
    if request.tool_choice in ("auto", "none") or is_free:
        return config  # auto is the default
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


def mark_cache_points(body: dict[str, Any], model: str) -> None:
    """Mark where to cache: after the tools, the system prompt and the last user turn."""
    has_tool_marks = is_claude(model)
    if (
        not is_nova(model)
        and parse_claude_generation(model) < THINKING_ON_DEMAND
        and "claude-3-5-haiku" not in model
    ):
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
