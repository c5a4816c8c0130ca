"""Listener: accepts on any number of sockets for one Server, and closes in good order."""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from crabtalk.protocol import RequestError, Server, UnauthorizedError, UnavailableError

from .connection import LINGER, Connection, shutting_down
from .limits import MAX_LINGERING, Limits
from .unix import peer_uid

log = logging.getLogger(__name__)

# Accepting failed, most likely for want of file descriptors: others must close first.
ACCEPT_PAUSE = 0.1
# Taken in before others get their turn: a few milliseconds of work.
ACCEPT_AT_ONCE = 64
# Strangers who show their token make room for the next, who wait for it at the door. When none has
# for half a second, they are not about to, and the next are refused. That is so many looks, each
# with time to read what strangers sent: a machine that stands still uses up none of them.
STRANGERS_PAUSE = 0.01
STRANGERS_LOOKS = 50
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
        # Of strangers that were accepted, and are not yet among those.
        self._knocking: set[socket.socket] = set()
        self._looks = 0  # for room, since a stranger last made some
        self._turning = asyncio.Lock()  # held by whoever goes on when the loop has turned
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
                while tasks := [task for c in self._connections for task in c.tasks]:
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

    async def turn(self) -> None:
        """For work that must not pile up: the loop turns before each who waits here goes on."""
        async with self._turning:
            await asyncio.sleep(0)

    def welcome(self, connection: Connection) -> RequestError | None:
        """A stranger has shown its token: it takes a place, if there is one."""
        if (refusal := self._no_room()) is not None:
            return refusal
        self._strangers.discard(connection)
        self._looks = 0
        self._connections.add(connection)
        return None

    def forget(self, connection: Connection) -> None:
        if connection in self._strangers:
            self._looks = 0
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
            if door.token is not None and self._is_room_coming():
                self._pause(listening, door, STRANGERS_PAUSE)
                return
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("%s cannot accept: %s", door.name, error)
                self._pause(listening, door, ACCEPT_PAUSE)
                return
            sock.setblocking(False)
            self._accepted += 1
            if door.token is not None:
                self._knocking.add(sock)
            # A task of its own, because a TLS handshake may take as long as its deadline.
            task = loop.create_task(self._arrive(sock, door))
            self._arrivals.add(task)
            task.add_done_callback(partial(self._arrived, sock))

    def _is_room_coming(self) -> bool:
        """There is none for another stranger, but soon will be."""
        if len(self._strangers) + len(self._knocking) < self.limits.strangers:
            self._looks = 0
            return False
        self._looks += 1
        return self._looks <= STRANGERS_LOOKS

    def _pause(self, listening: socket.socket, door: Door, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(seconds, self._watch, listening, door)

    async def _arrive(self, sock: socket.socket, door: Door) -> None:
        self._knocking.discard(sock)
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

    def _arrived(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        """Cancelled before its first step, an arrival had no chance to close its socket."""
        self._arrivals.discard(task)
        self._knocking.discard(sock)
        if task.cancelled():
            sock.close()

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
            return self._too_many_strangers()
        return self._no_room()

    def _too_many_strangers(self) -> RequestError | None:
        limit = self.limits.strangers
        if len(self._strangers) < limit:
            return None
        return UnavailableError(
            f"{limit} others have yet to show their token, and no more may; try again in a moment"
        )

    def _no_room(self) -> RequestError | None:
        limit = self.limits.connections
        if len(self._connections) < limit:
            return None
        return UnavailableError(f"all {limit} connections are taken; close one or try again later")
