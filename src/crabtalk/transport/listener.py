"""Listener: accepts on any number of sockets for one Server, and closes in good order."""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass

from crabtalk.protocol import RequestError, Server, UnauthorizedError, UnavailableError

from .connection import LINGER, Connection, shutting_down
from .limits import Limits
from .unix import peer_uid

log = logging.getLogger(__name__)

# Accepting failed, most likely for want of file descriptors: others must close first.
ACCEPT_PAUSE = 0.1
ACCEPT_AT_ONCE = 16
# Refused peers are kept a moment to read why. Past this many at once they are cut off instead.
MAX_LINGERING = 64
# How long closing waits for answers already given to be read.
FLUSH = 1.0


@dataclass(frozen=True, slots=True)
class Door:
    """One listening socket and what it asks of those who come in."""

    name: str
    # Must be shown in a hello. None: the kernel vouches for the caller.
    token: str | None = None
    tls: ssl.SSLContext | None = None
    # The only user let in, where the kernel can tell (Unix sockets).
    uid: int | None = None


def keep_alive(sock: socket.socket) -> None:
    """Lets the kernel find out about TCP peers that say nothing more.

    Their machine may have vanished; or they left, and the news of it waits behind requests that
    are not being read.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(frozen=True, slots=True)
class Statistics:
    """A moment of a Listener's life. `accepted` and the two after it count from its start."""

    connections: int
    accepted: int
    refused: int
    requests: int
    inbound_bytes: int


class Listener:
    """All connections of one server, whichever socket they came in by."""

    def __init__(self, server: Server, limits: Limits | None = None) -> None:
        self.server = server
        self.limits = limits or Limits()
        self.draining = False
        self.inbound_bytes = 0
        self.requests = 0
        self.refused = 0
        self._accepted = 0
        self._connections: set[Connection] = set()
        self._strangers: set[Connection] = set()  # have not shown their token yet
        self._lingering: set[Connection] = set()  # refused at the door, reading why
        self._empty = asyncio.Event()
        self._doors: list[socket.socket] = []
        self._arrivals: set[asyncio.Task[None]] = set()

    def open(self, sock: socket.socket, door: Door) -> None:
        """Starts accepting on a socket that is bound and listening. Owns it from here on."""
        sock.setblocking(False)
        self._doors.append(sock)
        self._watch(sock, door)

    def statistics(self) -> Statistics:
        return Statistics(
            connections=len(self._connections) + len(self._strangers),
            accepted=self._accepted,
            refused=self.refused,
            requests=self.requests,
            inbound_bytes=self.inbound_bytes,
        )

    async def close(self) -> None:
        """Stops accepting, lets requests finish within the drain time, cancels the rest.

        Streams without an end are cut at once. When it returns every socket is closed, and no
        request runs but one that resists its cancellation. Cancelled, it skips the waiting and
        still closes.
        """
        self.draining = True
        while self._doors:
            sock = self._doors.pop()
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        for task in self._arrivals:
            task.cancel()
        try:
            await self._drained()
        finally:
            for connection in self._all():
                connection.abort()

    async def _drained(self) -> None:
        try:
            if self._arrivals:
                await asyncio.wait(self._arrivals)
            for connection in self._all():
                connection.drain()
            async with asyncio.timeout(self.limits.drain_timeout):
                while tasks := [c.task for c in self._connections if c.task is not None]:
                    await asyncio.wait(tasks)
        except TimeoutError:
            log.warning("%d requests did not finish in time and are cancelled", len(tasks))
        finally:
            await asyncio.gather(*(c.stop() for c in self._all()))
        # Last answers are on their way; those who do not read them are not waited for.
        self._empty.clear()
        if self._all():
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH):
                    await self._empty.wait()

    def welcome(self, connection: Connection) -> RequestError | None:
        """A stranger has shown its token: it takes a place, if there is one."""
        if (refusal := self._no_room(self._connections, self.limits.connections)) is not None:
            return refusal
        self._strangers.discard(connection)
        self._connections.add(connection)
        return None

    def forget(self, connection: Connection) -> None:
        for books in (self._connections, self._strangers, self._lingering):
            books.discard(connection)
        if not self._all():
            self._empty.set()

    def _all(self) -> list[Connection]:
        return [*self._connections, *self._strangers, *self._lingering]

    # ── Accepting ───────────────────────────────────────────────────────────────────────────

    def _watch(self, listening: socket.socket, door: Door) -> None:
        if not self.draining:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, door)

    def _accept(self, listening: socket.socket, door: Door) -> None:
        """Somebody waits at the door. Takes in a few, so that a crowd does not hold the loop."""
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("%s cannot accept: %s", door.name, error)
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_PAUSE, self._watch, listening, door)
                return
            sock.setblocking(False)
            self._accepted += 1
            # A task of its own, because a TLS handshake may take as long as its deadline.
            task = loop.create_task(self._arrive(sock, door))
            self._arrivals.add(task)
            task.add_done_callback(self._arrivals.discard)

    async def _arrive(self, sock: socket.socket, door: Door) -> None:
        refusal = self._refusal(sock, door)
        if refusal is not None and len(self._lingering) >= MAX_LINGERING:
            self.refused += 1
            sock.close()
            return
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        connection = Connection(self, door, refusal)
        if refusal is not None:
            self._lingering.add(connection)
        else:
            (self._connections if door.token is None else self._strangers).add(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=door.tls,
                ssl_handshake_timeout=self.limits.hello_timeout if door.tls else None,
                ssl_shutdown_timeout=LINGER if door.tls else None,
            )
        except (OSError, TimeoutError) as error:
            log.info("%s: a connection failed before it began: %s", door.name, error)
            self._never_began(connection, sock)
        except asyncio.CancelledError:
            self._never_began(connection, sock)
            raise

    def _never_began(self, connection: Connection, sock: socket.socket) -> None:
        sock.close()
        self.forget(connection)

    def _refusal(self, sock: socket.socket, door: Door) -> RequestError | None:
        if door.uid is not None and (uid := peer_uid(sock)) != door.uid:
            return UnauthorizedError(
                f"this daemon serves user {door.uid} only, and you are user {uid}"
            )
        if self.draining:
            return shutting_down()
        if door.token is not None:
            return self._no_room(self._strangers, self.limits.strangers)
        return self._no_room(self._connections, self.limits.connections)

    def _no_room(self, taken: set[Connection], limit: int) -> RequestError | None:
        if len(taken) < limit:
            return None
        return UnavailableError(f"all {limit} connections are taken; close one or try again later")
