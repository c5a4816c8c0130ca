"""Anthropic's dialect against a server that speaks it, with Anthropic's SDK as second witness."""

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
    Assembler,
    Chunk,
    ErrorKind,
    HttpClient,
    HttpProvider,
    Image,
    Message,
    ModelInfo,
    Request,
    Retry,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from crabtalk.model.anthropic import AnthropicDialect, generation
from tests.model.fake import Answer, FakeVendor, in_pieces, vendor

# Its SDK takes longer to load than all tests here but those it is a witness in.
if TYPE_CHECKING:
    import anthropic

MODEL = "claude-sonnet-4-5-20250929"  # thinks within a budget that the caller sets
ADAPTIVE = "claude-opus-4-8"  # sets its own
BOUND = "claude-opus-5-5"  # and holds its thoughts to their history
HI = Request(model=MODEL, messages=(Message(role="user", text="hi"),))
CACHED = {"type": "ephemeral"}


def sse(*documents: dict[str, Any], end: str = "\n") -> bytes:
    return "".join(
        f"event: {d['type']}{end}data: {json.dumps(d, ensure_ascii=False)}{end}{end}"
        for d in documents
    ).encode()


def start(**usage: object) -> dict[str, Any]:
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


def opened(index: int, **block: object) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def closed(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def finished(reason: str | None = "end_turn", **usage: object) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 7, **usage},
    }


PING: dict[str, Any] = {"type": "ping"}
STOP: dict[str, Any] = {"type": "message_stop"}


def saying(*texts: str) -> list[dict[str, Any]]:
    deltas = [delta(0, "text_delta", text=text) for text in texts]
    return [opened(0, type="text", text=""), *deltas, closed(0)]


TEXT = sse(start(), *saying("Hello"), finished(), STOP)

# Claude thinks, partly in secret, speaks, and calls three tools: arguments in fragments, arguments
# in one empty fragment, and none at all.
FULL = sse(
    start(cache_read_input_tokens=16, cache_creation_input_tokens=2),
    opened(0, type="thinking", thinking="", signature=""),
    PING,
    delta(0, "thinking_delta", thinking="Hm, "),
    delta(0, "thinking_delta", thinking="über 🦀"),
    delta(0, "signature_delta", signature="c2ln"),
    closed(0),
    opened(1, type="redacted_thinking", data="c2VjcmV0"),
    closed(1),
    opened(2, type="text", text=""),
    delta(2, "text_delta", text="Sure"),
    delta(2, "text_delta", text=", 日本"),
    closed(2),
    opened(3, type="tool_use", id="toolu_a", name="bash", input={}),
    delta(3, "input_json_delta", partial_json=""),
    delta(3, "input_json_delta", partial_json='{"comm'),
    delta(3, "input_json_delta", partial_json='and":"ls"}'),
    closed(3),
    opened(4, type="tool_use", id="toolu_b", name="read", input={}),
    delta(4, "input_json_delta", partial_json=""),
    closed(4),
    opened(5, type="tool_use", id="toolu_c", name="list", input={}),
    closed(5),
    finished("tool_use", output_tokens_details={"thinking_tokens": 3}),
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
async def provider(fake: FakeVendor, *, retries: int = 2) -> AsyncIterator[HttpProvider]:
    http = HttpClient()
    dialect = AnthropicDialect("test", base=fake.url, api_key="sk-ant-secret")
    try:
        yield HttpProvider(dialect, http, retry=Retry(max_retries=retries, backoff=0.001))
    finally:
        await http.close()


async def chunks_of(provider: HttpProvider, request: Request = HI) -> list[Chunk]:
    return [chunk async for chunk in provider.stream(request)]


def put_together(chunks: list[Chunk]) -> Assembler:
    assembler = Assembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


DIALECT = AnthropicDialect("test")


def decoded(pieces: list[bytes]) -> list[Chunk]:
    decoder = DIALECT.decoder(HI)
    chunks = [chunk for piece in pieces for chunk in decoder.feed(piece)]
    return chunks + decoder.end()


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.backend.anthropic")
@pytest.mark.req("model.stream")
async def test_text_thinking_calls_usage_and_finish_are_read() -> None:
    async with vendor([Answer(in_pieces(FULL, 50))]) as fake, provider(fake) as model:
        whole = put_together(await chunks_of(model))
    assert whole.message() == FULL_MESSAGE
    assert whole.finish == "tool_calls"
    assert whole.usage == FULL_USAGE


async def test_a_complete_answer_is_the_stream_put_together() -> None:
    async with vendor([Answer([FULL])]) as fake, provider(fake) as model:
        response = await model.complete(HI)
    assert response.message == FULL_MESSAGE
    assert response.usage == FULL_USAGE


async def sdk_reads(fake: FakeVendor) -> "anthropic.types.Message":
    """A model nobody knows: for those it knows, the SDK may warn that their time is up."""
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
    """If it did not, the fake would not be honest."""
    import anthropic

    async with vendor([Answer(in_pieces(FULL, size))]) as fake:
        message = await sdk_reads(fake)
    assert (fake.asked[0].method, fake.asked[0].path) == ("POST", "/v1/messages")
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
        Answer.of_json(
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529
        ),
        Answer(
            [
                sse(
                    start(),
                    {"type": "error", "error": {"type": "api_error", "message": "Overloaded"}},
                )
            ]
        ),
    ],
    ids=["status", "stream"],
)
async def test_the_vendors_sdk_finds_the_same_errors(answer: Answer) -> None:
    import anthropic

    async with vendor(lambda _: answer) as fake, provider(fake, retries=0) as model:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            await sdk_reads(fake)
        with pytest.raises(ApiError, match="Overloaded"):
            await chunks_of(model)


@pytest.mark.req("model.stream.any_split")
@given(st.lists(st.integers(0, len(FULL)), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FULL)]
    pieces = [FULL[a:b] for a, b in pairwise(edges)]
    assert decoded(pieces) == decoded([FULL])


def test_every_single_byte_on_its_own_gives_the_same_chunks() -> None:
    assert decoded(in_pieces(FULL, 1)) == decoded([FULL])


@pytest.mark.req("faults.model.complete")
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("length", [0, 1, 10, 30, len(sse(STOP)) - 6])
async def test_an_answer_that_has_finished_is_kept_wherever_its_connection_is_cut(
    length: int, cut: bool
) -> None:
    body = sse(start(), *saying("a"), finished())
    answer = Answer([body, sse(STOP)[:length]], cut=cut)
    async with vendor([answer]) as fake, provider(fake) as model:
        whole = put_together(await chunks_of(model))
    assert (whole.message().text, whole.finish) == ("a", "stop")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comments_pings_and_line_ends_of_all_kinds_make_no_difference(end: str) -> None:
    noisy = (
        f": keep-alive{end}{end}".encode()
        + sse(start(), opened(0, type="text", text=""), PING, end=end)
        + f"id: 7{end}retry: 10{end}: ping{end}".encode()
        + sse(delta(0, "text_delta", text="ä"), PING, delta(0, "text_delta", text="b"), end=end)
        + sse(closed(0), finished(), STOP, end=end)
    )
    for size in (1, 2, 3, 1000):
        assert put_together(decoded(in_pieces(noisy, size))).message().text == "äb"


def test_a_server_that_forgets_the_last_blank_line_is_forgiven() -> None:
    assert put_together(decoded([TEXT.rstrip(b"\n")])).message().text == "Hello"


def test_a_server_that_does_not_name_its_events_is_understood() -> None:
    lines = [line for line in FULL.split(b"\n") if not line.startswith(b"event:")]
    assert put_together(decoded([b"\n".join(lines)])).message() == FULL_MESSAGE


def test_unknown_events_blocks_and_deltas_are_passed_over() -> None:
    body = sse(
        start(),
        {"type": "message_weather", "sun": True},
        opened(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        delta(0, "input_json_delta", partial_json='{"query":"crabs"}'),
        closed(0),
        opened(1, type="text", text=""),
        delta(1, "text_delta", text="a"),
        delta(1, "citations_delta", citation={}),
        delta(1, "input_json_delta", partial_json="{}"),
        delta(9, "text_delta", text="of no block"),
        closed(1),
        closed(9),
        finished(),
        STOP,
    )
    nonsense = b"event: telemetry\ndata: not even json\n\n"
    whole = put_together(decoded([nonsense + body]))
    assert whole.message() == Message(role="assistant", text="a")


def test_what_a_block_starts_with_counts() -> None:
    body = sse(
        start(),
        opened(0, type="thinking", thinking="hm", signature="s"),
        closed(0),
        opened(1, type="text", text="a"),
        delta(1, "text_delta", text="b"),
        closed(1),
        opened(2, type="tool_use", id="t", name="n", input={"a": 1}),
        closed(2),
        finished("tool_use"),
        STOP,
    )
    message = put_together(decoded([body])).message()
    assert (message.reasoning, message.text) == ("hm", "ab")
    assert message.tool_calls == (ToolCall(id="t", name="n", arguments='{"a":1}'),)


def test_thinking_that_is_not_shown_is_kept_for_the_next_request() -> None:
    body = sse(
        start(),
        opened(0, type="thinking", thinking="", signature=""),
        delta(0, "signature_delta", signature="c2ln"),
        closed(0),
        *[{**event, "index": 1} for event in saying("a")],
        finished(),
        STOP,
    )
    kept = put_together(decoded([body])).message().opaque["anthropic"]
    assert kept[0] == {"type": "thinking", "thinking": "", "signature": "c2ln"}


def test_thinking_without_a_signature_is_shown_and_not_kept() -> None:
    body = sse(
        start(),
        opened(0, type="thinking", thinking=""),
        delta(0, "thinking_delta", thinking="hm"),
        closed(0),
        finished(),
        STOP,
    )
    assert decoded([body])[0] == Chunk(reasoning="hm")
    assert put_together(decoded([body])).message() == Message(role="assistant", reasoning="hm")


def test_an_answer_cut_off_after_its_thinking_has_kept_it() -> None:
    decoder = DIALECT.decoder(HI)
    chunks = decoder.feed(FULL[: FULL.index(b"Sure")])
    assert put_together(chunks).message().opaque["anthropic"][:2] == [THOUGHT, REDACTED]


def test_one_piece_of_a_call_is_one_chunk() -> None:
    body = sse(
        start(),
        opened(1, type="tool_use", id="x", name="n", input={}),
        delta(1, "input_json_delta", partial_json="{}"),
        closed(1),
        finished("tool_use"),
        STOP,
    )
    assert [chunk.tool_calls for chunk in decoded([body])] == [
        (ToolCallDelta(index=0, id="x", name="n"),),
        (ToolCallDelta(index=0, arguments="{}"),),
        (),
    ]


def test_no_chunk_comes_before_the_model_said_something() -> None:
    """A chunk ends the wait for the first token and forbids another try."""
    opening = sse(start(), PING, opened(0, type="text", text=""))
    assert DIALECT.decoder(HI).feed(opening) == []


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
    assert decoded([sse(start(), *saying("a"), finished(reason), STOP)])[-1].finish == finish


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
    body = sse(start(**first), *saying("a"), finished(**last), STOP)
    assert put_together(decoded([body])).usage == usage


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
def test_nonsense_in_the_right_form_is_an_answer_or_an_api_error(
    events: list[tuple[str, dict[str, object]]],
) -> None:
    try:
        chunks = decoded([sse(*({**document, "type": kind} for kind, document in events))])
    except ApiError:
        return
    assert all(chunk != Chunk() for chunk in chunks)


# ── Writing ────────────────────────────────────────────────────────────────────────────────────


def body_of(*messages: Message, dialect: AnthropicDialect = DIALECT, **fields: Any) -> Any:
    request = Request(messages=messages, **{"model": MODEL, **fields})
    return msgspec.json.decode(dialect.chat(request).body or b"")


def user(text: str = "hi", *images: Image) -> Message:
    return Message(role="user", text=text, images=images)


def result(call_id: str, text: str = "out", *, is_error: bool = False) -> Message:
    return Message(role="tool", call_id=call_id, name="bash", text=text, is_error=is_error)


def called(*ids: str, text: str = "", arguments: str = "{}") -> Message:
    calls = tuple(ToolCall(id=i, name="bash", arguments=arguments) for i in ids)
    return Message(role="assistant", text=text, tool_calls=calls)


@pytest.mark.req("model.request")
async def test_a_request_carries_everything_the_vendor_knows() -> None:
    request = Request(
        model=MODEL,
        messages=(
            Message(role="system", text="Be a crab."),
            Message(role="system", text="Be brief."),
            user("look", Image("image/png", b"\x89PNG"), Image(url="https://x.test/a.jpg")),
            Message(
                role="assistant",
                text="I see",
                reasoning="secret",
                tool_calls=(
                    ToolCall(id="c1", name="bash", arguments='{"a":1}'),
                    ToolCall(id="c2", name="bash", arguments=""),
                ),
            ),
            result("c1", "out", is_error=True),
            result("c2", ""),
            user("and?"),
            Message(role="assistant", text="done", agent="twin"),
            Message(role="assistant", text="indeed"),
            user("thanks"),
        ),
        tools=(
            Tool("bash", "Runs", {"type": "object", "properties": {"a": {"type": "integer"}}}),
            Tool("read"),
        ),
        tool_choice="bash",
        max_tokens=10,
        temperature=0.5,
    )
    async with vendor([Answer([FULL])]) as fake, provider(fake) as model:
        await chunks_of(model, request)
    (asked,) = fake.asked
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
    async with vendor([Answer([TEXT])]) as fake, provider(fake) as model:
        await chunks_of(model)
    assert fake.asked[0].json == {
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
    body = body_of(user(), called("a", "b"), result("a"), user("hurry"), result("b"))
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    last = body["messages"][-1]["content"]
    assert [block.get("tool_use_id") or block.get("text") for block in last] == ["a", "b", "hurry"]


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_text_that_says_nothing_is_left_out(text: str) -> None:
    body = body_of(
        Message(role="system", text=text),
        user("hi"),
        Message(role="assistant", text=text),
        user(text, Image(url="https://x.test/a.jpg")),
        called("a", text=text),
        result("a", text),
    )
    assert "system" not in body
    assert [[block["type"] for block in turn["content"]] for turn in body["messages"]] == [
        ["text", "image"],
        ["tool_use"],
        ["tool_result"],
    ]
    assert "content" not in body["messages"][-1]["content"][0]


@pytest.mark.parametrize("arguments", ['{"comm', "[1]", "null", '"x"', "ls -l"])
def test_arguments_that_are_no_object_go_back_as_the_text_they_are(arguments: str) -> None:
    body = body_of(user(), called("a", arguments=arguments), result("a"))
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
def test_the_choice_of_tools_is_put_in_the_vendors_words(choice: str, sent: object) -> None:
    assert body_of(user(), tools=(Tool("bash"),), tool_choice=choice)["tool_choice"] == sent
    assert "tool_choice" not in body_of(user(), tool_choice=choice)


@pytest.mark.parametrize(
    ("choice", "sent"), [("auto", "auto"), ("none", "none"), ("required", "auto"), ("bash", "auto")]
)
@pytest.mark.parametrize(("model", "thinking"), [(MODEL, True), (ADAPTIVE, True), (BOUND, False)])
def test_a_model_that_thinks_is_not_forced_to_call(
    model: str, thinking: bool, choice: str, sent: str
) -> None:
    body = body_of(
        user(), tools=(Tool("bash"),), tool_choice=choice, model=model, thinking=thinking
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
        ("somebody-elses", 8_192),
    ],
)
def test_every_request_has_a_limit_its_model_allows(model: str, limit: int) -> None:
    assert body_of(user(), model=model)["max_tokens"] == limit
    assert body_of(user(), model=model, max_tokens=77)["max_tokens"] == 77


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
    assert generation(model) == born


@pytest.mark.parametrize(
    ("limit", "sent", "budget"),
    [(None, 32_000, 16_000), (100_000, 100_000, 16_000), (4_000, 4_000, 2_000), (10, 2_048, 1_024)],
)
def test_thinking_has_a_budget_that_leaves_room_for_an_answer(
    limit: int | None, sent: int, budget: int
) -> None:
    body = body_of(user(), thinking=True, max_tokens=limit, temperature=0.5)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert body["max_tokens"] == sent
    assert budget < sent
    assert "temperature" not in body


def test_newer_models_set_their_budget_and_their_temperature_themselves() -> None:
    body = body_of(user(), model=ADAPTIVE, thinking=True, max_tokens=10, temperature=0.5)
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["max_tokens"] == 10
    assert "temperature" not in body
    body = body_of(user(), model=ADAPTIVE, temperature=0.5)
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
    assert dialect.chat(HI).url == url
    assert dialect.list_models().url == url.replace("messages", "models?limit=1000")
    assert "x-api-key" not in dialect.headers()


# ── Caching ────────────────────────────────────────────────────────────────────────────────────


def marks(value: object) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(marks(inner) for inner in value.values())
    return sum(marks(inner) for inner in value) if isinstance(value, list) else 0


@pytest.mark.req("model.cache_hints")
def test_the_stable_prefix_is_marked_in_four_places() -> None:
    history = [m for n in range(5) for m in (user(f"q{n}"), called(f"c{n}"), result(f"c{n}"))]
    body = body_of(
        Message(role="system", text="a"),
        Message(role="system", text="b"),
        *history,
        tools=(Tool("x"), Tool("y")),
    )
    assert marks(body) == 4
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
    before = [user("a"), called("c"), result("c", "found")]
    after = [*before, Message(role="assistant", text="so"), user("b")]
    first, second = body_of(*before), body_of(*after)
    assert first["messages"][2] == second["messages"][2]
    assert marks(second["messages"][2]) == 1


def test_marking_leaves_the_callers_values_alone() -> None:
    tool = Tool("x", "", {"type": "object"})
    message = msgspec.structs.replace(FULL_MESSAGE)
    for _ in range(2):
        body_of(user(), message, result("toolu_a"), tools=(tool,), thinking=True)
    assert tool == Tool("x", "", {"type": "object"})
    assert message == FULL_MESSAGE


# ── There and back ─────────────────────────────────────────────────────────────────────────────


def tool_use(call_id: str, name: str, **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


CALLS = [
    tool_use("toolu_a", "bash", command="ls"),
    tool_use("toolu_b", "read"),
    tool_use("toolu_c", "list"),
]
RESULTS = tuple(result(call.id) for call in FULL_MESSAGE.tool_calls)


@pytest.mark.req("model.backend.anthropic")
@pytest.mark.parametrize("model_name", [MODEL, ADAPTIVE])
async def test_thinking_travels_back_signed_and_before_the_calls(model_name: str) -> None:
    ask = Request(model=model_name, messages=(user(),), thinking=True)
    async with vendor([Answer([FULL]), Answer([TEXT])]) as fake, provider(fake) as model:
        answer = (await model.complete(ask)).message
        stored = msgspec.json.decode(msgspec.json.encode(answer), type=Message)
        await model.complete(
            Request(model=model_name, messages=(user(), stored, *RESULTS), thinking=True)
        )
    turns = fake.asked[1].json["messages"]
    assert turns[1] == {
        "role": "assistant",
        "content": [THOUGHT, REDACTED, {"type": "text", "text": "Sure, 日本"}, *CALLS],
    }
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result"] * 3


@pytest.mark.req("model.sdk_agrees")
async def test_what_goes_back_is_what_the_sdk_would_send_back() -> None:
    async with vendor([Answer([FULL])]) as fake:
        message = await sdk_reads(fake)
    theirs = [block.model_dump(exclude_none=True) for block in message.content]
    ours = body_of(user(), FULL_MESSAGE, *RESULTS, thinking=True)["messages"][1]["content"]
    assert ours == theirs


def test_thinking_goes_back_to_where_it_was() -> None:
    """Newer models think between texts and calls, and check that nothing moved."""
    body = sse(
        start(),
        opened(0, type="text", text=""),
        delta(0, "text_delta", text="One."),
        closed(0),
        opened(1, type="thinking", thinking="", signature=""),
        delta(1, "signature_delta", signature="c2ln"),
        closed(1),
        opened(2, type="text", text=""),
        delta(2, "text_delta", text="Two."),
        closed(2),
        opened(3, type="tool_use", id="a", name="bash", input={}),
        closed(3),
        opened(4, type="redacted_thinking", data="c2VjcmV0"),
        closed(4),
        opened(5, type="tool_use", id="b", name="bash", input={}),
        closed(5),
        finished("tool_use"),
        STOP,
    )
    answer = put_together(decoded([body])).message()
    assert answer.text == "One.Two."
    sent = body_of(user(), answer, result("a"), result("b"), model=BOUND)["messages"][1]
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
    sent = body_of(user(), changed, RESULTS[0], thinking=True)["messages"][1]["content"]
    assert sent == [THOUGHT, REDACTED, {"type": "text", "text": "Sure"}, CALLS[0]]


def test_thinking_stays_here_when_thinking_is_off() -> None:
    sent = body_of(user(), FULL_MESSAGE, *RESULTS)["messages"][1]["content"]
    assert sent == [{"type": "text", "text": "Sure, 日本"}, *CALLS]


def test_thinking_goes_back_to_models_that_think_unasked() -> None:
    sent = body_of(user(), FULL_MESSAGE, *RESULTS, model=BOUND)["messages"][1]["content"]
    assert sent[:2] == [THOUGHT, REDACTED]


def test_a_turn_that_began_without_thinking_goes_on_without() -> None:
    """The API refuses the other thing: calls that another model made have no thinking before."""
    under_way = (user(), called("a"), result("a"), user("hurry"))
    assert "thinking" not in body_of(*under_way, thinking=True, temperature=0.5)
    assert body_of(*under_way, thinking=True, temperature=0.5)["temperature"] == 0.5
    assert "thinking" in body_of(*under_way, thinking=True, model=ADAPTIVE)
    over = (*under_way[:3], Message(role="assistant", text="done"), user("next"))
    assert "thinking" in body_of(*over, thinking=True)
    began = (user(), FULL_MESSAGE, *RESULTS, called("a"), result("a"))
    assert "thinking" in body_of(*began, thinking=True)


UNBOUND = Answer.of_json(
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
async def test_a_history_that_was_changed_is_sent_again_without_its_old_thinking(
    thinking: bool,
) -> None:
    request = Request(model=BOUND, messages=(user(), FULL_MESSAGE, *RESULTS), thinking=thinking)
    async with (
        vendor([UNBOUND, Answer([TEXT]), Answer([TEXT]), UNBOUND]) as fake,
        provider(fake, retries=0) as model,
    ):
        await chunks_of(model, request)
        await chunks_of(model, HI)
        with pytest.raises(ApiError, match="different conversation"):
            await chunks_of(model, request)
    first, second, other, _ = fake.asked
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
    async with vendor([Answer.of_json(listing)]) as fake, provider(fake) as model:
        assert await model.models() == [
            ModelInfo("claude-next", 3_000_000),
            ModelInfo("claude-haiku-4-5"),
        ]
        assert model.context_limit("claude-next") == 3_000_000
        assert model.context_limit("claude-haiku-4-5") == 200_000
    (asked,) = fake.asked
    assert (asked.method, asked.path) == ("GET", "/v1/models?limit=1000")
    assert asked.headers["x-api-key"] == "sk-ant-secret"
    assert asked.headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("body", [b"[]", b'{"data": 1}', b"<html>"])
async def test_a_list_of_models_that_is_none_is_an_error(body: bytes) -> None:
    async with vendor([Answer([body])]) as fake, provider(fake, retries=0) as model:
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


async def failure(*answers: Answer) -> ApiError:
    async with vendor(list(answers)) as fake, provider(fake, retries=0) as model:
        with pytest.raises(ApiError) as caught:
            await chunks_of(model)
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
async def test_errors_keep_the_vendors_sentence_and_get_a_kind(
    status: int, code: str, message: str, kind: str
) -> None:
    body = {
        "type": "error",
        "error": {"type": code, "message": message},
        "request_id": "req_1",
    }
    caught = await failure(Answer.of_json(body, status, retry_after="7"))
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
async def test_errors_in_other_shapes_still_say_something(body: bytes, sentence: str) -> None:
    caught = await failure(Answer([body], 502, "application/json"))
    assert caught.message == sentence
    assert caught.kind is ErrorKind.SERVER


def broken(code: str, message: str) -> bytes:
    error = {"type": "error", "error": {"type": code, "message": message}}
    return sse(start(), *saying("a"), error)


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (broken("overloaded_error", "Overloaded"), "overloaded", "Overloaded"),
        (broken("api_error", "Internal server error"), "server", "Internal server error"),
        (broken("rate_limit_error", "slow down"), "rate_limit", "slow down"),
        (broken("invalid_request_error", "no"), "invalid", "no"),
        (broken("invalid_request_error", "prompt is too long"), "context", "prompt is too long"),
        (broken("an_error_of_tomorrow", "boom"), "server", "boom"),
        (b"event: error\ndata: {}\n\n", "server", "mid-answer"),
        (sse(start(), *saying("a")), "connection", "before the answer did"),
        (sse(start(), *saying("a"), finished(None)), "connection", "before the answer did"),
        (b"", "connection", "before the answer did"),
        (b"event: message_start\ndata: {not json}\n\n", "protocol", "not JSON"),
        (b'event: message_start\ndata: {"type": "mess\n\n', "protocol", "not JSON"),
        (b"data: [1]\n\n", "protocol", "other than objects"),
    ],
)
async def test_a_stream_that_goes_wrong_is_an_error(body: bytes, kind: str, sentence: str) -> None:
    caught = await failure(Answer([body]))
    assert caught.kind is ErrorKind(kind)
    assert sentence in caught.message


async def test_a_connection_cut_in_mid_answer_is_an_error() -> None:
    caught = await failure(Answer([sse(start(), *saying("a"))], cut=True))
    assert caught.kind is ErrorKind.CONNECTION
    assert "mid-answer" in caught.message


async def test_a_web_page_instead_of_a_stream_is_an_error() -> None:
    caught = await failure(Answer([b"<html>log in</html>"], content_type="text/html"))
    assert caught.kind is ErrorKind.PROTOCOL
    assert "check base_url" in caught.message


async def test_a_tool_call_without_an_id_is_an_error() -> None:
    body = sse(start(), opened(0, type="tool_use", name="bash"), closed(0), finished(), STOP)
    async with vendor([Answer([body])]) as fake, provider(fake, retries=0) as model:
        with pytest.raises(ApiError, match=r"called a tool \(bash\) without an id"):
            await model.complete(HI)


async def test_an_overload_right_after_the_beginning_is_tried_again() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answers = [Answer([sse(start(), PING, error)]), Answer([TEXT])]
    async with vendor(answers) as fake, provider(fake) as model:
        assert put_together(await chunks_of(model)).message().text == "Hello"
    assert len(fake.asked) == 2


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
            messages=(user("Call the tool `measure` once, then say what it returned."),),
            tools=(tool,),
            thinking=True,
            max_tokens=4_000,
        )
        first = await model.complete(request)
        assert first.finish == "tool_calls"
        answers = tuple(result(call.id, "42") for call in first.message.tool_calls)
        messages = (*request.messages, first.message, *answers)
        second = await model.complete(msgspec.structs.replace(request, messages=messages))
        assert "42" in second.message.text
        assert second.usage.prompt > 0
    finally:
        await http.close()
