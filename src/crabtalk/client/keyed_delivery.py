"""Delivery: messages with keys, which outlive the connection they were sent on.

A daemon that knows keys runs each once. So a message whose connection was lost is sent again with
the same key, and a turn that had begun is followed from where its stream broke off. A daemon that
does not know keys gets none, and a lost connection is the caller's to hear of.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from crabtalk.protocol import PROTOCOL_VERSION, wire

from .channel import Channel
from .connection_pool import ConnectionPool, pick_random_pause
from .errors import CannotConnectError, ConnectionClosedError, ServerError, UnexpectedReplyError
from .stream_progress import StreamProgress

KeyedMessage = wire.StreamMsg | wire.SendMsg | wire.SteerSessionMsg
RecoverCallback = Callable[[], Awaitable[None]]

LOSS_ERRORS = (ConnectionClosedError, CannotConnectError, ServerError)
KEYS_FEATURE = "keys"
KEY_BYTES = 16
UNAVAILABLE, NOT_FOUND = 503, 404
# Between attempts to find a daemon again. They grow, and differ from client to client, so that a
# crowd does not come again as one.
FIRST_RETRY_PAUSE, LAST_RETRY_PAUSE = 0.05, 2.0
# A message that loses its connection this often without an event in between may be what takes
# daemons down.
MAX_ATTEMPTS = 3
# Seconds that leaving a stream may take to cancel its run.
KILL_TIMEOUT = 2.0


class KeyedDelivery:
    """Of one client. Tasks may share it."""

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        client: str,
        timeout: float | None,
        reconnect_timeout: float,
        recover: RecoverCallback | None,
    ) -> None:
        self._pool = pool
        self._client = client
        self._timeout = timeout
        self._reconnect_timeout = reconnect_timeout
        self._recover = recover
        self._open_streams: dict[
            int, wire.KillMsg
        ] = {}  # what cancels the turns that are being streamed

    @property
    def is_enabled(self) -> bool:
        """Whether messages get a key without being given one, and are sent again."""
        return self._reconnect_timeout > 0 or self._recover is not None

    async def request(
        self, name: str, payload: wire.SendMsg | wire.SteerSessionMsg, deadline: float | None
    ) -> wire.ServerMessage:
        """The answer to a message that has one; `deadline` is in seconds.

        Raises ServerError, TimeoutError, and ConnectionClosedError when it cannot be sent again.
        """
        attempts = DeliveryAttempts(self, payload)
        fields: dict[str, Any] = {name: payload}
        while True:
            try:
                async with self._pool.lease() as lease:
                    await attempts.prepare(lease.channel)
                    lease.channel.send(wire.ClientMessage(**fields))
                    reply = await lease.channel.receive(deadline)
                    lease.is_complete = True
                check_answer(reply)
                return reply
            except LOSS_ERRORS as error:
                await attempts.wait_for_retry(error)

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        """The events of a turn, each once.

        Closed or cancelled before the last one, it cancels the run, unless that is detached, or has
        a key that was given and others follow it too.
        Raises ServerError, and ConnectionClosedError when the turn cannot be followed any more.
        """
        progress, attempts = StreamProgress(), DeliveryAttempts(self, request)
        leaving = wire.KillMsg(
            agent=request.agent, sender=request.sender, unless_shared=bool(request.key) or None
        )
        try:
            while True:
                try:
                    async with self._pool.lease() as lease:
                        channel = lease.channel
                        await attempts.prepare(channel)
                        if attempts.has_key and not request.detach:
                            leaving.key = request.key
                            self._open_streams[id(leaving)] = leaving
                        channel.send(make_stream_or_attach(request, progress))
                        try:
                            while True:
                                reply = channel.receive_nowait() or await channel.receive()
                                # Anything but a stream event reads here as one without a name.
                                name = reply.stream.WhichOneof("event")
                                if name is None:
                                    lease.is_complete = reply.HasField("error")
                                    check_answer(reply, "stream")
                                    continue  # an event of a newer daemon
                                event: wire.StreamEvent | None = reply.stream
                                if attempts.has_key:
                                    event = progress.filter_event(name, reply.stream)
                                if name == "end":
                                    lease.is_complete = True
                                    self._open_streams.pop(id(leaving), None)
                                    yield event or reply.stream
                                    return
                                if event is not None:
                                    yield event
                        except (GeneratorExit, asyncio.CancelledError):
                            # While the connection is there: one follower is this client.
                            if self._open_streams.pop(id(leaving), None) is not None:
                                await self._kill_run(leaving)
                            raise
                except LOSS_ERRORS as error:
                    if is_dropped_turn(error, attempts, progress):
                        progress = StreamProgress()
                    else:
                        await attempts.wait_for_retry(error, progress)
                        progress.resume()
        finally:
            self._open_streams.pop(id(leaving), None)

    async def close(self) -> None:
        """Cancels the turns that are being streamed. Before the connections are closed."""
        left, self._open_streams = self._open_streams, {}
        if left:
            await asyncio.gather(*(self._kill_run(message) for message in left.values()))

    async def _kill_run(self, message: wire.KillMsg) -> None:
        """Cancels one run. When that fails, the daemon does it half a minute later."""
        with suppress(OSError, ConnectionClosedError, ServerError, UnexpectedReplyError):
            async with asyncio.timeout(KILL_TIMEOUT), self._pool.lease() as lease:
                # One that does not know keys would take it for the run in flight.
                if KEYS_FEATURE in await self.get_features(lease.channel):
                    lease.channel.send(wire.ClientMessage(kill=message))
                    await lease.channel.receive()
                lease.is_complete = True

    async def get_features(self, channel: Channel) -> frozenset[str]:
        """Those of the daemon at the other end. Asked once for each connection: the next one may
        lead to another daemon."""
        if channel.features is None:
            hello = wire.HelloMsg(
                protocol_version=PROTOCOL_VERSION, client=self._client, wants_features=True
            )
            channel.send(wire.ClientMessage(hello=hello))
            reply = await channel.receive(self._timeout)
            if reply.error.code == UNAVAILABLE:
                raise ServerError(reply.error.code, reply.error.message)
            # One that knows no hello answers with an error too, and has no features.
            channel.features = frozenset(reply.welcome.features)
        return channel.features

    async def find_daemon(self) -> bool:
        """Whether a daemon answered before the time was up. Cancelled, it only stops looking."""
        if self._recover is not None:
            await self._recover()
            return True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._reconnect_timeout
        longest = FIRST_RETRY_PAUSE
        while not self._pool.is_closed:
            pause = pick_random_pause(longest / 2, longest)
            if loop.time() + pause > deadline:
                return False
            await asyncio.sleep(pause)
            longest = min(2 * longest, LAST_RETRY_PAUSE)
            with suppress(CannotConnectError, ConnectionClosedError, TimeoutError, ServerError):
                async with self._pool.lease() as lease:
                    await self.get_features(lease.channel)
                    lease.is_complete = True
                    return True
        return False


class DeliveryAttempts:
    """To deliver one message."""

    def __init__(self, delivery: KeyedDelivery, message: KeyedMessage) -> None:
        self.has_key = False  # and was sent to a daemon that knows keys
        self._delivery = delivery
        self._message = message
        self._is_sent = False
        self._loss_count = 0  # in a row, without an event in between
        self._event_count = 0  # events, at the last loss
        self._connection_error: ConnectionClosedError | None = None

    @property
    def is_retry(self) -> bool:
        return self._loss_count > 0

    async def prepare(self, channel: Channel) -> None:
        """Gives the message a key if the daemon knows them. Raises ConnectionClosedError for a
        message that such a daemon may have, when this one does not know keys."""
        if not self._message.key and not self._delivery.is_enabled:
            self._is_sent = True
            return
        knows_keys = KEYS_FEATURE in await self._delivery.get_features(channel)
        if self._is_sent and not knows_keys:
            self._loss_count = MAX_ATTEMPTS
            raise ConnectionClosedError(
                "the daemon that had the message is gone, and the one that answers now knows no "
                "keys; look into the conversation before you say it again"
            )
        if knows_keys and not self._message.key:
            self._message.key = os.urandom(KEY_BYTES).hex()
        self.has_key = knows_keys
        self._is_sent = True

    async def wait_for_retry(
        self, error: Exception, progress: StreamProgress | None = None
    ) -> None:
        """Returns when the message may be sent again. Raises the error when it may not; it is not a
        CannotConnectError unless the message was never sent."""
        delivery = self._delivery
        count = progress.event_count if progress is not None else 0
        is_safe = delivery.is_enabled and (self.has_key or not self._is_sent)
        if not is_safe or not self._is_daemon_loss(error, has_events=count > 0):
            raise error
        if isinstance(error, ConnectionClosedError):
            self._connection_error = error
        self._loss_count = self._loss_count + 1 if count == self._event_count else 1
        self._event_count = count
        if self._loss_count >= MAX_ATTEMPTS or not await delivery.find_daemon():
            raise self._connection_error or error

    def _is_daemon_loss(self, error: Exception, *, has_events: bool) -> bool:
        """Whether an error is the end of the daemon rather than of the request. A message that is
        refused at once, as by a daemon that is full, is not sent again."""
        if isinstance(error, ServerError):
            return error.code == UNAVAILABLE and (has_events or self.is_retry)
        return isinstance(error, ConnectionClosedError) or self.is_retry


def make_stream_or_attach(request: wire.StreamMsg, progress: StreamProgress) -> wire.ClientMessage:
    """A turn that has begun is followed; one that has not is asked for, once more perhaps."""
    if not progress.has_started:
        return wire.ClientMessage(stream=request)
    after = progress.last_number or None
    attach = wire.AttachMsg(
        agent=request.agent, sender=request.sender, key=request.key, after=after
    )
    return wire.ClientMessage(attach=attach)


def is_dropped_turn(error: Exception, attempts: DeliveryAttempts, progress: StreamProgress) -> bool:
    """Whether a turn that had been accepted is unknown: it waited, and its daemon ended in good
    order before it began. Its key is free."""
    is_missing = isinstance(error, ServerError) and error.code == NOT_FOUND
    return is_missing and attempts.is_retry and progress.has_started and not progress.has_content


def check_answer(reply: wire.ServerMessage, wanted: str = "") -> None:
    """Raises ServerError for an error, and UnexpectedReplyError for what is not `wanted`."""
    kind = reply.WhichOneof("msg")
    if kind == "error":
        raise ServerError(reply.error.code, reply.error.message)
    if wanted and kind != wanted:
        raise UnexpectedReplyError(f"stream was answered with {kind}, not {wanted}")
