"""Connection: the server's end of a connection. Reads requests and writes their answers.

Short requests are answered one after the other, in order. Turns, feeds and other requests that may
take long run concurrently, each in its own task. An idle connection has no task. A streaming
request is cancelled when its client disconnects; any other is completed, because the client may
have disconnected on purpose.
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
    ReplyField,
    ReplyShape,
    RequestError,
    Route,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    encode_reply,
    parse_request_in_slices,
    to_error_message,
    wire,
)

from .concurrent_requests import ConcurrentRequest, ConcurrentRequests, get_conversation_key
from .framed_connection import FramedConnection

if TYPE_CHECKING:
    from .listener import Listener, ListenOptions

log = logging.getLogger(__name__)

# The limit before authentication, so that a stranger cannot send large frames.
MAX_HELLO_FRAME = 4 * 1024
# Above this many bytes of unanswered requests, no more is read from the connection.
MAX_PIPELINED_BYTES = 256 * 1024
# Answers given in a row before other tasks run: about a millisecond of pings.
ANSWERS_IN_A_ROW = 32
# How long input from a refused peer is discarded, so that it can read the refusal: closing a
# socket with unread input resets it, and a reset destroys the answer.
LINGER_SECONDS = 1.0
# How often a connection that is not being read is checked for a peer that left.
PEER_CHECK_INTERVAL = 1.0
HANGUP_EVENTS = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)

Frame = bytes | bytearray


class Connection(FramedConnection):
    """The connection of one client, from its first byte to the last answer it is due.

    The listener forgets it when the peer is gone *and* no request is left to complete.
    """

    __slots__ = (
        "_concurrent_requests",
        "_counted_bytes",
        "_has_sent_refusal",
        "_hello_deadline",
        "_ignores_input",
        "_is_authenticated",
        "_is_input_ended",
        "_is_reading",
        "_last_data_time",
        "_listener",
        "_loop",
        "_options",
        "_peer_check_timer",
        "_pending",
        "_pending_bytes",
        "_queue_task",
        "_timer",
        "_undecoded_bytes",
        "_undecoded_frames",
        "_waiting_bytes",
    )

    def __init__(
        self, listener: "Listener", options: "ListenOptions", refusal: RequestError | None = None
    ) -> None:
        self._is_authenticated = options.token is None
        super().__init__(FrameDecoder(MAX_FRAME if self._is_authenticated else MAX_HELLO_FRAME))
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._options = options
        # Requests not yet dispatched, in order. A RequestError among them ends the connection.
        self._pending: deque[Frame | RequestError] = deque()
        self._pending_bytes = 0
        # Input that was read but not yet decoded, because enough requests are pending.
        self._undecoded_frames: Iterator[Frame] | None = None
        self._undecoded_bytes = 0
        self._counted_bytes = 0  # our share of the listener's inbound bytes
        self._queue_task: asyncio.Task[None] | None = None  # answers the pending requests
        self._concurrent_requests: ConcurrentRequests | None = None  # None while there are none
        self._waiting_bytes = 0  # of concurrent requests that have not begun
        self._has_sent_refusal = False  # the last frame was written
        self._is_reading = True
        self._ignores_input = False  # input is discarded
        self._is_input_ended = False  # the peer will send nothing more
        self._timer: asyncio.TimerHandle | None = None  # until the hello, and again while lingering
        # Runs while a frame is incomplete or reading is paused.
        self._peer_check_timer: asyncio.TimerHandle | None = None
        self._last_data_time = 0.0
        # Set at once, so that a TLS handshake counts towards the time for the hello.
        self._hello_deadline = self._loop.time() + listener.limits.hello_timeout
        if refusal is not None:
            self._pending.append(refusal)
            self._ignores_input = True

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of all concurrent requests, and the task that answers the other requests."""
        tasks = [] if self._queue_task is None else [self._queue_task]
        return (
            tasks
            if self._concurrent_requests is None
            else [*tasks, *(request.task for request in self._concurrent_requests)]
        )

    @property
    def is_backlogged(self) -> bool:
        """Enough requests are pending; the rest of the input waits to be decoded."""
        return self._undecoded_frames is not None

    @property
    def is_busy(self) -> bool:
        return self._is_queue_busy or self._concurrent_requests is not None

    @property
    def _is_queue_busy(self) -> bool:
        return self._queue_task is not None or bool(self._pending) or self.is_backlogged

    # ── From the transport ──────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._is_authenticated and not self._ignores_input:
            self._timer = self._loop.call_at(self._hello_deadline, self._on_hello_timeout)
        self._start_queue_task()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        if self._undecoded_frames is None:
            self._undecoded_bytes = len(data)
            self._undecoded_frames = self.decoder.feed(data)
        else:  # some transports deliver one more chunk after they were paused
            self._undecoded_bytes += len(data)
            self._undecoded_frames = chain(self._undecoded_frames, self.decoder.feed(data))
        self._decode_frames()
        self._update_inbound_bytes()
        if self._listener.inbound_bytes > self._listener.limits.inbound_bytes:
            self._queue_refusal(
                UnavailableError("too many unread requests are held; try again later")
            )
        self._last_data_time = self._loop.time()
        self._pause_if_full()
        if self._counted_bytes and self._peer_check_timer is None:
            self._peer_check_timer = self._loop.call_later(PEER_CHECK_INTERVAL, self._check_peer)
        self._start_queue_task()

    def eof_received(self) -> bool:
        """Keep the transport open while answers are due, so that a half-closed peer gets them."""
        self._is_input_ended = True
        try:
            self.decoder.feed_eof()
        except ConnectionClosedError as error:
            log.debug("%s: %s", self._options.name, error)
        self._cancel_streams()
        # TLS has no half-close: its transport closes whatever this returns.
        return self.is_busy and not self._options.tls

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_input_ended = True
        for timer in (self._timer, self._peer_check_timer):
            if timer is not None:
                timer.cancel()
        if self._undecoded_frames is None:
            self.decoder = FrameDecoder()
        self._update_inbound_bytes()
        self._cancel_streams()
        self._unregister_if_done()

    # ── Receiving requests ──────────────────────────────────────────────────────────────────

    def _decode_frames(self) -> None:
        """Move decoded frames to the pending requests, up to the limit."""
        frames = self._undecoded_frames
        if frames is None:
            return
        try:
            while len(self._pending) < self._listener.limits.pipelined:
                frame = next(frames, None)
                if frame is None:
                    self._undecoded_frames = None
                    return
                if not self._is_authenticated and not self._authenticate(frame):
                    return
                self._pending.append(frame)
                self._pending_bytes += len(frame)
        except FrameTooLargeError as error:
            if self._is_authenticated:
                self._queue_refusal(TooLargeError(f"{error}; the connection is closed"))
            else:
                self._queue_refusal(make_hello_required_error())

    def _pause_if_full(self) -> None:
        """Stop reading, unless the input is discarded anyway: then its end must be noticed."""
        if not self._ignores_input and (
            self.is_backlogged or self._pending_bytes >= MAX_PIPELINED_BYTES
        ):
            self._set_reading(False)

    def _authenticate(self, frame: Frame) -> bool:
        """Where a token is required, the first frame must be a hello that contains it."""
        try:
            message = parse_request(frame)
        except DecodeError:
            message = wire.ClientMessage()
        if message.WhichOneof("msg") != "hello":
            self._queue_refusal(make_hello_required_error())
            return False
        token = message.hello.token.encode()
        if not hmac.compare_digest(token, (self._options.token or "").encode()):
            self._queue_refusal(UnauthorizedError("the token is wrong; read run/token again"))
            return False
        if (refusal := self._listener.admit_authenticated(self)) is not None:
            self._queue_refusal(refusal)
            return False
        self._is_authenticated = True
        self.decoder.limit = MAX_FRAME
        if self._timer is not None:
            self._timer.cancel()
        return True

    def _on_hello_timeout(self) -> None:
        if not self._is_authenticated and not self._ignores_input:
            self._queue_refusal(make_hello_required_error())

    def _queue_refusal(self, refusal: RequestError) -> None:
        """Ignore further input; answer the pending requests, then send the refusal and close."""
        self._ignores_input = True
        self._undecoded_frames = None
        self._pending.append(refusal)
        self.decoder = FrameDecoder()
        self._set_reading(True)
        self._start_queue_task()

    def _check_peer(self) -> None:
        """Check a connection with buffered input or paused reading: is its peer still active?"""
        self._peer_check_timer = None
        if self.is_lost or (self._is_reading and not self._counted_bytes):
            return
        if not self._is_reading:
            # While reading is paused, the loop does not notice that a peer left, and its streams
            # would never end.
            if not self._is_input_ended and self._is_peer_gone():
                self._is_input_ended = True
                self._cancel_streams()
        elif (
            self.decoder.buffered_bytes
            and self._loop.time() - self._last_data_time > self._listener.limits.stall_timeout
        ):
            self._queue_refusal(BadRequestError("a frame was begun and not finished"))
            return
        self._peer_check_timer = self._loop.call_later(PEER_CHECK_INTERVAL, self._check_peer)

    def _is_peer_gone(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), HANGUP_EVENTS)
        return bool(poll.poll(0))

    # ── Answering ───────────────────────────────────────────────────────────────────────────

    def _start_queue_task(self) -> None:
        if self._queue_task is None and self._pending and not self._loop.is_closed():
            self._queue_task = self._loop.create_task(self._answer_pending())

    async def _answer_pending(self) -> None:
        """Answer the pending requests, one after the other, and end when there are none.

        At a concurrent request this task continues with that request alone, and the requests
        pending behind it get a new task. So a turn costs no extra task.
        """
        task = cast("asyncio.Task[None]", asyncio.current_task())
        in_a_row = 0
        try:
            while self._pending:
                await self._answer_next(self._pending.popleft(), task)
                if self._queue_task is not task:
                    return
                if not self._pending:
                    self._decode_frames()
                self._update_inbound_bytes()
                in_a_row += 1
                if in_a_row % ANSWERS_IN_A_ROW == 0:
                    await asyncio.sleep(0)
        except Exception:
            log.exception("a connection failed")
            self.abort()
        finally:
            if self._queue_task is task:
                self._hand_over_queue()
            self._resume_or_close()

    def _hand_over_queue(self) -> None:
        """Start a new task for the pending requests; the current task will answer none of them."""
        self._queue_task = None
        if not self._pending:
            self._decode_frames()
        self._start_queue_task()

    async def _answer_next(self, item: Frame | RequestError, task: asyncio.Task[None]) -> None:
        if isinstance(item, RequestError):
            self._send_refusal(item)
            return
        self._listener.request_count += 1
        request = await self._parse_frame(item)
        size = len(item)
        self._pending_bytes -= size
        del item  # the answer may take as long as a turn
        self._update_inbound_bytes()
        if isinstance(request, RequestError):
            await self._write_answer(single_error_reply(request), None)
            return
        request_id = request.request_id if request.HasField("request_id") else None
        name = request.WhichOneof("msg")
        route = None if name is None else ROUTES[name]
        if route is None or not route.is_concurrent:
            answer = self._make_answer(request, ReplyShape.ONE)
            del request
            await self._write_answer(answer, request_id)
            return
        limit = self._listener.limits.in_flight
        if self._concurrent_requests is not None and len(self._concurrent_requests) >= limit:
            await self._write_answer(
                single_error_reply(make_too_many_requests_error(limit)), request_id
            )
            return
        await self._answer_concurrently(request, route, request_id, size, task)

    async def _answer_concurrently(
        self,
        request: wire.ClientMessage,
        route: Route,
        request_id: int | None,
        size: int,
        task: asyncio.Task[None],
    ) -> None:
        """Answer this request concurrently, and let a new task answer those behind it."""
        requests = self._concurrent_requests
        if requests is None:
            requests = self._concurrent_requests = ConcurrentRequests()
        conversation = get_conversation_key(route, getattr(request, route.request))
        concurrent, predecessor = requests.add(task, route.shape, conversation)
        try:
            self._hand_over_queue()
            if not self._is_queue_busy:
                self._set_reading(True)
            if predecessor is not None:
                await self._wait_for_predecessor(predecessor, size)
            concurrent.has_started = True
            answer = self._make_answer(request, route.shape)
            del request
            await self._write_answer(answer, request_id, concurrent)
        finally:
            requests.remove(concurrent)
            if not requests and self._concurrent_requests is requests:
                self._concurrent_requests = None

    async def _wait_for_predecessor(self, predecessor: ConcurrentRequest, size: int) -> None:
        """Wait until the previous turn of the conversation has its first answer.

        Until then the request counts as unprocessed input.
        """
        self._waiting_bytes += size
        self._update_inbound_bytes()
        try:
            await predecessor.wait_for_answer()
        finally:
            self._waiting_bytes -= size
            self._update_inbound_bytes()

    async def _write_answer(
        self,
        answer: AsyncGenerator[ReplyField, None],
        request_id: int | None,
        concurrent: ConcurrentRequest | None = None,
    ) -> None:
        """Write all frames of an answer; frames of other answers may come in between."""
        is_stream = concurrent is not None and concurrent.shape is not ReplyShape.ONE
        write = self.write if is_stream else self.write_now
        deadline = self._listener.limits.stall_timeout
        try:
            async with aclosing(answer) as replies:
                async for field, payload in replies:
                    if concurrent is not None and not concurrent.has_answered:
                        concurrent.mark_answered()
                    frame = encode_reply(field, payload, request_id)
                    if self._writable is not None:  # another request filled the transport
                        await self.flush_and_wait(deadline)
                    if self._has_sent_refusal or (self._is_input_ended and is_stream):
                        break
                    if write(frame):
                        await self.flush_and_wait(deadline)
        except FrameTooLargeError as error:
            sentence = f"the answer does not fit: {error}; ask for less of it at a time"
            self._send_error(TooLargeError(sentence), request_id)
        except asyncio.CancelledError:
            if self._listener.is_draining and not self._is_input_ended:
                self._send_error(make_shutdown_error(), request_id)
            raise
        except ConnectionClosedError as error:
            log.info("%s: %s", self._options.name, error)
        finally:
            self.flush()

    def _make_answer(
        self, message: wire.ClientMessage, shape: ReplyShape
    ) -> AsyncGenerator[ReplyField, None]:
        if self._listener.is_draining:
            return single_error_reply(make_shutdown_error())
        has_left = self._is_input_ended or self._has_sent_refusal
        if has_left and shape is not ReplyShape.ONE and not message.stream.detach:
            return single_error_reply(UnavailableError("the client left before its stream began"))
        return self._listener.server.answer(message)

    async def _parse_frame(self, frame: Frame) -> wire.ClientMessage | RequestError:
        try:
            return (
                parse_request(frame)
                if len(frame) <= LARGE_FRAME
                else await self._parse_large_frame(frame)
            )
        except DecodeError:
            return BadRequestError("the frame is not a ClientMessage")
        except RequestError as error:  # it has too many parts, or a group
            return error

    async def _parse_large_frame(self, frame: Frame) -> wire.ClientMessage:
        """Parse a large frame in slices.

        Large frames take turns, one slice each: however many come at once, other requests are
        answered in between, and a frame that parses fast need not wait for the others.
        """
        slices = parse_request_in_slices(frame)
        while True:
            await self._listener.yield_to_loop()
            try:
                next(slices)
            except StopIteration as done:
                return cast("wire.ClientMessage", done.value)

    def _send_error(self, error: RequestError, request_id: int | None = None) -> None:
        if not self._has_sent_refusal:
            self.write_now(encode_reply("error", to_error_message(error), request_id))

    def _resume_or_close(self) -> None:
        """Resume reading once no request is pending. If none is running, close if the peer left."""
        if self._is_queue_busy:
            return
        self._update_inbound_bytes()
        self._set_reading(True)
        if self._concurrent_requests is not None:
            return
        if (
            not self._ignores_input
            and not self.is_lost
            and (self._is_input_ended or self._listener.is_draining)
        ):
            self.transport.close()
            self._start_linger_timer(self._listener.limits.stall_timeout)
        self._unregister_if_done()

    def _send_refusal(self, error: RequestError) -> None:
        """Write the last frame and close. Running requests end as if the client had left."""
        self._listener.refused_count += 1
        self._send_error(error)
        self._has_sent_refusal = True
        self._cancel_streams()
        self._clear_pending()
        if self.is_lost:
            return
        self.flush()
        self._set_reading(True)
        if self._is_input_ended or not self.transport.can_write_eof():
            self.transport.close()
        else:
            with suppress(OSError):  # the peer may be gone by now
                self.transport.write_eof()
        self._start_linger_timer(LINGER_SECONDS)

    def _start_linger_timer(self, timeout: float) -> None:
        """Nothing more will be written. A peer that stops reading the rest is disconnected."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(
            timeout, self._on_linger_timeout, timeout, self.write_buffer_size
        )

    def _on_linger_timeout(self, timeout: float, unread: int) -> None:
        if self.is_lost:
            return
        if 0 < self.write_buffer_size < unread:
            self._start_linger_timer(timeout)
        else:
            self.transport.abort()

    # ── Bookkeeping ─────────────────────────────────────────────────────────────────────────

    def _set_reading(self, on: bool) -> None:
        if self._is_reading != on and not self.is_lost and not self.transport.is_closing():
            self._is_reading = on
            if on:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _update_inbound_bytes(self) -> None:
        byte_count = self.decoder.buffered_bytes + self._pending_bytes + self._waiting_bytes
        if self._undecoded_frames is not None:
            byte_count += self._undecoded_bytes
        self._listener.inbound_bytes += byte_count - self._counted_bytes
        self._counted_bytes = byte_count

    def _cancel_streams(self) -> None:
        """Cancel streams and feeds, once: a second cancel would interrupt their clean-up.

        Those that have not begun check the connection themselves, because a detached one begins
        even so.
        """
        for request in self._concurrent_requests or ():
            if (
                request.has_started
                and request.shape is not ReplyShape.ONE
                and not request.task.cancelling()
            ):
                request.task.cancel()

    def _clear_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._undecoded_frames = None
        self.decoder = FrameDecoder()
        self._update_inbound_bytes()

    def _unregister_if_done(self) -> None:
        if self.is_lost and not self.is_busy:
            self._clear_pending()
            self._listener.unregister(self)

    # ── From the listener ───────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """The daemon is stopping: let requests that end by themselves finish, then close."""
        for request in self._concurrent_requests or ():
            if request.shape is ReplyShape.FEED:
                request.task.cancel()
        if not self.is_busy and not self.is_lost and not self._ignores_input:
            self.transport.close()

    async def stop(self) -> None:
        """Cancel the remaining requests and close. Waits at most a second for them to end."""
        self._clear_pending()
        if tasks := self.tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
            # A task that was cancelled before its first step did not clear these itself.
            self._queue_task = None
            self._concurrent_requests = None
        if not self.is_lost:
            self.transport.close()

    def abort(self) -> None:
        if not self.is_lost:
            self.transport.abort()


def parse_request(frame: Frame) -> wire.ClientMessage:
    # FromString accepts a bytearray without copying it; the stubs do not say so.
    return wire.ClientMessage.FromString(cast("bytes", frame))


async def single_error_reply(error: RequestError) -> AsyncGenerator[ReplyField, None]:
    yield "error", to_error_message(error)


def make_hello_required_error() -> UnauthorizedError:
    return UnauthorizedError(
        "this address wants a hello with the token from run/token as the first frame"
    )


def make_shutdown_error() -> UnavailableError:
    return UnavailableError("the daemon is shutting down; try again when it is back")


def make_too_many_requests_error(limit: int) -> TooManyRequestsError:
    return TooManyRequestsError(
        f"{limit} turns and feeds run on this connection already; wait for one of them to end, or "
        "open another connection"
    )
