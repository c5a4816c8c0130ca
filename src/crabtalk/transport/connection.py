"""Connection: the server's end. Reads requests, dispatches them and writes their answers.

Short requests are answered one after the other, in order. Turns, feeds and whatever else may take
long run beside them, each in a task of its own. An idle connection costs no task. A request that
streams is cancelled when its client goes away; any other is carried out to its end, because the
client that asked for it may be gone on purpose.
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
    Route,
    Shape,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    encode_reply,
    error_message,
    read_parts,
    wire,
)

from .link import Link
from .side_requests import SideRequest, SideRequests, find_conversation

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
        "_has_refused",
        "_held",
        "_last_data",
        "_listener",
        "_loop",
        "_patrol",
        "_pending",
        "_pending_bytes",
        "_piece",
        "_reading",
        "_sides",
        "_task",
        "_timer",
        "_waiting_bytes",
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
        self._task: asyncio.Task[None] | None = None  # answers what is pending
        self._sides: SideRequests | None = None  # None while there are none
        self._waiting_bytes = 0  # of side requests that have not begun
        self._has_refused = False  # the last frame was written
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
    def tasks(self) -> list[asyncio.Task[None]]:
        """One for each request that runs beside the others, and one for the line of the others."""
        line = [] if self._task is None else [self._task]
        return line if self._sides is None else [*line, *(side.task for side in self._sides)]

    @property
    def halted(self) -> bool:
        """Enough is pending; the rest of what was read waits to be taken apart."""
        return self._frames is not None

    @property
    def busy(self) -> bool:
        return self._is_line_busy or self._sides is not None

    @property
    def _is_line_busy(self) -> bool:
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
        self._abandon_streams()
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
        self._abandon_streams()
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
                self._abandon_streams()
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
        """Answers what is pending, one request after the other, and ends when nothing is.

        At a request that runs beside the others, this task goes on with that one alone, and
        whatever is pending behind it gets a new task. So a turn costs no task of its own.
        """
        task = cast("asyncio.Task[None]", asyncio.current_task())
        in_a_row = 0
        try:
            while self._pending:
                await self._answer(self._pending.popleft(), task)
                if self._task is not task:
                    return
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
            if self._task is task:
                self._leave_line()
            self._rest()

    def _leave_line(self) -> None:
        """The current task answers nothing more of what is pending; a new one does."""
        self._task = None
        if not self._pending:
            self._take_apart()
        self._next()

    async def _answer(self, item: Frame | RequestError, task: asyncio.Task[None]) -> None:
        if isinstance(item, RequestError):
            self._refuse(item)
            return
        self._listener.requests += 1
        request = await self._request_in(item)
        size = len(item)
        self._pending_bytes -= size
        del item  # the answer may take as long as a turn
        self._account()
        if isinstance(request, RequestError):
            await self._write_answer(only(request), None)
            return
        request_id = request.request_id if request.HasField("request_id") else None
        name = request.WhichOneof("msg")
        route = None if name is None else ROUTES[name]
        if route is None or not route.runs_beside:
            answer = self._find_answer(request, Shape.ONE)
            del request
            await self._write_answer(answer, request_id)
            return
        limit = self._listener.limits.in_flight
        if self._sides is not None and len(self._sides) >= limit:
            await self._write_answer(only(too_many(limit)), request_id)
            return
        await self._answer_beside(request, route, request_id, size, task)

    async def _answer_beside(
        self,
        request: wire.ClientMessage,
        route: Route,
        request_id: int | None,
        size: int,
        task: asyncio.Task[None],
    ) -> None:
        """Leaves the line to the requests behind this one, and answers it beside them."""
        sides = self._sides
        if sides is None:
            sides = self._sides = SideRequests()
        conversation = find_conversation(route, getattr(request, route.request))
        side, before = sides.add(task, route.shape, conversation)
        try:
            self._leave_line()
            if not self._is_line_busy:
                self._read(True)
            if before is not None:
                await self._wait_to_begin(before, size)
            side.has_begun = True
            answer = self._find_answer(request, route.shape)
            del request
            await self._write_answer(answer, request_id, side)
        finally:
            sides.remove(side)
            if not sides and self._sides is sides:
                self._sides = None

    async def _wait_to_begin(self, before: SideRequest, size: int) -> None:
        """Turns of one conversation begin in the order they came. Until then the request counts as
        one that nobody has worked on."""
        self._waiting_bytes += size
        self._account()
        try:
            await before.wait_for_answer()
        finally:
            self._waiting_bytes -= size
            self._account()

    async def _write_answer(
        self,
        answer: AsyncGenerator[Reply, None],
        request_id: int | None,
        side: SideRequest | None = None,
    ) -> None:
        """Writes all of an answer, frame by frame; frames of other answers may come in between."""
        is_stream = side is not None and side.shape is not Shape.ONE
        write = self.write if is_stream else self.write_now
        deadline = self._listener.limits.stall_timeout
        try:
            async with aclosing(answer) as replies:
                async for field, payload in replies:
                    if side is not None and not side.has_answered:
                        side.note_answer()
                    frame = encode_reply(field, payload, request_id)
                    if self._resumed is not None:  # another request filled the transport
                        await self.breathe(deadline)
                    if self._has_refused or (self._ended and is_stream):
                        break
                    if write(frame):
                        await self.breathe(deadline)
        except FrameTooLargeError as error:
            sentence = f"the answer does not fit: {error}; ask for less of it at a time"
            self._say(TooLargeError(sentence), request_id)
        except asyncio.CancelledError:
            if self._listener.draining and not self._ended:
                self._say(shutting_down(), request_id)
            raise
        except ConnectionClosedError as error:
            log.info("%s: %s", self._door.name, error)
        finally:
            self.flush()

    def _find_answer(
        self, message: wire.ClientMessage, shape: Shape
    ) -> AsyncGenerator[Reply, None]:
        if self._listener.draining:
            return only(shutting_down())
        has_left = self._ended or self._has_refused
        if has_left and shape is not Shape.ONE and not message.stream.detach:
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

    def _say(self, error: RequestError, request_id: int | None = None) -> None:
        if not self._has_refused:
            self.write_now(encode_reply("error", error_message(error), request_id))

    def _rest(self) -> None:
        """Nothing is pending: read on. Nothing is in flight either: close if nobody is there."""
        if self._is_line_busy:
            return
        self._account()
        self._read(True)
        if self._sides is not None:
            return
        if not self._deaf and not self.lost and (self._ended or self._listener.draining):
            self.transport.close()
            self._wait_for_reader(self._listener.limits.stall_timeout)
        self._forget_if_done()

    def _refuse(self, error: RequestError) -> None:
        """Writes the last frame and closes. Requests that run end as if the client had left."""
        self._listener.refused += 1
        self._say(error)
        self._has_refused = True
        self._abandon_streams()
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
        held = self.decoder.buffered + self._pending_bytes + self._waiting_bytes
        if self._frames is not None:
            held += self._piece
        self._listener.inbound_bytes += held - self._held
        self._held = held

    def _abandon_streams(self) -> None:
        """Cancels streams and feeds, once: a second time would interrupt their clean-up.

        Those that have not begun find out by themselves, because a detached one begins all the
        same.
        """
        for side in self._sides or ():
            if side.has_begun and side.shape is not Shape.ONE and not side.task.cancelling():
                side.task.cancel()

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
        for side in self._sides or ():
            if side.shape is Shape.FEED:
                side.task.cancel()
        if not self.busy and not self.lost and not self._deaf:
            self.transport.close()

    async def stop(self) -> None:
        """Cancels what is left, and closes. A request that resists is left after a second."""
        self._forget_pending()
        if tasks := self.tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
            # Cancelled before its first step, a task had no chance to say so itself.
            self._task = None
            self._sides = None
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


def too_many(limit: int) -> TooManyRequestsError:
    return TooManyRequestsError(
        f"{limit} turns and feeds run on this connection already; wait for one of them to end, or "
        "open another connection"
    )
