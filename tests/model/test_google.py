"""Gemini's dialect against a scripted server, compared with Google's own SDK."""

import base64
import json
import os
import re
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
from crabtalk.model.google import DEFAULT_BASE, FOREIGN_SIGNATURE, GoogleDialect
from tests.model.fake_vendor import FakeVendor, VendorAnswer, run_vendor, split_pieces

# The SDK takes longer to import than the tests that do not use it.
if TYPE_CHECKING:
    from google import genai

HI = Request(model="gemini-x", messages=(Message(role="user", text="hi"),))
PATH = "/v1beta/models/gemini-x:streamGenerateContent?alt=sse"


def encode_sse(*documents: object, end: str = "\r\n") -> bytes:
    """Encode events like Google: CR LF, and no end marker."""
    return "".join(
        f"data: {json.dumps(document, ensure_ascii=False)}{end}{end}" for document in documents
    ).encode()


def build_event(
    *parts: dict[str, Any], finish: str | None = None, usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": usage or {"promptTokenCount": 20, "totalTokenCount": 20},
        "modelVersion": "gemini-x",
        "responseId": "Il0taoSYJ5Cez7IP",
    }


def build_call(name: str, args: object = None, **fields: object) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args or {}, **fields}}


def encode_signature(word: str) -> str:
    return base64.b64encode(word.encode()).decode()


USAGE = {
    "promptTokenCount": 20,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 3,
    "totalTokenCount": 30,
    "cachedContentTokenCount": 16,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 20}],
}

# A model thinks, answers, and calls two tools in parallel; only the first call is signed.
FULL = encode_sse(
    build_event({"text": "Hm, ", "thought": True}),
    build_event({"text": "über 🦀", "thought": True}),
    build_event({"text": "Sure"}),
    build_event({"text": ", 日本"}),
    build_event(
        build_call("bash", {"command": "ls"}) | {"thoughtSignature": encode_signature("one")},
        build_call("read", id="given-by-google"),
    ),
    build_event(
        {"text": "", "thoughtSignature": encode_signature("two")}, finish="STOP", usage=USAGE
    ),
)
FULL_MESSAGE = Message(
    role="assistant",
    text="Sure, 日本",
    reasoning="Hm, über 🦀",
    tool_calls=(
        ToolCall(id="call_Il0taoSYJ5Cez7IP_0", name="bash", arguments='{"command":"ls"}'),
        ToolCall(id="given-by-google", name="read", arguments="{}"),
    ),
    opaque={
        "google": {
            "calls": {"call_Il0taoSYJ5Cez7IP_0": encode_signature("one")},
            "text": [[8, 8, encode_signature("two")]],
        }
    },
)


@asynccontextmanager
async def open_provider(fake: FakeVendor, *, retries: int = 2) -> AsyncIterator[HttpProvider]:
    http = HttpClient()
    retry = RetryPolicy(max_retries=retries, backoff=0.001)
    dialect = GoogleDialect("test", base=fake.url, api_key="secret")
    try:
        yield HttpProvider(dialect, http, retry=retry)
    finally:
        await http.close()


# Google's SDK inherits from aiohttp's session, which aiohttp warns about.
ignores_sdk_warning = pytest.mark.filterwarnings(
    "ignore:Inheritance class AiohttpClientSession:DeprecationWarning"
)


@asynccontextmanager
async def open_google_sdk(fake: FakeVendor) -> AsyncIterator["genai.client.AsyncClient"]:
    from google import genai
    from google.genai import types

    options = types.HttpOptions(base_url=fake.url, api_version="v1beta")
    client = genai.Client(api_key="secret", http_options=options)
    try:
        yield client.aio
    finally:
        await client.aio.aclose()
        client.close()


async def collect_chunks(provider: HttpProvider, request: Request = HI) -> list[Chunk]:
    return [chunk async for chunk in provider.stream(request)]


def assemble_chunks(chunks: list[Chunk]) -> ResponseAssembler:
    assembler = ResponseAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


DIALECT = GoogleDialect("test")


def decode_pieces(*pieces: bytes, request: Request = HI) -> list[Chunk]:
    decoder = DIALECT.create_decoder(request)
    chunks = [chunk for piece in pieces for chunk in decoder.feed(piece)]
    return chunks + decoder.end()


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.backend.google")
@pytest.mark.req("model.stream")
async def test_text_thoughts_calls_usage_and_finish_are_read() -> None:
    async with (
        run_vendor([VendorAnswer(split_pieces(FULL, 50))]) as fake,
        open_provider(fake) as model,
    ):
        whole = assemble_chunks(await collect_chunks(model))
    assert whole.build_message() == FULL_MESSAGE
    assert whole.finish == "tool_calls"
    assert whole.usage == Usage(
        prompt=20, completion=10, total=30, cache_hit=16, cache_miss=4, reasoning=3
    )


async def test_a_complete_answer_equals_the_assembled_stream() -> None:
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        response = await model.complete(HI)
    assert response.message == FULL_MESSAGE
    assert response.model == "gemini-x"


@ignores_sdk_warning
@pytest.mark.req("model.sdk_agrees")
async def test_the_vendors_sdk_reads_the_same_from_the_same_bytes() -> None:
    """Otherwise the fake would not behave like the vendor."""
    from google.genai import types

    text = reasoning = ""
    calls = []
    signatures = []
    usage = finish = None
    async with (
        run_vendor([VendorAnswer(split_pieces(FULL, 50))]) as fake,
        open_google_sdk(fake) as sdk,
    ):
        stream = await sdk.models.generate_content_stream(model="gemini-x", contents="hi")
        async for chunk in stream:
            usage = chunk.usage_metadata
            assert chunk.candidates is not None
            finish = chunk.candidates[0].finish_reason
            for part in chunk.parts or []:
                if part.thought_signature:
                    signatures.append(part.thought_signature)
                if part.function_call:
                    calls.append(part.function_call)
                elif part.thought:
                    reasoning += part.text or ""
                else:
                    text += part.text or ""
    assert fake.requests[0].path == PATH
    assert fake.requests[0].headers["x-goog-api-key"] == "secret"
    assert text == FULL_MESSAGE.text
    assert reasoning == FULL_MESSAGE.reasoning
    assert [(c.name, c.args) for c in calls] == [
        (c.name, json.loads(c.arguments)) for c in FULL_MESSAGE.tool_calls
    ]
    assert [c.id for c in calls] == [None, "given-by-google"]
    assert signatures == [b"one", b"two"]
    assert finish is types.FinishReason.STOP
    assert usage is not None
    assert (usage.prompt_token_count, usage.total_token_count) == (20, 30)
    assert (usage.candidates_token_count, usage.thoughts_token_count) == (7, 3)
    assert usage.cached_content_token_count == 16


@pytest.mark.req("model.stream.any_split")
@given(st.lists(st.integers(0, len(FULL)), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FULL)]
    pieces = [FULL[a:b] for a, b in pairwise(edges)]
    assert decode_pieces(*pieces) == decode_pieces(FULL)


FINISHED = encode_sse(build_event({"text": "a"}, finish="STOP"))
TRAILING = encode_sse({"usageMetadata": {"promptTokenCount": 4}})


@pytest.mark.req("faults.model.complete")
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("length", [0, 1, 6, 30])
async def test_an_answer_that_has_finished_is_kept_wherever_its_connection_is_cut(
    length: int, cut: bool
) -> None:
    answer = VendorAnswer([FINISHED, TRAILING[:length]], cut=cut)
    async with run_vendor([answer]) as fake, open_provider(fake) as model:
        whole = assemble_chunks(await collect_chunks(model))
    assert (whole.build_message().text, whole.finish) == ("a", "stop")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_comments_and_line_ends_of_all_kinds_make_no_difference(end: str) -> None:
    noisy = (
        f": keep-alive{end}{end}".encode()
        + encode_sse(build_event({"text": "a"}), end=end)
        + f"id: 7{end}retry: 10{end}: ping{end}".encode()
        + encode_sse(build_event({"text": "b"}, finish="STOP"), end=end)
    )
    for size in (1, 2, 3, 1000):
        assert (
            assemble_chunks(decode_pieces(*split_pieces(noisy, size))).build_message().text == "ab"
        )


def test_a_missing_last_blank_line_is_accepted() -> None:
    assert (
        decode_pieces(encode_sse(build_event({"text": "a"}, finish="STOP")).rstrip())[-1].finish
        == "stop"
    )


def test_the_last_usage_counts_and_missing_counts_are_unknown() -> None:
    body = encode_sse(
        build_event({"text": "a"}, usage={"promptTokenCount": 4, "totalTokenCount": 4}),
        build_event(
            {"text": "b"}, finish="STOP", usage={"promptTokenCount": 4, "candidatesTokenCount": 2}
        ),
    )
    assert assemble_chunks(decode_pieces(body)).usage == Usage(prompt=4, completion=2, total=6)


def test_several_parts_of_one_event_are_told_apart() -> None:
    body = encode_sse(
        build_event({"text": "hm", "thought": True}, {"text": "a"}, build_call("x"), finish="STOP")
    )
    (chunk,) = decode_pieces(body)
    assert (chunk.reasoning, chunk.text, chunk.finish) == ("hm", "a", "tool_calls")
    assert chunk.tool_calls == (
        ToolCallDelta(index=0, id="call_Il0taoSYJ5Cez7IP_0", name="x", arguments="{}"),
    )


def test_calls_in_events_of_their_own_are_counted_on() -> None:
    """A later finish reason takes them into account."""
    body = encode_sse(
        build_event(build_call("x")), build_event(build_call("x")), build_event(finish="STOP")
    )
    whole = assemble_chunks(decode_pieces(body))
    assert [c.id for c in whole.build_tool_calls()] == [
        "call_Il0taoSYJ5Cez7IP_0",
        "call_Il0taoSYJ5Cez7IP_1",
    ]
    assert whole.finish == "tool_calls"


def test_without_a_response_id_calls_are_named_after_their_place_in_the_history() -> None:
    body = encode_sse(
        {
            "candidates": [
                build_event(build_call("x"), build_call("y"), finish="STOP")["candidates"][0]
            ]
        }
    )
    later = Request(model="gemini-x", messages=HI.messages * 3)
    assert [c.id for c in assemble_chunks(decode_pieces(body)).build_tool_calls()] == [
        "call_1_0",
        "call_1_1",
    ]
    assert (
        assemble_chunks(decode_pieces(body, request=later)).build_tool_calls()[0].id == "call_3_0"
    )


def test_unknown_parts_and_empty_events_are_ignored() -> None:
    odd = {"executableCode": {"language": "PYTHON", "code": "1"}}
    bare = {"candidates": [{"content": {"role": "model"}}], "responseId": "r"}
    nothing = {"candidates": [{"content": None, "finishReason": None}], "usageMetadata": None}
    unsaid = {"candidates": [{"finishReason": "FINISH_REASON_UNSPECIFIED"}]}
    body = encode_sse(
        {}, bare, nothing, unsaid, build_event(odd), build_event({"text": "a"}, finish="STOP")
    )
    usage, last = decode_pieces(body)
    assert usage == Chunk(usage=Usage(prompt=20, total=20))
    assert last.text == "a"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "filtered"),
        ("RECITATION", "filtered"),
        ("PROHIBITED_CONTENT", "filtered"),
        ("BLOCKLIST", "filtered"),
        ("SPII", "filtered"),
        ("IMAGE_SAFETY", "filtered"),
        ("LANGUAGE", "filtered"),
        ("OTHER", "filtered"),
        ("SOMETHING_NEW", "stop"),
    ],
)
def test_finish_reasons_are_converted_to_ours(reason: str, finish: str) -> None:
    assert decode_pieces(encode_sse(build_event(finish=reason)))[-1].finish == finish


def test_a_call_cut_off_by_the_limit_has_finish_length() -> None:
    assert (
        decode_pieces(encode_sse(build_event(build_call("x"), finish="MAX_TOKENS")))[-1].finish
        == "length"
    )


# ── Writing ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("model.backend.google")
@pytest.mark.req("model.request")
async def test_a_request_carries_everything_the_vendor_knows() -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}]}}}
    request = Request(
        model="gemini-x",
        messages=(
            Message(role="system", text="Be a crab."),
            Message(
                role="user",
                text="look",
                images=(Image("image/png", b"\x89PNG"), Image("image/jpeg", url="https://x/y.jpg")),
            ),
            Message(
                role="assistant",
                reasoning="secret",
                tool_calls=(
                    ToolCall(id="c1", name="bash", arguments='{"a":1}'),
                    ToolCall(id="c2", name="bash"),
                    ToolCall(id="c3", name="bash", arguments='{"a":'),
                ),
            ),
            Message(role="tool", call_id="c1", name="bash", text="out"),
            Message(role="tool", call_id="c2", name="bash", text="no such file", is_error=True),
            Message(role="tool", call_id="c3", name="bash", text="bad JSON", is_error=True),
            Message(role="assistant", text="done", agent="twin"),
            Message(role="system", text="Be brief."),
        ),
        tools=(Tool("bash", "Runs", schema),),
        tool_choice="bash",
        thinking=True,
        max_tokens=10,
        temperature=0.5,
    )
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        await collect_chunks(model, request)
    (vendor_request,) = fake.requests
    assert (vendor_request.method, vendor_request.path) == ("POST", PATH)
    assert vendor_request.headers["x-goog-api-key"] == "secret"
    assert vendor_request.headers["content-type"] == "application/json"
    assert vendor_request.json == {
        "systemInstruction": {"parts": [{"text": "Be a crab."}, {"text": "Be brief."}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "look"},
                    {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
                    {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x/y.jpg"}},
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"id": "c1", "name": "bash", "args": {"a": 1}}},
                    {"functionCall": {"id": "c2", "name": "bash", "args": {}}},
                    {"functionCall": {"id": "c3", "name": "bash", "args": {"arguments": '{"a":'}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "c1",
                            "name": "bash",
                            "response": {"output": "out"},
                        }
                    },
                    {
                        "functionResponse": {
                            "id": "c2",
                            "name": "bash",
                            "response": {"error": "no such file"},
                        }
                    },
                    {
                        "functionResponse": {
                            "id": "c3",
                            "name": "bash",
                            "response": {"error": "bad JSON"},
                        }
                    },
                ],
            },
            {"role": "model", "parts": [{"text": "done"}]},
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "bash", "description": "Runs", "parametersJsonSchema": schema}
                ]
            }
        ],
        "toolConfig": {
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["bash"]},
        },
        "generationConfig": {
            "thinkingConfig": {"includeThoughts": True},
            "maxOutputTokens": 10,
            "temperature": 0.5,
        },
    }


async def test_a_plain_request_is_as_small_as_can_be() -> None:
    async with run_vendor([VendorAnswer([FULL])]) as fake, open_provider(fake) as model:
        await collect_chunks(model)
    assert fake.requests[0].json == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


@ignores_sdk_warning
@pytest.mark.req("model.sdk_agrees")
async def test_the_vendors_sdk_sends_the_same_request() -> None:
    """Both encode the same conversation."""
    from google.genai import types

    schema = {"type": "object", "properties": {}}
    request = Request(
        model="models/gemini-x",
        messages=(
            Message(role="system", text="Be a crab."),
            Message(role="user", text="look", images=(Image("image/png", b"\x89PNG\xff\xff"),)),
            FULL_MESSAGE,
            Message(role="tool", call_id="given-by-google", name="read", text="out"),
        ),
        tools=(Tool("read", "Reads", schema),),
        tool_choice="required",
        thinking=True,
        max_tokens=10,
    )
    function = types.FunctionDeclaration(
        name="read", description="Reads", parameters_json_schema=schema
    )
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    config = types.GenerateContentConfig(
        system_instruction=types.Content(parts=[types.Part(text="Be a crab.")]),
        tools=[types.Tool(function_declarations=[function])],
        tool_config=types.ToolConfig(function_calling_config=calling),
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        max_output_tokens=10,
    )
    one, two = FULL_MESSAGE.tool_calls
    contents = [
        types.Content(
            role="user",
            parts=[
                types.Part(text="look"),
                types.Part.from_bytes(data=b"\x89PNG\xff\xff", mime_type="image/png"),
            ],
        ),
        types.Content(
            role="model",
            parts=[
                types.Part(text="Sure, 日本"),
                types.Part(text="", thought_signature=b"two"),
                types.Part(
                    function_call=types.FunctionCall(
                        id=one.id, name="bash", args={"command": "ls"}
                    ),
                    thought_signature=b"one",
                ),
                types.Part(function_call=types.FunctionCall(id=two.id, name="read", args={})),
            ],
        ),
        types.Content(
            role="user",
            parts=[
                types.Part(
                    function_response=types.FunctionResponse(
                        id=two.id, name="read", response={"output": "out"}
                    )
                )
            ],
        ),
    ]
    async with (
        run_vendor(lambda _: VendorAnswer([FULL])) as fake,
        open_google_sdk(fake) as sdk,
        open_provider(fake) as model,
    ):
        stream = await sdk.models.generate_content_stream(
            model="gemini-x", contents=contents, config=config
        )
        assert [chunk async for chunk in stream]
        await collect_chunks(model, request)
    theirs, ours = fake.requests
    assert theirs.path == ours.path
    assert normalise_spelling(theirs.json) == normalise_spelling(ours.json)


def normalise_spelling(document: Any) -> Any:
    """Google's JSON has two spellings of names and two alphabets of base64, and reads them all."""
    if isinstance(document, dict):
        return {
            re.sub("_(.)", lambda match: match[1].upper(), name): normalise_spelling(value)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [normalise_spelling(value) for value in document]
    return document.replace("_", "/") if isinstance(document, str) else document


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("bash", {"mode": "ANY", "allowedFunctionNames": ["bash"]}),
    ],
)
def test_the_tool_choice_is_encoded_for_google(choice: str, config: dict[str, Any]) -> None:
    request = msgspec.structs.replace(HI, tools=(Tool("bash"),), tool_choice=choice)
    assert DIALECT.build_body(request)["toolConfig"] == {"functionCallingConfig": config}


def test_thinking_options_are_left_out_when_thinking_is_off() -> None:
    request = msgspec.structs.replace(HI, max_tokens=5)
    assert DIALECT.build_body(request)["generationConfig"] == {"maxOutputTokens": 5}


def test_consecutive_messages_of_one_side_are_one_content_and_empty_ones_none() -> None:
    messages = (
        Message(role="user", text="a"),
        Message(role="user", text="b"),
        Message(role="assistant", text=""),
        Message(role="user", text=""),
        Message(role="user", text="c"),
        Message(role="assistant", text="d"),
        Message(role="assistant", text="e", agent="guest"),
    )
    assert DIALECT.build_body(Request("gemini-x", messages))["contents"] == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}, {"text": "c"}]},
        {"role": "model", "parts": [{"text": "d"}, {"text": "e"}]},
    ]


@pytest.mark.parametrize("arguments", ["[1]", "null", "nonsense", '{"a":', "\ud800"])
def test_non_object_arguments_are_wrapped_as_text(arguments: str) -> None:
    message = Message(role="assistant", tool_calls=(ToolCall("c", "bash", arguments),))
    (content,) = DIALECT.build_body(Request("gemini-x", (message,)))["contents"]
    assert content["parts"][0]["functionCall"]["args"] == {"arguments": arguments}


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-x", "models/gemini-x"),
        ("models/gemini-x", "models/gemini-x"),
        ("tunedModels/mine", "tunedModels/mine"),
        ("a?b#c", "models/a%3Fb%23c"),
    ],
)
def test_a_model_name_works_with_or_without_its_prefix(model: str, path: str) -> None:
    url = DIALECT.build_chat_request(Request(model, ())).url
    assert url == f"{DEFAULT_BASE}/{path}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("base", "full"),
    [
        ("https://x", "https://x/v1beta"),
        ("https://x/", "https://x/v1beta"),
        ("https://x/v1beta", "https://x/v1beta"),
        ("https://x/v1beta/", "https://x/v1beta"),
        ("https://x/gemini", "https://x/gemini/v1beta"),
        ("https://x/v1alpha", "https://x/v1alpha"),
    ],
)
def test_a_base_without_a_version_gets_one(base: str, full: str) -> None:
    assert GoogleDialect("test", base=base).base == full


def test_the_key_is_never_in_the_url() -> None:
    dialect = GoogleDialect("test", api_key="secret")
    for vendor_request in (dialect.build_chat_request(HI), dialect.build_models_request()):
        assert "secret" not in vendor_request.url
        assert vendor_request.headers["x-goog-api-key"] == "secret"
    assert "x-goog-api-key" not in DIALECT.build_chat_request(HI).headers


# ── Round trips ────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_is_sent_back_with_its_signatures_in_place() -> None:
    async with (
        run_vendor([VendorAnswer([FULL]), VendorAnswer([FULL])]) as fake,
        open_provider(fake) as model,
    ):
        first = (await model.complete(HI)).message
        # Like the store: opaque values survive encoding.
        kept = msgspec.json.decode(msgspec.json.encode(first), type=Message)
        results = [
            Message(role="tool", call_id=made.id, name=made.name, text="ok")
            for made in kept.tool_calls
        ]
        await model.complete(Request("gemini-x", (*HI.messages, kept, *results)))
    assert fake.requests[1].json["contents"] == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Sure, 日本"},
                {"text": "", "thoughtSignature": encode_signature("two")},
                {
                    "functionCall": {
                        "id": "call_Il0taoSYJ5Cez7IP_0",
                        "name": "bash",
                        "args": {"command": "ls"},
                    },
                    "thoughtSignature": encode_signature("one"),
                },
                {"functionCall": {"id": "given-by-google", "name": "read", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "id": "call_Il0taoSYJ5Cez7IP_0",
                        "name": "bash",
                        "response": {"output": "ok"},
                    }
                },
                {
                    "functionResponse": {
                        "id": "given-by-google",
                        "name": "read",
                        "response": {"output": "ok"},
                    }
                },
            ],
        },
    ]


def list_returned_parts(*events: dict[str, Any]) -> Any:
    """Return the parts sent back for an answer decoded from `events`."""
    message = assemble_chunks(decode_pieces(encode_sse(*events))).build_message()
    (content,) = DIALECT.build_body(Request("gemini-x", (message,)))["contents"]
    return content["parts"]


def test_signed_text_is_not_joined_with_unsigned() -> None:
    assert list_returned_parts(
        build_event({"text": "a🦀"}),
        build_event({"text": "b"}),
        build_event({"text": "cd", "thoughtSignature": "S1"}),
        build_event({"text": "e"}, {"text": "f", "thoughtSignature": "S2"}),
        build_event({"text": "g"}, finish="STOP"),
    ) == [
        {"text": "a🦀b"},
        {"text": "cd", "thoughtSignature": "S1"},
        {"text": "e"},
        {"text": "f", "thoughtSignature": "S2"},
        {"text": "g"},
    ]


def test_only_signed_thoughts_are_sent_back() -> None:
    assert list_returned_parts(
        build_event({"text": "hm", "thought": True}),
        build_event({"text": "so", "thought": True, "thoughtSignature": "S"}),
        build_event({"text": "a"}, finish="STOP"),
    ) == [{"text": "so", "thought": True, "thoughtSignature": "S"}, {"text": "a"}]


def test_each_call_keeps_its_own_signature() -> None:
    parts = list_returned_parts(
        build_event(build_call("x") | {"thoughtSignature": "S1"}),
        build_event(build_call("y") | {"thoughtSignature": "S2"}, finish="STOP"),
    )
    assert [(p["functionCall"]["name"], p["thoughtSignature"]) for p in parts] == [
        ("x", "S1"),
        ("y", "S2"),
    ]


FOREIGN = Request(
    model="gemini-x",
    messages=(
        *HI.messages,
        Message(
            role="assistant",
            tool_calls=(ToolCall("c1", "bash", "{}"), ToolCall("c2", "bash", "{}")),
            opaque={"anthropic": {"thinking": "not ours to read"}},
        ),
        Message(role="tool", call_id="c1", name="bash", text="out"),
        Message(role="tool", call_id="c2", name="bash", text="out"),
        FULL_MESSAGE,
    ),
)
UNSIGNED = "Function call is missing a thought_signature in functionCall parts."


async def test_a_model_that_requires_signatures_gets_one_for_another_models_calls() -> None:
    objection = VendorAnswer.from_json(
        {"error": {"code": 400, "message": UNSIGNED, "status": "INVALID_ARGUMENT"}}, 400
    )
    async with (
        run_vendor([objection, VendorAnswer([FULL]), VendorAnswer([FULL])]) as fake,
        open_provider(fake, retries=0) as model,
    ):
        await collect_chunks(model, FOREIGN)
        await collect_chunks(model, FOREIGN)
    signed = [
        [
            part.get("thoughtSignature")
            for content in vendor_request.json["contents"]
            for part in content["parts"]
            if "functionCall" in part
        ]
        for vendor_request in fake.requests
    ]
    own = [encode_signature("one"), None]
    foreign = [FOREIGN_SIGNATURE, None]
    assert signed == [[None, None, *own], [*foreign, *own], [*foreign, *own]]


async def test_a_repeated_rejection_is_an_error() -> None:
    objection = VendorAnswer.from_json({"error": {"code": 400, "message": UNSIGNED}}, 400)
    async with run_vendor([objection] * 3) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError, match="missing a thought_signature"):
            await collect_chunks(model, FOREIGN)
    assert len(fake.requests) == 2


# ── Models ─────────────────────────────────────────────────────────────────────────────────────


async def test_models_that_answer_are_listed_with_their_context() -> None:
    answers = {"supportedGenerationMethods": ["generateContent", "countTokens"]}
    listing = {
        "models": [
            {"name": "models/gemini-a", "inputTokenLimit": 1000, **answers},
            {"name": "models/gemini-b", **answers},
            {"name": "models/embedding", "supportedGenerationMethods": ["embedContent"]},
            {"name": "models/silent"},
        ]
    }
    async with run_vendor([VendorAnswer.from_json(listing)]) as fake, open_provider(fake) as model:
        assert model.context_limit("gemini-a") is None
        assert await model.models() == [ModelInfo("gemini-a", 1000), ModelInfo("gemini-b")]
        assert model.context_limit("gemini-a") == 1000
        assert model.context_limit("models/gemini-a") == 1000
        assert model.context_limit("gemini-b") is None
    (vendor_request,) = fake.requests
    assert (vendor_request.method, vendor_request.path) == ("GET", "/v1beta/models?pageSize=1000")
    assert vendor_request.headers["x-goog-api-key"] == "secret"


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("gemini-2.5-pro", 1_048_576),
        ("models/gemini-2.0-flash-lite-001", 1_048_576),
        ("gemini-2.5-flash-preview-09-2025", 1_048_576),
        ("gemini-3-pro-preview", 1_048_576),
        ("gemini-2.5-flash-preview-tts", None),
        ("gemini-2.5-flash-image", None),
        ("gemma-3-27b-it", None),
    ],
)
def test_some_limits_are_known_without_asking(model: str, limit: int | None) -> None:
    assert DIALECT.context_limit(model) == limit


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"models": 3}', b"<html>", b'{"mod'])
def test_an_invalid_list_of_models_is_an_error(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        DIALECT.parse_models(body)
    assert caught.value.kind is ErrorKind.PROTOCOL


# ── Failing ────────────────────────────────────────────────────────────────────────────────────


async def catch_failure(answer: VendorAnswer) -> ApiError:
    async with run_vendor([answer]) as fake, open_provider(fake, retries=0) as model:
        with pytest.raises(ApiError) as caught:
            await collect_chunks(model)
    return caught.value


TOO_LONG = "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."
KEY = "API key not valid. Please pass a valid API key."
COUNTRY = "User location is not supported for the API use."
DEPLETED = "Your prepayment credits are depleted. Please go to AI Studio."


@pytest.mark.req("model.backend.google")
@pytest.mark.req("model.errors.vendor_sentence")
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("code", "word", "message", "kind"),
    [
        (400, "INVALID_ARGUMENT", KEY, "auth"),
        (400, "FAILED_PRECONDITION", COUNTRY, "auth"),
        (401, "UNAUTHENTICATED", "Request had invalid authentication credentials.", "auth"),
        (403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers.", "auth"),
        (400, "INVALID_ARGUMENT", TOO_LONG, "context"),
        (400, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 20 bytes.", "context"),
        (400, "INVALID_ARGUMENT", "Invalid value at 'contents[0].role'", "invalid"),
        (404, "NOT_FOUND", "models/x is not found for API version v1beta", "not_found"),
        (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", "rate_limit"),
        (429, "RESOURCE_EXHAUSTED", DEPLETED, "quota"),
        (500, "INTERNAL", "An internal error has occurred.", "server"),
        (503, "UNAVAILABLE", "The model is overloaded.", "overloaded"),
        (504, "DEADLINE_EXCEEDED", "The request timed out.", "timeout"),
    ],
)
async def test_errors_keep_the_vendors_message_and_get_a_kind(
    code: int, word: str, message: str, kind: str, wrapped: bool
) -> None:
    document = {"error": {"code": code, "message": message, "status": word}}
    caught = await catch_failure(
        VendorAnswer.from_json([document] if wrapped else document, code, retry_after="9")
    )
    assert caught.kind is ErrorKind(kind)
    assert caught.message == message
    assert caught.status == code
    assert caught.provider == "test"
    assert caught.retry_after == 9.0
    assert str(caught) == f"test: {message} (HTTP {code})"


@pytest.mark.parametrize(
    ("delay", "seconds"), [("7s", 7.0), ("26.48s", 26.48), ("0s", 0.0), ("soon", None)]
)
def test_the_time_to_wait_is_read_from_the_details(delay: str, seconds: float | None) -> None:
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    error = {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}
    body = json.dumps({"error": error}).encode()
    assert DIALECT.parse_error(429, {}, body).retry_after == seconds


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"error": "in a word"}', "in a word"),
        (b'{"message": "no"}', "no"),
        (b'{"error": {"message": "m", "details": 3, "status": 7}}', "m"),
        (b'{"error": 3}', '{"error": 3}'),
        (b"[]", "[]"),
        (b"plain words", "plain words"),
        (b"<html><title>502</title></html>", "answered with a web page; check base_url"),
        (b"", "refused without a word"),
        (b'{"error": {"mess', '{"error": {"mess'),
        (b'{"error": "\xff"}', '{"error": "\ufffd"}'),
    ],
)
async def test_errors_in_other_formats_still_have_a_message(body: bytes, sentence: str) -> None:
    caught = await catch_failure(VendorAnswer([body], 404, "application/json"))
    assert caught.message == sentence
    assert caught.kind is ErrorKind.NOT_FOUND


OVERLOADED = {"error": {"code": 503, "message": "high demand", "status": "UNAVAILABLE"}}
BEGUN = encode_sse(build_event({"text": "a"}))
PLAIN = json.dumps(OVERLOADED, indent=2).encode()


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (BEGUN + encode_sse(OVERLOADED), "overloaded", "high demand"),
        (encode_sse({"error": {"code": 429, "message": "slow down"}}), "rate_limit", "slow down"),
        (
            encode_sse({"error": {"status": "INVALID_ARGUMENT", "message": TOO_LONG}}),
            "context",
            TOO_LONG,
        ),
        (encode_sse({"error": {}, "candidates": []}), "connection", "before the answer did"),
        (encode_sse({"error": {"code": "x"}}), "server", "failed in mid-answer"),
        (PLAIN, "overloaded", "high demand"),
        (BEGUN + PLAIN, "overloaded", "high demand"),
        (BEGUN + b"[" + PLAIN + b"\n]\n", "overloaded", "high demand"),
        (BEGUN + PLAIN[:-9], "connection", "before the answer did"),
        (BEGUN, "connection", "before the answer did"),
        (b"", "connection", "before the answer did"),
        (b"data: {not json}\r\n\r\n", "protocol", "not JSON"),
        (b'data: {"candidates": [{"con\r\n\r\n', "protocol", "not JSON"),
        (b'data: {"responseId": "\xff"}\r\n\r\n', "protocol", "not JSON"),
        (b"data: " + b'{"error":' + b"[" * 100_000 + b"\r\n\r\n", "protocol", "not JSON"),
        (b"data: [1]\r\n\r\n", "protocol", "other than answers"),
        (b'data: {"candidates": 3}\r\n\r\n', "protocol", "other than answers"),
    ],
)
async def test_a_broken_stream_is_an_error(body: bytes, kind: str, sentence: str) -> None:
    caught = await catch_failure(VendorAnswer([body]))
    assert caught.kind is ErrorKind(kind)
    assert sentence in caught.message


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_an_error_outside_any_event_is_found_for_any_split(size: int) -> None:
    with pytest.raises(ApiError, match="high demand"):
        decode_pieces(*split_pieces(BEGUN + b": ping\r\n\r\n" * 9999 + PLAIN, size))


@ignores_sdk_warning
@pytest.mark.req("model.sdk_agrees")
@pytest.mark.parametrize("body", [BEGUN + PLAIN, BEGUN + encode_sse(OVERLOADED)])
@pytest.mark.slow
async def test_the_vendors_sdk_finds_the_same_error(body: bytes) -> None:
    from google.genai import errors

    async with run_vendor([VendorAnswer([body])]) as fake, open_google_sdk(fake) as sdk:
        stream = await sdk.models.generate_content_stream(model="gemini-x", contents="hi")
        assert (await anext(stream)).text == "a"
        with pytest.raises(errors.ServerError) as caught:
            await anext(stream)
    assert (caught.value.code, caught.value.message) == (503, "high demand")


@pytest.mark.parametrize("word", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
async def test_a_call_the_vendor_could_not_read_is_an_error(word: str) -> None:
    told = build_event(finish=word)
    told["candidates"][0]["finishMessage"] = "Malformed function call: print(bash"
    caught = await catch_failure(VendorAnswer([encode_sse(told)]))
    assert (caught.kind, caught.message) == (
        ErrorKind.PROTOCOL,
        "Malformed function call: print(bash",
    )
    caught = await catch_failure(VendorAnswer([encode_sse(build_event(finish=word))]))
    assert caught.kind is ErrorKind.PROTOCOL
    assert word.lower().replace("_", " ") in caught.message


@pytest.mark.parametrize(
    ("feedback", "sentence"),
    [
        ({"blockReason": "SAFETY"}, "the prompt was blocked (SAFETY)"),
        ({"blockReason": "OTHER", "blockReasonMessage": "Not this."}, "Not this."),
    ],
)
async def test_a_prompt_the_vendor_refuses_is_an_error(
    feedback: dict[str, str], sentence: str
) -> None:
    refusal = {"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 4}}
    caught = await catch_failure(VendorAnswer([encode_sse(refusal)]))
    assert (caught.kind, caught.message) == (ErrorKind.FILTERED, sentence)


async def test_a_connection_cut_in_mid_answer_is_an_error() -> None:
    caught = await catch_failure(VendorAnswer([BEGUN], cut=True))
    assert caught.kind is ErrorKind.CONNECTION
    assert "mid-answer" in caught.message


async def test_a_web_page_instead_of_a_stream_is_an_error() -> None:
    caught = await catch_failure(VendorAnswer([b"<html>log in</html>"], content_type="text/html"))
    assert caught.kind is ErrorKind.PROTOCOL
    assert "check base_url" in caught.message


async def test_a_call_without_a_name_is_an_error() -> None:
    body = encode_sse(build_event({"functionCall": {"args": {}}}, finish="STOP"))
    async with run_vendor([VendorAnswer([body])]) as fake, open_provider(fake) as model:
        with pytest.raises(ApiError, match="without a name"):
            await model.complete(HI)


# ── Live ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not os.environ.get("GEMINI_API_KEY"), reason="GEMINI_API_KEY is not set")
async def test_gemini_itself_calls_a_tool_and_reads_its_result() -> None:
    http = HttpClient()
    model = HttpProvider(GoogleDialect("google", api_key=os.environ["GEMINI_API_KEY"]), http)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    request = Request(
        model=os.environ.get("GEMINI_MODEL", "gemini-2.5-flash"),
        messages=(Message(role="user", text="What is the weather in Oslo? Use the tool."),),
        tools=(Tool("weather", "The weather of a city", parameters),),
        thinking=True,
    )
    try:
        first = await model.complete(request)
        (made,) = first.message.tool_calls
        assert made.name == "weather"
        result = Message(role="tool", call_id=made.id, name=made.name, text="Hail, -3 °C")
        messages = (*request.messages, first.message, result)
        second = await model.complete(msgspec.structs.replace(request, messages=messages))
        assert "hail" in second.message.text.lower()
        assert second.usage.total > 0
        assert any(info.name == request.model for info in await model.models())
    finally:
        await http.close()
