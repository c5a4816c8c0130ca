"""A model server that answers every request with fixed bytes.

For answers that the scripted server of `tests.model_server` cannot give, because they are not valid
HTTP, streams or JSON.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, repeat
from typing import Any

import msgspec

STREAM = "text/event-stream"
encode = msgspec.json.encode


class ConnectionEnd(Enum):
    """What the server does after the last byte."""

    CLOSE = "closes the connection"
    HANG = "says nothing more"


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """The exact bytes of an answer."""

    data: bytes = b""
    repeated: bytes = b""  # sent after `data`, again and again
    ending: ConnectionEnd = ConnectionEnd.CLOSE

    def pieces(self) -> Iterator[bytes]:
        return chain([self.data], repeat(self.repeated) if self.repeated else ())


def make_http_response(
    body: bytes = b"", kind: str = STREAM, status: str = "200 OK", **headers: str
) -> bytes:
    """A response that ends when its connection is closed."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def make_sse_event(document: Any) -> bytes:
    return b"data: %b\n\n" % encode(document)


def make_text_event(text: Any, finish: str | None = None) -> bytes:
    return make_sse_event({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})


DONE = b"data: [DONE]\n\n"
GOOD = RawAnswer(make_http_response(make_text_event("well", "stop") + DONE))


@dataclass(eq=False)
class BadModelServer:
    """Answers each request with `answer`. `request_count` counts requests, `written` bytes."""

    url: str = ""
    answer: RawAnswer = GOOD
    request_count: int = 0
    written: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with suppress(ConnectionError):
                await self._answer(reader, writer)
        finally:
            self.tasks.discard(task)
            writer.transport.abort() if self.answer.ending is ConnectionEnd.HANG else writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        await reader.readexactly(int(length or b"0"))
        answer = self.answer
        self.request_count += 1
        for piece in answer.pieces():
            writer.write(piece)
            self.written += len(piece)
            await writer.drain()
        if answer.ending is ConnectionEnd.HANG:
            await reader.read()  # until the client has closed the connection


@asynccontextmanager
async def run_bad_model() -> AsyncIterator[BadModelServer]:
    model = BadModelServer()
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield model
    finally:
        server.close()
        for task in model.tasks:
            task.cancel()
        await asyncio.gather(*model.tasks, return_exceptions=True)
        await server.wait_closed()
