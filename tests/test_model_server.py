"""The scripted model: each directive as seen by our own provider and by OpenAI's SDK."""

import asyncio
import http.client
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    closing,
    contextmanager,
)
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import (
    ApiError,
    ErrorKind,
    Message,
    ModelInfo,
    Registry,
    Request,
    Response,
    Tool,
    ToolCall,
    Usage,
    open_registry,
)
from tests.model_server import (
    SUMMARY,
    ModelConnection,
    ModelServer,
    ScriptError,
    model_process,
    model_server,
    read_script,
    split_words,
)

# The SDK takes longer to load than all tests here except those that use it.
if TYPE_CHECKING:
    import openai


@asynccontextmanager
async def open_provider(server: ModelServer, model: str = "scripted") -> AsyncIterator[Registry]:
    document = {"base_url": server.url, "api_key": "k", "max_retries": 0}
    registry = await open_registry({"llm": document | ({"model": model} if model else {})})
    try:
        yield registry
    finally:
        await registry.close()


def make_request(*messages: Message | str, tools: tuple[Tool, ...] = ()) -> Request:
    converted = [Message(role="user", text=m) if isinstance(m, str) else m for m in messages]
    return Request(model="scripted", messages=tuple(converted), tools=tools)


async def complete_once(server: ModelServer, *messages: Message | str) -> Response:
    async with open_provider(server) as registry:
        return await registry.complete(make_request(*messages))


async def stream_texts(registry: Registry, text: str) -> list[str]:
    return [chunk.text async for chunk in registry.stream(make_request(text)) if chunk.text]


async def catch_error(registry: Registry, text: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await stream_texts(registry, text)
    return caught.value


def make_results(response: Response, *results: str) -> list[Message]:
    """The answer as a message of the history, and the results of its tool calls."""
    pairs = zip(response.message.tool_calls, results, strict=True)
    return [response.message, *(Message(role="tool", text=t, call_id=c.id) for c, t in pairs)]


# ── Text ───────────────────────────────────────────────────────────────────────────────────────


async def test_text_is_sent_word_by_word_with_its_spaces() -> None:
    async with model_server() as server, open_provider(server) as registry:
        assert await stream_texts(registry, "!say hello  big world") == ["hello  ", "big ", "world"]
        assert await stream_texts(registry, "!say one \n!say two") == ["one ", "two"]


async def test_text_without_directives_is_echoed() -> None:
    async with model_server() as server:
        echo = await complete_once(server, "good\nmorning! !say no")
    assert echo.message.text == "heard: good\nmorning! !say no"
    assert echo.finish == "stop"


async def test_reasoning_is_separate_from_text() -> None:
    async with model_server() as server:
        message = (await complete_once(server, "!think well now\n!say yes")).message
    assert (message.reasoning, message.text) == ("well now", "yes")


async def test_only_the_last_user_message_counts() -> None:
    async with model_server() as server:
        system = Message(role="system", text="!say system")
        answered = Message(role="assistant", text="!say assistant")
        last = await complete_once(server, system, "!say first", answered, "!say last")
    assert last.message.text == "last"


async def test_requests_are_recorded_in_order_as_they_were_sent() -> None:
    async with model_server() as server:
        await complete_once(server, "!say one")
        await complete_once(server, Message(role="system", text="be brief"), "two")
        first = await server.until_asked()
        assert first["messages"] == [{"role": "user", "content": "!say one"}]
        assert [len(body["messages"]) for body in server.requests] == [1, 2]
        server.reset()
        assert server.requests == []


async def test_one_connection_serves_request_after_request() -> None:
    async with model_server() as server, open_provider(server) as registry:
        for number in range(5):
            assert await stream_texts(registry, f"!say {number}") == [str(number)]
        assert server.statistics()["asked"] == 5
        assert server.statistics()["connections"] == 1


async def test_a_hundred_streams_are_answered_at_once() -> None:
    async with model_server() as server, open_provider(server) as registry:
        script = f"!wait\n!chunks 5 100\n!say {'x' * 40}"
        streams = [asyncio.ensure_future(stream_texts(registry, script)) for _ in range(100)]
        await server.until_waiting(100)
        assert server.release() == 100
        assert {len(stream) for stream in await asyncio.gather(*streams)} == {6}


# ── Tools ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_turn_with_tools_goes_through_its_steps() -> None:
    script = '!tool a {"x": 1}\n!tool b\n!then\n!say now\n!tool a not json\n!then\n!say done'
    async with model_server() as server:
        one = await complete_once(server, script)
        assert one.finish == "tool_calls"
        assert one.message.tool_calls == (
            ToolCall(id="call_1", name="a", arguments='{"x": 1}'),
            ToolCall(id="call_2", name="b", arguments="{}"),
        )
        two = await complete_once(server, script, *(after_one := make_results(one, "1", "2")))
        assert two.message.text == "now"
        assert two.message.tool_calls == (ToolCall("call_3", "a", "not json"),)
        three = await complete_once(server, script, *after_one, *make_results(two, "3"))
        assert (three.message.text, three.finish) == ("done", "stop")


async def test_arguments_are_sent_in_two_pieces() -> None:
    async with model_server() as server, open_provider(server) as registry:
        request = make_request('!tool a {"x": 1}')
        deltas = [d async for c in registry.stream(request) for d in c.tool_calls]
    assert [delta.arguments for delta in deltas] == ['{"x"', ": 1}"]


async def test_a_tool_result_after_the_last_step_is_echoed() -> None:
    async with model_server() as server:
        called = await complete_once(server, "!tool a")
        echo = await complete_once(server, "!tool a", *make_results(called, "!say from the tool"))
    assert echo.message.text == "heard: !say from the tool"


async def test_steps_are_counted_from_the_last_user_message() -> None:
    async with model_server() as server:
        called = await complete_once(server, script := "!tool a\n!then\n!say after")
        steered = await complete_once(server, script, *make_results(called, "1"), "!say steered")
    assert steered.message.text == "steered"


# ── Timing ─────────────────────────────────────────────────────────────────────────────────────


async def test_chunks_contain_the_clock_and_keep_the_rate() -> None:
    async with model_server() as server, open_provider(server) as registry:
        before = time.monotonic_ns()
        stamps = [int(text) for text in await stream_texts(registry, "!chunks 6 100")]
        after = time.monotonic_ns()
    assert stamps == sorted(stamps)
    assert before < stamps[0]
    assert stamps[-1] < after
    # uvloop's clock may be a millisecond behind when the first is written.
    assert all(stamp - stamps[0] >= n * 10e6 - 2e6 for n, stamp in enumerate(stamps))


@pytest.mark.clock
async def test_a_late_chunk_does_not_delay_those_after_it() -> None:
    async with model_server() as server, open_provider(server) as registry:
        stamps: list[int] = []
        async for chunk in registry.stream(make_request("!chunks 7 20")):
            if not stamps:
                stalled = time.monotonic() + 0.4
                while time.monotonic() < stalled:  # all chunks due meanwhile become late
                    pass
            if chunk.text:
                stamps.append(int(chunk.text))
    assert stamps[-1] - stamps[1] < 5 * 50e6 / 2


async def test_a_burst_waits_for_a_client_that_reads_slowly() -> None:
    async with model_server() as server:
        host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(raw_request("!chunks 50000 0", "Connection: close\r\n"))
        while not any(connection.is_write_paused for connection in server.connections):
            await asyncio.sleep(0)
        for _ in range(200):  # enough time to write more
            await asyncio.sleep(0)
        (connection,) = server.connections
        assert connection.transport.get_write_buffer_size() < 2**17
        body = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
    assert body.count(b'"content":"0') == 50000
    assert body.endswith(b"0\r\n\r\n")


async def test_an_answer_waits_until_it_is_released() -> None:
    async with model_server() as server, open_provider(server) as registry:
        assert server.release() == 0
        stream = registry.stream(make_request("!say one\n!wait\n!say two"))
        async with aclosing(stream):
            assert (await anext(stream)).text == "one"
            await server.until_waiting()
            assert server.release() == 1
            assert (await anext(stream)).text == "two"


# ── Ends ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_client_that_leaves_a_hanging_answer_is_noticed() -> None:
    async with model_server() as server, open_provider(server) as registry:
        assert await stream_texts(registry, "!say whole") == ["whole"]
        assert server.hangups == 0
        stream = registry.stream(make_request("!say so\n!hang\n!say never"))
        assert (await anext(stream)).text == "so"
        await stream.aclose()
        await server.until_hung_up()
        assert server.statistics()["answering"] == 0


async def test_a_cut_ends_the_connection_in_mid_answer() -> None:
    async with model_server() as server, open_provider(server) as registry:
        assert (await catch_error(registry, "!cut")).kind is ErrorKind.CONNECTION
        stream = registry.stream(make_request("!say so far\n!cut"))
        assert [(await anext(stream)).text, (await anext(stream)).text] == ["so ", "far"]
        with pytest.raises(ApiError, match="closed the connection in mid-answer"):
            await anext(stream)
        assert server.hangups == 0


async def test_an_error_has_its_status_and_message() -> None:
    async with model_server() as server, open_provider(server) as registry:
        error = await catch_error(registry, "!status 418 I am a crab")
        assert (error.status, error.message) == (418, "I am a crab")


async def test_an_error_in_mid_answer_is_an_event() -> None:
    async with model_server() as server, open_provider(server) as registry:
        stream = registry.stream(make_request("!say so\n!wait\n!status 503 come back later"))
        assert (await anext(stream)).text == "so"
        server.release()
        with pytest.raises(ApiError, match="come back later") as caught:
            await anext(stream)
    assert (caught.value.kind, caught.value.status) == (ErrorKind.OVERLOADED, None)


async def test_an_answer_can_be_empty_or_cut_short_by_length() -> None:
    async with model_server() as server:
        nothing = await complete_once(server, "!nothing")
        assert (nothing.message, nothing.finish) == (Message(role="assistant"), "stop")
        assert (await complete_once(server, "!say too\n!length")).finish == "length"


async def test_usage_counts_messages_and_chunks_unless_scripted() -> None:
    async with model_server() as server:
        system = Message(role="system", text="!usage 9 9")
        counted = await complete_once(server, system, "!think a\n!say b c\n!chunks 2 0")
        assert counted.usage == Usage(prompt=2, completion=5, total=7)
        scripted = await complete_once(server, "!usage 1200 34\n!say x")
        assert scripted.usage == Usage(prompt=1200, completion=34, total=1234)


@pytest.mark.parametrize("line", ["!chunks many 5", "!chunks 5", "!tool", "!status", "!wait here"])
async def test_a_malformed_directive_is_refused(line: str) -> None:
    async with model_server() as server:
        with pytest.raises(ApiError, match="is not how !") as caught:
            await complete_once(server, line)
    assert caught.value.status == 400


# ── Summaries and models ───────────────────────────────────────────────────────────────────────


async def test_a_directive_asks_for_the_summary() -> None:
    async with model_server() as server:
        assert (await complete_once(server, "please\n!summary")).message.text == SUMMARY
        server.summary = "Crabs."
        assert (await complete_once(server, "please\n!summary")).message.text == "Crabs."


async def test_a_summary_that_is_set_answers_compaction_and_nothing_else() -> None:
    compaction = Message(role="system", text="You Summarise conversations.")
    async with model_server() as server, open_provider(server) as registry:
        assert (await complete_once(server, compaction, "!say x")).message.text == "x"
        server.summary = "Crabs."
        assert (await complete_once(server, compaction, "!say x")).message.text == "Crabs."
        assert (await complete_once(server, "!say x")).message.text == "x"
        agent = make_request(compaction, "!say x", tools=(Tool(name="a"),))
        assert (await registry.complete(agent)).message.text == "x"


async def test_the_models_are_those_that_are_set() -> None:
    async with model_server() as server, open_provider(server, model="") as registry:
        assert await registry.models() == [ModelInfo("scripted")]
        server.models = ["a", "b"]
        assert await registry.models() == [ModelInfo("a"), ModelInfo("b")]


# ── OpenAI's own client ────────────────────────────────────────────────────────────────────────

SCRIPT = '!think hm\n!say hello world\n!tool a {"x": 1}\n!usage 3 4'


def open_sdk(server: ModelServer) -> "openai.AsyncOpenAI":
    import openai  # takes longer to load than all the other tests here

    return openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0)


async def test_the_sdk_reads_a_stream() -> None:
    async with model_server() as server, open_sdk(server) as client:
        stream = await client.chat.completions.create(
            model="any%model",
            messages=[{"role": "user", "content": f"{SCRIPT}\n!chunks 2 0"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    texts = [delta.content for delta in deltas if delta.content]
    calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
    assert {chunk.model for chunk in chunks} == {"any%model"}
    assert texts[:2] == ["hello ", "world"]
    assert all(text.strip().isdigit() for text in texts[2:])
    assert len(texts) == 4
    assert "".join(call.arguments or "" for call in calls if call) == '{"x": 1}'
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7


async def test_the_sdk_gets_the_same_without_streaming() -> None:
    import openai

    async with model_server() as server, open_sdk(server) as client:
        whole = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": SCRIPT}]
        )
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "!status 429 slow down"}]
            )
        assert server.requests[0]["model"] == "scripted"
    choice = whole.choices[0]
    assert choice.message.content == "hello world"
    assert choice.message.model_extra == {"reasoning_content": "hm"}
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].to_dict() == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "a", "arguments": '{"x": 1}'},
    }
    assert choice.finish_reason == "tool_calls"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 7


# ── Bytes and lines ────────────────────────────────────────────────────────────────────────────


def raw_request(text: str, headers: str = "") -> bytes:
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "m", "stream": True, "messages": messages}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class RecordingTransport(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True


def feed_connection(*pieces: bytes) -> RecordingTransport:
    connection = ModelConnection(ModelServer())
    connection.connection_made(transport := RecordingTransport())
    for piece in pieces:
        connection.data_received(piece)
    return transport


@given(st.text(st.characters(codec="utf-8")), st.lists(st.integers(0, 400), max_size=4))
def test_requests_cut_anywhere_get_the_same_answers(text: str, cuts: list[int]) -> None:
    models = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    data = raw_request(f"!say {text}") + models + raw_request("second")
    bounds = sorted(cuts)
    pieces = [data[a:b] for a, b in zip([0, *bounds], [*bounds, len(data)], strict=True)]
    assert (transport := feed_connection(*pieces)).written == feed_connection(data).written
    assert transport.written.count(b"[DONE]") == 2
    assert not transport.is_closed


@pytest.mark.parametrize(
    ("data", "status", "is_closed"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", b"404", False),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1\r\n\r\n{", b"400", False),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400", True),
        (b"hello\r\n\r\n", b"400", True),
        (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", b"200", True),
    ],
)
def test_a_bad_request_is_refused(data: bytes, status: bytes, is_closed: bool) -> None:
    transport = feed_connection(data)
    assert transport.written.split()[1] == status
    assert transport.is_closed == is_closed


@given(st.text())
def test_split_words_loses_nothing(text: str) -> None:
    assert "".join(split_words(text)) == text


@given(st.lists(st.sampled_from(["!then", "!say a b", "!tool t {}", "!wait", "prose", "! say"])))
def test_dividers_determine_the_number_of_steps(lines: list[str]) -> None:
    steps = read_script("\n".join(lines))
    directives = [line for line in lines if line in ("!say a b", "!tool t {}", "!wait")]
    assert sum(len(step) for step in steps) == len(directives)
    assert len(steps) == (lines.count("!then") + 1 if directives or "!then" in lines else 0)


@given(st.text())
def test_any_text_is_a_script_or_is_refused_with_a_reason(text: str) -> None:
    for line in (text, f"!chunks {text}", f"!usage {text}", f"!status {text}", f"!tool {text}"):
        try:
            read_script(line)
        except ScriptError as error:
            assert "is not how" in str(error)  # noqa: PT017 - either outcome is right


# ── A process of its own ───────────────────────────────────────────────────────────────────────


class ControlClient:
    """A blocking client of a server in another process."""

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("http://").removesuffix("/v1")

    @contextmanager
    def send_request(
        self, method: str, path: str, body: str = ""
    ) -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPConnection(self._address)) as connection:
            connection.request(method, path, body)
            with connection.getresponse() as response:
                yield response

    def chat(self, text: str) -> AbstractContextManager[http.client.HTTPResponse]:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
        return self.send_request("POST", "/v1/chat/completions", json.dumps(body))

    def control(self, name: str) -> Any:
        method = "POST" if name in ("release", "reset") else "GET"
        with self.send_request(method, f"/control/{name}") as response:
            return json.load(response)


def test_a_process_is_controlled_over_http_and_ends_with_its_stdin() -> None:
    with model_process("--summary", "Crabs.") as (url, _):
        client = ControlClient(url)
        with client.chat("!say one\n!wait\n!say two\n!summary") as response:
            while b"one" not in response.readline():
                pass
            assert client.control("statistics")["waiting"] == 1
            assert client.control("release") == {"released": 1}
            remaining = response.read()
        assert b"two" in remaining
        assert b"Crabs." in remaining
        requests = client.control("requests")
        assert [body["messages"][0]["content"][:8] for body in requests] == ["!say one"]
        assert client.control("reset") == {}
        assert client.control("requests") == []
    with pytest.raises(ConnectionRefusedError):
        client.control("requests")


def test_a_process_ends_at_sigterm_and_can_run_without_recording() -> None:
    with model_process("--no-record") as (url, pid):
        client = ControlClient(url)
        with client.chat("!chunks 3 0") as response:
            assert response.read().count(b'"content":"0') == 3
        assert client.control("requests") == []
        assert client.control("statistics")["asked"] == 1
        with client.chat("!say x\n!hang") as response:
            os.kill(pid, signal.SIGTERM)
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                response.read()
