"""What servers offer and answer, from the SDK's types to the few values the daemon knows.

Bounded here, in the host: nothing a server sends reaches the daemon in more than a frame.
"""

import base64
import binascii
import json
from collections.abc import Iterable

import mcp_types as types
import msgspec

from crabtalk.mcp.messages import McpImage, McpTool

# The engine cuts what an agent reads to far less.
LONGEST_TEXT = 1024 * 1024
MAX_IMAGES = 16
MAX_IMAGE_BYTES = 12 * 1024 * 1024  # of one answer, all together
# What a list of tools may have, before its rest is left out.
MAX_TOOLS = 512
MAX_TOOL_BYTES = 8 * 1024 * 1024
LONGEST_DESCRIPTION = 16 * 1024


def convert_tools(found: Iterable[types.Tool]) -> tuple[McpTool, ...]:
    """As many as fit, without those that cannot be told of."""
    tools: list[McpTool] = []
    room = MAX_TOOL_BYTES
    for tool in found:
        if tool.execution is not None and tool.execution.task_support == "required":
            continue  # can only be begun and asked about later, which nobody here does
        made = convert_tool(tool)
        try:
            room -= len(msgspec.msgpack.encode(made))
        except (ValueError, OverflowError, RecursionError):  # numbers without end, and the like
            continue
        if len(tools) >= MAX_TOOLS or room < 0:
            break
        tools.append(made)
    return tuple(tools)


def convert_tool(tool: types.Tool) -> McpTool:
    hints = tool.annotations or types.ToolAnnotations()
    schema = dict(tool.input_schema)
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    return McpTool(
        name=tool.name,
        description=(tool.description or "")[:LONGEST_DESCRIPTION],
        parameters=schema,
        title=tool.title or hints.title or "",
        read_only=hints.read_only_hint,
        destructive=hints.destructive_hint,
        idempotent=hints.idempotent_hint,
        open_world=hints.open_world_hint,
    )


def convert_result(result: types.CallToolResult) -> tuple[str, tuple[McpImage, ...]]:
    """The text of an answer and its images. Structured content stands in where there is no text:
    servers repeat it there for those who read text only."""
    pictures: list[McpImage] = []
    lines = [
        line for block in result.content if (line := describe_block(block, pictures)) is not None
    ]
    has_text = any(isinstance(block, types.TextContent) for block in result.content)
    if result.structured_content is not None and not has_text:
        lines.insert(0, json.dumps(result.structured_content, ensure_ascii=False))
    return truncate_text("\n".join(lines)), tuple(pictures)


def describe_block(block: types.ContentBlock, pictures: list[McpImage]) -> str | None:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent():
            return add_image(block, pictures)
        case types.AudioContent():
            return f"[audio: {block.mime_type}, {compute_decoded_size(block.data)} bytes]"
        case types.ResourceLink():
            about = f": {block.description}" if block.description else ""
            return f"[resource: {block.name}, {block.uri}{about}]"
        case types.EmbeddedResource():
            return describe_resource(block.resource)


def describe_resource(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    if isinstance(resource, types.TextResourceContents):
        return f"[resource: {resource.uri}]\n{resource.text}"
    kind = resource.mime_type or "of unknown kind"
    return f"[resource: {resource.uri}, {kind}, {compute_decoded_size(resource.blob)} bytes]"


def add_image(block: types.ImageContent, pictures: list[McpImage]) -> str | None:
    """A line only for one that cannot be shown."""
    try:
        data = base64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError):
        return f"[image: {block.mime_type}, damaged]"
    held = sum(len(picture.data) for picture in pictures)
    if len(pictures) >= MAX_IMAGES or held + len(data) > MAX_IMAGE_BYTES:
        return f"[image: {block.mime_type}, {len(data)} bytes, too much to show]"
    pictures.append(McpImage(block.mime_type, data))
    return None


def compute_decoded_size(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")


def truncate_text(text: str) -> str:
    """What UTF-8 can carry, and not more than anybody reads: the beginning and the end."""
    text = text.encode(errors="replace").decode()
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
