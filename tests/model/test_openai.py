"""OpenAI's dialect against a scripted server, compared with OpenAI's own SDK."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

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
    Timeouts,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
    choose_preferred_model,
)
from crabtalk.model.openai import OpenAiDialect
from tests.model.fake_vendor import (
    FakeVendor,
    VendorAnswer,
    VendorRequest,
    run_vendor,
    split_pieces,
)

HI = Request(model="gpt-x", messages=(Message(role="user", text="hi"),))


def encode_sse(*documents: object, done: bool = True, end: str = "\n") -> bytes:
    lines = [f"data: {json.dumps(d, ensure_ascii=False)}{end}{end}" for d in documents]
    if done:
        lines.append(f"data: [DONE]{end}{end}")
    return "".join(lines).encode()


def build_delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "gpt-x",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


USAGE = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "gpt-x",
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
}

# A model reasons, answers, and calls two tools whose arguments come in fragments.
FULL = encode_sse(
    build_delta(role="assistant", content=""),
    build_delta(reasoning_content="Hm, "),
    build_delta(reasoning_content="über 🦀"),
    build_delta(content="Sure"),
    build_delta(content=", 日本"),
    build_delta(
        tool_calls=[
            {"index": 0, "id": "call_a", "type": "function", "function": {"name": "bash"}},
        ]
    ),
    build_delta(tool_calls=[{"index": 0, "function": {"arguments": '{"comm'}}]),
    build_delta(
        tool_calls=[
            {"index": 1, "id": "call_b", "type": "function", "function": {"name": "read"}},
            {"index": 0, "function": {"arguments": 'and":"ls"}'}},
        ]
    ),
    build_delta(tool_calls=[{"index": 1, "function": {"arguments": "{}"}}]),
    build_delta(finish="tool_calls"),
    USAGE,
)
FULL_MESSAGE = Message(
    role="assistant",
    text="Sure, 日本",
    reasoning="Hm, über 🦀",
    tool_calls=(
        ToolCall(id="call_a", name="bash", arguments='{"command":"ls"}'),
        ToolCall(id="call_b", name="read", arguments="{}"),
    ),
)


@asynccontextmanager
async def open_provider(
    fake: FakeVendor, *, timeouts: Timeouts | None = None, retries: int = 2
) -> AsyncIterator[HttpProvider]:
    http = HttpClient()
    retry = RetryPolicy(max_retries=retries, backoff=0.001)
    dialect = OpenAiDialect("test", base=f"{fake.url}/v1", api_key="sk-secret")
    try:
        yield HttpProvider(dialect, http, timeouts=timeouts, retry=retry)
    finally:
        await http.close()


async def collect_chunks(provider: HttpProvider, request: Request = HI) -> list[Chunk]:
    return [chunk async for chunk in provider.stream(request)]


def assemble_chunks(chunks: list[Chunk]) -> ResponseAssembler:
    assembler = ResponseAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.stream")
async def test_text_reasoning_calls_usage_and_finish_are_read() -> None:
    async with (
        run_vendor([VendorAnswer(split_pieces(FULL, 50))]) as fake,
        open_provider(fake) as model,
    ):
        whole = assemble_chunks(await collect_chunks(model))
    assert whole.build_message() == FULL_MESSAGE
    assert whole.finish == "tool_calls"
    assert whole.usage == Usage(
        prompt=20, completion=7, total=27, cache_hit=16, cache_miss=4, reasoning=3
    )


@pytest.mark.req("model.complete")
async def test_a_complete_answer_equals_the_assembled_stream() -> None:
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        response = await model.complete(HI)
    assert response.message == FULL_MESSAGE
    assert response.model == "gpt-x"


async def test_the_vendors_sdk_reads_the_same_from_the_same_bytes() -> None:
    """Otherwise the fake would not behave like the vendor."""
    import openai  # takes longer to load than all the other tests here

    async with (
        run_vendor([VendorAnswer(split_pieces(FULL, 50))]) as fake,
        openai.AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="sk") as sdk,
    ):
        stream = await sdk.chat.completions.create(
            model="gpt-x", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text, usage = "", None
        calls: dict[int, list[str]] = {}
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    entry = calls.setdefault(call.index, ["", "", ""])
                    entry[0] += call.id or ""
                    assert call.function is not None
                    entry[1] += call.function.name or ""
                    entry[2] += call.function.arguments or ""
    assert text == FULL_MESSAGE.text
    assert [ToolCall(*entry) for entry in calls.values()] == list(FULL_MESSAGE.tool_calls)
    assert usage is not None
    assert usage.total_tokens == 27


DIALECT = OpenAiDialect("test")


def decode_pieces(pieces: list[bytes]) -> list[Chunk]:
    decoder = DIALECT.create_decoder(HI)
    chunks = [chunk for piece in pieces for chunk in decoder.feed(piece)]
    return chunks + decoder.end()


@pytest.mark.req("model.stream.any_split")
@given(st.lists(st.integers(0, len(FULL)), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FULL)]
    pieces = [FULL[a:b] for a, b in pairwise(edges)]
    assert decode_pieces(pieces) == decode_pieces([FULL])


FINISHED = encode_sse(build_delta(content="a"), build_delta(finish="stop"), done=False)
TRAILING = encode_sse(USAGE)


@pytest.mark.req("faults.model.complete")
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("length", [0, 1, 6, 30, len(TRAILING) - 12, len(TRAILING) - 5])
async def test_an_answer_that_has_finished_is_kept_wherever_its_connection_is_cut(
    length: int, cut: bool
) -> None:
    answer = VendorAnswer([FINISHED, TRAILING[:length]], cut=cut)
    async with run_vendor([answer]) as fake, open_provider(fake) as model:
        whole = assemble_chunks(await collect_chunks(model))
    assert (whole.build_message().text, whole.finish) == ("a", "stop")
    assert len(fake.requests) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comments_and_line_ends_of_all_kinds_make_no_difference(end: str) -> None:
    noisy = (
        f": keep-alive{end}{end}".encode()
        + encode_sse(build_delta(content="a"), end=end, done=False)
        + f"id: 7{end}retry: 10{end}: ping{end}".encode()
        + encode_sse(build_delta(content="b"), build_delta(finish="stop"), end=end)
    )
    for size in (1, 2, 3, 1000):
        assert (
            assemble_chunks(decode_pieces(split_pieces(noisy, size))).build_message().text == "ab"
        )


def test_a_stream_without_done_is_complete_after_its_finish_reason() -> None:
    assert (
        decode_pieces(
            [encode_sse(build_delta(content="a"), build_delta(finish="stop"), done=False)]
        )[-1].finish
        == "stop"
    )


def test_a_missing_last_blank_line_is_accepted() -> None:
    body = encode_sse(build_delta(content="a"), build_delta(finish="stop"), done=False).rstrip(
        b"\n"
    )
    assert decode_pieces([body])[-1].finish == "stop"


def test_calls_without_index_are_told_apart_by_id() -> None:
    body = encode_sse(
        build_delta(tool_calls=[{"id": "a", "function": {"name": "x", "arguments": "{}"}}]),
        build_delta(tool_calls=[{"id": "b", "function": {"name": "y", "arguments": "{}"}}]),
        build_delta(finish="tool_calls"),
    )
    assert assemble_chunks(decode_pieces([body])).build_tool_calls() == (
        ToolCall(id="a", name="x", arguments="{}"),
        ToolCall(id="b", name="y", arguments="{}"),
    )


def test_reasoning_under_its_other_name_is_read() -> None:
    body = encode_sse(build_delta(reasoning="hm"), build_delta(finish="stop"))
    assert assemble_chunks(decode_pieces([body])).build_message().reasoning == "hm"


# ── Writing ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.request")
async def test_a_request_carries_everything_the_vendor_knows() -> None:
    request = Request(
        model="gpt-x",
        messages=(
            Message(role="system", text="Be a crab."),
            Message(role="user", text="look", images=(Image("image/png", b"\x89PNG"),)),
            Message(
                role="assistant",
                text="",
                reasoning="secret",
                tool_calls=(ToolCall(id="c1", name="bash", arguments='{"a":1}'),),
            ),
            Message(role="tool", call_id="c1", name="bash", text="out", is_error=True),
            Message(role="assistant", text="done", agent="twin"),
        ),
        tools=(Tool("bash", "Runs", {"type": "object", "properties": {}}),),
        tool_choice="bash",
        thinking=True,
        max_tokens=10,
        temperature=0.5,
    )
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        await collect_chunks(model, request)
    (asked,) = fake.requests
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["authorization"] == "Bearer sk-secret"
    assert asked.json == {
        "model": "gpt-x",
        "messages": [
            {"role": "system", "content": "Be a crab."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "bash", "arguments": '{"a":1}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
            {"role": "assistant", "content": "done"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "bash",
                    "description": "Runs",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "bash"}},
        "reasoning_effort": "high",
        "max_tokens": 10,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_plain_request_is_as_small_as_can_be() -> None:
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        await collect_chunks(model)
    assert fake.requests[0].json == {
        "model": "gpt-x",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_only_openai_itself_gets_options_that_other_servers_may_not_know() -> None:
    dialect = OpenAiDialect("openai", api_key="k")
    body = dialect.build_body(HI)
    assert len(body["prompt_cache_key"]) == 32
    other = Request(model="gpt-x", messages=(Message(role="user", text="other"),))
    assert dialect.build_body(other)["prompt_cache_key"] == body["prompt_cache_key"]


async def test_a_server_that_rejects_the_usage_option_does_not_get_it_again() -> None:
    objection = VendorAnswer.from_json(
        {"error": {"message": "Unrecognized request argument: stream_options"}}, 400
    )
    async with (
        run_vendor([objection, VendorAnswer([FULL]), VendorAnswer([FULL])]) as fake,
        open_provider(fake, retries=0) as model,
    ):
        await collect_chunks(model)
        await collect_chunks(model)
    asked = ["stream_options" in request.json for request in fake.requests]
    assert asked == [True, False, False]


async def test_an_option_rejected_in_two_parallel_requests_is_dropped_in_both() -> None:
    objection = VendorAnswer.from_json({"error": {"message": "what is stream_options?"}}, 400)

    def respond(asked: VendorRequest) -> VendorAnswer:
        return objection if "stream_options" in asked.json else VendorAnswer([FULL])

    async with run_vendor(respond) as fake, open_provider(fake, retries=0) as model:
        await asyncio.gather(*(collect_chunks(model) for _ in range(5)))
    assert len(fake.requests) >= 6


async def test_a_model_that_requires_max_completion_tokens_gets_it() -> None:
    objection = VendorAnswer.from_json(
        {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}}, 400
    )
    async with (
        run_vendor([objection, VendorAnswer([FULL])]) as fake,
        open_provider(fake, retries=0) as model,
    ):
        await collect_chunks(model, Request(model="o9", messages=HI.messages, max_tokens=5))
    assert fake.requests[0].json["max_tokens"] == 5
    assert fake.requests[1].json["max_completion_tokens"] == 5


async def test_models_are_listed_with_what_is_known_of_their_context() -> None:
    listing = {
        "data": [
            {"id": "a", "object": "model", "context_length": 8192},
            {"id": "b", "meta": {"n_ctx_train": 4096}},
            {"id": "gpt-4o-mini"},
        ]
    }
    async with run_vendor([VendorAnswer.from_json(listing)]) as fake, open_provider(fake) as model:
        assert await model.models() == [
            ModelInfo("a", 8192),
            ModelInfo("b", 4096),
            ModelInfo("gpt-4o-mini"),
        ]
        assert model.context_limit("a") == 8192
        assert model.context_limit("gpt-4o-mini") == 128_000
        assert model.context_limit("unheard-of") is None
    assert fake.requests[0].path == "/v1/models"


# ── Failing ────────────────────────────────────────────────────────────────────────────────────


async def catch_failure(*answers: VendorAnswer, **options: object) -> tuple[ApiError, FakeVendor]:
    async with (
        run_vendor(list(answers)) as fake,
        open_provider(fake, retries=0, **options) as model,  # type: ignore[arg-type]
    ):
        with pytest.raises(ApiError) as caught:
            await collect_chunks(model)
    return caught.value, fake


@pytest.mark.req("model.errors.vendor_sentence")
@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, {"message": "Incorrect API key provided", "code": "invalid_api_key"}, "auth"),
        (403, {"message": "Country not supported"}, "auth"),
        (404, {"message": "The model `x` does not exist", "code": "model_not_found"}, "not_found"),
        (400, {"message": "too long", "code": "context_length_exceeded"}, "context"),
        (400, {"message": "This model's maximum context length is 8192 tokens"}, "context"),
        (400, {"message": "bad", "code": "content_filter"}, "filtered"),
        (400, {"message": "Invalid 'tools'"}, "invalid"),
        (429, {"message": "Rate limit reached", "code": "rate_limit_exceeded"}, "rate_limit"),
        (429, {"message": "You exceeded your quota", "code": "insufficient_quota"}, "quota"),
        (500, {"message": "The server had an error"}, "server"),
        (503, {"message": "Overloaded"}, "overloaded"),
    ],
)
async def test_errors_keep_the_vendors_message_and_get_a_kind(
    status: int, error: dict[str, str], kind: str
) -> None:
    caught, _ = await catch_failure(
        VendorAnswer.from_json({"error": error}, status, retry_after="7")
    )
    assert caught.kind is ErrorKind(kind)
    assert caught.message == error["message"]
    assert caught.status == status
    assert caught.provider == "test"
    assert caught.retry_after == 7.0
    assert str(caught) == f"test: {error['message']} (HTTP {status})"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"error": "model \\"x\\" not found"}', 'model "x" not found'),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"message": "no"}', "no"),
        (b'[{"error": {"message": "in a list"}}]', "in a list"),
        (b"plain words", "plain words"),
        (b"<html><title>502</title></html>", "answered with a web page; check base_url"),
        (b"", "refused without a word"),
        (b'{"error": {"mess', '{"error": {"mess'),
    ],
)
async def test_errors_in_other_formats_still_have_a_message(body: bytes, sentence: str) -> None:
    caught, _ = await catch_failure(VendorAnswer([body], 404, "application/json"))
    assert caught.message == sentence


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (encode_sse({"error": {"message": "boom", "type": "server_error"}}), "server", "boom"),
        (
            encode_sse({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}),
            "rate_limit",
            "",
        ),
        (encode_sse({"error": {"message": "too long", "code": 400}}), "invalid", "too long"),
        (b'event: error\ndata: {"message": "broke"}\n\n', "server", "broke"),
        (encode_sse(build_delta(content="a"), done=False), "connection", "before the answer did"),
        (b"", "connection", "before the answer did"),
        (b"data: {not json}\n\n", "protocol", "not JSON"),
        (b"data: [1]\n\n", "protocol", "other than objects"),
    ],
)
async def test_a_broken_stream_is_an_error(body: bytes, kind: str, sentence: str) -> None:
    caught, _ = await catch_failure(VendorAnswer([body]))
    assert caught.kind is ErrorKind(kind)
    assert sentence in caught.message


async def test_a_connection_cut_in_mid_answer_is_an_error() -> None:
    caught, _ = await catch_failure(
        VendorAnswer([encode_sse(build_delta(content="a"), done=False)], cut=True)
    )
    assert caught.kind is ErrorKind.CONNECTION
    assert "mid-answer" in caught.message


async def test_a_web_page_instead_of_a_stream_is_an_error() -> None:
    caught, _ = await catch_failure(
        VendorAnswer([b"<html>log in</html>"], content_type="text/html")
    )
    assert caught.kind is ErrorKind.PROTOCOL
    assert "check base_url" in caught.message


@pytest.mark.req("model.bad.tool_call")
async def test_a_tool_call_without_an_id_is_an_error() -> None:
    body = encode_sse(
        build_delta(tool_calls=[{"index": 0, "function": {"name": "bash", "arguments": "{}"}}]),
        build_delta(finish="tool_calls"),
    )
    async with run_vendor([VendorAnswer([body])]) as fake, open_provider(fake, retries=0) as model:
        with pytest.raises(ApiError, match=r"called a tool \(bash\) without an id"):
            await model.complete(HI)


async def test_a_huge_error_body_is_not_read_to_its_end() -> None:
    huge = (b"x" * 65536 for _ in range(160))
    caught, fake = await catch_failure(VendorAnswer(huge, 500, "text/plain"))
    assert len(caught.message) <= 200
    async with asyncio.timeout(5):
        await fake.requests[0].closed.wait()


async def test_an_unreachable_host_is_an_error_that_names_it() -> None:
    async with run_vendor([]) as fake:
        pass
    async with open_provider(fake, retries=0) as model:
        with pytest.raises(ApiError, match=f"{fake.url}.* cannot be reached") as caught:
            await collect_chunks(model)
    assert caught.value.kind is ErrorKind.CONNECTION


# ── Time ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.timeouts")
async def test_no_headers_in_time_is_a_timeout() -> None:
    caught, _ = await catch_failure(VendorAnswer(silent=True), timeouts=Timeouts(first=0.1))
    assert caught.kind is ErrorKind.TIMEOUT


@pytest.mark.req("model.timeouts")
async def test_no_first_token_in_time_is_a_timeout_despite_keep_alives() -> None:
    async def tick(_: int) -> None:
        await asyncio.sleep(0.01)

    keep_alives = VendorAnswer([b": keep-alive\n\n"] * 1000, pause=tick)
    caught, _ = await catch_failure(keep_alives, timeouts=Timeouts(first=0.1))
    assert caught.kind is ErrorKind.TIMEOUT


@pytest.mark.req("model.timeouts")
async def test_pauses_between_tokens_have_their_own_timeout() -> None:
    answer = VendorAnswer([encode_sse(build_delta(content="a"), done=False)], hang=True)
    async with asyncio.timeout(20):
        caught, fake = await catch_failure(answer, timeouts=Timeouts(first=1000, between=0.1))
    assert caught.kind is ErrorKind.TIMEOUT
    async with asyncio.timeout(5):
        await fake.requests[0].closed.wait()


async def test_a_slow_reader_does_not_use_up_the_models_time() -> None:
    answer = VendorAnswer(
        [encode_sse(build_delta(content="a"), done=False), encode_sse(build_delta(finish="stop"))]
    )
    async with (
        run_vendor([answer]) as fake,
        open_provider(fake, timeouts=Timeouts(first=0.1, between=0.1)) as model,
    ):
        async for _ in model.stream(HI):
            await asyncio.sleep(0.15)


@pytest.mark.req("model.cancel")
async def test_closing_the_stream_closes_the_request_at_once() -> None:
    answer = VendorAnswer([encode_sse(build_delta(content="a"), done=False)], hang=True)
    async with run_vendor([answer]) as fake, open_provider(fake) as model:
        async with aclosing(model.stream(HI)) as stream:
            assert (await anext(stream)).text == "a"
        async with asyncio.timeout(1):
            await fake.requests[0].closed.wait()


@pytest.mark.req("model.cancel")
async def test_cancelling_a_complete_closes_the_request_at_once() -> None:
    answer = VendorAnswer([encode_sse(build_delta(content="a"), done=False)], hang=True)
    async with run_vendor([answer]) as fake, open_provider(fake) as model:
        task = asyncio.create_task(model.complete(HI))
        while not fake.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        async with asyncio.timeout(1):
            await fake.requests[0].closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


# ── Retries ────────────────────────────────────────────────────────────────────────────────────

BUSY = VendorAnswer.from_json({"error": {"message": "busy"}}, 503)


@pytest.mark.req("model.retry")
async def test_a_transient_error_is_retried_up_to_the_limit() -> None:
    async with run_vendor([BUSY, BUSY, VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        assert assemble_chunks(await collect_chunks(model)).build_message() == FULL_MESSAGE
    assert len(fake.requests) == 3
    async with run_vendor([BUSY] * 9) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError, match="busy"):
            await model.complete(HI)
    assert len(fake.requests) == 3


@pytest.mark.req("model.retry")
async def test_a_permanent_error_is_not_retried() -> None:
    refusal = VendorAnswer.from_json({"error": {"message": "no"}}, 401)
    async with run_vendor([refusal] * 3) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError, match="no"):
            await collect_chunks(model)
    assert len(fake.requests) == 1


@pytest.mark.req("model.retry.stream")
async def test_a_stream_is_not_retried_after_its_first_chunk() -> None:
    broken = VendorAnswer([encode_sse(build_delta(content="a"), done=False)], cut=True)
    async with run_vendor([broken, VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        seen = []
        with pytest.raises(ApiError):
            async for chunk in model.stream(HI):
                seen.append(chunk.text)  # noqa: PERF401
    assert seen == ["a"]
    assert len(fake.requests) == 1


@pytest.mark.req("model.retry.stream")
async def test_complete_retries_even_after_part_of_the_answer_arrived() -> None:
    broken = VendorAnswer([encode_sse(build_delta(content="a"), done=False)], cut=True)
    async with run_vendor([broken, VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        assert (await model.complete(HI)).message == FULL_MESSAGE
    assert len(fake.requests) == 2


async def test_connections_are_reused() -> None:
    async with run_vendor(lambda _: VendorAnswer([FULL])) as fake, open_provider(fake) as model:
        for _ in range(5):
            await collect_chunks(model)
    assert len(fake.requests) == 5
    assert fake.connections == 1


def test_one_delta_type_per_piece() -> None:
    body = encode_sse(build_delta(tool_calls=[{"index": 3, "id": "x", "function": {"name": "n"}}]))
    assert decode_pieces([body])[0].tool_calls == (ToolCallDelta(index=3, id="x", name="n"),)


@pytest.mark.skipif("OPENAI_API_KEY" not in os.environ, reason="no OPENAI_API_KEY: not run live")
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_live_openai_answers() -> None:
    http = HttpClient()
    dialect = OpenAiDialect("openai", api_key=os.environ["OPENAI_API_KEY"])
    model = HttpProvider(dialect, http)
    names = [info.name for info in await model.models()]
    request = Request(model=choose_preferred_model("openai", names), messages=HI.messages)
    assert (await model.complete(request)).message.text
    await http.close()
