"""Channel: the client's end of one connection. Sends a request, then receives its answer."""

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

# Frames and bytes read ahead of the consumer: enough to keep a fast stream flowing. Above them the
# client stops reading, so the daemon has to wait.
MAX_READ_AHEAD_FRAMES = 4096
MAX_READ_AHEAD_BYTES = 1024 * 1024
# A connection that was idle for this long is checked before it is used again.
IDLE_CHECK_AFTER = 0.05


class Channel(FramedConnection):
    """One connection, with one request at a time. `is_usable` says if it can take another."""

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
        self._read_ahead_bytes = 0  # bytes that arrived since the queue was last empty
        self._error: Exception | None = None
        self._is_reading = True
        self._waiter: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self.features: frozenset[str] | None = None  # the daemon's features, once it was asked
        self._deadline = math.inf  # when the pending answer is overdue
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        return not self.is_lost and self._error is None and not self._frames

    def mark_idle(self) -> None:
        """Record that no request uses the channel from now on."""
        self.idle_since = asyncio.get_running_loop().time()

    def check_alive(self) -> bool:
        """Whether it is usable, and the daemon has not closed it since the loop last looked."""
        if not self.is_usable or self.transport.is_closing():
            return False
        if asyncio.get_running_loop().time() - self.idle_since < IDLE_CHECK_AFTER:
            return True
        sock = self.transport.get_extra_info("socket")
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)  # no answer is due, so readable means end of stream

    def send(self, request: wire.ClientMessage) -> None:
        """Send a request. Raises FrameTooLargeError before sending anything."""
        frame = encode_frame(request)
        if self._error is not None:
            raise self._error
        self.write_now(frame)

    async def receive(self, timeout: float | None = None) -> wire.ServerMessage:  # noqa: ASYNC109
        """Return the next message. Raises ConnectionClosedError when none can arrive any more.

        Raises TimeoutError after `timeout` seconds; None means no limit, for answers that may take
        any time. Cancelled, it has consumed nothing.
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
        """Return the next message if it has arrived. Saves fast streams a coroutine per message."""
        if not self._frames:
            return None
        try:
            # FromString accepts a bytearray as it accepts bytes; the stubs do not say so.
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
        """Keep the first error: later ones are only its consequences."""
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
        """Set the deadline. One timer serves many requests: it compares times when it fires."""
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
