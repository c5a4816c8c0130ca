"""Bedrock's Converse against a server that speaks it, with boto3 as second witness: it reads the
same bytes, writes the same requests, and checks our signatures as AWS would.
"""

import asyncio
import base64
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import boto3  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.credentials import Credentials as BotoCredentials  # type: ignore[import-untyped]
from botocore.exceptions import ClientError, EventStreamError  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from crabtalk.model import (
    ApiError,
    Chunk,
    ErrorKind,
    HttpClient,
    HttpProvider,
    Image,
    Message,
    ModelInfo,
    Request,
    ResponseAssembler,
    RetryPolicy,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from crabtalk.model.bedrock import BedrockDialect, read_credentials, read_region
from crabtalk.model.bedrock.sigv4 import AwsCredentials
from tests.model.fake_vendor import (
    FakeVendor,
    VendorAnswer,
    VendorRequest,
    run_vendor,
    split_pieces,
)
from tests.model.test_event_stream import encode_message

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ADAPTIVE = "global.anthropic.claude-opus-4-6-v1"
NOVA = "eu.amazon.nova-pro-v1:0"
LLAMA = "meta.llama3-3-70b-instruct-v1:0"

KEYS = AwsCredentials("AKIDEXAMPLE", "hush/hush+hush", "session-token")
REGION = "us-west-2"
STREAM = "application/vnd.amazon.eventstream"
POINT = {"cachePoint": {"type": "default"}}

USER = Message(role="user", text="hi")
HI = Request(model=CLAUDE, messages=(USER,))


def encode_event(name: str, **document: object) -> bytes:
    """Encode like AWS, padded with `p` to hide the length of the text."""
    headers = {
        ":event-type": (7, name),
        ":content-type": (7, "application/json"),
        ":message-type": (7, "event"),
    }
    return encode_message(
        headers, json.dumps({**document, "p": "abcdefgh"}, ensure_ascii=False).encode()
    )


def encode_exception(name: str, message: str) -> bytes:
    headers = {
        ":exception-type": (7, name),
        ":content-type": (7, "application/json"),
        ":message-type": (7, "exception"),
    }
    return encode_message(headers, json.dumps({"message": message}).encode())


def encode_delta(index: int, **fields: object) -> bytes:
    return encode_event("contentBlockDelta", contentBlockIndex=index, delta=fields)


def encode_thought(index: int, **fields: str) -> bytes:
    return encode_delta(index, reasoningContent=fields)


def encode_block_start(index: int, call_id: str, name: str) -> bytes:
    tool = {"toolUse": {"toolUseId": call_id, "name": name}}
    return encode_event("contentBlockStart", contentBlockIndex=index, start=tool)


def encode_block_stop(index: int) -> bytes:
    return encode_event("contentBlockStop", contentBlockIndex=index)


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


BEGIN = encode_event("messageStart", role="assistant")
END = encode_event("messageStop", stopReason="end_turn")
METADATA = encode_event(
    "metadata",
    usage={
        "inputTokens": 20,
        "outputTokens": 7,
        "totalTokens": 127,
        "cacheReadInputTokens": 90,
        "cacheWriteInputTokens": 10,
    },
    metrics={"latencyMs": 551},
)

# A model thinks (visibly and redacted), answers, thinks again, and calls two tools whose
# arguments come in fragments.
FULL = b"".join(
    [
        BEGIN,
        encode_thought(0, text="Hm, "),
        encode_thought(0, text="über 🦀"),
        encode_thought(0, signature="c2ln"),
        encode_block_stop(0),
        encode_thought(1, redactedContent=encode_base64(b"sea")),
        encode_thought(1, redactedContent=encode_base64(b"led")),
        encode_block_stop(1),
        encode_delta(2, text="Sure"),
        encode_delta(2, text=", 日本"),
        encode_block_stop(2),
        encode_thought(3, text="!"),
        encode_thought(3, signature="bmFsMg=="),
        encode_block_stop(3),
        encode_block_start(4, "tooluse_a", "bash"),
        encode_delta(4, toolUse={"input": ""}),
        encode_delta(4, toolUse={"input": '{"comm'}),
        encode_delta(4, toolUse={"input": 'and":"ls"}'}),
        encode_block_stop(4),
        encode_block_start(5, "tooluse_b", "read"),
        encode_delta(5, toolUse={"input": "{}"}),
        encode_block_stop(5),
        encode_event("messageStop", stopReason="tool_use"),
        METADATA,
    ]
)
THOUGHTS = (
    {"reasoningContent": {"reasoningText": {"text": "Hm, über 🦀", "signature": "c2ln"}}},
    {"reasoningContent": {"redactedContent": encode_base64(b"sealed")}},
    {"reasoningContent": {"reasoningText": {"text": "!", "signature": "bmFsMg=="}}},
)
FULL_MESSAGE = Message(
    role="assistant",
    text="Sure, 日本",
    reasoning="Hm, über 🦀!",
    tool_calls=(
        ToolCall(id="tooluse_a", name="bash", arguments='{"command":"ls"}'),
        ToolCall(id="tooluse_b", name="read", arguments="{}"),
    ),
    opaque={
        "bedrock": {
            "model": CLAUDE,
            "layout": [
                THOUGHTS[0],
                THOUGHTS[1],
                {"text": 8},
                THOUGHTS[2],
                {"toolUse": "tooluse_a"},
                {"toolUse": "tooluse_b"},
            ],
        }
    },
)
RESULTS = (
    Message(role="tool", call_id="tooluse_a", name="bash", text="no such file", is_error=True),
    Message(role="tool", call_id="tooluse_b", name="read", text=""),
)
BASH = Tool("bash", "Runs", {"type": "object", "properties": {"command": {"type": "string"}}})


def build_answer(*pieces: bytes, size: int = 0) -> VendorAnswer:
    body = b"".join(pieces)
    return VendorAnswer(split_pieces(body, size) if size else [body], content_type=STREAM)


def build_dialect(
    base: str = "", credentials: AwsCredentials = KEYS, region: str = REGION
) -> BedrockDialect:
    return BedrockDialect(
        "rock", region=region, credentials=credentials, base=base, clock=lambda: 1_700_000_000.0
    )


@asynccontextmanager
async def open_provider(
    fake: FakeVendor, *, credentials: AwsCredentials = KEYS, retries: int = 0
) -> AsyncIterator[HttpProvider]:
    http = HttpClient()
    retry = RetryPolicy(max_retries=retries, backoff=0.001)
    try:
        yield HttpProvider(build_dialect(fake.url, credentials), http, retry=retry)
    finally:
        await http.close()


async def collect_chunks(provider: HttpProvider, request: Request = HI) -> list[Chunk]:
    return [chunk async for chunk in provider.stream(request)]


def assemble_chunks(chunks: list[Chunk]) -> ResponseAssembler:
    assembler = ResponseAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


def decode_pieces(pieces: list[bytes]) -> list[Chunk]:
    decoder = build_dialect().create_decoder(HI)
    chunks = [chunk for piece in pieces for chunk in decoder.feed(piece)]
    return chunks + decoder.end()


def build_body(request: Request) -> dict[str, Any]:
    return build_dialect().build_body(request)


def build_request(model: str = CLAUDE, *messages: Message, **fields: Any) -> Request:
    return Request(model=model, messages=messages or (USER,), **fields)


async def call_with_sdk(fake: FakeVendor, work: Callable[[Any], Any]) -> Any:
    """Run `work` with a client of the SDK in a thread."""

    def run() -> Any:
        client = boto3.client(
            "bedrock-runtime",
            endpoint_url=fake.url,
            region_name=REGION,
            aws_access_key_id=KEYS.access_key,
            aws_secret_access_key=KEYS.secret_key,
            aws_session_token=KEYS.session_token,
            config=Config(retries={"total_max_attempts": 1}),
        )
        try:
            return work(client)
        finally:
            client.close()

    return await asyncio.to_thread(run)


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.backend.bedrock")
async def test_text_reasoning_calls_usage_and_finish_are_read() -> None:
    async with run_vendor([build_answer(FULL, size=50)]) as fake, open_provider(fake) as model:
        whole = assemble_chunks(await collect_chunks(model))
    assert whole.build_message() == FULL_MESSAGE
    assert whole.finish == "tool_calls"
    assert whole.usage == Usage(prompt=120, completion=7, total=127, cache_hit=90, cache_miss=30)


async def test_a_complete_answer_equals_the_assembled_stream() -> None:
    async with run_vendor([build_answer(FULL)]) as fake, open_provider(fake) as model:
        response = await model.complete(HI)
    assert response.message == FULL_MESSAGE


@pytest.mark.req("model.sdk_agrees")
async def test_the_vendors_sdk_reads_the_same_from_the_same_bytes() -> None:
    """Otherwise the fake would not behave like the vendor."""

    def read(client: Any) -> list[dict[str, Any]]:
        response = client.converse_stream(
            modelId=CLAUDE, messages=[{"role": "user", "content": [{"text": "hi"}]}]
        )
        return list(response["stream"])

    async with run_vendor([build_answer(FULL, size=50)]) as fake:
        events = await call_with_sdk(fake, read)
    deltas = [e["contentBlockDelta"]["delta"] for e in events if "contentBlockDelta" in e]
    thoughts = [d["reasoningContent"] for d in deltas if "reasoningContent" in d]
    starts = [e["contentBlockStart"] for e in events if "contentBlockStart" in e]
    assert "".join(d.get("text", "") for d in deltas) == FULL_MESSAGE.text
    assert "".join(t.get("text", "") for t in thoughts) == FULL_MESSAGE.reasoning
    assert b"".join(t.get("redactedContent", b"") for t in thoughts) == b"sealed"
    assert [t["signature"] for t in thoughts if "signature" in t] == ["c2ln", "bmFsMg=="]
    calls = [
        ToolCall(
            id=each["start"]["toolUse"]["toolUseId"],
            name=each["start"]["toolUse"]["name"],
            arguments="".join(
                e["contentBlockDelta"]["delta"]["toolUse"]["input"]
                for e in events
                if "contentBlockDelta" in e
                and e["contentBlockDelta"]["contentBlockIndex"] == each["contentBlockIndex"]
            ),
        )
        for each in starts
    ]
    assert tuple(calls) == FULL_MESSAGE.tool_calls
    (reason,) = [e["messageStop"]["stopReason"] for e in events if "messageStop" in e]
    assert reason == "tool_use"
    (usage,) = [e["metadata"]["usage"] for e in events if "metadata" in e]
    assert usage["totalTokens"] == 127


@pytest.mark.req("faults.model.complete")
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("length", [0, 1, 20, len(METADATA) - 1])
async def test_an_answer_that_has_finished_is_kept_wherever_its_connection_is_cut(
    length: int, cut: bool
) -> None:
    pieces = [BEGIN, encode_delta(0, text="a"), END, METADATA[:length]]
    given = VendorAnswer(pieces, content_type=STREAM, cut=cut)
    async with run_vendor([given]) as fake, open_provider(fake) as model:
        whole = assemble_chunks(await collect_chunks(model))
    assert (whole.build_message().text, whole.finish) == ("a", "stop")


@pytest.mark.req("model.stream.any_split")
@given(st.lists(st.integers(0, len(FULL)), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FULL)]
    assert decode_pieces([FULL[a:b] for a, b in pairwise(edges)]) == decode_pieces([FULL])


def test_no_chunk_is_empty() -> None:
    assert Chunk() not in decode_pieces([FULL])
    assert decode_pieces([BEGIN, encode_delta(0, text=""), END]) == [Chunk(finish="stop")]


def test_calls_are_numbered_from_zero_whatever_came_before_them() -> None:
    numbers = [call.index for chunk in decode_pieces([FULL]) for call in chunk.tool_calls]
    assert numbers == [0, 0, 0, 1, 1]
    assert decode_pieces([encode_block_start(7, "x", "n"), END])[0].tool_calls == (
        ToolCallDelta(index=0, id="x", name="n"),
    )


def test_a_thought_is_stored_as_soon_as_it_is_signed() -> None:
    decoder = build_dialect().create_decoder(HI)
    seen = decoder.feed(
        b"".join(
            [
                BEGIN,
                encode_thought(0, text="a"),
                encode_thought(0, signature="s"),
                encode_block_stop(0),
            ]
        )
    )
    block = {"reasoningContent": {"reasoningText": {"text": "a", "signature": "s"}}}
    assert seen[-1] == Chunk(opaque={"bedrock": {"model": CLAUDE, "layout": [block]}})


def test_a_thought_without_a_signature_is_shown_but_not_stored() -> None:
    whole = assemble_chunks(
        decode_pieces(
            [
                BEGIN,
                encode_thought(0, text="hm"),
                encode_block_stop(0),
                encode_delta(1, text="a"),
                END,
            ]
        )
    )
    assert whole.build_message() == Message(role="assistant", text="a", reasoning="hm")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("guardrail_intervened", "filtered"),
        ("content_filtered", "filtered"),
        ("something_new", "stop"),
    ],
)
def test_every_reason_to_stop_has_a_name(reason: str, finish: str) -> None:
    assert decode_pieces([encode_event("messageStop", stopReason=reason)])[-1].finish == finish


def test_usage_without_a_cache_has_no_cache_counts() -> None:
    usage = encode_event("metadata", usage={"inputTokens": 3, "outputTokens": 4, "totalTokens": 7})
    assert assemble_chunks(decode_pieces([END, usage])).usage == Usage(
        prompt=3, completion=4, total=7
    )


def test_unknown_events_are_ignored() -> None:
    news = (
        encode_event("initial-response")
        + encode_event("weather", delta="sunny")
        + encode_event("messageStart")
    )
    assert decode_pieces([news, encode_delta(0, image={"source": {}}), END]) == [
        Chunk(finish="stop")
    ]


# ── Writing ────────────────────────────────────────────────────────────────────────────────────

EVERYTHING = Request(
    model=CLAUDE,
    messages=(
        Message(role="system", text="Be a crab."),
        Message(role="user", text="look", images=(Image("image/jpeg", b"\xff\xd8"),)),
        FULL_MESSAGE,
        *RESULTS,
        Message(role="user", text="and?"),
        Message(role="user", text=" "),
    ),
    tools=(BASH, Tool("read")),
    tool_choice="auto",
    thinking=True,
    max_tokens=9000,
    temperature=0.5,
)
EVERYTHING_BODY = {
    "system": [{"text": "Be a crab."}, POINT],
    "messages": [
        {
            "role": "user",
            "content": [
                {"image": {"format": "jpeg", "source": {"bytes": "/9g="}}},
                {"text": "look"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                THOUGHTS[0],
                THOUGHTS[1],
                {"text": "Sure, 日本"},
                THOUGHTS[2],
                {"toolUse": {"toolUseId": "tooluse_a", "name": "bash", "input": {"command": "ls"}}},
                {"toolUse": {"toolUseId": "tooluse_b", "name": "read", "input": {}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "tooluse_a",
                        "content": [{"text": "no such file"}],
                        "status": "error",
                    }
                },
                {"toolResult": {"toolUseId": "tooluse_b", "content": [{"text": "(no output)"}]}},
                {"text": "and?"},
                POINT,
            ],
        },
    ],
    "toolConfig": {
        "tools": [
            {
                "toolSpec": {
                    "name": "bash",
                    "description": "Runs",
                    "inputSchema": {"json": BASH.parameters},
                }
            },
            {
                "toolSpec": {
                    "name": "read",
                    "inputSchema": {"json": {"type": "object", "properties": {}}},
                }
            },
            POINT,
        ]
    },
    "inferenceConfig": {"maxTokens": 9000},
    "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 4500}},
}


def decode_blobs(value: Any, name: str = "") -> Any:
    """Convert a body for the SDK: bytes in place of base64."""
    if isinstance(value, dict):
        return {key: decode_blobs(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [decode_blobs(each) for each in value]
    return base64.b64decode(value) if name in ("bytes", "redactedContent") else value


@pytest.mark.req("model.request")
@pytest.mark.req("model.sdk_agrees")
async def test_a_request_carries_everything_and_the_sdk_would_send_the_same() -> None:
    async with run_vendor(lambda _: build_answer(FULL)) as fake:
        async with open_provider(fake) as model:
            await collect_chunks(model, EVERYTHING)

        def send(client: Any) -> None:
            body = decode_blobs(fake.requests[0].json)
            list(client.converse_stream(modelId=CLAUDE, **body)["stream"])

        await call_with_sdk(fake, send)
    ours, theirs = fake.requests
    assert ours.json == EVERYTHING_BODY
    assert theirs.json == EVERYTHING_BODY
    assert ours.method == theirs.method == "POST"
    assert ours.path == f"/model/{CLAUDE}/converse-stream"
    assert unquote(theirs.path) == ours.path
    assert ours.headers["content-type"] == theirs.headers["content-type"]


def validate_body(body: dict[str, Any]) -> str:
    """Validate a request with the service's own model, and return the errors."""
    shape = (
        botocore.session.Session()
        .get_service_model("bedrock-runtime")
        .operation_model("ConverseStream")
        .input_shape
    )
    report = ParamValidator().validate({"modelId": "m", **decode_blobs(body)}, shape)
    return str(report.generate_report())


@pytest.mark.parametrize("model", [CLAUDE, ADAPTIVE, NOVA, LLAMA])
@pytest.mark.parametrize("choice", ["auto", "none", "required", "bash"])
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.slow
def test_requests_match_the_services_own_model(model: str, choice: str, thinking: bool) -> None:
    request = Request(
        model=model,
        messages=EVERYTHING.messages,
        tools=EVERYTHING.tools,
        tool_choice=choice,
        thinking=thinking,
        max_tokens=9000,
        temperature=0.5,
    )
    assert validate_body(build_body(request)) == ""
    assert validate_body({**build_body(request), "nonsense": 1}) != ""


async def test_a_plain_request_is_as_small_as_can_be() -> None:
    async with run_vendor([build_answer(FULL)]) as fake, open_provider(fake) as model:
        await collect_chunks(model, build_request(LLAMA))
    assert fake.requests[0].json == {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}


def test_a_request_goes_to_its_region() -> None:
    dialect = build_dialect()
    host = "https://bedrock-runtime.us-west-2.amazonaws.com"
    assert dialect.build_chat_request(HI).url == f"{host}/model/{CLAUDE}/converse-stream"
    assert (
        dialect.build_models_request().url
        == "https://bedrock.us-west-2.amazonaws.com/foundation-models"
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", None),
        ("required", {"any": {}}),
        ("bash", {"tool": {"name": "bash"}}),
    ],
)
def test_the_tool_choice_is_encoded_for_bedrock(
    choice: str, expected: dict[str, Any] | None
) -> None:
    body = build_body(build_request(tools=(BASH,), tool_choice=choice))
    assert body["toolConfig"].get("toolChoice") == expected


def test_a_choice_of_no_tools_leaves_them_out() -> None:
    assert "toolConfig" not in build_body(build_request(tools=(BASH,), tool_choice="none"))


def test_a_history_with_calls_keeps_its_tools_whatever_the_choice() -> None:
    history = (USER, FULL_MESSAGE, *RESULTS)
    config = build_body(build_request(LLAMA, *history, tools=(BASH,), tool_choice="none"))[
        "toolConfig"
    ]
    assert [tool["toolSpec"]["name"] for tool in config["tools"]] == ["bash"]
    assert "toolChoice" not in config
    config = build_body(build_request(LLAMA, *history))["toolConfig"]
    assert [tool["toolSpec"]["name"] for tool in config["tools"]] == ["bash", "read"]


@pytest.mark.parametrize(
    ("model", "max_tokens", "thinking", "limit"),
    [
        (CLAUDE, None, {"type": "enabled", "budget_tokens": 16_000}, 32_000),
        (CLAUDE, 4000, {"type": "enabled", "budget_tokens": 2000}, 4000),
        (CLAUDE, 1500, None, 1500),  # too little to think in
        (ADAPTIVE, None, {"type": "adaptive", "display": "summarized"}, None),
        ("anthropic.claude-opus-5", 1500, {"type": "adaptive", "display": "summarized"}, 1500),
        (
            "anthropic.claude-3-7-sonnet-20250219-v1:0",
            None,
            {"type": "enabled", "budget_tokens": 16_000},
            32_000,
        ),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", None, None, None),
        ("anthropic.claude-v2:1", None, None, None),
        (NOVA, None, None, None),
    ],
)
def test_claude_is_asked_to_think_in_the_way_of_its_generation(
    model: str, max_tokens: int | None, thinking: dict[str, Any] | None, limit: int | None
) -> None:
    body = build_body(build_request(model, thinking=True, max_tokens=max_tokens))
    assert body.get("additionalModelRequestFields") == (thinking and {"thinking": thinking})
    assert body.get("inferenceConfig", {}).get("maxTokens") == limit
    assert "additionalModelRequestFields" not in build_body(
        build_request(model, max_tokens=max_tokens)
    )


@pytest.mark.parametrize(
    ("model", "thinking", "sent"),
    [
        (CLAUDE, False, True),
        (CLAUDE, True, False),
        ("anthropic.claude-opus-4-7", False, False),
        (NOVA, True, True),
    ],
)
def test_a_temperature_is_sent_only_to_models_that_accept_one(
    model: str, thinking: bool, sent: bool
) -> None:
    body = build_body(build_request(model, temperature=0.5, thinking=thinking))
    assert (body.get("inferenceConfig", {}).get("temperature") == 0.5) is sent


@pytest.mark.parametrize(
    ("model", "thinking", "forced"),
    [
        (CLAUDE, False, True),
        (CLAUDE, True, False),
        ("anthropic.claude-opus-4-7", False, True),
        ("anthropic.claude-sonnet-5-5", False, False),
        (NOVA, True, True),
    ],
)
def test_a_model_that_cannot_be_forced_is_left_free(
    model: str, thinking: bool, forced: bool
) -> None:
    body = build_body(
        build_request(model, tools=(BASH,), tool_choice="required", thinking=thinking)
    )
    assert ("toolChoice" in body["toolConfig"]) is forced


def find_assistant_blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    (content,) = [turn["content"] for turn in body["messages"] if turn["role"] == "assistant"]
    return [dict(block) for block in content]


def list_kinds(blocks: list[dict[str, Any]]) -> list[str]:
    return [name for block in blocks for name in block]


def test_thoughts_are_sent_back_only_to_models_that_accept_them() -> None:
    history = (USER, FULL_MESSAGE, *RESULTS)

    def thoughts(model: str, message: Message, *, thinking: bool) -> int:
        messages = (USER, message, *RESULTS)
        body = build_body(build_request(model, *messages, thinking=thinking))
        return list_kinds(find_assistant_blocks(body)).count("reasoningContent")

    def thought_by(model: str) -> Message:
        state = {**FULL_MESSAGE.opaque["bedrock"], "model": model}
        return Message(
            role="assistant",
            text=FULL_MESSAGE.text,
            tool_calls=FULL_MESSAGE.tool_calls,
            opaque={"bedrock": state},
        )

    assert thoughts(CLAUDE, FULL_MESSAGE, thinking=True) == 3
    assert thoughts(CLAUDE, FULL_MESSAGE, thinking=False) == 0  # Claude 4.5 refuses them then
    assert thoughts(ADAPTIVE, thought_by(ADAPTIVE), thinking=False) == 3
    assert thoughts("openai.gpt-x", thought_by("openai.gpt-x"), thinking=False) == 3
    assert thoughts(NOVA, FULL_MESSAGE, thinking=True) == 0  # not its own
    # Calls another model made without thinking: Claude 4.5 refuses thinking during that step.
    other = build_body(build_request(CLAUDE, USER, thought_by(NOVA), *RESULTS, thinking=True))
    assert "additionalModelRequestFields" not in other
    assert "additionalModelRequestFields" in build_body(
        build_request(CLAUDE, *history, thinking=True)
    )


def test_thoughts_of_a_message_that_was_changed_come_first() -> None:
    changed = Message(
        role="assistant",
        text="Sure",
        tool_calls=FULL_MESSAGE.tool_calls[:1],
        opaque=FULL_MESSAGE.opaque,
    )
    blocks = find_assistant_blocks(build_body(build_request(CLAUDE, USER, changed, thinking=True)))
    assert list_kinds(blocks) == ["reasoningContent"] * 3 + ["text", "toolUse"]


async def test_an_answer_is_sent_back_unchanged() -> None:
    request = build_request(thinking=True, tools=(BASH,))
    async with run_vendor(lambda _: build_answer(FULL)) as fake, open_provider(fake) as model:
        message = (await model.complete(request)).message
        await model.complete(
            build_request(CLAUDE, USER, message, *RESULTS, thinking=True, tools=(BASH,))
        )
    assert fake.requests[1].json["messages"][1] == EVERYTHING_BODY["messages"][1]  # type: ignore[index]


def test_consecutive_messages_of_one_role_are_one_turn_with_results_first() -> None:
    messages = (
        Message(role="system", text="a"),
        USER,
        Message(role="assistant", text="one", tool_calls=FULL_MESSAGE.tool_calls[:1]),
        Message(role="user", text="meanwhile"),
        RESULTS[0],
        Message(role="system", text="b"),
        Message(role="assistant", text="two"),
        Message(role="assistant", text="three", agent="twin"),
        Message(role="assistant", text=" \n"),
    )
    body = build_body(build_request(LLAMA, *messages))
    assert body["system"] == [{"text": "a"}, {"text": "b"}]
    turns = [(turn["role"], list_kinds(turn["content"])) for turn in body["messages"]]
    assert turns == [
        ("user", ["text"]),
        ("assistant", ["text", "toolUse"]),
        ("user", ["toolResult", "text"]),
        ("assistant", ["text", "text"]),
    ]


def test_the_error_status_of_a_tool_is_sent_only_to_models_that_know_it() -> None:
    def result(model: str) -> dict[str, Any]:
        body = build_body(build_request(model, USER, FULL_MESSAGE, *RESULTS))
        return dict(body["messages"][-1]["content"][0]["toolResult"])

    assert result(CLAUDE)["status"] == result(NOVA)["status"] == "error"
    assert "status" not in result(LLAMA)


ENDLESS = pytest.param('{"a":' * 100_000, id="endless")


@pytest.mark.parametrize("arguments", ["{not json", "[1]", "7", ENDLESS])
def test_arguments_that_are_no_object_are_wrapped_in_one(arguments: str) -> None:
    message = Message(role="assistant", tool_calls=(ToolCall("c", "bash", arguments),))
    (block,) = find_assistant_blocks(build_body(build_request(CLAUDE, USER, message)))
    assert block["toolUse"]["input"] == {"invalid_arguments": arguments}


def test_ids_of_other_vendors_are_converted_equally_in_call_and_result() -> None:
    odd = "gemini/bash#1"
    messages = (
        USER,
        Message(role="assistant", tool_calls=(ToolCall(odd, "bash"),)),
        Message(role="tool", call_id=odd, name="bash", text="out"),
    )
    _, vendor_request, answered = build_body(build_request(LLAMA, *messages))["messages"]
    fitted = vendor_request["content"][0]["toolUse"]["toolUseId"]
    assert re.fullmatch(r"[a-zA-Z0-9_.:-]{1,64}", fitted)
    assert answered["content"][0]["toolResult"]["toolUseId"] == fitted


@pytest.mark.parametrize(
    ("media_type", "form"),
    [
        ("image/png", "png"),
        ("image/jpeg", "jpeg"),
        ("image/jpg", "jpeg"),
        ("image/gif", "gif"),
        ("image/webp", "webp"),
    ],
)
def test_images_are_sent_as_bytes_in_their_format(media_type: str, form: str) -> None:
    message = Message(role="user", images=(Image(media_type, b"abc"),))
    (turn,) = build_body(build_request(LLAMA, message))["messages"]
    assert turn["content"] == [{"image": {"format": form, "source": {"bytes": "YWJj"}}}]


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (Image(url="https://example.com/a.png"), "send the bytes of https://example.com/a.png"),
        (Image("image/tiff", b"II"), "not as image/tiff"),
    ],
)
async def test_an_image_bedrock_cannot_take_is_refused_before_anything_is_sent(
    image: Image, sentence: str
) -> None:
    async with run_vendor([]) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError, match=sentence) as caught:
            await collect_chunks(
                model, build_request(CLAUDE, Message(role="user", images=(image,)))
            )
    assert caught.value.kind is ErrorKind.INVALID
    assert fake.requests == []


# ── Caching ────────────────────────────────────────────────────────────────────────────────────


def list_cache_points(body: dict[str, Any]) -> list[str]:
    """Return where the cache points are. Each is the last entry of its list."""
    places = {
        "system": body.get("system", []),
        "tools": body.get("toolConfig", {}).get("tools", []),
        **{f"turn {n}": turn["content"] for n, turn in enumerate(body["messages"])},
    }
    assert not any(POINT in blocks[:-1] for blocks in places.values())
    return [place for place, blocks in places.items() if blocks and blocks[-1] == POINT]


@pytest.mark.req("model.cache_hints")
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (CLAUDE, ["system", "tools", "turn 2"]),
        ("anthropic.claude-3-7-sonnet-20250219-v1:0", ["system", "tools", "turn 2"]),
        ("anthropic.claude-3-5-haiku-20241022-v1:0", ["system", "tools", "turn 2"]),
        (
            f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/{CLAUDE}",
            ["system", "tools", "turn 2"],
        ),
        (NOVA, ["system", "turn 0"]),  # it refuses a mark among tools or after a result
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", []),
        ("anthropic.claude-3-haiku-20240307-v1:0", []),
        ("anthropic.claude-v2", []),
        (LLAMA, []),
        ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc", []),
    ],
)
def test_the_stable_prefix_is_marked_for_models_that_cache(model: str, expected: list[str]) -> None:
    messages = (Message(role="system", text="s"), USER, FULL_MESSAGE, *RESULTS)
    assert list_cache_points(build_body(build_request(model, *messages, tools=(BASH,)))) == expected


@pytest.mark.req("model.cache_hints")
@pytest.mark.parametrize(
    ("status", "name", "message"),
    [
        (
            403,
            "AccessDeniedException",
            "You invoked an unsupported model or your request did not allow prompt caching.",
        ),
        (
            400,
            "ValidationException",
            "Malformed input request: #/toolConfig/tools/0: extraneous key [cachePoint]",
        ),
    ],
)
async def test_a_model_that_rejects_cache_points_gets_none_from_then_on(
    status: int, name: str, message: str
) -> None:
    objection = VendorAnswer.from_json({"message": message}, status, x_amzn_errortype=name)
    async with (
        run_vendor([objection, build_answer(FULL), build_answer(FULL)]) as fake,
        open_provider(fake) as model,
    ):
        await collect_chunks(model)
        await collect_chunks(model)
    assert [bool(list_cache_points(vendor_request.json)) for vendor_request in fake.requests] == [
        True,
        False,
        False,
    ]


# ── Signing ────────────────────────────────────────────────────────────────────────────────────


def is_signature_valid(vendor_request: VendorRequest) -> bool:
    """Check a request like AWS: sign what arrived, and compare."""
    given = vendor_request.headers["authorization"]
    (names,) = re.findall(r"SignedHeaders=([^,]+)", given)
    headers = {name: vendor_request.headers[name] for name in names.split(";") if name != "host"}
    url = f"http://{vendor_request.headers['host']}{vendor_request.path}"
    request = AWSRequest(
        method=vendor_request.method, url=url, headers=headers, data=vendor_request.body
    )
    moment = datetime.strptime(vendor_request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(
        tzinfo=UTC
    )
    keys = BotoCredentials(KEYS.access_key, KEYS.secret_key, KEYS.session_token)
    with patch("botocore.auth.get_current_datetime", lambda: moment):
        SigV4Auth(keys, "bedrock", REGION).add_auth(request)
    return bool(request.headers["Authorization"] == given)


@pytest.mark.req("model.backend.bedrock")
@pytest.mark.parametrize(
    "model",
    [
        CLAUDE,
        ADAPTIVE,
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-opus-4-6-v1",
        "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-pro-v1:0",
    ],
)
async def test_a_signature_is_valid_for_the_request_as_received(model: str) -> None:
    async with run_vendor(lambda _: build_answer(FULL)) as fake:
        async with open_provider(fake) as ours:
            await collect_chunks(ours, build_request(model))

        def send(client: Any) -> None:
            message = {"role": "user", "content": [{"text": "hi"}]}
            list(client.converse_stream(modelId=model, messages=[message])["stream"])

        await call_with_sdk(fake, send)
    assert [is_signature_valid(vendor_request) for vendor_request in fake.requests] == [True, True]
    vendor_request = fake.requests[0]
    assert vendor_request.headers["x-amz-date"] == "20231114T221320Z"
    assert vendor_request.headers["x-amz-security-token"] == "session-token"
    vendor_request.body += b" "
    assert not is_signature_valid(vendor_request)


async def test_the_list_of_models_is_signed_too() -> None:
    async with (
        run_vendor([VendorAnswer.from_json({"modelSummaries": []})]) as fake,
        open_provider(fake) as model,
    ):
        assert await model.models() == []
    assert (fake.requests[0].method, fake.requests[0].path) == ("GET", "/foundation-models")
    assert is_signature_valid(fake.requests[0])


@given(st.from_regex(r"[a-zA-Z0-9_.:/-]{1,80}", fullmatch=True).filter(lambda m: set(m) - {"."}))
def test_the_http_client_sends_the_path_that_was_signed(model: str) -> None:
    url = build_dialect().build_chat_request(build_request(model)).url
    assert URL(url).raw_path == urlsplit(url).path


async def test_a_bearer_is_sent_and_nothing_is_signed() -> None:
    bearer = AwsCredentials("ignored", "ignored", bearer="api-key")
    async with (
        run_vendor([build_answer(FULL)]) as fake,
        open_provider(fake, credentials=bearer) as model,
    ):
        await collect_chunks(model)
    assert fake.requests[0].headers["authorization"] == "Bearer api-key"
    assert not [name for name in fake.requests[0].headers if name.startswith("x-amz")]


async def test_every_attempt_is_signed_at_its_own_time() -> None:
    times = iter([1_700_000_000.0, 1_700_000_400.0])
    busy = VendorAnswer.from_json(
        {"message": "busy"}, 503, x_amzn_errortype="ServiceUnavailableException"
    )
    http = HttpClient()
    async with run_vendor([busy, build_answer(FULL)]) as fake:
        dialect = BedrockDialect(
            "rock", region=REGION, credentials=KEYS, base=fake.url, clock=lambda: next(times)
        )
        await collect_chunks(HttpProvider(dialect, http, retry=RetryPolicy(backoff=0.001)))
        await http.close()
    dates = [vendor_request.headers["x-amz-date"] for vendor_request in fake.requests]
    assert dates == ["20231114T221320Z", "20231114T222000Z"]
    assert all(map(is_signature_valid, fake.requests))


@pytest.mark.parametrize(
    ("dialect", "sentence"),
    [
        (build_dialect(region=""), "'' is no AWS region; set AWS_REGION"),
        (build_dialect(region="evil.com/"), "'evil.com/' is no AWS region"),
        (
            build_dialect(credentials=AwsCredentials()),
            "set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY",
        ),
        (build_dialect(credentials=AwsCredentials("only")), "no AWS credentials"),
    ],
)
def test_missing_settings_are_named(dialect: BedrockDialect, sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence) as caught:
        dialect.build_chat_request(HI)
    assert caught.value.kind is ErrorKind.CONFIG
    with pytest.raises(ApiError, match=sentence):
        dialect.build_models_request()


# ── Credentials ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"},
            AwsCredentials("a", "s", "t"),
        ),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}, AwsCredentials("a", "s")),
        (
            {
                "AWS_BEARER_TOKEN_BEDROCK": "b",
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "s",
            },
            AwsCredentials(bearer="b"),
        ),
    ],
)
def test_credentials_are_read_from_the_environment(
    environ: dict[str, str], expected: AwsCredentials
) -> None:
    assert read_credentials(environ) == expected


@pytest.mark.parametrize(
    ("environ", "region"),
    [
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-east-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "us-east-1"}, "us-east-1"),
        ({}, ""),
    ],
)
def test_the_region_is_read_from_the_environment(environ: dict[str, str], region: str) -> None:
    assert read_region(environ) == region


@pytest.fixture
def profiles(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write AWS configuration files, and hide all other credentials from botocore."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text(
        "[work]\naws_access_key_id = a\naws_secret_access_key = s\naws_session_token = t\n"
        "[home]\naws_access_key_id = h\naws_secret_access_key = s\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("profiles")
def test_a_profile_is_read_through_botocore() -> None:
    assert read_credentials({"AWS_PROFILE": "work"}) == AwsCredentials("a", "s", "t")
    assert read_credentials({"AWS_PROFILE": "home"}) == AwsCredentials("h", "s")


@pytest.mark.usefixtures("profiles")
@pytest.mark.parametrize(
    ("environ", "sentence"),
    [({}, "no AWS credentials; set"), ({"AWS_PROFILE": "lost"}, r"profile \(lost\)")],
)
def test_missing_credentials_are_an_error(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence) as caught:
        read_credentials(environ)
    assert caught.value.kind is ErrorKind.CONFIG


def test_a_profile_without_botocore_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ApiError, match=r"need crabtalk\[bedrock\]") as caught:
        read_credentials({"AWS_PROFILE": "work"})
    assert caught.value.kind is ErrorKind.CONFIG


# ── Models ─────────────────────────────────────────────────────────────────────────────────────


async def test_usable_streaming_text_models_are_listed() -> None:
    def entry(name: str, **fields: object) -> dict[str, object]:
        usual: dict[str, object] = {
            "modelArn": f"arn:aws:bedrock:us-west-2::foundation-model/{name}",
            "modelId": name,
            "outputModalities": ["TEXT"],
            "responseStreamingSupported": True,
            "inferenceTypesSupported": ["ON_DEMAND"],
        }
        return {**usual, **fields}

    listing = {
        "modelSummaries": [
            entry("amazon.nova-micro-v1:0"),
            entry("anthropic.claude-opus-4-6-v1", inferenceTypesSupported=["INFERENCE_PROFILE"]),
            entry("rented.model-v1", inferenceTypesSupported=["PROVISIONED"]),
            entry("drawing.model-v1", outputModalities=["IMAGE"]),
            entry("slow.model-v1", responseStreamingSupported=False),
            entry("new.model-v1"),
            {"modelId": 7},
            "nonsense",
        ]
    }
    async with run_vendor([VendorAnswer.from_json(listing)]) as fake, open_provider(fake) as model:
        assert await model.models() == [
            ModelInfo("amazon.nova-micro-v1:0", 128_000),
            ModelInfo("anthropic.claude-opus-4-6-v1", 200_000),
            ModelInfo("new.model-v1"),
        ]
        assert model.context_limit(CLAUDE) == 200_000
        assert model.context_limit(NOVA) == 300_000
        assert model.context_limit("unheard.of") is None


@pytest.mark.parametrize("body", [b"[]", b'{"data": []}', b"<html>", b'{"modelSumm'])
def test_an_invalid_list_of_models_is_an_error(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        build_dialect().parse_models(body)
    assert caught.value.kind is ErrorKind.PROTOCOL


# ── Failing ────────────────────────────────────────────────────────────────────────────────────


async def catch_failure(given: VendorAnswer) -> ApiError:
    async with run_vendor([given]) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError) as caught:
            await collect_chunks(model)
    return caught.value


@pytest.mark.req("model.errors.vendor_sentence")
@pytest.mark.parametrize(
    ("status", "name", "message", "kind"),
    [
        (403, "AccessDeniedException", "You don't have access to the model.", "auth"),
        (403, "UnrecognizedClientException", "The security token is invalid.", "auth"),
        (403, "ExpiredTokenException", "The security token has expired", "auth"),
        (403, "InvalidSignatureException", "The signature does not match", "auth"),
        (404, "ResourceNotFoundException", "Could not resolve the model", "not_found"),
        (400, "ValidationException", "The provided model identifier is invalid.", "not_found"),
        (400, "ValidationException", "Input is too long for requested model.", "context"),
        (400, "ValidationException", "prompt is too long: 9 tokens > 8 maximum", "context"),
        (400, "ValidationException", "messages.0: bad", "invalid"),
        (429, "ThrottlingException", "Too many tokens, please wait", "rate_limit"),
        (400, "ServiceQuotaExceededException", "Your request exceeds the quota", "overloaded"),
        (429, "ModelNotReadyException", "Model is not ready", "overloaded"),
        (503, "ServiceUnavailableException", "Try again", "overloaded"),
        (408, "ModelTimeoutException", "The model took too long", "timeout"),
        (424, "ModelErrorException", "The model failed", "server"),
        (500, "InternalServerException", "Internal", "server"),
        (418, "TeapotException", "Short and stout", "invalid"),
    ],
)
async def test_errors_keep_the_vendors_message_and_get_a_kind(
    status: int, name: str, message: str, kind: str
) -> None:
    document = {"message": message}
    for full_name in (name, f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/"):
        given = VendorAnswer.from_json(
            document, status, x_amzn_errortype=full_name, retry_after="7"
        )
        caught = await catch_failure(given)
        assert caught.kind is ErrorKind(kind)
        assert str(caught) == f"rock: {message} (HTTP {status})"
        assert caught.retry_after == 7.0


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (
            b'{"__type": "com.amazon.coral.service#UnrecognizedClientException", "message": "who"}',
            "auth",
            "who",
        ),
        (b'{"Message": "User is not authorized"}', "auth", "User is not authorized"),
        (b"<html>", "auth", "answered with a web page; check base_url"),
        (b"", "auth", "refused without a word"),
        (b'{"mess', "auth", '{"mess'),
        (b'{"message": "\xff"}', "auth", "message"),
        (b"[1]", "auth", "[1]"),
    ],
)
async def test_errors_in_other_formats_still_have_a_message(
    body: bytes, kind: str, sentence: str
) -> None:
    caught = await catch_failure(VendorAnswer([body], 403, "application/json"))
    assert caught.kind is ErrorKind(kind)
    assert sentence in caught.message


@pytest.mark.req("model.errors.vendor_sentence")
@pytest.mark.parametrize(
    ("name", "message", "kind"),
    [
        ("throttlingException", "Too many requests", "rate_limit"),
        ("modelStreamErrorException", "The model broke", "server"),
        ("validationException", "bad", "invalid"),
        ("validationException", "Input is too long for requested model.", "context"),
        ("serviceUnavailableException", "Try again", "overloaded"),
        ("internalServerException", "Internal", "server"),
    ],
)
async def test_an_exception_inside_a_stream_keeps_its_message_as_in_the_sdk(
    name: str, message: str, kind: str
) -> None:
    body = BEGIN + encode_delta(0, text="a") + encode_exception(name, message)

    def read(client: Any) -> tuple[str, str]:
        response = client.converse_stream(
            modelId=CLAUDE, messages=[{"role": "user", "content": [{"text": "hi"}]}]
        )
        with closing(response["stream"]) as stream, pytest.raises(EventStreamError) as broken:
            list(stream)
        error = broken.value.response["Error"]
        return error["Code"], error["Message"]

    caught = await catch_failure(build_answer(body))
    assert caught.kind is ErrorKind(kind)
    assert caught.message == message
    async with run_vendor([build_answer(body)]) as fake:
        assert await call_with_sdk(fake, read) == (name, message)


async def test_the_sdk_recognizes_the_fake_errors() -> None:
    refusal = VendorAnswer.from_json(
        {"message": "slow down"}, 429, x_amzn_errortype="ThrottlingException:http://internal/"
    )

    def read(client: Any) -> tuple[str, str]:
        with pytest.raises(ClientError) as caught:
            client.converse_stream(modelId=CLAUDE, messages=[])
        error = caught.value.response["Error"]
        return error["Code"], error["Message"]

    async with run_vendor([refusal]) as fake:
        assert await call_with_sdk(fake, read) == ("ThrottlingException", "slow down")


ERROR = encode_message(
    {
        ":message-type": (7, "error"),
        ":error-code": (7, "InternalFailure"),
        ":error-message": (7, "An internal server error occurred"),
    }
)
ORIGINAL = encode_message(
    {":message-type": (7, "exception"), ":exception-type": (7, "modelStreamErrorException")},
    b'{"originalStatusCode": 500, "originalMessage": "it broke"}',
)
WORDLESS = encode_message(
    {":message-type": (7, "exception"), ":exception-type": (7, "newException")}
)
BAD_UTF8 = encode_message(
    {":message-type": (7, "event"), ":event-type": (7, "contentBlockDelta")},
    b'{"contentBlockIndex": 0, "delta": {"text": "\xff"}}',
)

NESTED = encode_message(
    {":message-type": (7, "event"), ":event-type": (7, "contentBlockDelta")},
    b'{"p": ' + b"[" * 100_000,
)


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (ERROR, "server", "An internal server error occurred"),
        (ORIGINAL, "server", "it broke"),
        (WORDLESS, "server", r"failed in mid-answer \(newException\)"),
        (encode_message({}), "server", r"failed in mid-answer \(no reason given\)"),
        (encode_event("messageStop", stopReason="malformed_tool_use"), "server", "came out broken"),
        (BEGIN + encode_delta(0, text="a"), "connection", "before the answer did"),
        (b"", "connection", "before the answer did"),
        (b'{"message": "not a stream"}', "protocol", "not an AWS event stream"),
        (BEGIN[:-1] + b"\x00" + END, "protocol", "wrong checksum"),
        (encode_delta(0, text=7), "protocol", "contentBlockDelta cannot be read: Expected `str`"),
        (encode_delta(0, reasoningContent="hm"), "protocol", "cannot be read"),
        (encode_thought(0, redactedContent="!"), "protocol", "cannot be read"),
        (BAD_UTF8, "protocol", "cannot be read"),
        pytest.param(NESTED, "protocol", "cannot be read", id="endless"),
    ],
)
async def test_a_broken_stream_is_an_error(body: bytes, kind: str, sentence: str) -> None:
    caught = await catch_failure(build_answer(body))
    assert caught.kind is ErrorKind(kind)
    assert re.search(sentence, caught.message)


@given(st.sampled_from(["contentBlockDelta", "contentBlockStart", "messageStop"]), st.binary())
def test_an_invalid_payload_is_refused_with_a_message(name: str, payload: bytes) -> None:
    body = encode_message({":message-type": (7, "event"), ":event-type": (7, name)}, payload)
    try:
        decode_pieces([body])
    except ApiError:
        return
    # Random bytes may be a valid object, as all fields are optional.
    assert (name, type(json.loads(payload))) == ("messageStop", dict)


async def test_a_connection_cut_in_mid_answer_is_an_error() -> None:
    caught = await catch_failure(
        VendorAnswer([BEGIN, encode_delta(0, text="a")], content_type=STREAM, cut=True)
    )
    assert caught.kind is ErrorKind.CONNECTION


async def test_a_web_page_instead_of_a_stream_is_an_error() -> None:
    caught = await catch_failure(VendorAnswer([b"<html>log in</html>"], content_type="text/html"))
    assert caught.kind is ErrorKind.PROTOCOL
    assert "check base_url" in caught.message


async def test_a_tool_call_without_an_id_is_an_error() -> None:
    body = encode_event(
        "contentBlockStart", contentBlockIndex=0, start={"toolUse": {"name": "bash"}}
    )
    async with run_vendor([build_answer(body, END)]) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError, match=r"called a tool \(bash\) without an id"):
            await model.complete(HI)


# ── Live ───────────────────────────────────────────────────────────────────────────────────────

LIVE_MODEL = os.environ.get("CRABTALK_BEDROCK_MODEL", "us.amazon.nova-micro-v1:0")
CAN_ASK = read_region(os.environ) and (
    os.environ.get("AWS_BEARER_TOKEN_BEDROCK") or os.environ.get("AWS_SECRET_ACCESS_KEY")
)


@pytest.mark.skipif(not CAN_ASK, reason="needs AWS_REGION and AWS credentials in the environment")
async def test_live_bedrock_answers() -> None:
    http = HttpClient()
    dialect = BedrockDialect(
        "rock", region=read_region(os.environ), credentials=read_credentials(os.environ)
    )
    try:
        response = await HttpProvider(dialect, http).complete(
            build_request(LIVE_MODEL, Message(role="user", text="Answer with the word crab."))
        )
    finally:
        await http.close()
    assert "crab" in response.message.text.lower()
    assert response.usage.total > 0
