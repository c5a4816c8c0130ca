"""A connected device or gateway, with its outgoing queue and its pending requests."""

import asyncio
import itertools
import logging
from collections import deque
from contextlib import suppress
from typing import Any, Literal

from aiohttp import web

from . import packets
from .accounts import AccountDevice
from .limits import RelayLimits

SocketScope = Literal["user-scoped", "session-scoped", "machine-scoped"]

log = logging.getLogger(__name__)


class SocketGoneError(Exception):
    """The client disconnected before it answered."""


class ClientSocket:
    """Sending never waits. A client that does not read its socket is disconnected, so that it
    cannot delay others."""

    def __init__(
        self,
        ws: web.WebSocketResponse,
        device: AccountDevice,
        scope: SocketScope,
        record: str,
        limits: RelayLimits,
    ) -> None:
        self.device = device
        self.scope = scope
        self.record = record
        # Whether a person is looking at this client, according to the client.
        self.is_watched = False
        self.methods: set[str] = set()
        self.calls: set[asyncio.Task[None]] = set()
        self._ws = ws
        self._limits = limits
        self._outbox: deque[str] = deque()
        self._queued_size = 0
        self._write_task: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._close_task: asyncio.Task[None] | None = None
        self._heard_at = self._pinged_at = self._loop.time()

    @property
    def account(self) -> str:
        return self.device.account

    def send(self, text: str) -> None:
        if self._close_task is not None:
            return
        self._outbox.append(text)
        self._queued_size += len(text)
        if self._queued_size > self._limits.outbox:
            log.info("a socket does not read what it is sent and is closed")
            self.close()
        elif self._write_task is None:
            self._write_task = self._loop.create_task(self._write())

    def emit(self, name: str, payload: Any) -> None:
        self.send(packets.encode_event(name, payload))

    async def request(self, name: str, payload: Any, seconds: float) -> Any:
        """Return the client's answer. Raises TimeoutError, and SocketGoneError if it
        disconnects."""
        if self._close_task is not None:
            raise SocketGoneError
        number = next(self._numbers)
        answer = self._requests[number] = self._loop.create_future()
        try:
            self.send(packets.encode_event(name, payload, number))
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            del self._requests[number]

    def resolve_request(self, number: int | None, data: list[Any]) -> None:
        future = None if number is None else self._requests.get(number)
        if future is not None and not future.done():
            future.set_result(data[0] if data else None)

    def mark_heard(self) -> None:
        self._heard_at = self._loop.time()

    def check_alive(self) -> None:
        """Called about once a second: sends pings, and closes sockets that stay silent."""
        now = self._loop.time()
        if now - self._heard_at > self._limits.ping_interval + self._limits.ping_timeout:
            self.close()
        elif now - self._pinged_at >= self._limits.ping_interval:
            self._pinged_at = now
            self.send(packets.PING)

    def close(self) -> None:
        if self._close_task is None:
            self._outbox.clear()
            self.fail_requests()
            self._close_task = self._loop.create_task(self._close())

    def fail_requests(self) -> None:
        """Fail all pending requests, because the connection has ended."""
        for future in self._requests.values():
            if not future.done():
                future.set_exception(SocketGoneError())
        for call in self.calls:
            call.cancel()

    async def _write(self) -> None:
        try:
            while self._outbox:
                text = self._outbox.popleft()
                self._queued_size -= len(text)
                await self._ws.send_str(text)
        except (ConnectionError, RuntimeError):
            self._outbox.clear()  # it is gone; its reader will notice
        finally:
            self._write_task = None

    async def _close(self) -> None:
        if self._write_task is not None:
            self._write_task.cancel()
        with suppress(ConnectionError, RuntimeError):
            await self._ws.close(drain=False)
