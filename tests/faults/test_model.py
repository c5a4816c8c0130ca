"""A model server that cuts connections, hangs or answers garbage, as a daemon's client sees it.

In every case the turn ends with a sentence that names the provider; the user's message is stored
and an incomplete answer is not; other clients are served meanwhile, memory stays bounded, the log
has no traceback; and the next turn works.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from crabtalk.client import Client, connect
from crabtalk.protocol import wire
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.faults.bad_model import (
    DONE,
    BadModelServer,
    ConnectionEnd,
    RawAnswer,
    make_http_response,
    make_sse_event,
    make_text_event,
    run_bad_model,
)
from tests.faults.memory_usage import read_peak_mb
from tests.model_server import model_process

pytestmark = pytest.mark.one_loop

CONFIG = """
[[providers]]
name = "bad"
kind = "openai"
base_url = "{url}"
api_key = "k"
models = ["m"]
max_retries = {retries}
timeout = 0.3
first_token_timeout = 1
"""
# A daemon that has used a model takes sixty; the longest line it accepts comes on top.
PEAK_MB = 120


@dataclass
class ModelFaultHarness:
    home: Path
    model: BadModelServer
    child: CrabtalkdProcess
    client: Client

    async def run_turn(self, content: str = "hello") -> tuple[str, wire.StreamEnd]:
        """The text of a turn and its end; checks that pings are answered meanwhile."""
        text: list[str] = []
        task = asyncio.ensure_future(self._read_stream(content, text))
        async with asyncio.timeout(30):
            while not task.done():
                await self.client.ping()
                await asyncio.sleep(0.01)
        return "".join(text), task.result()

    async def _read_stream(self, content: str, text: list[str]) -> wire.StreamEnd:
        async with aclosing(self.client.stream("crab", content)) as events:
            async for event in events:
                if isinstance(event, wire.StreamChunk):
                    text.append(event.content)
                elif isinstance(event, wire.StreamEnd):
                    return event
        raise AssertionError("a stream without an end")

    async def read_history(self) -> list[tuple[str, str]]:
        page = await self.client.list_messages("crab")
        return [(message.role, message.content) for message in page.messages]

    async def check_goes_on(self) -> None:
        self.model.answer = RawAnswer(make_http_response(make_text_event("well", "stop") + DONE))
        assert (await self.client.send("crab", "and now?")).content == "well"
        assert (await self.read_history())[-2:] == [("user", "and now?"), ("assistant", "well")]
        assert "Traceback" not in (self.home / "logs" / "crabtalkd.log").read_text()


@pytest.fixture
async def harness(home: Path) -> AsyncIterator[ModelFaultHarness]:
    async with run_bad_model() as model:
        home.mkdir(0o700)
        (home / "config.toml").write_text(CONFIG.format(url=model.url, retries=0))
        child = CrabtalkdProcess(home)
        try:
            await child.start()
            async with connect(home=home, reconnect_timeout=0) as client:
                yield ModelFaultHarness(home, model, child, client)
        finally:
            await child.kill()


def make_call_event(**fields: object) -> bytes:
    call = {"index": 0, "id": "a", "function": {"name": "bash", "arguments": "{}"}, **fields}
    choice = {"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
    return make_sse_event({"choices": [choice]}) + DONE


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
PAGE = b"<html>log in</html>\n\n"
REFUSED = b'{\n "error": {"message": "your plan has ended", "code": "insufficient_quota"}\n}\n'
WHOLE = b'{"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}'
JSON_TYPE = "application/json"

CUTS = {
    "before a word": (RawAnswer(), "closed the connection"),
    "in the head": (RawAnswer(b"HTTP/1.1 200 OK\r\nContent-Ty"), "closed the connection"),
    "after the head": (RawAnswer(make_http_response()), "the stream ended before the answer did"),
    "in the answer": (
        RawAnswer(make_http_response(make_text_event("one "))),
        "the stream ended before the answer did",
    ),
    "in an event": (
        RawAnswer(make_http_response(make_text_event("one ") + b'data: {"choi')),
        "the answer is not JSON",
    ),
    "before its length": (
        RawAnswer(make_http_response(make_text_event("one "), Content_Length="999")),
        "closed the connect",
    ),
    "in a chunk": (
        RawAnswer(CHUNKED + b"ff\r\n" + make_text_event("one ")),
        "closed the connection",
    ),
}
HANGS = {
    "before a word": RawAnswer(ending=ConnectionEnd.HANG),
    "in the head": RawAnswer(b"HTTP/1.1 200 OK\r\nContent-Ty", ending=ConnectionEnd.HANG),
    "after the head": RawAnswer(make_http_response(), ending=ConnectionEnd.HANG),
    "in the answer": RawAnswer(
        make_http_response(make_text_event("one ")), ending=ConnectionEnd.HANG
    ),
    "with signs of life": RawAnswer(make_http_response(), repeated=b": still here\n\n" * 500),
}
GARBAGE = {
    "another protocol": (RawAnswer(b"SSH-2.0-OpenSSH_9.2\r\n"), "does not answer in HTTP"),
    "bytes": (RawAnswer(bytes(range(256)) * 20), "does not answer in HTTP"),
    "chunks of no size": (RawAnswer(CHUNKED + b"zz\r\nabc"), "does not answer in HTTP"),
    "no gzip": (
        RawAnswer(make_http_response(b"plain", Content_Encoding="gzip")),
        "closed the connection",
    ),
    "a page": (
        RawAnswer(make_http_response(PAGE, "text/html")),
        "a web page instead of a model's stream",
    ),
    "a page called a stream": (
        RawAnswer(make_http_response(PAGE)),
        "no stream, but with '<html>log in",
    ),
    "a page with an error": (
        RawAnswer(make_http_response(PAGE, "text/html", "418 No")),
        "a web page; check base",
    ),
    "elsewhere": (RawAnswer(make_http_response(status="302 Found", Location="/there")), "HTTP 302"),
    "a whole answer": (
        RawAnswer(make_http_response(WHOLE, JSON_TYPE)),
        "answered with no stream, but with",
    ),
    "an error with 200": (
        RawAnswer(make_http_response(REFUSED, JSON_TYPE)),
        "your plan has ended (HTTP 200)",
    ),
    "an error in the stream": (
        RawAnswer(make_http_response(make_sse_event({"error": {"message": "boom"}}))),
        "bad: boom",
    ),
    "half of JSON": (
        RawAnswer(make_http_response(b'data: {"choices": [\n\n')),
        "the answer is not JSON",
    ),
    "no UTF-8": (
        RawAnswer(make_http_response(b'data: {"choices": "\xff\xfe"}\n\n')),
        "the answer is not JSON",
    ),
    "half a character": (
        RawAnswer(make_http_response(b'data: {"x": "\\ud800"}\n\n')),
        "the answer is not JSON",
    ),
    "depth": (
        RawAnswer(make_http_response(b"data: " + b"[" * 100_000 + b"\n\n")),
        "the answer is not JSON",
    ),
    "a list": (RawAnswer(make_http_response(make_sse_event([1]))), "something other than objects"),
    "choices of words": (
        RawAnswer(make_http_response(make_sse_event({"choices": "x"}))),
        "is not one of this kind",
    ),
    "choices of numbers": (
        RawAnswer(make_http_response(make_sse_event({"choices": [1]}))),
        "is not one of this kind",
    ),
    "named choices": (
        RawAnswer(make_http_response(make_sse_event({"choices": {"a": 1}}))),
        "is not one of this kind",
    ),
    "a list in a choice": (
        RawAnswer(make_http_response(make_sse_event({"choices": [{"delta": [1]}]}))),
        "is not one of this",
    ),
    "a number for words": (
        RawAnswer(make_http_response(make_text_event(5))),
        "is not one of this kind",
    ),
    "a list for words": (
        RawAnswer(make_http_response(make_text_event(["a"]))),
        "is not one of this kind",
    ),
    "a number for an id": (
        RawAnswer(make_http_response(make_call_event(id=5))),
        "is not one of this kind",
    ),
    "a call of no function": (
        RawAnswer(make_http_response(make_call_event(function=7))),
        "is not one of this kind",
    ),
    "a header without end": (
        RawAnswer(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 9000),
        "does not answer in",
    ),
    "headers without end": (
        RawAnswer(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 99),
        "does not answer in",
    ),
    "a line without end": (
        RawAnswer(make_http_response(b"data: "), b"y" * 65536),
        "an event without end",
    ),
    "lines without end": (
        RawAnswer(make_http_response(), b"data: yyyy\n" * 5000),
        "an event without end",
    ),
}
# The answer is complete; the fault comes after it.
COMPLETE = {
    "the connection stays open": RawAnswer(
        make_http_response(make_text_event("one", "stop") + DONE), ending=ConnectionEnd.HANG
    ),
    "signs of life follow": RawAnswer(
        make_http_response(make_text_event("one", "stop") + DONE), repeated=b": here\n\n" * 99
    ),
    "nothing says that it is over": RawAnswer(
        make_http_response(make_text_event("one", "stop")), ending=ConnectionEnd.HANG
    ),
    "the last chunk is missing": RawAnswer(
        CHUNKED
        + b"%x\r\n%b\r\n" % (len(make_text_event("one", "stop")), make_text_event("one", "stop"))
    ),
    "it is cut in its price": RawAnswer(
        make_http_response(make_text_event("one", "stop") + b'data: {"choices":[],"usa')
    ),
    "it is cut in the word for its end": RawAnswer(
        make_http_response(make_text_event("one", "stop") + b"data: [DO")
    ),
    "garbage follows": RawAnswer(
        make_http_response(make_text_event("one", "stop") + DONE + b"data: {no\n\n")
    ),
    "its price is nonsense": RawAnswer(
        make_http_response(
            make_text_event("one", "stop")
            + make_sse_event({"usage": {"prompt_tokens": "x"}})
            + DONE
        )
    ),
}


async def check_refused(harness: ModelFaultHarness, answer: RawAnswer, sentence: str) -> None:
    harness.model.answer = answer
    _, end = await harness.run_turn()
    assert end.stop_reason == wire.STOP_REASON_ERROR
    assert end.error.startswith("bad: ")
    assert sentence in end.error
    assert len(end.error) < 1000
    assert await harness.read_history() == [("user", "hello")]
    assert harness.model.request_count == 1
    assert read_peak_mb(harness.child.pid) < PEAK_MB
    await harness.check_goes_on()


@pytest.mark.req("faults.model.told")
@pytest.mark.parametrize("name", CUTS)
async def test_a_connection_that_is_cut_ends_the_turn_and_nothing_else(
    harness: ModelFaultHarness, name: str
) -> None:
    await check_refused(harness, *CUTS[name])


@pytest.mark.req("faults.model.told")
@pytest.mark.parametrize("name", HANGS)
async def test_a_model_that_hangs_is_given_up_after_its_timeout(
    harness: ModelFaultHarness, name: str
) -> None:
    await check_refused(harness, HANGS[name], "sent nothing for too long")


@pytest.mark.req("faults.model.told")
@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_reported_in_a_sentence(harness: ModelFaultHarness, name: str) -> None:
    await check_refused(harness, *GARBAGE[name])


@pytest.mark.req("faults.model.complete")
@pytest.mark.parametrize("name", COMPLETE)
async def test_a_complete_answer_is_stored_whatever_comes_after_it(
    harness: ModelFaultHarness, name: str
) -> None:
    harness.model.answer = COMPLETE[name]
    text, end = await harness.run_turn()
    assert (text, end.error) == ("one", "")
    assert await harness.read_history() == [("user", "hello"), ("assistant", "one")]
    await harness.check_goes_on()


@pytest.mark.slow
@pytest.mark.req("faults.model.told")
async def test_an_answer_without_end_is_cut_off(harness: ModelFaultHarness) -> None:
    await check_refused(
        harness,
        RawAnswer(make_http_response(), repeated=make_text_event("y" * 1000) * 30),
        "the answer does not end",
    )


@pytest.mark.req("faults.model.told")
async def test_a_stopped_model_server_is_given_up_after_its_timeout(
    home: Path,
) -> None:
    """SIGSTOP: the system still accepts connections for the server, but none gets an answer."""
    with model_process() as (url, pid):
        home.mkdir(0o700)
        (home / "config.toml").write_text(CONFIG.format(url=url, retries=0))
        child = CrabtalkdProcess(home)
        try:
            await child.start()
            async with connect(home=home, reconnect_timeout=0) as client:
                os.kill(pid, signal.SIGSTOP)
                try:
                    harness = ModelFaultHarness(home, BadModelServer(), child, client)
                    _, end = await harness.run_turn("!say never")
                finally:
                    os.kill(pid, signal.SIGCONT)
                assert "sent nothing for too long" in end.error
                assert (await client.send("crab", "!say here again")).content == "here again"
        finally:
            await child.kill()


@pytest.mark.req("model.retry.stream")
async def test_a_temporary_failure_is_retried_while_no_text_was_shown(
    harness: ModelFaultHarness,
) -> None:
    (harness.home / "config.toml").write_text(CONFIG.format(url=harness.model.url, retries=2))
    await harness.client.reload()
    harness.model.answer = RawAnswer()
    _, end = await harness.run_turn()
    assert "closed the connection" in end.error
    assert harness.model.request_count == 3
    harness.model.answer = RawAnswer(make_http_response(make_text_event("one ")))
    text, end = await harness.run_turn("again")
    assert (text, harness.model.request_count) == ("one ", 4)
    assert await harness.read_history() == [("user", "hello"), ("user", "again")]
    await harness.check_goes_on()
