"""Azure's URLs, headers and errors, compared with OpenAI's own SDK for Azure.

What Azure shares with OpenAI is shown in test_openai; here is only what differs.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    Tool,
    ToolCall,
    Usage,
)
from crabtalk.model.azure import DEFAULT_API_VERSION, AzureDialect
from tests.model.fake_vendor import FakeVendor, VendorAnswer, run_vendor, split_pieces

HI = Request(model="my gpt", messages=(Message(role="user", text="hi"),))
SAFE = {"hate": {"filtered": False, "severity": "safe"}}


def encode_sse(*documents: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(d, ensure_ascii=False)}\n\n" for d in documents]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def build_delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish, "content_filter_results": SAFE}
    return build_envelope(choices=[choice])


def build_envelope(**fields: object) -> dict[str, object]:
    start = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000}
    return {**start, "model": "gpt-4o-2024-11-20", "system_fingerprint": "fp_1", **fields}


# Azure's first event: a report on the prompt, without choices and without an id.
FILTERS = {
    "choices": [],
    "created": 0,
    "id": "",
    "model": "",
    "object": "",
    "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": SAFE}],
}
# With an asynchronous filter, Azure sends its reports in chunks without a delta.
ASYNC_FILTER = build_envelope(
    choices=[
        {
            "index": 0,
            "finish_reason": None,
            "content_filter_results": SAFE,
            "content_filter_offsets": {"check_offset": 44, "start_offset": 44, "end_offset": 198},
        }
    ]
)
USAGE = build_envelope(
    choices=[],
    usage={
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
)


def build_call(index: int, arguments: str, **fields: object) -> dict[str, object]:
    start = {"type": "function"} if fields else {}
    function = {key: value for key, value in fields.items() if key == "name"}
    ids = {key: value for key, value in fields.items() if key == "id"}
    return {"index": index, **ids, **start, "function": {**function, "arguments": arguments}}


FULL = encode_sse(
    FILTERS,
    build_delta(role="assistant", content=""),
    build_delta(content="Sure"),
    ASYNC_FILTER,
    build_delta(content=", 日本"),
    build_delta(tool_calls=[build_call(0, "", id="call_a", name="bash")]),
    build_delta(tool_calls=[build_call(0, '{"comm')]),
    build_delta(
        tool_calls=[build_call(1, "{}", id="call_b", name="read"), build_call(0, 'and":"ls"}')]
    ),
    build_delta(finish="tool_calls"),
    USAGE,
)
FULL_MESSAGE = Message(
    role="assistant",
    text="Sure, 日本",
    tool_calls=(
        ToolCall(id="call_a", name="bash", arguments='{"command":"ls"}'),
        ToolCall(id="call_b", name="read", arguments="{}"),
    ),
)


@asynccontextmanager
async def open_provider(
    fake: FakeVendor, *, path: str = "", api_version: str = ""
) -> AsyncIterator[HttpProvider]:
    http = HttpClient()
    dialect = AzureDialect("az", base=fake.url + path, api_key="key", api_version=api_version)
    try:
        yield HttpProvider(dialect, http, retry=RetryPolicy(max_retries=0))
    finally:
        await http.close()


def assemble_chunks(chunks: list[Chunk]) -> ResponseAssembler:
    assembler = ResponseAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


def decode_pieces(pieces: list[bytes]) -> list[Chunk]:
    decoder = AzureDialect("az", base="https://x.openai.azure.com").create_decoder(HI)
    return [chunk for piece in pieces for chunk in decoder.feed(piece)] + decoder.end()


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.backend.azure")
async def test_filter_reports_in_an_answer_are_ignored() -> None:
    async with (
        run_vendor([VendorAnswer(split_pieces(FULL, 50))]) as fake,
        open_provider(fake) as model,
    ):
        whole = assemble_chunks([chunk async for chunk in model.stream(HI)])
    assert whole.build_message() == FULL_MESSAGE
    assert whole.finish == "tool_calls"
    assert whole.usage == Usage(
        prompt=20, completion=7, total=27, cache_hit=16, cache_miss=4, reasoning=3
    )


@pytest.mark.req("model.backend.azure")
def test_the_report_on_the_prompt_is_no_chunk() -> None:
    decoder = AzureDialect("az", base="https://x.openai.azure.com").create_decoder(HI)
    assert decoder.feed(encode_sse(FILTERS, ASYNC_FILTER, done=False)) == []


@pytest.mark.req("model.stream.any_split")
@given(st.lists(st.integers(0, len(FULL)), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FULL)]
    assert decode_pieces([FULL[a:b] for a, b in pairwise(edges)]) == decode_pieces([FULL])


@pytest.mark.req("model.sdk_agrees")
@pytest.mark.parametrize("v1", [False, True])
async def test_the_vendors_sdk_uses_the_same_url_and_reads_the_same(v1: bool) -> None:
    import openai  # takes longer to load than all the other tests here

    path = "/openai/v1" if v1 else ""
    async with run_vendor(lambda _: VendorAnswer(split_pieces(FULL, 50))) as fake:
        client = (
            openai.AsyncOpenAI(
                base_url=f"{fake.url}/openai/v1/", api_key="key", default_headers={"api-key": "key"}
            )
            if v1
            else openai.AsyncAzureOpenAI(
                azure_endpoint=fake.url, api_version=DEFAULT_API_VERSION, api_key="key"
            )
        )
        async with client as sdk, open_provider(fake, path=path) as model:
            whole = assemble_chunks([chunk async for chunk in model.stream(HI)])
            stream = await sdk.chat.completions.create(
                model="my gpt",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            text, total = "", 0
            calls: dict[int, list[str]] = {}
            async for chunk in stream:
                total = chunk.usage.total_tokens if chunk.usage else total
                for choice in chunk.choices:
                    if choice.delta is None:
                        continue  # type: ignore[unreachable]  # the filter's reports have none
                    text += choice.delta.content or ""
                    for piece in choice.delta.tool_calls or []:
                        entry = calls.setdefault(piece.index, ["", "", ""])
                        assert piece.function is not None
                        entry[0] += piece.id or ""
                        entry[1] += piece.function.name or ""
                        entry[2] += piece.function.arguments or ""
    assert text == whole.build_message().text
    assert tuple(ToolCall(*entry) for entry in calls.values()) == whole.build_message().tool_calls
    assert total == whole.usage.total
    ours, theirs = fake.requests
    assert ours.method == theirs.method
    assert ours.path == theirs.path
    assert ours.json == theirs.json
    assert ours.headers["api-key"] == theirs.headers["api-key"]


# ── Writing ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.backend.azure")
@pytest.mark.parametrize(
    ("base", "version", "chat", "models"),
    [
        (
            "https://x.openai.azure.com",
            "",
            f"/openai/deployments/my%20gpt/chat/completions?api-version={DEFAULT_API_VERSION}",
            f"/openai/models?api-version={DEFAULT_API_VERSION}",
        ),
        (
            "https://x.openai.azure.com/",
            "2025-04-01-preview",
            "/openai/deployments/my%20gpt/chat/completions?api-version=2025-04-01-preview",
            "/openai/models?api-version=2025-04-01-preview",
        ),
        (
            "https://x.openai.azure.com/openai",
            "2025-04-01-preview",
            "/openai/deployments/my%20gpt/chat/completions?api-version=2025-04-01-preview",
            "/openai/models?api-version=2025-04-01-preview",
        ),
        (
            "https://x.openai.azure.com/openai/v1",
            "",
            "/openai/v1/chat/completions",
            "/openai/v1/models",
        ),
        (
            "https://x.services.ai.azure.com/openai/v1/",
            "preview",
            "/openai/v1/chat/completions",
            "/openai/v1/models",
        ),
    ],
)
def test_both_url_layouts_are_supported(base: str, version: str, chat: str, models: str) -> None:
    dialect = AzureDialect("az", base=base, api_key="key", api_version=version)
    host = "/".join(base.split("/")[:3])
    assert dialect.build_chat_request(HI).url == host + chat
    assert dialect.build_models_request().url == host + models
    assert dialect.build_models_request().method == "GET"
    for call in (dialect.build_chat_request(HI), dialect.build_models_request()):
        assert call.headers["api-key"] == "key"
        assert "Authorization" not in call.headers


def test_without_a_key_none_is_sent() -> None:
    headers = AzureDialect("az", base="https://x.openai.azure.com").build_chat_request(HI).headers
    assert not {"api-key", "Authorization"} & set(headers)


@pytest.mark.req("model.request")
async def test_a_request_carries_everything_the_vendor_knows() -> None:
    request = Request(
        model="gpt-4o",
        messages=(
            Message(role="system", text="Be a crab."),
            Message(
                role="user",
                text="look",
                images=(Image("image/png", b"\x89PNG"), Image(url="http:x")),
            ),
            FULL_MESSAGE,
            Message(role="tool", call_id="call_a", name="bash", text="out", is_error=True),
            Message(role="tool", call_id="call_b", name="read", text="in"),
        ),
        tools=(Tool("bash", "Runs"),),
        tool_choice="required",
        thinking=True,
        temperature=0.5,
    )
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        await model.complete(request)
    assert fake.requests[0].json == {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "Be a crab."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                    {"type": "image_url", "image_url": {"url": "http:x"}},
                ],
            },
            {
                "role": "assistant",
                "content": "Sure, 日本",
                "tool_calls": [
                    {
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "bash", "arguments": '{"command":"ls"}'},
                    },
                    {
                        "id": "call_b",
                        "type": "function",
                        "function": {"name": "read", "arguments": "{}"},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": "out"},
            {"role": "tool", "tool_call_id": "call_b", "content": "in"},
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
        "tool_choice": "required",
        "reasoning_effort": "high",
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_models_are_listed() -> None:
    listing = {
        "object": "list",
        "data": [
            {"id": "gpt-4o", "status": "succeeded", "capabilities": {"chat_completion": True}},
            {"id": "o4-mini", "status": "succeeded"},
        ],
    }
    async with run_vendor([VendorAnswer.from_json(listing)]) as fake, open_provider(fake) as model:
        assert await model.models() == [ModelInfo("gpt-4o"), ModelInfo("o4-mini")]
        assert model.context_limit("gpt-4o") == 128_000
    assert fake.requests[0].path == f"/openai/models?api-version={DEFAULT_API_VERSION}"


# ── Failing ────────────────────────────────────────────────────────────────────────────────────


async def catch_failure(answer: VendorAnswer) -> ApiError:
    async with run_vendor([answer]) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError) as caught:
            await model.complete(HI)
    return caught.value


CONTENT_FILTER = {
    "message": "The response was filtered due to the prompt triggering Azure OpenAI's content"
    " management policy.",
    "type": None,
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"violence": {"filtered": True, "severity": "medium"}},
    },
}


@pytest.mark.req("model.errors.vendor_sentence")
@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, CONTENT_FILTER, "filtered"),
        (
            404,
            {
                "code": "DeploymentNotFound",
                "message": "The API deployment for this resource does not exist.",
            },
            "not_found",
        ),
        (404, {"code": "404", "message": "Resource not found"}, "not_found"),
        (401, {"code": "401", "message": "Access denied due to invalid subscription key"}, "auth"),
        (403, {"code": "403", "message": "Public access is disabled."}, "auth"),
        (429, {"code": "429", "message": "Requests have exceeded call rate limit"}, "rate_limit"),
        (400, {"code": "context_length_exceeded", "message": "Too much"}, "context"),
        (400, {"code": "BadRequest", "message": "Unsupported api-version"}, "invalid"),
        (500, {"code": "InternalServerError", "message": "Backend failed"}, "server"),
        (503, {"code": "ServiceUnavailable", "message": "Busy"}, "overloaded"),
    ],
)
async def test_errors_keep_the_vendors_message_and_get_a_kind(
    status: int, error: dict[str, object], kind: str
) -> None:
    caught = await catch_failure(
        VendorAnswer.from_json({"error": error}, status, retry_after_ms="7000")
    )
    assert caught.kind is ErrorKind(kind)
    assert caught.message == error["message"]
    assert (caught.status, caught.provider, caught.retry_after) == (status, "az", 7.0)


async def test_the_gateways_own_error_format_is_read() -> None:
    body = {"statusCode": 401, "message": "Unauthorized. Access token is missing."}
    caught = await catch_failure(VendorAnswer.from_json(body, 401))
    assert caught.kind is ErrorKind.AUTH
    assert caught.message == "Unauthorized. Access token is missing."


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (encode_sse(FILTERS, {"error": CONTENT_FILTER}), "filtered", "content management policy"),
        (encode_sse(FILTERS, {"error": {"message": "boom", "code": "x"}}), "server", "boom"),
        (encode_sse(FILTERS, done=False), "connection", "before the answer did"),
        (b'data: {"choices": [', "protocol", "not JSON"),
    ],
)
async def test_a_broken_stream_is_an_error(body: bytes, kind: str, sentence: str) -> None:
    caught = await catch_failure(VendorAnswer([body]))
    assert caught.kind is ErrorKind(kind)
    assert sentence in caught.message


async def test_an_answer_cut_off_by_the_filter_is_reported_as_filtered() -> None:
    body = encode_sse(FILTERS, build_delta(content="a"), build_delta(finish="content_filter"))
    async with run_vendor([VendorAnswer([body])]) as fake, open_provider(fake) as model:
        assert (await model.complete(HI)).finish == "filtered"


async def test_a_web_page_instead_of_a_stream_is_an_error() -> None:
    caught = await catch_failure(VendorAnswer([b"<html>log in</html>"], content_type="text/html"))
    assert caught.kind is ErrorKind.PROTOCOL


# ── Live ───────────────────────────────────────────────────────────────────────────────────────

LIVE = ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_DEPLOYMENT")


@pytest.mark.skipif(not all(map(os.environ.get, LIVE)), reason=f"needs {', '.join(LIVE)}")
async def test_live_azure_answers() -> None:
    http = HttpClient()
    dialect = AzureDialect("az", base=os.environ[LIVE[0]], api_key=os.environ[LIVE[1]])
    try:
        response = await HttpProvider(dialect, http).complete(
            Request(
                model=os.environ[LIVE[2]],
                messages=(Message(role="user", text="Answer with the word crab."),),
            )
        )
    finally:
        await http.close()
    assert "crab" in response.message.text.lower()
    assert response.usage.total > 0
