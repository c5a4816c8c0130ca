"""A model server that cuts, hangs or answers garbage, as a client of a real daemon sees it.

Whatever it is: the turn ends, with a sentence that names the provider; what was said is kept and
half an answer is not; others are answered meanwhile, memory stays within bounds, the log has no
traceback; and the next turn is answered.
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
from tests.daemon.child import Child
from tests.faults.bad_model import DONE, BadModel, Bytes, Then, bad_model, delta, event, http
from tests.faults.watching import peak_mb
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
# A daemon that has asked a model has sixty; the longest line it puts up with comes on top.
PEAK_MB = 120


@dataclass
class Place:
    home: Path
    model: BadModel
    child: Child
    client: Client

    async def turn(self, said: str = "hello") -> tuple[str, wire.StreamEnd]:
        """What was heard, and how it ended; others are answered meanwhile."""
        text: list[str] = []
        task = asyncio.ensure_future(self._listen(said, text))
        async with asyncio.timeout(30):
            while not task.done():
                await self.client.ping()
                await asyncio.sleep(0.01)
        return "".join(text), task.result()

    async def _listen(self, said: str, text: list[str]) -> wire.StreamEnd:
        async with aclosing(self.client.stream("crab", said)) as events:
            async for one in events:
                if isinstance(one, wire.StreamChunk):
                    text.append(one.content)
                elif isinstance(one, wire.StreamEnd):
                    return one
        raise AssertionError("a stream without an end")

    async def kept(self) -> list[tuple[str, str]]:
        page = await self.client.list_messages("crab")
        return [(message.role, message.content) for message in page.messages]

    async def goes_on(self) -> None:
        self.model.answer = Bytes(http(delta("well", "stop") + DONE))
        assert (await self.client.send("crab", "and now?")).content == "well"
        assert (await self.kept())[-2:] == [("user", "and now?"), ("assistant", "well")]
        assert "Traceback" not in (self.home / "logs" / "crabtalkd.log").read_text()


@pytest.fixture
async def place(home: Path) -> AsyncIterator[Place]:
    async with bad_model() as model:
        home.mkdir(0o700)
        (home / "config.toml").write_text(CONFIG.format(url=model.url, retries=0))
        child = Child(home)
        try:
            await child.start()
            async with connect(home=home, reconnect_timeout=0) as client:
                yield Place(home, model, child, client)
        finally:
            await child.kill()


def call(**fields: object) -> bytes:
    given = {"index": 0, "id": "a", "function": {"name": "bash", "arguments": "{}"}, **fields}
    choice = {"delta": {"tool_calls": [given]}, "finish_reason": "tool_calls"}
    return event({"choices": [choice]}) + DONE


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
PAGE = b"<html>log in</html>\n\n"
REFUSED = b'{\n "error": {"message": "your plan has ended", "code": "insufficient_quota"}\n}\n'
WHOLE = b'{"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}'
LABELLED = "application/json"

CUTS = {
    "before a word": (Bytes(), "closed the connection"),
    "in the head": (Bytes(b"HTTP/1.1 200 OK\r\nContent-Ty"), "closed the connection"),
    "after the head": (Bytes(http()), "the stream ended before the answer did"),
    "in the answer": (Bytes(http(delta("one "))), "the stream ended before the answer did"),
    "in an event": (Bytes(http(delta("one ") + b'data: {"choi')), "the answer is not JSON"),
    "before its length": (Bytes(http(delta("one "), Content_Length="999")), "closed the connect"),
    "in a chunk": (Bytes(CHUNKED + b"ff\r\n" + delta("one ")), "closed the connection"),
}
HANGS = {
    "before a word": Bytes(then=Then.HANG),
    "in the head": Bytes(b"HTTP/1.1 200 OK\r\nContent-Ty", then=Then.HANG),
    "after the head": Bytes(http(), then=Then.HANG),
    "in the answer": Bytes(http(delta("one ")), then=Then.HANG),
    "with signs of life": Bytes(http(), over=b": still here\n\n" * 500),
}
GARBAGE = {
    "another protocol": (Bytes(b"SSH-2.0-OpenSSH_9.2\r\n"), "does not answer in HTTP"),
    "bytes": (Bytes(bytes(range(256)) * 20), "does not answer in HTTP"),
    "chunks of no size": (Bytes(CHUNKED + b"zz\r\nabc"), "does not answer in HTTP"),
    "no gzip": (Bytes(http(b"plain", Content_Encoding="gzip")), "closed the connection"),
    "a page": (Bytes(http(PAGE, "text/html")), "a web page instead of a model's stream"),
    "a page called a stream": (Bytes(http(PAGE)), "no stream, but with '<html>log in"),
    "a page with an error": (Bytes(http(PAGE, "text/html", "418 No")), "a web page; check base"),
    "elsewhere": (Bytes(http(status="302 Found", Location="/there")), "HTTP 302"),
    "a whole answer": (Bytes(http(WHOLE, LABELLED)), "answered with no stream, but with"),
    "an error with 200": (Bytes(http(REFUSED, LABELLED)), "your plan has ended (HTTP 200)"),
    "an error in the stream": (Bytes(http(event({"error": {"message": "boom"}}))), "bad: boom"),
    "half of JSON": (Bytes(http(b'data: {"choices": [\n\n')), "the answer is not JSON"),
    "no UTF-8": (Bytes(http(b'data: {"choices": "\xff\xfe"}\n\n')), "the answer is not JSON"),
    "half a character": (Bytes(http(b'data: {"x": "\\ud800"}\n\n')), "the answer is not JSON"),
    "depth": (Bytes(http(b"data: " + b"[" * 100_000 + b"\n\n")), "the answer is not JSON"),
    "a list": (Bytes(http(event([1]))), "something other than objects"),
    "choices of words": (Bytes(http(event({"choices": "x"}))), "is not one of this kind"),
    "choices of numbers": (Bytes(http(event({"choices": [1]}))), "is not one of this kind"),
    "named choices": (Bytes(http(event({"choices": {"a": 1}}))), "is not one of this kind"),
    "a list in a choice": (Bytes(http(event({"choices": [{"delta": [1]}]}))), "is not one of this"),
    "a number for words": (Bytes(http(delta(5))), "is not one of this kind"),
    "a list for words": (Bytes(http(delta(["a"]))), "is not one of this kind"),
    "a number for an id": (Bytes(http(call(id=5))), "is not one of this kind"),
    "a call of no function": (Bytes(http(call(function=7))), "is not one of this kind"),
    "a header without end": (Bytes(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 9000), "does not answer in"),
    "headers without end": (Bytes(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 99), "does not answer in"),
    "a line without end": (Bytes(http(b"data: "), b"y" * 65536), "an event without end"),
    "lines without end": (Bytes(http(), b"data: yyyy\n" * 5000), "an event without end"),
}
# The answer is there; what is wrong comes after it.
COMPLETE = {
    "the connection stays open": Bytes(http(delta("one", "stop") + DONE), then=Then.HANG),
    "signs of life follow": Bytes(http(delta("one", "stop") + DONE), over=b": here\n\n" * 99),
    "nothing says that it is over": Bytes(http(delta("one", "stop")), then=Then.HANG),
    "the last chunk is missing": Bytes(
        CHUNKED + b"%x\r\n%b\r\n" % (len(delta("one", "stop")), delta("one", "stop"))
    ),
    "it is cut in its price": Bytes(http(delta("one", "stop") + b'data: {"choices":[],"usa')),
    "it is cut in the word for its end": Bytes(http(delta("one", "stop") + b"data: [DO")),
    "garbage follows": Bytes(http(delta("one", "stop") + DONE + b"data: {no\n\n")),
    "its price is nonsense": Bytes(
        http(delta("one", "stop") + event({"usage": {"prompt_tokens": "x"}}) + DONE)
    ),
}


async def check(place: Place, answer: Bytes, sentence: str) -> None:
    place.model.answer = answer
    _, end = await place.turn()
    assert end.stop_reason == wire.STOP_REASON_ERROR
    assert end.error.startswith("bad: ")
    assert sentence in end.error
    assert len(end.error) < 1000
    assert await place.kept() == [("user", "hello")]
    assert place.model.asked == 1
    assert peak_mb(place.child.pid) < PEAK_MB
    await place.goes_on()


@pytest.mark.req("faults.model.told")
@pytest.mark.parametrize("name", CUTS)
async def test_a_connection_that_is_cut_ends_the_turn_and_nothing_else(
    place: Place, name: str
) -> None:
    await check(place, *CUTS[name])


@pytest.mark.req("faults.model.told")
@pytest.mark.parametrize("name", HANGS)
async def test_a_model_that_hangs_is_given_up_after_its_time(place: Place, name: str) -> None:
    await check(place, HANGS[name], "sent nothing for too long")


@pytest.mark.req("faults.model.told")
@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_told_in_a_sentence(place: Place, name: str) -> None:
    await check(place, *GARBAGE[name])


@pytest.mark.req("faults.model.complete")
@pytest.mark.parametrize("name", COMPLETE)
async def test_an_answer_that_is_complete_is_kept_whatever_comes_after_it(
    place: Place, name: str
) -> None:
    place.model.answer = COMPLETE[name]
    text, end = await place.turn()
    assert (text, end.error) == ("one", "")
    assert await place.kept() == [("user", "hello"), ("assistant", "one")]
    await place.goes_on()


@pytest.mark.slow
@pytest.mark.req("faults.model.told")
async def test_an_answer_without_end_is_cut_off(place: Place) -> None:
    await check(place, Bytes(http(), over=delta("y" * 1000) * 30), "the answer does not end")


@pytest.mark.req("faults.model.told")
async def test_a_model_server_that_is_stopped_is_waited_for_no_longer_than_its_time(
    home: Path,
) -> None:
    """SIGSTOP: the system still takes connections for it, and nobody answers on them."""
    with model_process() as (url, pid):
        home.mkdir(0o700)
        (home / "config.toml").write_text(CONFIG.format(url=url, retries=0))
        child = Child(home)
        try:
            await child.start()
            async with connect(home=home, reconnect_timeout=0) as client:
                os.kill(pid, signal.SIGSTOP)
                try:
                    place = Place(home, BadModel(), child, client)
                    _, end = await place.turn("!say never")
                finally:
                    os.kill(pid, signal.SIGCONT)
                assert "sent nothing for too long" in end.error
                assert (await client.send("crab", "!say here again")).content == "here again"
        finally:
            await child.kill()


@pytest.mark.req("model.retry.stream")
async def test_what_may_pass_is_tried_again_while_nobody_has_seen_a_word(place: Place) -> None:
    (place.home / "config.toml").write_text(CONFIG.format(url=place.model.url, retries=2))
    await place.client.reload()
    place.model.answer = Bytes()
    _, end = await place.turn()
    assert "closed the connection" in end.error
    assert place.model.asked == 3
    place.model.answer = Bytes(http(delta("one ")))
    text, end = await place.turn("again")
    assert (text, place.model.asked) == ("one ", 4)
    assert await place.kept() == [("user", "hello"), ("user", "again")]
    await place.goes_on()
