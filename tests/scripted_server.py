"""A server whose streams do what a request's content says, and which records how they ended.

Content is a verb and a number: `count 5` sends five chunks and the end, `forever` one chunk and
then nothing, `flood 1000000` chunks without a pause, `fail 404` one chunk and then an error.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

from crabtalk.protocol import FrameDecoder, NotFoundError, Server, encode_frame, wire
from crabtalk.transport import Listener, ListenOptions, TransportLimits, listen_unix


class ScriptedServer(Server):
    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []  # "content: completed" or "content: cancelled"
        self.changed = asyncio.Condition()
        self.release = asyncio.Event()

    async def hello(self, request: wire.HelloMsg) -> wire.WelcomeMsg:
        return wire.WelcomeMsg(protocol_version=1, server_version="scripted", features=["f"])

    async def send(self, request: wire.SendMsg) -> wire.SendResponse:
        """Answers when `release` is set: a single-answer request that takes its time."""
        async with self.record_outcome(f"send {request.content}"):
            await self.release.wait()
        return wire.SendResponse(agent=request.agent, content=request.content)

    async def extension(self, request: bytes) -> bytes:
        """Returns as many zero bytes as the request says."""
        return bytes(int(request))

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        async with self.record_outcome(request.content):
            yield wire.StreamEvent(start=wire.StreamStart(agent=request.agent))
            verb, _, number = request.content.partition(" ")
            if verb in ("count", "flood"):
                for n in range(int(number)):
                    yield wire.StreamEvent(chunk=wire.StreamChunk(content=str(n)))
            elif verb == "fail":
                yield wire.StreamEvent(chunk=wire.StreamChunk(content="so far"))
                raise NotFoundError(f"no such thing as {number}")
            elif verb == "huge":
                yield wire.StreamEvent(chunk=wire.StreamChunk(content="x" * int(number)))
            elif verb == "forever":
                await asyncio.Event().wait()
            yield wire.StreamEvent(end=wire.StreamEnd(agent=request.agent))

    async def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        async with self.record_outcome("subscribe_events"):
            yield wire.AgentEventMsg(agent=request.agent, sender=request.sender)
            await asyncio.Event().wait()

    @asynccontextmanager
    async def record_outcome(self, name: str) -> AsyncIterator[None]:
        await self.record_event(self.started, name)
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            await self.record_event(self.ended, f"{name}: cancelled")
            raise
        else:
            await self.record_event(self.ended, f"{name}: completed")

    async def record_event(self, events: list[str], event: str) -> None:
        events.append(event)
        async with self.changed:
            self.changed.notify_all()

    async def until_started(self, name: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: name in self.started)

    async def until_ended(self, outcome: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: outcome in self.ended)


@asynccontextmanager
async def open_listener(
    server: Server,
    path: Path,
    *,
    limits: TransportLimits | None = None,
    options: ListenOptions | None = None,
) -> AsyncIterator[Listener]:
    """A Listener on a Unix socket at `path`."""
    listener = Listener(server, limits)
    listener.open(listen_unix(path), options or ListenOptions("unix"))
    try:
        yield listener
    finally:
        await listener.close()


class RawPeer:
    """A client that only deals in bytes and frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._ready: list[wire.ServerMessage] = []

    @classmethod
    async def connect_unix(cls, path: Path) -> "RawPeer":
        return cls(*await asyncio.open_unix_connection(path))

    @classmethod
    async def connect_tcp(cls, port: int, host: str = "127.0.0.1") -> "RawPeer":
        return cls(*await asyncio.open_connection(host, port))

    @property
    def transport(self) -> asyncio.Transport:
        return cast("asyncio.Transport", self.writer.transport)

    def send(self, *messages: wire.ClientMessage) -> None:
        self.writer.write(b"".join(encode_frame(message) for message in messages))

    async def read(self) -> wire.ServerMessage | None:
        """The next message, or None at the end of the stream."""
        while not self._ready:
            data = await self.reader.read(65536)
            if not data:
                return None
            self._ready += [
                wire.ServerMessage.FromString(bytes(frame)) for frame in self._decoder.feed(data)
            ]
        return self._ready.pop(0)

    async def expect(self) -> wire.ServerMessage:
        message = await self.read()
        assert message is not None, "the connection was closed"
        return message

    async def expect_error(self, code: int) -> str:
        message = await self.expect()
        assert message.error.code == code, message
        return message.error.message

    async def expect_close(self) -> None:
        assert await self.read() is None

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):  # closing with unread input may fail
            await self.writer.wait_closed()


def make_ping() -> wire.ClientMessage:
    return wire.ClientMessage(ping=wire.Ping())


def make_stream(content: str, agent: str = "crab") -> wire.ClientMessage:
    return wire.ClientMessage(stream=wire.StreamMsg(agent=agent, content=content))
