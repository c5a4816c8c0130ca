"""Converts tools and results from the SDK's types to the messages for the daemon.

Sizes are limited here, in the host: no content of a server is larger than one frame.
"""

import base64
import binascii
import json
from collections.abc import Iterable

import mcp_types as types
import msgspec

from crabtalk.mcp.messages import McpImage, McpTool

# The engine truncates tool output to far less.
LONGEST_TEXT = 1024 * 1024
MAX_IMAGES = 16
MAX_IMAGE_BYTES = 12 * 1024 * 1024  # of all images in one answer
# Limits of a list of tools; further tools are left out.
MAX_TOOLS = 512
MAX_TOOL_BYTES = 8 * 1024 * 1024
LONGEST_DESCRIPTION = 16 * 1024


def convert_tools(tools: Iterable[types.Tool]) -> tuple[McpTool, ...]:
    """Convert as many tools as fit, without those that cannot be encoded."""
    converted: list[McpTool] = []
    room = MAX_TOOL_BYTES
    for tool in tools:
        if tool.execution is not None and tool.execution.task_support == "required":
            continue  # it can only run as an MCP task, which we do not support
        mcp_tool = convert_tool(tool)
        try:
            room -= len(msgspec.msgpack.encode(mcp_tool))
        except (ValueError, OverflowError, RecursionError):  # such as huge numbers
            continue
        if len(converted) >= MAX_TOOLS or room < 0:
            break
        converted.append(mcp_tool)
    return tuple(converted)


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
    """Return the text and the images of a result.

    Structured content is used only if there is no text: servers repeat it as text for clients that
    read only text.
    """
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
    """Add an image. Returns a line of text instead if it cannot be shown."""
    try:
        data = base64.b64decode(block.data, validate=True)
    except (binascii.Error, ValueError):
        return f"[image: {block.mime_type}, damaged]"
    size = sum(len(picture.data) for picture in pictures)
    if len(pictures) >= MAX_IMAGES or size + len(data) > MAX_IMAGE_BYTES:
        return f"[image: {block.mime_type}, {len(data)} bytes, too much to show]"
    pictures.append(McpImage(block.mime_type, data))
    return None


def compute_decoded_size(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")


def truncate_text(text: str) -> str:
    """Make a text valid UTF-8, and keep only the beginning and the end of a long one."""
    text = text.encode(errors="replace").decode()
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
