"""Images from tools, as encoded for each vendor. The expected bodies follow the vendors' docs."""

from typing import Any

import pytest

from crabtalk.model import Image, Message, Request, ToolCall
from crabtalk.model.anthropic import encoding as anthropic
from crabtalk.model.bedrock import encoding as bedrock
from crabtalk.model.google import encoding as google
from crabtalk.model.openai import encoding as openai

PICTURE = Image("image/png", b"\x89PNG")
BASE64 = "iVBORw=="
HISTORY = (
    Message("user", "look"),
    Message("assistant", tool_calls=(ToolCall("c1", "read", "{}"), ToolCall("c2", "read", "{}"))),
    Message("tool", "a beach", (PICTURE,), call_id="c1", name="read"),
    Message("tool", "a text", call_id="c2", name="read"),
    Message("user", "well?"),
)
REQUEST = Request("m", HISTORY)


@pytest.mark.req("model.images.tool")
def test_openai_gets_images_after_the_results_of_the_step() -> None:
    """The API accepts only text in tool messages, and requires the results of a step in a row."""
    encoded = openai.encode_messages(HISTORY)
    assert [message["role"] for message in encoded[2:]] == ["tool", "tool", "user", "user"]
    assert encoded[2]["content"] == "a beach"
    assert encoded[4]["content"] == [
        {"type": "text", "text": "Found by read (c1):"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
    ]
    assert encoded[5] == {"role": "user", "content": "well?"}


@pytest.mark.req("model.images.tool")
def test_openai_gets_images_even_if_no_message_follows() -> None:
    encoded = openai.encode_messages(HISTORY[:4])
    assert [message["role"] for message in encoded[2:]] == ["tool", "tool", "user"]


@pytest.mark.req("model.images.tool")
def test_anthropic_gets_images_inside_the_result() -> None:
    turns = anthropic.encode_turns(HISTORY, restore=False)
    assert turns[2]["content"][:2] == [
        {
            "type": "tool_result",
            "tool_use_id": "c1",
            "content": [
                {"type": "text", "text": "a beach"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": BASE64},
                },
            ],
        },
        {"type": "tool_result", "tool_use_id": "c2", "content": "a text"},
    ]


@pytest.mark.req("model.images.tool")
def test_bedrock_gets_images_inside_the_result() -> None:
    turns = bedrock.encode_turns(REQUEST, restore=False)
    first: dict[str, Any] = turns[2]["content"][0]["toolResult"]
    assert first["content"] == [
        {"text": "a beach"},
        {"image": {"format": "png", "source": {"bytes": BASE64}}},
    ]


@pytest.mark.req("model.images.tool")
def test_google_gets_images_next_to_the_results_of_the_step() -> None:
    contents = google.encode_contents(HISTORY)
    assert [next(iter(part)) for part in contents[2]["parts"]] == [
        "functionResponse",
        "functionResponse",
        "inlineData",
        "text",
    ]
    assert contents[2]["parts"][2]["inlineData"] == {"mimeType": "image/png", "data": BASE64}
