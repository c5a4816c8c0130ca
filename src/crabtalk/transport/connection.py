"""Connection: the server's end. Requests are read, dispatched one at a time, answered in order.

An idle connection costs no task. A request that streams is cancelled when its client goes away;
any other is carried out to its end, because the client that asked for it may be gone on purpose.
"""

import asyncio
import hmac
import logging
import select
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from itertools import chain
from typing import TYPE_CHECKING, cast

from google.protobuf.message import DecodeError

from crabtalk.protocol import (
    LARGE_FRAME,
    MAX_FRAME,
    ROUTES,
    BadRequestError,
    ConnectionClosedError,
    FrameDecoder,
    FrameTooLargeError,
    Reply,
    RequestError,
    Shape,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    encode_reply,
    error_message,
    read_parts,
    wire,
)

from .link import Link

if TYPE_CHECKING:
    from .listener import Door, Listener

log = logging.getLogger(__name__)

# A caller that has not shown its token may send a greeting, not a burden.
HELLO_FRAME = 4 * 1024
# Bytes of unanswered requests after which a connection is not read further.
PIPELINED_BYTES = 256 * 1024
# Answers given in a row before others get their turn: about a millisecond of pings.
ANSWERS_IN_A_ROW = 32
# How long a refused peer's input is swallowed, so that it can read why it was refused: closing a
# socket with input unread resets it, and a reset destroys the answer.
LINGER = 1.0
# How often a peer that is not being read is checked for having left.
LOOK_AFTER_PEER = 1.0
HAS_LEFT = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)

Frame = bytes | bytearray


class Connection(Link):
    """One client, from its first byte to the last answer due to it.

    It leaves its listener's books when the peer is gone *and* nothing is left to be carried out.
    """

    __slots__ = (
        "_deaf",
        "_door",
        "_due",
        "_ended",
        "_frames",
        "_greeted",
        "_held",
        "_last_data",
        "_listener",
        "_loop",
        "_patrol",
        "_pending",
        "_pending_bytes",
        "_piece",
        "_reading",
        "_shape",
        "_task",
        "_timer",
    )

    def __init__(
        self, listener: "Listener", door: "Door", refusal: RequestError | None = None
    ) -> None:
        self._greeted = door.token is None
        super().__init__(FrameDecoder(MAX_FRAME if self._greeted else HELLO_FRAME))
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._door = door
        # Requests not yet dispatched, in order; a refusal among them ends the connection.
        self._pending: deque[Frame | RequestError] = deque()
        self._pending_bytes = 0
        # What was read and not yet taken apart, once enough requests are pending.
        self._frames: Iterator[Frame] | None = None
        self._piece = 0
        self._held = 0  # our share of the listener's inbound bytes
        self._task: asyncio.Task[None] | None = None
        self._shape = Shape.ONE  # of the request in flight
        self._reading = True
        self._deaf = False  # what arrives is discarded
        self._ended = False  # the peer will send nothing more
        self._timer: asyncio.TimerHandle | None = None  # until hello, and again while lingering
        self._patrol: asyncio.TimerHandle | None = None  # while a frame, or reading, is halted
        self._last_data = 0.0
        # From the first moment, so that a TLS handshake uses up the time for the hello.
        self._due = self._loop.time() + listener.limits.hello_timeout
        if refusal is not None:
            self._pending.append(refusal)
            self._deaf = True

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The request in flight."""
        return self._task

    @property
    def halted(self) -> bool:
        """Enough is pending; the rest of what was read waits to be taken apart."""
        return self._frames is not None

    @property
    def busy(self) -> bool:
        return self._task is not None or bool(self._pending) or self.halted

    # ── From the transport ──────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._greeted and not self._deaf:
            self._timer = self._loop.call_at(self._due, self._hello_overdue)
        self._next()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._frames is None:
            self._piece = len(data)
            self._frames = self.decoder.feed(data)
        else:  # some transports hand over a last piece after they were paused
            self._piece += len(data)
            self._frames = chain(self._frames, self.decoder.feed(data))
        self._take_apart()
        self._account()
        if self._listener.inbound_bytes > self._listener.limits.inbound_bytes:
            self._turn_away(UnavailableError("too many unread requests are held; try again later"))
        self._last_data = self._loop.time()
        self._halt_if_full()
        if self._held and self._patrol is None:
            self._patrol = self._loop.call_later(LOOK_AFTER_PEER, self._look_after_peer)
        self._next()

    def eof_received(self) -> bool:
        """Keeps the transport open while answers are due, so that a half-closed peer gets them."""
        self._ended = True
        try:
            self.decoder.end()
        except ConnectionClosedError as error:
            log.debug("%s: %s", self._door.name, error)
        self._abandon_stream()
        # TLS has no half-close: its transport closes whatever is returned here.
        return self.busy and not self._door.tls

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._ended = True
        for timer in (self._timer, self._patrol):
            if timer is not None:
                timer.cancel()
        if self._frames is None:
            self.decoder = FrameDecoder()
        self._account()
        self._abandon_stream()
        self._forget_if_done()

    # ── Taking requests in ──────────────────────────────────────────────────────────────────

    def _take_apart(self) -> None:
        """Moves frames from what was read to what is pending, up to the bound."""
        frames = self._frames
        if frames is None:
            return
        try:
            while len(self._pending) < self._listener.limits.pipelined:
                frame = next(frames, None)
                if frame is None:
                    self._frames = None
                    return
                if not self._greeted and not self._admit(frame):
                    return
                self._pending.append(frame)
                self._pending_bytes += len(frame)
        except FrameTooLargeError as error:
            if self._greeted:
                self._turn_away(TooLargeError(f"{error}; the connection is closed"))
            else:
                self._turn_away(no_hello())

    def _halt_if_full(self) -> None:
        """Stops reading; unless what comes is discarded anyway, and the end of it is news."""
        if not self._deaf and (self.halted or self._pending_bytes >= PIPELINED_BYTES):
            self._read(False)

    def _admit(self, frame: Frame) -> bool:
        """The first frame from behind a door with a token must be a hello that shows it."""
        try:
            message = parse(frame)
        except DecodeError:
            message = wire.ClientMessage()
        if message.WhichOneof("msg") != "hello":
            self._turn_away(no_hello())
            return False
        shown = message.hello.token.encode()
        if not hmac.compare_digest(shown, (self._door.token or "").encode()):
            self._turn_away(UnauthorizedError("the token is wrong; read run/token again"))
            return False
        if (refusal := self._listener.welcome(self)) is not None:
            self._turn_away(refusal)
            return False
        self._greeted = True
        self.decoder.limit = MAX_FRAME
        if self._timer is not None:
            self._timer.cancel()
        return True

    def _hello_overdue(self) -> None:
        if not self._greeted and not self._deaf:
            self._turn_away(no_hello())

    def _turn_away(self, refusal: RequestError) -> None:
        """Hear nothing more; answer what came before, then the refusal, then close."""
        self._deaf = True
        self._frames = None
        self._pending.append(refusal)
        self.decoder = FrameDecoder()
        self._read(True)
        self._next()

    def _look_after_peer(self) -> None:
        """Something is held, or is not being read: is its owner still there, and does it go on?"""
        self._patrol = None
        if self.lost or (self._reading and not self._held):
            return
        if not self._reading:
            # Not being read, a peer that left is not noticed, and its stream would go on forever.
            if not self._ended and self._has_left():
                self._ended = True
                self._abandon_stream()
        elif (
            self.decoder.buffered
            and self._loop.time() - self._last_data > self._listener.limits.stall_timeout
        ):
            self._turn_away(BadRequestError("a frame was begun and not finished"))
            return
        self._patrol = self._loop.call_later(LOOK_AFTER_PEER, self._look_after_peer)

    def _has_left(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), HAS_LEFT)
        return bool(poll.poll(0))

    # ── Answering ───────────────────────────────────────────────────────────────────────────

    def _next(self) -> None:
        if self._task is None and self._pending and not self._loop.is_closed():
            self._task = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        """Answers what is pending, one request after the other.

        Ends when nothing is, or by the cancellation of a stream; then the rest gets a new task.
        """
        task = asyncio.current_task()
        in_a_row = 0
        try:
            while self._pending:
                await self._answer(self._pending.popleft())
                # A stream may end of itself in spite of its cancellation, which then is over.
                while task is not None and task.cancelling():
                    task.uncancel()
                if not self._pending:
                    self._take_apart()
                self._account()
                in_a_row += 1
                if in_a_row % ANSWERS_IN_A_ROW == 0:
                    await asyncio.sleep(0)
        except Exception:
            log.exception("a connection failed")
            self.abort()
        finally:
            self._task = None
            if not self._pending:
                self._take_apart()
            self._next()
            self._rest()

    async def _answer(self, item: Frame | RequestError) -> None:
        if isinstance(item, RequestError):
            self._refuse(item)
            return
        self._listener.requests += 1
        try:
            request = await self._request_in(item)
            self._pending_bytes -= len(item)
            answer = self._replies(request)
            del item, request  # the answer may take as long as a turn
            self._account()
            async with aclosing(answer) as replies:
                write = self.write_now if self._shape is Shape.ONE else self.write
                async for field, payload in replies:
                    if self._ended and self._shape is not Shape.ONE:
                        break
                    if write(encode_reply(field, payload)):
                        await self.breathe(self._listener.limits.stall_timeout)
        except FrameTooLargeError as error:
            sentence = f"the answer does not fit: {error}; ask for less of it at a time"
            self._say(TooLargeError(sentence))
        except asyncio.CancelledError:
            if self._listener.draining and not self._ended:
                self._say(shutting_down())
            raise
        except ConnectionClosedError as error:
            log.info("%s: %s", self._door.name, error)
        finally:
            self._shape = Shape.ONE
            self.flush()

    def _replies(self, message: wire.ClientMessage | RequestError) -> AsyncGenerator[Reply, None]:
        if isinstance(message, RequestError):
            return only(message)
        if self._listener.draining:
            return only(shutting_down())
        if (name := message.WhichOneof("msg")) is not None:
            self._shape = ROUTES[name].shape
        if self._ended and self._shape is not Shape.ONE and not message.stream.detach:
            return only(UnavailableError("the client left before its stream began"))
        return self._listener.server.answer(message)

    async def _request_in(self, frame: Frame) -> wire.ClientMessage | RequestError:
        try:
            return parse(frame) if len(frame) <= LARGE_FRAME else await self._read_parts(frame)
        except DecodeError:
            return BadRequestError("the frame is not a ClientMessage")
        except RequestError as error:  # too many parts, or such as cannot be counted
            return error

    async def _read_parts(self, frame: Frame) -> wire.ClientMessage:
        """Large frames take turns, a slice of one at a time: however many come at once, others are
        answered in between, and one that is soon read does not wait for all the others."""
        slices = read_parts(frame)
        while True:
            await self._listener.turn()
            try:
                next(slices)
            except StopIteration as done:
                return cast("wire.ClientMessage", done.value)

    def _say(self, error: RequestError) -> None:
        self.write_now(encode_reply("error", error_message(error)))

    def _rest(self) -> None:
        """Nothing is in flight: read on, or close when there is nobody to read from."""
        if self.busy:
            return
        self._account()
        self._read(True)
        if not self._deaf and not self.lost and (self._ended or self._listener.draining):
            self.transport.close()
            self._wait_for_reader(self._listener.limits.stall_timeout)
        self._forget_if_done()

    def _refuse(self, error: RequestError) -> None:
        self._listener.refused += 1
        self._say(error)
        self._forget_pending()
        if self.lost:
            return
        self.flush()
        self._read(True)
        if self._ended or not self.transport.can_write_eof():
            self.transport.close()
        else:
            with suppress(OSError):  # the peer may be gone by now
                self.transport.write_eof()
        self._wait_for_reader(LINGER)

    def _wait_for_reader(self, patience: float) -> None:
        """Nothing more will be written. A peer that stops reading what was is cut off."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(patience, self._give_up, patience, self.unread)

    def _give_up(self, patience: float, before: int) -> None:
        if self.lost:
            return
        if 0 < self.unread < before:
            self._wait_for_reader(patience)
        else:
            self.transport.abort()

    # ── Book-keeping ────────────────────────────────────────────────────────────────────────

    def _read(self, on: bool) -> None:
        if self._reading != on and not self.lost and not self.transport.is_closing():
            self._reading = on
            if on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _account(self) -> None:
        held = self.decoder.buffered + self._pending_bytes
        if self._frames is not None:
            held += self._piece
        self._listener.inbound_bytes += held - self._held
        self._held = held

    def _abandon_stream(self) -> None:
        """Once: a second cancellation would interrupt the clean-up after the first."""
        if self._task is not None and self._shape is not Shape.ONE and not self._task.cancelling():
            self._task.cancel()

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._frames = None
        self.decoder = FrameDecoder()
        self._account()

    def _forget_if_done(self) -> None:
        if self.lost and not self.busy:
            self._forget_pending()
            self._listener.forget(self)

    # ── From the listener ───────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """The daemon is stopping: finish what has an end, and close."""
        if self._shape is Shape.FEED and self._task is not None:
            self._task.cancel()
        elif not self.busy and not self.lost and not self._deaf:
            self.transport.close()

    async def stop(self) -> None:
        """Cancels what is left, and closes. A request that resists is left after a second."""
        self._forget_pending()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1)
            # Cancelled before its first step, it had no chance to say so itself.
            self._task = None
        if not self.lost:
            self.transport.close()

    def abort(self) -> None:
        if not self.lost:
            self.transport.abort()


def parse(frame: Frame) -> wire.ClientMessage:
    # Protobuf reads a bytearray as it reads bytes, without a copy; its stubs do not say so.
    return wire.ClientMessage.FromString(cast("bytes", frame))


async def only(error: RequestError) -> AsyncGenerator[Reply, None]:
    yield "error", error_message(error)


def no_hello() -> UnauthorizedError:
    return UnauthorizedError(
        "this address wants a hello with the token from run/token as the first frame"
    )


def shutting_down() -> UnavailableError:
    return UnavailableError("the daemon is shutting down; try again when it is back")
