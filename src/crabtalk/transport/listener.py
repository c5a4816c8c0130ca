"""Listener: accepts connections on any number of sockets for one Server, and closes in order."""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from crabtalk.protocol import RequestError, Server, UnauthorizedError, UnavailableError

from .connection import LINGER_SECONDS, Connection, make_shutdown_error
from .limits import MAX_LINGERING, TransportLimits
from .unix import read_peer_uid

log = logging.getLogger(__name__)

# Wait after a failed accept, most likely for lack of file descriptors: others must close first.
ACCEPT_PAUSE = 0.1
# Connections accepted before other tasks run: a few milliseconds of work.
ACCEPT_BATCH = 64
# Unauthenticated connections that show their token free a slot for the next, which waits in the
# backlog. If none does so for half a second, the next are refused. That time is a number of checks,
# each with time to read input: a machine that was suspended uses up none of them.
SLOT_CHECK_INTERVAL = 0.01
MAX_SLOT_CHECKS = 50
# How long closing waits for answers already given to be read.
FLUSH_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """One listening socket and what it requires of its callers."""

    name: str
    # Must be sent in a hello. None: the kernel authenticates the caller.
    token: str | None = None
    tls: ssl.SSLContext | None = None
    # The only user allowed, where the kernel can tell (Unix sockets).
    uid: int | None = None


def enable_keepalive(sock: socket.socket) -> None:
    """Let the kernel detect TCP peers that vanished.

    Their machine may be gone; or they disconnected, and that news waits behind requests that are
    not being read.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """A snapshot of a Listener. `accepted`, `refused` and `requests` count from its start."""

    connections: int
    accepted: int
    refused: int
    requests: int
    inbound_bytes: int


class Listener:
    """All connections of one server, whichever socket they came from."""

    def __init__(self, server: Server, limits: TransportLimits | None = None) -> None:
        self.server = server
        self.limits = limits or TransportLimits()
        self.is_draining = False
        self.inbound_bytes = 0
        self.request_count = 0
        self.refused_count = 0
        self._accepted_count = 0
        self._connections: set[Connection] = set()
        self._unauthenticated: set[Connection] = set()  # have not shown their token yet
        self._lingering: set[Connection] = set()  # refused when accepted, reading the reason
        # Accepted sockets with a token to show that are not yet in `_unauthenticated`.
        self._accepted_sockets: set[socket.socket] = set()
        self._slot_checks = 0  # checks since a slot for an unauthenticated connection became free
        self._turn_lock = asyncio.Lock()  # held by the task that runs next after the loop has run
        self._all_closed = asyncio.Event()
        self._listening_sockets: list[socket.socket] = []
        self._accept_tasks: set[asyncio.Task[None]] = set()

    def open(self, sock: socket.socket, options: ListenOptions) -> None:
        """Start accepting on a socket that is bound and listening. Owns the socket from here on."""
        sock.setblocking(False)
        self._listening_sockets.append(sock)
        self._start_accepting(sock, options)

    def statistics(self) -> ListenerStatistics:
        return ListenerStatistics(
            connections=len(self._connections) + len(self._unauthenticated),
            accepted=self._accepted_count,
            refused=self.refused_count,
            requests=self.request_count,
            inbound_bytes=self.inbound_bytes,
        )

    async def close(self) -> None:
        """Stop accepting, let requests finish within the drain time, cancel the rest.

        Feeds are cancelled at once. When it returns, every socket is closed, and no request runs
        except one that resists its cancellation. Cancelled, it skips the waiting and still closes.
        """
        self.is_draining = True
        while self._listening_sockets:
            sock = self._listening_sockets.pop()
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        for task in self._accept_tasks:
            task.cancel()
        try:
            await self._drain_connections()
        finally:
            for connection in self._all_connections():
                connection.abort()

    async def _drain_connections(self) -> None:
        try:
            if self._accept_tasks:
                await asyncio.wait(self._accept_tasks)
            for connection in self._all_connections():
                connection.drain()
            async with asyncio.timeout(self.limits.drain_timeout):
                while tasks := [task for c in self._connections for task in c.tasks]:
                    await asyncio.wait(tasks)
        except TimeoutError:
            log.warning("%d requests did not finish in time and are cancelled", len(tasks))
        finally:
            await asyncio.gather(*(c.stop() for c in self._all_connections()))
        # The last answers are being sent; peers that do not read them are not waited for.
        self._all_closed.clear()
        if self._all_connections():
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_TIMEOUT):
                    await self._all_closed.wait()

    async def yield_to_loop(self) -> None:
        """Let the loop run once before each caller continues, so that work does not pile up."""
        async with self._turn_lock:
            await asyncio.sleep(0)

    def admit_authenticated(self, connection: Connection) -> RequestError | None:
        """Give an authenticated connection a place, or return the refusal if there is none."""
        if (refusal := self._check_connection_limit()) is not None:
            return refusal
        self._unauthenticated.discard(connection)
        self._slot_checks = 0
        self._connections.add(connection)
        return None

    def unregister(self, connection: Connection) -> None:
        if connection in self._unauthenticated:
            self._slot_checks = 0
        for connections in (self._connections, self._unauthenticated, self._lingering):
            connections.discard(connection)
        if not self._all_connections():
            self._all_closed.set()

    def _all_connections(self) -> list[Connection]:
        return [*self._connections, *self._unauthenticated, *self._lingering]

    # ── Accepting ───────────────────────────────────────────────────────────────────────────

    def _start_accepting(self, listening: socket.socket, options: ListenOptions) -> None:
        if not self.is_draining:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, options)

    def _accept(self, listening: socket.socket, options: ListenOptions) -> None:
        """Accept a batch of waiting connections, limited so that many do not block the loop."""
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_BATCH):
            if options.token is not None and self._should_wait_for_slot():
                self._pause_accepting(listening, options, SLOT_CHECK_INTERVAL)
                return
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("%s cannot accept: %s", options.name, error)
                self._pause_accepting(listening, options, ACCEPT_PAUSE)
                return
            sock.setblocking(False)
            self._accepted_count += 1
            if options.token is not None:
                self._accepted_sockets.add(sock)
            # A task of its own, because a TLS handshake may take as long as its deadline.
            task = loop.create_task(self._handle_accepted(sock, options))
            self._accept_tasks.add(task)
            task.add_done_callback(partial(self._on_accept_done, sock))

    def _should_wait_for_slot(self) -> bool:
        """Whether there is no slot for another unauthenticated connection, but soon may be."""
        if len(self._unauthenticated) + len(self._accepted_sockets) < self.limits.strangers:
            self._slot_checks = 0
            return False
        self._slot_checks += 1
        return self._slot_checks <= MAX_SLOT_CHECKS

    def _pause_accepting(
        self, listening: socket.socket, options: ListenOptions, seconds: float
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(seconds, self._start_accepting, listening, options)

    async def _handle_accepted(self, sock: socket.socket, options: ListenOptions) -> None:
        self._accepted_sockets.discard(sock)
        refusal = self._find_refusal(sock, options)
        if refusal is not None and len(self._lingering) >= MAX_LINGERING:
            self.refused_count += 1
            sock.close()
            return
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_keepalive(sock)
        connection = Connection(self, options, refusal)
        if refusal is not None:
            self._lingering.add(connection)
        else:
            (self._connections if options.token is None else self._unauthenticated).add(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=options.tls,
                ssl_handshake_timeout=self.limits.hello_timeout if options.tls else None,
                ssl_shutdown_timeout=LINGER_SECONDS if options.tls else None,
            )
        except (OSError, TimeoutError) as error:
            log.info("%s: a connection failed before it began: %s", options.name, error)
            self._discard_connection(connection, sock)
        except asyncio.CancelledError:
            self._discard_connection(connection, sock)
            raise

    def _on_accept_done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        """Close the socket: a task cancelled before its first step had no chance to do so."""
        self._accept_tasks.discard(task)
        self._accepted_sockets.discard(sock)
        if task.cancelled():
            sock.close()

    def _discard_connection(self, connection: Connection, sock: socket.socket) -> None:
        sock.close()
        self.unregister(connection)

    def _find_refusal(self, sock: socket.socket, options: ListenOptions) -> RequestError | None:
        if options.uid is not None and (uid := read_peer_uid(sock)) != options.uid:
            return UnauthorizedError(
                f"this daemon serves user {options.uid} only, and you are user {uid}"
            )
        if self.is_draining:
            return make_shutdown_error()
        if options.token is not None:
            return self._check_unauthenticated_limit()
        return self._check_connection_limit()

    def _check_unauthenticated_limit(self) -> RequestError | None:
        limit = self.limits.strangers
        if len(self._unauthenticated) < limit:
            return None
        return UnavailableError(
            f"{limit} others have yet to show their token, and no more may; try again in a moment"
        )

    def _check_connection_limit(self) -> RequestError | None:
        limit = self.limits.connections
        if len(self._connections) < limit:
            return None
        return UnavailableError(f"all {limit} connections are taken; close one or try again later")
