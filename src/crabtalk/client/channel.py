"""Channel: the client's end of one connection. Send a request, then receive what answers it."""

import asyncio
from collections import deque
from typing import cast

from google.protobuf.message import DecodeError

from crabtalk.protocol import (
    ConnectionClosedError,
    FrameDecoder,
    FrameTooLargeError,
    encode_frame,
    wire,
)
from crabtalk.transport import Link

from .errors import UnexpectedReplyError

# Frames read ahead of the consumer: enough to keep a fast stream flowing, and the point where
# the daemon is made to wait for us.
READ_AHEAD = 4096


class Channel(Link):
    """One connection, one request on it at a time. `usable` says whether it can take another."""

    __slots__ = ("_error", "_frames", "_reading", "_waiter")

    def __init__(self) -> None:
        super().__init__(FrameDecoder())
        self._frames: deque[bytes | bytearray] = deque()
        self._error: Exception | None = None
        self._reading = True
        self._waiter: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        return not self.lost and self._error is None and not self._frames

    def send(self, request: wire.ClientMessage) -> None:
        """Writes a request. Raises FrameTooLargeError before anything is sent."""
        frame = encode_frame(request)
        if self._error is not None:
            raise self._error
        self.write(frame)
        self.flush()

    async def receive(self) -> wire.ServerMessage:
        """The next message. Raises ConnectionClosedError when none can come any more.

        Waits without a deadline: how long an answer may take is the caller's to say. Cancelled,
        it has consumed nothing.
        """
        while not self._frames:
            if self._error is not None:
                raise self._error
            if not self._reading:
                self._read(True)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        frame = self._frames.popleft()
        try:
            # Protobuf reads a bytearray as it reads bytes; its stubs do not say so.
            return wire.ServerMessage.FromString(cast("bytes", frame))
        except DecodeError as error:
            raise UnexpectedReplyError(f"a frame is not a ServerMessage: {error}") from None

    def close(self) -> None:
        if not self.lost:
            self.transport.close()

    # ── From the transport ──────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.extend(self.decoder.feed(data))
        except FrameTooLargeError as error:
            self._fail(error)
            self.transport.abort()
        if len(self._frames) > READ_AHEAD:
            self._read(False)
        self._wake()

    def eof_received(self) -> None:
        try:
            self.decoder.end()
        except ConnectionClosedError as error:
            self._fail(error)
        self._fail(ConnectionClosedError("the daemon closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._fail(ConnectionClosedError("the connection to the daemon was lost"))

    def _fail(self, error: Exception) -> None:
        """The first reason stays: what follows it is only its consequence."""
        if self._error is None:
            self._error = error
        self._wake()

    def _read(self, on: bool) -> None:
        if self._reading != on and not self.lost:
            self._reading = on
            if on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None
