"""Channel: the client's end of one connection. Send a request, then receive what answers it."""

import asyncio
import math
import select
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
from crabtalk.transport import FramedConnection

from .errors import UnexpectedReplyError

# Frames, and bytes, read ahead of the consumer: enough to keep a fast stream flowing, and the
# point where the daemon is made to wait for us.
MAX_READ_AHEAD_FRAMES = 4096
MAX_READ_AHEAD_BYTES = 1024 * 1024
# A connection that nobody used for this long is looked at before it is used again.
IDLE_CHECK_AFTER = 0.05


class Channel(FramedConnection):
    """One connection, one request on it at a time. `usable` says whether it can take another."""

    __slots__ = (
        "_deadline",
        "_deadline_timer",
        "_error",
        "_frames",
        "_is_reading",
        "_read_ahead_bytes",
        "_waiter",
        "features",
        "idle_since",
    )

    def __init__(self) -> None:
        super().__init__(FrameDecoder())
        self._frames: deque[bytes | bytearray] = deque()
        self._read_ahead_bytes = 0  # bytes since there was nothing to read
        self._error: Exception | None = None
        self._is_reading = True
        self._waiter: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self.features: frozenset[str] | None = None  # of the daemon, where it was asked
        self._deadline = math.inf  # when the answer waited for is overdue
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        return not self.is_lost and self._error is None and not self._frames

    def mark_idle(self) -> None:
        """Nobody uses it from now on."""
        self.idle_since = asyncio.get_running_loop().time()

    def check_alive(self) -> bool:
        """Usable, and not closed by the daemon while the loop looked elsewhere."""
        if not self.is_usable or self.transport.is_closing():
            return False
        if asyncio.get_running_loop().time() - self.idle_since < IDLE_CHECK_AFTER:
            return True
        sock = self.transport.get_extra_info("socket")
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)  # nothing is due: what can be read is the end

    def send(self, request: wire.ClientMessage) -> None:
        """Writes a request. Raises FrameTooLargeError before anything is sent."""
        frame = encode_frame(request)
        if self._error is not None:
            raise self._error
        self.write_now(frame)

    async def receive(self, timeout: float | None = None) -> wire.ServerMessage:  # noqa: ASYNC109
        """The next message. Raises ConnectionClosedError when none can come any more.

        Raises TimeoutError past `timeout` seconds; None is for answers that take as long as they
        take. Cancelled, it has consumed nothing.
        """
        if not self._frames:
            self._set_deadline(timeout)
        while (reply := self.receive_nowait()) is None:
            if self._error is not None:
                raise self._error
            self._set_reading(True)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return reply

    def receive_nowait(self) -> wire.ServerMessage | None:
        """The next message if it is here already. Saves a fast stream a coroutine each."""
        if not self._frames:
            return None
        try:
            # Protobuf reads a bytearray as it reads bytes; its stubs do not say so.
            return wire.ServerMessage.FromString(cast("bytes", self._frames.popleft()))
        except DecodeError as error:
            raise UnexpectedReplyError(f"a frame is not a ServerMessage: {error}") from None

    def close(self) -> None:
        if not self.is_lost:
            self.transport.close()

    # ── From the transport ──────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        self._read_ahead_bytes = (
            len(data) if not self._frames else self._read_ahead_bytes + len(data)
        )
        try:
            self._frames.extend(self.decoder.feed(data))
        except FrameTooLargeError as error:
            self._fail(error)
            self.transport.abort()
        if self._frames and (
            len(self._frames) > MAX_READ_AHEAD_FRAMES
            or self._read_ahead_bytes > MAX_READ_AHEAD_BYTES
        ):
            self._set_reading(False)
        self._wake_waiter()

    def eof_received(self) -> None:
        try:
            self.decoder.feed_eof()
        except ConnectionClosedError as error:
            self._fail(error)
        self._fail(ConnectionClosedError("the daemon closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._fail(ConnectionClosedError("the connection to the daemon was lost"))

    def _fail(self, error: Exception) -> None:
        """The first reason stays: what follows it is only its consequence."""
        if self._error is None:
            self._error = error
        self._wake_waiter()

    def _set_reading(self, on: bool) -> None:
        if self._is_reading != on and not self.is_lost:
            self._is_reading = on
            if on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _set_deadline(self, timeout: float | None) -> None:
        """Notes a deadline. One timer serves many requests: it looks when it fires, not before."""
        if timeout is None:
            self._deadline = math.inf
            return
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + timeout
        if self._deadline_timer is not None and self._deadline_timer.when() > self._deadline:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._deadline_timer is None:
            self._deadline_timer = loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._deadline_timer = None
        if self._waiter is None or self._waiter.done():
            return
        loop = asyncio.get_running_loop()
        if self._deadline == math.inf:
            return
        if loop.time() < self._deadline:
            self._deadline_timer = loop.call_at(self._deadline, self._check_deadline)
        else:
            self._waiter.set_exception(TimeoutError("the daemon did not answer in time"))

    def _wake_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None
