"""Anthropic's dialect against a scripted server, compared with Anthropic's SDK."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from crabtalk.model.anthropic import AnthropicDialect, parse_generation
from tests.model.fake_vendor import FakeVendor, VendorAnswer, run_vendor, split_pieces

# The SDK takes longer to import than the tests that do not use it.
if TYPE_CHECKING:
    import anthropic

MODEL = "claude-sonnet-4-5-20250929"  # its thinking budget is set by the caller
ADAPTIVE = "claude-opus-4-8"  # sets its own thinking budget
BOUND = "claude-opus-5-5"  # also binds its thinking to the history
HI = Request(model=MODEL, messages=(Message(role="user", text="hi"),))
CACHED = {"type": "ephemeral"}


def encode_sse(*documents: dict[str, Any], end: str = "\n") -> bytes:
    return "".join(
        f"event: {d['type']}{end}data: {json.dumps(d, ensure_ascii=False)}{end}{end}"
        for d in documents
    ).encode()


def build_message_start(**usage: object) -> dict[str, Any]:
    return {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 4, "output_tokens": 1, **usage},
        },
    }


def build_block_start(index: int, **block: object) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def build_block_delta(index: int, kind: str, **fields: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def build_block_stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def build_message_delta(reason: str | None = "end_turn", **usage: object) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 7, **usage},
    }


PING: dict[str, Any] = {"type": "ping"}
STOP: dict[str, Any] = {"type": "message_stop"}


def build_text_block(*texts: str) -> list[dict[str, Any]]:
    deltas = [build_block_delta(0, "text_delta", text=text) for text in texts]
    return [build_block_start(0, type="text", text=""), *deltas, build_block_stop(0)]


TEXT = encode_sse(build_message_start(), *build_text_block("Hello"), build_message_delta(), STOP)

# Claude thinks (partly redacted), answers and calls three tools: arguments in fragments, arguments
# in one empty fragment, and none at all.
FULL = encode_sse(
    build_message_start(cache_read_input_tokens=16, cache_creation_input_tokens=2),
    build_block_start(0, type="thinking", thinking="", signature=""),
    PING,
    build_block_delta(0, "thinking_delta", thinking="Hm, "),
    build_block_delta(0, "thinking_delta", thinking="über 🦀"),
    build_block_delta(0, "signature_delta", signature="c2ln"),
    build_block_stop(0),
    build_block_start(1, type="redacted_thinking", data="c2VjcmV0"),
    build_block_stop(1),
    build_block_start(2, type="text", text=""),
    build_block_delta(2, "text_delta", text="Sure"),
    build_block_delta(2, "text_delta", text=", 日本"),
    build_block_stop(2),
    build_block_start(3, type="tool_use", id="toolu_a", name="bash", input={}),
    build_block_delta(3, "input_json_delta", partial_json=""),
    build_block_delta(3, "input_json_delta", partial_json='{"comm'),
    build_block_delta(3, "input_json_delta", partial_json='and":"ls"}'),
    build_block_stop(3),
    build_block_start(4, type="tool_use", id="toolu_b", name="read", input={}),
    build_block_delta(4, "input_json_delta", partial_json=""),
    build_block_stop(4),
    build_block_start(5, type="tool_use", id="toolu_c", name="list", input={}),
    build_block_stop(5),
    build_message_delta("tool_use", output_tokens_details={"thinking_tokens": 3}),
    STOP,
)
THOUGHT = {"type": "thinking", "thinking": "Hm, über 🦀", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "c2VjcmV0"}
FULL_MESSAGE = Message(
    role="assistant",
    text="Sure, 日本",
    reasoning="Hm, über 🦀",
    tool_calls=(
        ToolCall(id="toolu_a", name="bash", arguments='{"command":"ls"}'),
        ToolCall(id="toolu_b", name="read", arguments="{}"),
        ToolCall(id="toolu_c", name="list", arguments="{}"),
    ),
    opaque={
        "anthropic": [
            THOUGHT,
            REDACTED,
            {"type": "text", "length": 8},
            {"type": "tool_use", "id": "toolu_a"},
            {"type": "tool_use", "id": "toolu_b"},
            {"type": "tool_use", "id": "toolu_c"},
        ]
    },
)
FULL_USAGE = Usage(prompt=22, completion=7, total=29, cache_hit=16, cache_miss=6, reasoning=3)


@asynccontextmanager
async def open_provider(fake: FakeVendor, *, retries: int = 2) -> AsyncIterator[HttpProvider]:
    http = HttpClient()
    dialect = AnthropicDialect("test", base=fake.url, api_key="sk-ant-secret")
    try:
        yield HttpProvider(dialect, http, retry=RetryPolicy(max_retries=retries, backoff=0.001))
    finally:
        await http.close()


async def collect_chunks(provider: HttpProvider, request: Request = HI) -> list[Chunk]:
    return [chunk async for chunk in provider.stream(request)]


def assemble_chunks(chunks: list[Chunk]) -> ResponseAssembler:
    assembler = ResponseAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


DIALECT = AnthropicDialect("test")


def decode_pieces(pieces: list[bytes]) -> list[Chunk]:
    decoder = DIALECT.create_decoder(HI)
    chunks = [chunk for piece in pieces for chunk in decoder.feed(piece)]
    return chunks + decoder.end()


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.backend.anthropic")
@pytest.mark.req("model.stream")
async def test_text_thinking_calls_usage_and_finish_are_read() -> None:
    async with (
        run_vendor([VendorAnswer(split_pieces(FULL, 50))]) as fake,
        open_provider(fake) as model,
    ):
        whole = assemble_chunks(await collect_chunks(model))
    assert whole.build_message() == FULL_MESSAGE
    assert whole.finish == "tool_calls"
    assert whole.usage == FULL_USAGE


async def test_a_complete_answer_equals_the_assembled_stream() -> None:
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        response = await model.complete(HI)
    assert response.message == FULL_MESSAGE
    assert response.usage == FULL_USAGE


async def read_with_sdk(fake: FakeVendor) -> "anthropic.types.Message":
    """Read with an unknown model: for known ones the SDK may warn about deprecation."""
    import anthropic

    async with (
        anthropic.AsyncAnthropic(base_url=fake.url, api_key="k", max_retries=0) as sdk,
        sdk.messages.stream(
            model="claude-x", max_tokens=100, messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        return await stream.get_final_message()


@pytest.mark.req("model.sdk_agrees")
@pytest.mark.parametrize("size", [7, 50, 100_000])
async def test_the_vendors_sdk_reads_the_same_from_the_same_bytes(size: int) -> None:
    """Otherwise the fake would not behave like the vendor."""
    import anthropic

    async with run_vendor([VendorAnswer(split_pieces(FULL, size))]) as fake:
        message = await read_with_sdk(fake)
    assert (fake.requests[0].method, fake.requests[0].path) == ("POST", "/v1/messages")
    thought, redacted, text, *calls = message.content
    assert isinstance(thought, anthropic.types.ThinkingBlock)
    assert {"type": "thinking", "thinking": thought.thinking, "signature": thought.signature} == (
        THOUGHT
    )
    assert isinstance(redacted, anthropic.types.RedactedThinkingBlock)
    assert redacted.data == REDACTED["data"]
    assert text.type == "text"
    assert text.text == FULL_MESSAGE.text
    assert [(call.type, call.id, call.name, call.input) for call in calls] == [  # type: ignore[union-attr]
        ("tool_use", call.id, call.name, json.loads(call.arguments))
        for call in FULL_MESSAGE.tool_calls
    ]
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert usage.input_tokens + (usage.cache_creation_input_tokens or 0) == FULL_USAGE.cache_miss
    assert usage.cache_read_input_tokens == FULL_USAGE.cache_hit
    assert usage.output_tokens == FULL_USAGE.completion
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == FULL_USAGE.reasoning


@pytest.mark.req("model.sdk_agrees")
@pytest.mark.parametrize(
    "answer",
    [
        VendorAnswer.from_json(
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529
        ),
        VendorAnswer(
            [
                encode_sse(
                    build_message_start(),
                    {"type": "error", "error": {"type": "api_error", "message": "Overloaded"}},
                )
            ]
        ),
    ],
    ids=["status", "stream"],
)
async def test_the_vendors_sdk_finds_the_same_errors(answer: VendorAnswer) -> None:
    import anthropic

    async with run_vendor(lambda _: answer) as fake, open_provider(fake, retries=0) as model:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            await read_with_sdk(fake)
        with pytest.raises(ApiError, match="Overloaded"):
            await collect_chunks(model)


@pytest.mark.req("model.stream.any_split")
@given(st.lists(st.integers(0, len(FULL)), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FULL)]
    pieces = [FULL[a:b] for a, b in pairwise(edges)]
    assert decode_pieces(pieces) == decode_pieces([FULL])


def test_every_single_byte_on_its_own_gives_the_same_chunks() -> None:
    assert decode_pieces(split_pieces(FULL, 1)) == decode_pieces([FULL])


@pytest.mark.req("faults.model.complete")
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("length", [0, 1, 10, 30, len(encode_sse(STOP)) - 6])
async def test_an_answer_that_has_finished_is_kept_wherever_its_connection_is_cut(
    length: int, cut: bool
) -> None:
    body = encode_sse(build_message_start(), *build_text_block("a"), build_message_delta())
    answer = VendorAnswer([body, encode_sse(STOP)[:length]], cut=cut)
    async with run_vendor([answer]) as fake, open_provider(fake) as model:
        whole = assemble_chunks(await collect_chunks(model))
    assert (whole.build_message().text, whole.finish) == ("a", "stop")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comments_pings_and_line_ends_of_all_kinds_make_no_difference(end: str) -> None:
    noisy = (
        f": keep-alive{end}{end}".encode()
        + encode_sse(
            build_message_start(), build_block_start(0, type="text", text=""), PING, end=end
        )
        + f"id: 7{end}retry: 10{end}: ping{end}".encode()
        + encode_sse(
            build_block_delta(0, "text_delta", text="ä"),
            PING,
            build_block_delta(0, "text_delta", text="b"),
            end=end,
        )
        + encode_sse(build_block_stop(0), build_message_delta(), STOP, end=end)
    )
    for size in (1, 2, 3, 1000):
        assert (
            assemble_chunks(decode_pieces(split_pieces(noisy, size))).build_message().text == "äb"
        )


def test_a_missing_last_blank_line_is_accepted() -> None:
    assert assemble_chunks(decode_pieces([TEXT.rstrip(b"\n")])).build_message().text == "Hello"


def test_events_without_names_are_read() -> None:
    lines = [line for line in FULL.split(b"\n") if not line.startswith(b"event:")]
    assert assemble_chunks(decode_pieces([b"\n".join(lines)])).build_message() == FULL_MESSAGE


def test_unknown_events_blocks_and_deltas_are_ignored() -> None:
    body = encode_sse(
        build_message_start(),
        {"type": "message_weather", "sun": True},
        build_block_start(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        build_block_delta(0, "input_json_delta", partial_json='{"query":"crabs"}'),
        build_block_stop(0),
        build_block_start(1, type="text", text=""),
        build_block_delta(1, "text_delta", text="a"),
        build_block_delta(1, "citations_delta", citation={}),
        build_block_delta(1, "input_json_delta", partial_json="{}"),
        build_block_delta(9, "text_delta", text="of no block"),
        build_block_stop(1),
        build_block_stop(9),
        build_message_delta(),
        STOP,
    )
    nonsense = b"event: telemetry\ndata: not even json\n\n"
    whole = assemble_chunks(decode_pieces([nonsense + body]))
    assert whole.build_message() == Message(role="assistant", text="a")


def test_content_in_a_block_start_is_read() -> None:
    body = encode_sse(
        build_message_start(),
        build_block_start(0, type="thinking", thinking="hm", signature="s"),
        build_block_stop(0),
        build_block_start(1, type="text", text="a"),
        build_block_delta(1, "text_delta", text="b"),
        build_block_stop(1),
        build_block_start(2, type="tool_use", id="t", name="n", input={"a": 1}),
        build_block_stop(2),
        build_message_delta("tool_use"),
        STOP,
    )
    message = assemble_chunks(decode_pieces([body])).build_message()
    assert (message.reasoning, message.text) == ("hm", "ab")
    assert message.tool_calls == (ToolCall(id="t", name="n", arguments='{"a":1}'),)


def test_hidden_thinking_is_stored_for_the_next_request() -> None:
    body = encode_sse(
        build_message_start(),
        build_block_start(0, type="thinking", thinking="", signature=""),
        build_block_delta(0, "signature_delta", signature="c2ln"),
        build_block_stop(0),
        *[{**event, "index": 1} for event in build_text_block("a")],
        build_message_delta(),
        STOP,
    )
    kept = assemble_chunks(decode_pieces([body])).build_message().opaque["anthropic"]
    assert kept[0] == {"type": "thinking", "thinking": "", "signature": "c2ln"}


def test_thinking_without_a_signature_is_shown_but_not_stored() -> None:
    body = encode_sse(
        build_message_start(),
        build_block_start(0, type="thinking", thinking=""),
        build_block_delta(0, "thinking_delta", thinking="hm"),
        build_block_stop(0),
        build_message_delta(),
        STOP,
    )
    assert decode_pieces([body])[0] == Chunk(reasoning="hm")
    assert assemble_chunks(decode_pieces([body])).build_message() == Message(
        role="assistant", reasoning="hm"
    )


def test_an_answer_cut_off_after_its_thinking_keeps_the_thinking() -> None:
    decoder = DIALECT.create_decoder(HI)
    chunks = decoder.feed(FULL[: FULL.index(b"Sure")])
    assert assemble_chunks(chunks).build_message().opaque["anthropic"][:2] == [THOUGHT, REDACTED]


def test_one_piece_of_a_call_is_one_chunk() -> None:
    body = encode_sse(
        build_message_start(),
        build_block_start(1, type="tool_use", id="x", name="n", input={}),
        build_block_delta(1, "input_json_delta", partial_json="{}"),
        build_block_stop(1),
        build_message_delta("tool_use"),
        STOP,
    )
    assert [chunk.tool_calls for chunk in decode_pieces([body])] == [
        (ToolCallDelta(index=0, id="x", name="n"),),
        (ToolCallDelta(index=0, arguments="{}"),),
        (),
    ]


def test_no_chunk_comes_before_the_first_content() -> None:
    """A chunk ends the timeout for the first token and prevents retries."""
    opening = encode_sse(build_message_start(), PING, build_block_start(0, type="text", text=""))
    assert DIALECT.create_decoder(HI).feed(opening) == []


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "filtered"),
        ("a reason of tomorrow", "stop"),
    ],
)
def test_every_reason_to_stop_has_a_finish(reason: str, finish: str) -> None:
    assert (
        decode_pieces(
            [
                encode_sse(
                    build_message_start(), *build_text_block("a"), build_message_delta(reason), STOP
                )
            ]
        )[-1].finish
        == finish
    )


@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        ({}, {}, Usage(prompt=4, completion=7, total=11)),
        (
            {"cache_read_input_tokens": None, "cache_creation_input_tokens": None},
            {},
            Usage(prompt=4, completion=7, total=11),
        ),
        (
            {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 100},
            {},
            Usage(prompt=104, completion=7, total=111, cache_hit=0, cache_miss=104),
        ),
        (
            {"cache_read_input_tokens": 100},
            {"input_tokens": 9, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 1},
            Usage(prompt=100, completion=7, total=107, cache_hit=90, cache_miss=10),
        ),
    ],
)
def test_usage_counts_the_whole_prompt_and_knows_what_was_cached(
    first: dict[str, Any], last: dict[str, Any], usage: Usage
) -> None:
    body = encode_sse(
        build_message_start(**first), *build_text_block("a"), build_message_delta(**last), STOP
    )
    assert assemble_chunks(decode_pieces([body])).usage == usage


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(["index", "delta", "content_block", "message", "usage", "error"])
INNER = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "thinking", "tool_use", "text_delta", "signature_delta"])
        | JSON,
        "text": JSON,
        "thinking": JSON,
        "signature": JSON,
        "partial_json": JSON,
        "input": JSON,
        "usage": JSON,
        "stop_reason": JSON,
        "output_tokens": JSON,
    },
)
KINDS = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
)


@given(st.lists(st.tuples(KINDS, st.dictionaries(NAMES, INNER | JSON)), max_size=6))
def test_random_values_in_valid_events_are_an_answer_or_an_api_error(
    events: list[tuple[str, dict[str, object]]],
) -> None:
    try:
        chunks = decode_pieces(
            [encode_sse(*({**document, "type": kind} for kind, document in events))]
        )
    except ApiError:
        return
    assert all(chunk != Chunk() for chunk in chunks)


# ── Writing ────────────────────────────────────────────────────────────────────────────────────


def build_body(*messages: Message, dialect: AnthropicDialect = DIALECT, **fields: Any) -> Any:
    request = Request(messages=messages, **{"model": MODEL, **fields})
    return msgspec.json.decode(dialect.build_chat_request(request).body or b"")


def build_user_message(text: str = "hi", *images: Image) -> Message:
    return Message(role="user", text=text, images=images)


def build_tool_result(call_id: str, text: str = "out", *, is_error: bool = False) -> Message:
    return Message(role="tool", call_id=call_id, name="bash", text=text, is_error=is_error)


def build_tool_calls(*ids: str, text: str = "", arguments: str = "{}") -> Message:
    calls = tuple(ToolCall(id=i, name="bash", arguments=arguments) for i in ids)
    return Message(role="assistant", text=text, tool_calls=calls)


@pytest.mark.req("model.request")
async def test_a_request_carries_everything_the_vendor_knows() -> None:
    request = Request(
        model=MODEL,
        messages=(
            Message(role="system", text="Be a crab."),
            Message(role="system", text="Be brief."),
            build_user_message(
                "look", Image("image/png", b"\x89PNG"), Image(url="https://x.test/a.jpg")
            ),
            Message(
                role="assistant",
                text="I see",
                reasoning="secret",
                tool_calls=(
                    ToolCall(id="c1", name="bash", arguments='{"a":1}'),
                    ToolCall(id="c2", name="bash", arguments=""),
                ),
            ),
            build_tool_result("c1", "out", is_error=True),
            build_tool_result("c2", ""),
            build_user_message("and?"),
            Message(role="assistant", text="done", agent="twin"),
            Message(role="assistant", text="indeed"),
            build_user_message("thanks"),
        ),
        tools=(
            Tool("bash", "Runs", {"type": "object", "properties": {"a": {"type": "integer"}}}),
            Tool("read"),
        ),
        tool_choice="bash",
        max_tokens=10,
        temperature=0.5,
    )
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        await collect_chunks(model, request)
    (asked,) = fake.requests
    assert (asked.method, asked.path) == ("POST", "/v1/messages")
    assert asked.headers["x-api-key"] == "sk-ant-secret"
    assert asked.headers["anthropic-version"] == "2023-06-01"
    assert asked.headers["content-type"] == "application/json"
    assert "authorization" not in asked.headers
    assert "anthropic-beta" not in asked.headers
    assert asked.json == {
        "model": MODEL,
        "max_tokens": 10,
        "stream": True,
        "temperature": 0.5,
        "system": [
            {"type": "text", "text": "Be a crab."},
            {"type": "text", "text": "Be brief.", "cache_control": CACHED},
        ],
        "tools": [
            {
                "name": "bash",
                "description": "Runs",
                "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
            },
            {
                "name": "read",
                "input_schema": {"type": "object", "properties": {}},
                "cache_control": CACHED,
            },
        ],
        "tool_choice": {"type": "tool", "name": "bash"},
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {
                            "type": "base64",
                            "media_type": "image/png",
                            "data": "iVBORw==",
                        },
                    },
                    {"type": "image", "source": {"type": "url", "url": "https://x.test/a.jpg"}},
                    {"type": "text", "text": "look"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I see"},
                    {"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": 1}},
                    {"type": "tool_use", "id": "c2", "name": "bash", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": "out",
                        "is_error": True,
                    },
                    {"type": "tool_result", "tool_use_id": "c2"},
                    {"type": "text", "text": "and?", "cache_control": CACHED},
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "done"}, {"type": "text", "text": "indeed"}],
            },
            {
                "role": "user",
                "content": [{"type": "text", "text": "thanks", "cache_control": CACHED}],
            },
        ],
    }


async def test_a_plain_request_is_as_small_as_can_be() -> None:
    async with run_vendor([VendorAnswer([TEXT])]) as fake, open_provider(fake) as model:
        await collect_chunks(model)
    assert fake.requests[0].json == {
        "model": MODEL,
        "max_tokens": 32_000,
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "hi", "cache_control": CACHED}],
            }
        ],
        "stream": True,
    }


def test_results_of_a_step_are_one_turn_and_come_before_what_was_said_meanwhile() -> None:
    body = build_body(
        build_user_message(),
        build_tool_calls("a", "b"),
        build_tool_result("a"),
        build_user_message("hurry"),
        build_tool_result("b"),
    )
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    last = body["messages"][-1]["content"]
    assert [block.get("tool_use_id") or block.get("text") for block in last] == ["a", "b", "hurry"]


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_blank_text_is_left_out(text: str) -> None:
    body = build_body(
        Message(role="system", text=text),
        build_user_message("hi"),
        Message(role="assistant", text=text),
        build_user_message(text, Image(url="https://x.test/a.jpg")),
        build_tool_calls("a", text=text),
        build_tool_result("a", text),
    )
    assert "system" not in body
    assert [[block["type"] for block in turn["content"]] for turn in body["messages"]] == [
        ["text", "image"],
        ["tool_use"],
        ["tool_result"],
    ]
    assert "content" not in body["messages"][-1]["content"][0]


@pytest.mark.parametrize("arguments", ['{"comm', "[1]", "null", '"x"', "ls -l"])
def test_arguments_that_are_no_object_are_sent_back_as_text(arguments: str) -> None:
    body = build_body(
        build_user_message(), build_tool_calls("a", arguments=arguments), build_tool_result("a")
    )
    assert body["messages"][1]["content"][0]["input"] == {"invalid_arguments": arguments}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("bash", {"type": "tool", "name": "bash"}),
    ],
)
def test_the_tool_choice_is_encoded_for_anthropic(choice: str, sent: object) -> None:
    assert (
        build_body(build_user_message(), tools=(Tool("bash"),), tool_choice=choice)["tool_choice"]
        == sent
    )
    assert "tool_choice" not in build_body(build_user_message(), tool_choice=choice)


@pytest.mark.parametrize(
    ("choice", "sent"), [("auto", "auto"), ("none", "none"), ("required", "auto"), ("bash", "auto")]
)
@pytest.mark.parametrize(("model", "thinking"), [(MODEL, True), (ADAPTIVE, True), (BOUND, False)])
def test_a_model_that_thinks_is_not_forced_to_call(
    model: str, thinking: bool, choice: str, sent: str
) -> None:
    body = build_body(
        build_user_message(),
        tools=(Tool("bash"),),
        tool_choice=choice,
        model=model,
        thinking=thinking,
    )
    assert body["tool_choice"] == {"type": sent}


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("claude-3-haiku-20240307", 4_096),
        ("claude-3-5-sonnet-20241022", 8_192),
        ("claude-3-7-sonnet-latest", 32_000),
        ("claude-opus-4-20250514", 32_000),
        ("claude-haiku-4-5", 32_000),
        ("claude-sonnet-4-6", 64_000),
        ("claude-opus-5", 64_000),
        ("another-vendors", 8_192),
    ],
)
def test_every_request_has_a_limit_its_model_allows(model: str, limit: int) -> None:
    assert build_body(build_user_message(), model=model)["max_tokens"] == limit
    assert build_body(build_user_message(), model=model, max_tokens=77)["max_tokens"] == 77


@pytest.mark.parametrize(
    ("model", "born"),
    [
        ("claude-sonnet-4-5-20250929", (4, 5)),
        ("claude-opus-4-20250514", (4, 0)),
        ("claude-3-7-sonnet-20250219", (3, 7)),
        ("claude-3-opus-latest", (3, 0)),
        ("claude-fable-5", (5, 0)),
        ("anthropic/claude-opus-4.7", (4, 7)),
        ("claude-mythos-preview", (4, 7)),
        ("kimi-k2", (0, 0)),
        ("my-claude-5", (0, 0)),
    ],
)
def test_a_models_generation_is_in_its_name(model: str, born: tuple[int, int]) -> None:
    assert parse_generation(model) == born


@pytest.mark.parametrize(
    ("limit", "sent", "budget"),
    [(None, 32_000, 16_000), (100_000, 100_000, 16_000), (4_000, 4_000, 2_000), (10, 2_048, 1_024)],
)
def test_thinking_has_a_budget_that_leaves_room_for_an_answer(
    limit: int | None, sent: int, budget: int
) -> None:
    body = build_body(build_user_message(), thinking=True, max_tokens=limit, temperature=0.5)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert body["max_tokens"] == sent
    assert budget < sent
    assert "temperature" not in body


def test_newer_models_set_their_budget_and_their_temperature_themselves() -> None:
    body = build_body(
        build_user_message(), model=ADAPTIVE, thinking=True, max_tokens=10, temperature=0.5
    )
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["max_tokens"] == 10
    assert "temperature" not in body
    body = build_body(build_user_message(), model=ADAPTIVE, temperature=0.5)
    assert "thinking" not in body
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("https://x.test/v1", "https://x.test/v1/messages"),
        ("https://x.test/v1/", "https://x.test/v1/messages"),
        ("https://x.test/anthropic/", "https://x.test/anthropic/v1/messages"),
    ],
)
def test_a_base_may_end_in_v1_or_not(base: str, url: str) -> None:
    dialect = AnthropicDialect("x", base=base)
    assert dialect.build_chat_request(HI).url == url
    assert dialect.build_models_request().url == url.replace("messages", "models?limit=1000")
    assert "x-api-key" not in dialect.build_headers()


# ── Caching ────────────────────────────────────────────────────────────────────────────────────


def count_cache_marks(value: object) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(
            count_cache_marks(inner) for inner in value.values()
        )
    return sum(count_cache_marks(inner) for inner in value) if isinstance(value, list) else 0


@pytest.mark.req("model.cache_hints")
def test_the_stable_prefix_is_marked_in_four_places() -> None:
    history = [
        m
        for n in range(5)
        for m in (
            build_user_message(f"q{n}"),
            build_tool_calls(f"c{n}"),
            build_tool_result(f"c{n}"),
        )
    ]
    body = build_body(
        Message(role="system", text="a"),
        Message(role="system", text="b"),
        *history,
        tools=(Tool("x"), Tool("y")),
    )
    assert count_cache_marks(body) == 4
    assert body["system"][-1]["cache_control"] == CACHED
    assert body["tools"][-1]["cache_control"] == CACHED
    users = [turn for turn in body["messages"] if turn["role"] == "user"]
    assert [turn["content"][-1].get("cache_control") for turn in users[-3:]] == [
        None,
        CACHED,
        CACHED,
    ]


@pytest.mark.req("model.cache_hints")
def test_what_one_request_marks_last_the_next_one_marks_again() -> None:
    before = [build_user_message("a"), build_tool_calls("c"), build_tool_result("c", "found")]
    after = [*before, Message(role="assistant", text="so"), build_user_message("b")]
    first, second = build_body(*before), build_body(*after)
    assert first["messages"][2] == second["messages"][2]
    assert count_cache_marks(second["messages"][2]) == 1


def test_marking_does_not_change_the_callers_values() -> None:
    tool = Tool("x", "", {"type": "object"})
    message = msgspec.structs.replace(FULL_MESSAGE)
    for _ in range(2):
        build_body(
            build_user_message(),
            message,
            build_tool_result("toolu_a"),
            tools=(tool,),
            thinking=True,
        )
    assert tool == Tool("x", "", {"type": "object"})
    assert message == FULL_MESSAGE


# ── Round trips ────────────────────────────────────────────────────────────────────────────────


def tool_use(call_id: str, name: str, **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


CALLS = [
    tool_use("toolu_a", "bash", command="ls"),
    tool_use("toolu_b", "read"),
    tool_use("toolu_c", "list"),
]
RESULTS = tuple(build_tool_result(call.id) for call in FULL_MESSAGE.tool_calls)


@pytest.mark.req("model.backend.anthropic")
@pytest.mark.parametrize("model_name", [MODEL, ADAPTIVE])
async def test_thinking_is_sent_back_signed_and_before_the_calls(model_name: str) -> None:
    ask = Request(model=model_name, messages=(build_user_message(),), thinking=True)
    async with (
        run_vendor([VendorAnswer([FULL]), VendorAnswer([TEXT])]) as fake,
        open_provider(fake) as model,
    ):
        answer = (await model.complete(ask)).message
        stored = msgspec.json.decode(msgspec.json.encode(answer), type=Message)
        await model.complete(
            Request(
                model=model_name, messages=(build_user_message(), stored, *RESULTS), thinking=True
            )
        )
    turns = fake.requests[1].json["messages"]
    assert turns[1] == {
        "role": "assistant",
        "content": [THOUGHT, REDACTED, {"type": "text", "text": "Sure, 日本"}, *CALLS],
    }
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result"] * 3


@pytest.mark.req("model.sdk_agrees")
async def test_the_history_is_encoded_as_by_the_sdk() -> None:
    async with run_vendor([VendorAnswer([FULL])]) as fake:
        message = await read_with_sdk(fake)
    theirs = [block.model_dump(exclude_none=True) for block in message.content]
    ours = build_body(build_user_message(), FULL_MESSAGE, *RESULTS, thinking=True)["messages"][1][
        "content"
    ]
    assert ours == theirs


def test_thinking_goes_back_to_where_it_was() -> None:
    """Newer models think between texts and calls, and check that nothing moved."""
    body = encode_sse(
        build_message_start(),
        build_block_start(0, type="text", text=""),
        build_block_delta(0, "text_delta", text="One."),
        build_block_stop(0),
        build_block_start(1, type="thinking", thinking="", signature=""),
        build_block_delta(1, "signature_delta", signature="c2ln"),
        build_block_stop(1),
        build_block_start(2, type="text", text=""),
        build_block_delta(2, "text_delta", text="Two."),
        build_block_stop(2),
        build_block_start(3, type="tool_use", id="a", name="bash", input={}),
        build_block_stop(3),
        build_block_start(4, type="redacted_thinking", data="c2VjcmV0"),
        build_block_stop(4),
        build_block_start(5, type="tool_use", id="b", name="bash", input={}),
        build_block_stop(5),
        build_message_delta("tool_use"),
        STOP,
    )
    answer = assemble_chunks(decode_pieces([body])).build_message()
    assert answer.text == "One.Two."
    sent = build_body(
        build_user_message(), answer, build_tool_result("a"), build_tool_result("b"), model=BOUND
    )["messages"][1]
    assert sent["content"] == [
        {"type": "text", "text": "One."},
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "text", "text": "Two."},
        tool_use("a", "bash"),
        REDACTED,
        tool_use("b", "bash"),
    ]


def test_thinking_of_a_message_that_changed_comes_first() -> None:
    changed = msgspec.structs.replace(
        FULL_MESSAGE, text="Sure", tool_calls=FULL_MESSAGE.tool_calls[:1]
    )
    sent = build_body(build_user_message(), changed, RESULTS[0], thinking=True)["messages"][1][
        "content"
    ]
    assert sent == [THOUGHT, REDACTED, {"type": "text", "text": "Sure"}, CALLS[0]]


def test_thinking_is_not_sent_back_when_thinking_is_off() -> None:
    sent = build_body(build_user_message(), FULL_MESSAGE, *RESULTS)["messages"][1]["content"]
    assert sent == [{"type": "text", "text": "Sure, 日本"}, *CALLS]


def test_thinking_is_sent_back_to_models_that_think_by_default() -> None:
    sent = build_body(build_user_message(), FULL_MESSAGE, *RESULTS, model=BOUND)["messages"][1][
        "content"
    ]
    assert sent[:2] == [THOUGHT, REDACTED]


def test_a_turn_that_began_without_thinking_continues_without_it() -> None:
    """The API refuses thinking there: calls of another model have no thinking before them."""
    under_way = (
        build_user_message(),
        build_tool_calls("a"),
        build_tool_result("a"),
        build_user_message("hurry"),
    )
    assert "thinking" not in build_body(*under_way, thinking=True, temperature=0.5)
    assert build_body(*under_way, thinking=True, temperature=0.5)["temperature"] == 0.5
    assert "thinking" in build_body(*under_way, thinking=True, model=ADAPTIVE)
    over = (*under_way[:3], Message(role="assistant", text="done"), build_user_message("next"))
    assert "thinking" in build_body(*over, thinking=True)
    began = (
        build_user_message(),
        FULL_MESSAGE,
        *RESULTS,
        build_tool_calls("a"),
        build_tool_result("a"),
    )
    assert "thinking" in build_body(*began, thinking=True)


UNBOUND = VendorAnswer.from_json(
    {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages.1.content.0: Invalid `signature` in `thinking` block. The block "
            "is bound to a different conversation. Remove the block, or set "
            '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".',
        },
    },
    400,
)


@pytest.mark.parametrize("thinking", [True, False])
async def test_a_changed_history_is_retried_without_its_old_thinking(
    thinking: bool,
) -> None:
    request = Request(
        model=BOUND, messages=(build_user_message(), FULL_MESSAGE, *RESULTS), thinking=thinking
    )
    async with (
        run_vendor([UNBOUND, VendorAnswer([TEXT]), VendorAnswer([TEXT]), UNBOUND]) as fake,
        open_provider(fake, retries=0) as model,
    ):
        await collect_chunks(model, request)
        await collect_chunks(model, HI)
        with pytest.raises(ApiError, match="different conversation"):
            await collect_chunks(model, request)
    first, second, other, _ = fake.requests
    assert "anthropic-beta" not in first.headers
    assert second.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    assert second.json["thinking"]["type"] == "adaptive"
    assert second.json["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert "anthropic-beta" not in other.headers
    assert "thinking" not in other.json


# ── Models ─────────────────────────────────────────────────────────────────────────────────────


async def test_models_are_listed_with_what_is_known_of_their_context() -> None:
    listing = {
        "data": [
            {"type": "model", "id": "claude-next", "max_input_tokens": 3_000_000},
            {"type": "model", "id": "claude-haiku-4-5", "max_input_tokens": None},
            {"type": "model"},
        ],
        "has_more": False,
        "first_id": "claude-next",
        "last_id": "claude-haiku-4-5",
    }
    async with run_vendor([VendorAnswer.from_json(listing)]) as fake, open_provider(fake) as model:
        assert await model.models() == [
            ModelInfo("claude-next", 3_000_000),
            ModelInfo("claude-haiku-4-5"),
        ]
        assert model.context_limit("claude-next") == 3_000_000
        assert model.context_limit("claude-haiku-4-5") == 200_000
    (asked,) = fake.requests
    assert (asked.method, asked.path) == ("GET", "/v1/models?limit=1000")
    assert asked.headers["x-api-key"] == "sk-ant-secret"
    assert asked.headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("body", [b"[]", b'{"data": 1}', b"<html>"])
async def test_an_invalid_list_of_models_is_an_error(body: bytes) -> None:
    async with run_vendor([VendorAnswer([body])]) as fake, open_provider(fake, retries=0) as model:
        with pytest.raises(ApiError) as caught:
            await model.models()
    assert caught.value.kind is ErrorKind.PROTOCOL


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("claude-3-5-haiku-latest", 200_000),
        ("claude-sonnet-4-5", 200_000),
        ("claude-opus-4-6", 1_000_000),
        ("claude-sonnet-5-5", 1_000_000),
        ("unheard-of", None),
    ],
)
def test_the_context_of_known_families_is_known_without_asking(
    model: str, limit: int | None
) -> None:
    assert DIALECT.context_limit(model) == limit


# ── Failing ────────────────────────────────────────────────────────────────────────────────────


async def catch_failure(*answers: VendorAnswer) -> ApiError:
    async with run_vendor(list(answers)) as fake, open_provider(fake, retries=0) as model:
        with pytest.raises(ApiError) as caught:
            await collect_chunks(model)
    return caught.value


LOW = "Your credit balance is too low to access the Anthropic API."
FULL_WINDOW = "input length and `max_tokens` exceed context limit: 198000 + 32000 > 200000"


@pytest.mark.req("model.errors.vendor_sentence")
@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (401, "authentication_error", "invalid x-api-key", "auth"),
        (403, "permission_error", "Your key may not use this", "auth"),
        (404, "not_found_error", "model: claude-x", "not_found"),
        (400, "invalid_request_error", "messages: at least one is required", "invalid"),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000", "context"),
        (400, "invalid_request_error", FULL_WINDOW, "context"),
        (400, "invalid_request_error", LOW, "quota"),
        (400, "invalid_request_error", "You have reached your specified API usage limits", "quota"),
        (400, "invalid_request_error", "Output blocked by content filtering policy", "filtered"),
        (402, "billing_error", "Check your payment details", "quota"),
        (413, "request_too_large", "Request exceeds the maximum size", "context"),
        (413, "invalid_request_error", "Too large", "context"),
        (429, "rate_limit_error", "This request would exceed your rate limit", "rate_limit"),
        (500, "api_error", "Internal server error", "server"),
        (504, "timeout_error", "Timed out", "timeout"),
        (529, "overloaded_error", "Overloaded", "overloaded"),
        (418, "an_error_of_tomorrow", "I am a teapot", "invalid"),
    ],
)
async def test_errors_keep_the_vendors_message_and_get_a_kind(
    status: int, code: str, message: str, kind: str
) -> None:
    body = {
        "type": "error",
        "error": {"type": code, "message": message},
        "request_id": "req_1",
    }
    caught = await catch_failure(VendorAnswer.from_json(body, status, retry_after="7"))
    assert caught.kind is ErrorKind(kind)
    assert caught.message == message
    assert caught.status == status
    assert caught.provider == "test"
    assert caught.retry_after == 7.0
    assert str(caught) == f"test: {message} (HTTP {status})"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"plain words", "plain words"),
        (b"<html><title>502</title></html>", "answered with a web page; check base_url"),
        (b"", "refused without a word"),
        (b'{"type":"error","error":{"mess', '{"type":"error","error":{"mess'),
    ],
)
async def test_errors_in_other_formats_still_have_a_message(body: bytes, sentence: str) -> None:
    caught = await catch_failure(VendorAnswer([body], 502, "application/json"))
    assert caught.message == sentence
    assert caught.kind is ErrorKind.SERVER


def encode_broken_stream(code: str, message: str) -> bytes:
    error = {"type": "error", "error": {"type": code, "message": message}}
    return encode_sse(build_message_start(), *build_text_block("a"), error)


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (encode_broken_stream("overloaded_error", "Overloaded"), "overloaded", "Overloaded"),
        (
            encode_broken_stream("api_error", "Internal server error"),
            "server",
            "Internal server error",
        ),
        (encode_broken_stream("rate_limit_error", "slow down"), "rate_limit", "slow down"),
        (encode_broken_stream("invalid_request_error", "no"), "invalid", "no"),
        (
            encode_broken_stream("invalid_request_error", "prompt is too long"),
            "context",
            "prompt is too long",
        ),
        (encode_broken_stream("an_error_of_tomorrow", "boom"), "server", "boom"),
        (b"event: error\ndata: {}\n\n", "server", "mid-answer"),
        (
            encode_sse(build_message_start(), *build_text_block("a")),
            "connection",
            "before the answer did",
        ),
        (
            encode_sse(build_message_start(), *build_text_block("a"), build_message_delta(None)),
            "connection",
            "before the answer did",
        ),
        (b"", "connection", "before the answer did"),
        (b"event: message_start\ndata: {not json}\n\n", "protocol", "not JSON"),
        (b'event: message_start\ndata: {"type": "mess\n\n', "protocol", "not JSON"),
        (b"data: [1]\n\n", "protocol", "other than objects"),
    ],
)
async def test_a_broken_stream_is_an_error(body: bytes, kind: str, sentence: str) -> None:
    caught = await catch_failure(VendorAnswer([body]))
    assert caught.kind is ErrorKind(kind)
    assert sentence in caught.message


async def test_a_connection_cut_in_mid_answer_is_an_error() -> None:
    caught = await catch_failure(
        VendorAnswer([encode_sse(build_message_start(), *build_text_block("a"))], cut=True)
    )
    assert caught.kind is ErrorKind.CONNECTION
    assert "mid-answer" in caught.message


async def test_a_web_page_instead_of_a_stream_is_an_error() -> None:
    caught = await catch_failure(VendorAnswer([b"<html>log in</html>"], content_type="text/html"))
    assert caught.kind is ErrorKind.PROTOCOL
    assert "check base_url" in caught.message


async def test_a_tool_call_without_an_id_is_an_error() -> None:
    body = encode_sse(
        build_message_start(),
        build_block_start(0, type="tool_use", name="bash"),
        build_block_stop(0),
        build_message_delta(),
        STOP,
    )
    async with run_vendor([VendorAnswer([body])]) as fake, open_provider(fake, retries=0) as model:
        with pytest.raises(ApiError, match=r"called a tool \(bash\) without an id"):
            await model.complete(HI)


async def test_an_overload_right_after_the_start_is_retried() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answers = [VendorAnswer([encode_sse(build_message_start(), PING, error)]), VendorAnswer([TEXT])]
    async with run_vendor(answers) as fake, open_provider(fake) as model:
        assert assemble_chunks(await collect_chunks(model)).build_message().text == "Hello"
    assert len(fake.requests) == 2


# ── Live ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(
    not os.environ.get("ANTHROPIC_API_KEY"), reason="ANTHROPIC_API_KEY is not set: no live test"
)
async def test_the_real_api_thinks_calls_a_tool_and_takes_its_thinking_back() -> None:
    http = HttpClient()
    model = HttpProvider(AnthropicDialect("live", api_key=os.environ["ANTHROPIC_API_KEY"]), http)
    try:
        names = [info.name for info in await model.models()]
        name = next(name for name in names if "haiku" in name)
        tool = Tool("measure", "Reads the thermometer")
        request = Request(
            model=name,
            messages=(
                build_user_message("Call the tool `measure` once, then say what it returned."),
            ),
            tools=(tool,),
            thinking=True,
            max_tokens=4_000,
        )
        first = await model.complete(request)
        assert first.finish == "tool_calls"
        answers = tuple(build_tool_result(call.id, "42") for call in first.message.tool_calls)
        messages = (*request.messages, first.message, *answers)
        second = await model.complete(msgspec.structs.replace(request, messages=messages))
        assert "42" in second.message.text
        assert second.usage.prompt > 0
    finally:
        await http.close()
