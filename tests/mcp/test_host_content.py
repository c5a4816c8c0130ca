"""Conversion of tools and results in the host: limits, and values that fit a frame."""

import base64
import json

import mcp_types as types
import pytest

from crabtalk.mcp.host.content import (
    LONGEST_DESCRIPTION,
    LONGEST_TEXT,
    MAX_IMAGES,
    MAX_TOOLS,
    convert_result,
    convert_tools,
)
from crabtalk.mcp.messages import LARGEST_FRAME, McpCallResult, McpImage, PeerTools, encode_frame
from tests.mcp.tiny_server import build_png


def build_image(data: bytes) -> types.ImageContent:
    encoded = base64.b64encode(data).decode()
    return types.ImageContent(type="image", data=encoded, mime_type="image/png")


def build_text(content_text: str) -> types.TextContent:
    return types.TextContent(type="text", text=content_text)


@pytest.mark.req("mcp.results")
def test_structured_content_is_used_if_there_is_no_text() -> None:
    both = types.CallToolResult(content=[build_text("low")], structured_content={"tide": "low"})
    assert convert_result(both) == ("low", ())
    only = types.CallToolResult(
        content=[build_image(build_png())], structured_content={"tide": "niedrig ö"}
    )
    assert convert_result(only) == ('{"tide": "niedrig ö"}', (McpImage("image/png", build_png()),))


@pytest.mark.req("mcp.results")
def test_texts_are_joined_by_line_breaks() -> None:
    assert convert_result(types.CallToolResult(content=[build_text("a"), build_text("b")])) == (
        "a\nb",
        (),
    )


@pytest.mark.req("mcp.results.bounded")
def test_the_largest_answer_fits_a_frame() -> None:
    content: list[types.ContentBlock] = [build_text("é" * LONGEST_TEXT)]
    content += [build_image(b"x" * 1_000_000) for _ in range(MAX_IMAGES)]
    content_text, pictures = convert_result(types.CallToolResult(content=content))
    assert len(encode_frame(McpCallResult(1, content_text, pictures))) < LARGEST_FRAME
    assert len(pictures) == 12
    assert content_text.count("too much to show") == MAX_IMAGES - 12


@pytest.mark.req("mcp.results.bounded")
def test_a_tool_list_is_truncated_and_unencodable_tools_are_left_out() -> None:
    def tool(name: str, **schema: object) -> types.Tool:
        return types.Tool(name=name, description="d" * 100_000, input_schema=schema)

    endless = tool("endless", maximum=2**70)
    found = convert_tools([endless, *(tool(str(number)) for number in range(MAX_TOOLS + 9))])
    assert 100 < len(found) <= MAX_TOOLS
    assert found[0].name == "0"
    assert len(found[0].description) == LONGEST_DESCRIPTION
    assert found[0].parameters == {"type": "object", "properties": {}}
    assert len(encode_frame(PeerTools(1, found))) < LARGEST_FRAME
    assert json.dumps(found[0].parameters)


def test_a_tool_that_requires_mcp_tasks_is_not_offered() -> None:
    task = types.Tool(
        name="research",
        input_schema={},
        execution=types.ToolExecution(task_support="required"),
    )
    assert convert_tools([task]) == ()
