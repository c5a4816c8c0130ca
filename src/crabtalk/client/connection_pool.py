"""ConnectionPool: the connections of one client. Each running request has its own.

So a request needs no request id, it works with older daemons, and its answer does not wait behind a
stream that is read slowly.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence

from crabtalk.protocol import PROTOCOL_VERSION, ConnectionClosedError, FrameError, wire
from crabtalk.transport import Endpoint

from .channel import Channel
from .errors import (
    CannotConnectError,
    DaemonNotRunningError,
    ServerError,
    UnexpectedReplyError,
)

# Idle connections kept for later requests.
MAX_IDLE = 4
# Pauses between attempts while the daemon's backlog is full. They grow, and are random, so that
# many clients do not retry at the same moment.
FIRST_CONNECT_PAUSE, LAST_CONNECT_PAUSE = 0.01, 0.32


class ConnectionLease:
    """A connection for one request, for the length of an `async with` block.

    Leaving the block closes the connection, unless `is_complete` was set.
    """

    __slots__ = ("_pool", "channel", "is_complete")

    channel: Channel

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool
        self.is_complete = False  # the answer was read to its end, so the connection can be reused

    async def __aenter__(self) -> "ConnectionLease":
        self.channel = await self._pool.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.release(self.channel, reusable=self.is_complete)


class ConnectionPool:
    """Opens connections on demand, to the first endpoint that answers.

    It calls `endpoints` for each new connection, so it finds a daemon that was restarted at another
    address.
    """

    def __init__(
        self,
        endpoints: Callable[[], Sequence[Endpoint]],
        *,
        client: str,
        connect_timeout: float,
        location: str,
        start_command: str = "crabtalkd run",
    ) -> None:
        self._endpoints = endpoints
        self._client = client
        self._connect_timeout = connect_timeout
        self._location = location
        self._start_command = start_command
        self._idle: list[Channel] = []
        self._open: set[Channel] = set()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    def lease(self) -> ConnectionLease:
        return ConnectionLease(self)

    async def ensure_connected(self) -> None:
        """Check that the daemon is there by having one connection to it."""
        async with self.lease() as lease:
            lease.is_complete = True

    def close(self) -> None:
        """Close every connection, also those in use; the daemon then cancels their streams."""
        self._closed = True
        self._idle.clear()
        for channel in list(self._open):
            channel.close()

    async def acquire(self) -> Channel:
        self._check_open()
        while self._idle:
            channel = self._idle.pop()
            if channel.check_alive():
                return channel
            self._close_channel(channel)
        channel = await self._connect()
        self._open.add(channel)
        self._check_open(channel)
        return channel

    def _check_open(self, channel: Channel | None = None) -> None:
        if self._closed:
            if channel is not None:
                self._close_channel(channel)
            raise ConnectionClosedError("this client is closed")

    def release(self, channel: Channel, *, reusable: bool) -> None:
        if reusable and channel.is_usable and not self._closed and len(self._idle) < MAX_IDLE:
            channel.mark_idle()
            self._idle.append(channel)
        else:
            self._close_channel(channel)

    def _close_channel(self, channel: Channel) -> None:
        channel.close()
        self._open.discard(channel)

    async def _connect(self) -> Channel:
        reasons = []
        for endpoint in self._endpoints():
            try:
                return await self._connect_with_retries(endpoint)
            except (ConnectionRefusedError, FileNotFoundError):
                continue
            except ssl.SSLCertVerificationError as error:
                reasons.append(
                    f"the certificate at {endpoint} is not trusted ({error.verify_message}); "
                    "pass tls=ssl.create_default_context(cafile=...)"
                )
            except TimeoutError:
                reasons.append(f"{endpoint} did not answer within {self._connect_timeout:g} s")
            except BlockingIOError:
                reasons.append(
                    f"{endpoint} had no room for one more within {self._connect_timeout:g} s, as "
                    "too many are connecting; try again in a moment"
                )
            except (FrameError, UnexpectedReplyError) as error:
                reasons.append(f"what answers at {endpoint} is no daemon: {error}")
            except OSError as error:
                reasons.append(f"{endpoint}: {error.strerror or error}")
        if reasons:
            raise CannotConnectError(f"cannot connect {self._location}: {'; '.join(reasons)}")
        raise DaemonNotRunningError(
            f"no daemon answers {self._location}; start one with `{self._start_command}`"
        )

    async def _connect_with_retries(self, endpoint: Endpoint) -> Channel:
        """Retry until the deadline while the daemon's backlog is full."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._connect_timeout
        max_pause = FIRST_CONNECT_PAUSE
        async with asyncio.timeout_at(deadline):
            while True:
                try:
                    return await self._connect_once(endpoint, Channel())
                except BlockingIOError:
                    pause = pick_random_pause(max_pause / 2, max_pause)
                    if loop.time() + pause > deadline:
                        raise
                await asyncio.sleep(pause)
                max_pause = min(2 * max_pause, LAST_CONNECT_PAUSE)

    async def _connect_once(self, endpoint: Endpoint, channel: Channel) -> Channel:
        """Connect and greet. On any failure or cancellation the connection is closed."""
        try:
            await endpoint.connect(channel)
            if endpoint.tcp is not None:
                await self._greet(channel, endpoint)
            return channel
        except BaseException:
            if hasattr(channel, "transport"):
                channel.close()
            raise

    async def _greet(self, channel: Channel, endpoint: Endpoint) -> None:
        hello = wire.HelloMsg(
            protocol_version=PROTOCOL_VERSION,
            client=self._client,
            token=endpoint.token,
            wants_features=True,
        )
        channel.send(wire.ClientMessage(hello=hello))
        reply = await channel.receive()
        if reply.HasField("error"):
            raise ServerError(reply.error.code, reply.error.message)
        if not reply.HasField("welcome"):
            raise UnexpectedReplyError("hello was not answered with welcome")
        channel.features = frozenset(reply.welcome.features)


def pick_random_pause(low: float, high: float) -> float:
    import random  # late: most programs connect at the first attempt

    return random.uniform(low, high)  # noqa: S311 - spreads clients; no secret depends on it
