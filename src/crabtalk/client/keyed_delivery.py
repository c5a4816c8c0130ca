"""KeyedDelivery: sends messages with keys, which survive the loss of their connection.

A daemon that supports keys runs each key once. So a message whose connection was lost is resent
with the same key, and a turn that had begun is followed from where its stream broke off. A daemon
without that feature gets no keys, and the caller gets an error for a lost connection.
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
# Pauses between attempts to find a daemon again. They grow, and are random, so that many clients
# do not retry at the same moment.
FIRST_RETRY_PAUSE, LAST_RETRY_PAUSE = 0.05, 2.0
# A message that loses its connection this often with no event in between may be what crashes the
# daemons.
MAX_ATTEMPTS = 3
# How long leaving a stream may take to cancel its run, in seconds.
KILL_TIMEOUT = 2.0


class KeyedDelivery:
    """Delivers the messages of one client. Tasks may share it."""

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
        # The requests that cancel the turns being streamed, by their ids.
        self._open_streams: dict[int, wire.KillMsg] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether messages without a key get one, and are resent."""
        return self._reconnect_timeout > 0 or self._recover is not None

    async def request(
        self, name: str, payload: wire.SendMsg | wire.SteerSessionMsg, deadline: float | None
    ) -> wire.ServerMessage:
        """Send a message that has one answer, and return that; `deadline` is in seconds.

        Raises ServerError, TimeoutError, and ConnectionClosedError when it cannot be resent.
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
        """Yield the events of a turn, each once.

        Closed or cancelled before the last one, it cancels the run, unless the run is detached, or
        its key was given by the caller and other clients follow it too.
        Raises ServerError, and ConnectionClosedError when the turn cannot be followed any more.
        """
        progress, attempts = StreamProgress(), DeliveryAttempts(self, request)
        kill = wire.KillMsg(
            agent=request.agent, sender=request.sender, unless_shared=bool(request.key) or None
        )
        try:
            while True:
                try:
                    async with self._pool.lease() as lease:
                        channel = lease.channel
                        await attempts.prepare(channel)
                        if attempts.has_key and not request.detach:
                            kill.key = request.key
                            self._open_streams[id(kill)] = kill
                        channel.send(make_stream_or_attach(request, progress))
                        try:
                            while True:
                                reply = channel.receive_nowait() or await channel.receive()
                                # A reply that is not a stream event reads here as one without a
                                # name.
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
                                    self._open_streams.pop(id(kill), None)
                                    yield event or reply.stream
                                    return
                                if event is not None:
                                    yield event
                        except (GeneratorExit, asyncio.CancelledError):
                            # While connected: until then this client counts as a follower of the
                            # run.
                            if self._open_streams.pop(id(kill), None) is not None:
                                await self._kill_run(kill)
                            raise
                except LOSS_ERRORS as error:
                    if is_dropped_turn(error, attempts, progress):
                        progress = StreamProgress()
                    else:
                        await attempts.wait_for_retry(error, progress)
                        progress.resume()
        finally:
            self._open_streams.pop(id(kill), None)

    async def close(self) -> None:
        """Cancel the turns being streamed. Call it before the connections are closed."""
        open_streams, self._open_streams = self._open_streams, {}
        if open_streams:
            await asyncio.gather(*(self._kill_run(message) for message in open_streams.values()))

    async def _kill_run(self, message: wire.KillMsg) -> None:
        """Cancel one run. If this fails, the daemon cancels it half a minute later."""
        with suppress(OSError, ConnectionClosedError, ServerError, UnexpectedReplyError):
            async with asyncio.timeout(KILL_TIMEOUT), self._pool.lease() as lease:
                # A daemon without keys would kill whatever run is in flight.
                if KEYS_FEATURE in await self.get_features(lease.channel):
                    lease.channel.send(wire.ClientMessage(kill=message))
                    await lease.channel.receive()
                lease.is_complete = True

    async def get_features(self, channel: Channel) -> frozenset[str]:
        """Return the features of the daemon at the other end.

        Each connection asks once, because the next connection may lead to another daemon.
        """
        if channel.features is None:
            hello = wire.HelloMsg(
                protocol_version=PROTOCOL_VERSION, client=self._client, wants_features=True
            )
            channel.send(wire.ClientMessage(hello=hello))
            reply = await channel.receive(self._timeout)
            if reply.error.code == UNAVAILABLE:
                raise ServerError(reply.error.code, reply.error.message)
            # A daemon that does not know hello answers with an error, and has no features.
            channel.features = frozenset(reply.welcome.features)
        return channel.features

    async def find_daemon(self) -> bool:
        """Return whether a daemon answered in time. Cancelled, it only stops looking."""
        if self._recover is not None:
            await self._recover()
            return True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._reconnect_timeout
        max_pause = FIRST_RETRY_PAUSE
        while not self._pool.is_closed:
            pause = pick_random_pause(max_pause / 2, max_pause)
            if loop.time() + pause > deadline:
                return False
            await asyncio.sleep(pause)
            max_pause = min(2 * max_pause, LAST_RETRY_PAUSE)
            with suppress(CannotConnectError, ConnectionClosedError, TimeoutError, ServerError):
                async with self._pool.lease() as lease:
                    await self.get_features(lease.channel)
                    lease.is_complete = True
                    return True
        return False


class DeliveryAttempts:
    """The attempts to deliver one message."""

    def __init__(self, delivery: KeyedDelivery, message: KeyedMessage) -> None:
        self.has_key = False  # it has a key and was sent to a daemon that supports keys
        self._delivery = delivery
        self._message = message
        self._is_sent = False
        self._loss_count = 0  # in a row, without an event in between
        self._event_count = 0  # the number of events at the last loss
        self._connection_error: ConnectionClosedError | None = None

    @property
    def is_retry(self) -> bool:
        return self._loss_count > 0

    async def prepare(self, channel: Channel) -> None:
        """Give the message a key if the daemon supports keys.

        Raises ConnectionClosedError when an earlier daemon may have the message and this one does
        not support keys.
        """
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
        """Return when the message may be resent, or raise the error if it must not be.

        The error is a CannotConnectError only if the message was never sent.
        """
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
        """Whether the daemon ended, rather than refused the request.

        A message that is refused at once, as by a daemon that is full, is not resent.
        """
        if isinstance(error, ServerError):
            return error.code == UNAVAILABLE and (has_events or self.is_retry)
        return isinstance(error, ConnectionClosedError) or self.is_retry


def make_stream_or_attach(request: wire.StreamMsg, progress: StreamProgress) -> wire.ClientMessage:
    """Attach to a turn that has begun; otherwise send the turn, perhaps again."""
    if not progress.has_started:
        return wire.ClientMessage(stream=request)
    after = progress.last_number or None
    attach = wire.AttachMsg(
        agent=request.agent, sender=request.sender, key=request.key, after=after
    )
    return wire.ClientMessage(attach=attach)


def is_dropped_turn(error: Exception, attempts: DeliveryAttempts, progress: StreamProgress) -> bool:
    """Whether the daemon forgot an accepted turn.

    The turn was queued, and its daemon shut down cleanly before it began. Its key is free.
    """
    is_missing = isinstance(error, ServerError) and error.code == NOT_FOUND
    return is_missing and attempts.is_retry and progress.has_started and not progress.has_content


def check_answer(reply: wire.ServerMessage, expected: str = "") -> None:
    """Raise ServerError for an error, and UnexpectedReplyError if it is not `expected`."""
    kind = reply.WhichOneof("msg")
    if kind == "error":
        raise ServerError(reply.error.code, reply.error.message)
    if expected and kind != expected:
        raise UnexpectedReplyError(f"stream was answered with {kind}, not {expected}")
