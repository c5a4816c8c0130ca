"""The daemon process: take the home, open the doors, serve until told to stop, leave no trace."""

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from crabtalk.protocol import Server
from crabtalk.transport import (
    Door,
    Limits,
    Listener,
    TcpAddress,
    listen_tcp,
    listen_unix,
    server_tls,
)

from .config import Config
from .config_file import ConfigError
from .daemon import Daemon
from .home import Home

# File descriptors of a run, beside the connection of whoever is answered: its own to the model, and
# its log while that is written.
DESCRIPTORS_A_RUN = 2
# For all that is neither a caller's nor a run's: the daemon's own files, the index, memories, what
# tools start.
SPARE_DESCRIPTORS = 128
# After everything was drained or cancelled.
LAST_GRACE = 5.0

log = logging.getLogger(__name__)


async def serve(
    home: Home,
    config: Config,
    server: Server,
    ready: Callable[[str], None],
    daemon: Daemon | None = None,
) -> None:
    """Serves `server` from a locked home until SIGINT or SIGTERM; SIGHUP reloads `daemon`.

    `ready` is called once with a sentence, when clients can connect; only then is the daemon
    opened, so that nothing slow stands between a start and its first answer. On the way out,
    whatever the reason, requests are drained, the socket and port file are removed and the daemon
    is closed. A second signal cuts the draining short.
    """
    signals = asyncio.Queue[None]()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, None)
    opening: asyncio.Task[None] | None = None
    reloads = Reloads(daemon)
    loop.add_signal_handler(signal.SIGHUP, reloads.start)
    runs = config.runtime_limits.runs
    room = make_room(config.limits, runs)
    listener = Listener(server, replace(config.limits, connections=room.connections))
    if daemon is not None:
        daemon.bound_runs(room.runs)
    try:
        # Left before the draining: a client that comes then must find no daemon, not a dying one.
        with ExitStack() as published:
            where = open_doors(listener, home, config, published)
            ready(f"crabtalkd is ready: {', '.join(where)}")
            if (room.connections, room.runs) != (config.limits.connections, runs):
                log.warning("%s", room)
            opening = asyncio.ensure_future(daemon.open()) if daemon is not None else None
            await signals.get()
    finally:
        await close(listener, signals)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        leave_within(LAST_GRACE)
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        if daemon is not None:
            await daemon.close()


class Reloads:
    """Reloads asked for by a signal, which nobody waits for: what goes wrong is in the log."""

    def __init__(self, daemon: Daemon | None) -> None:
        self._daemon = daemon
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._daemon is not None:
            task = asyncio.ensure_future(self._reload(self._daemon))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _reload(self, daemon: Daemon) -> None:
        await daemon.ready()
        try:
            await daemon.reload()
        except Exception as error:
            log.error("cannot reload: %s; what was in force stays", error)  # noqa: TRY400


async def close(listener: Listener, signals: asyncio.Queue[None]) -> None:
    """Drains, unless a second signal comes."""
    closing = asyncio.ensure_future(listener.close())
    impatient = asyncio.ensure_future(signals.get())
    await asyncio.wait([closing, impatient], return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    closing.cancel()
    await asyncio.gather(closing, impatient, return_exceptions=True)


def leave_within(seconds: float) -> None:
    """The process ends by then, though a request resists or a thread is stuck."""

    def leave() -> None:
        with suppress(OSError):  # the logs are closed, and who read them may be gone
            os.write(2, b"crabtalkd: something would not stop; leaving it behind\n")
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True  # done sooner, nobody waits for it
    timer.start()


def open_doors(listener: Listener, home: Home, config: Config, published: ExitStack) -> list[str]:
    """Listens on the Unix socket and on TCP; says where. `published` removes what tells clients."""
    with told(f"remove {home.run.port}", "move it away"):
        home.run.port.unlink(missing_ok=True)  # of a daemon that died: we hold the lock
    with told(f"listen on {home.run.socket}", "choose another home with --home"):
        sock = listen_unix(home.run.socket)
    listener.open(sock, Door("unix", uid=os.geteuid()))
    published.callback(remove_own, home.run.socket, home.run.socket.stat())
    where = [str(home.run.socket)]
    if config.tcp is not None:
        tls = load_tls(config)
        with told(f"use the token in {home.run.token}", "delete it for a new one"):
            token = home.run.make_token()
        with told(f"listen on {config.tcp}", "choose another address with --tcp, or off"):
            sock = listen_tcp(config.tcp, or_next=config.any_port)
        listener.open(sock, Door("tcp", token=token, tls=tls))
        bound = address_of(sock)
        if tls is None and bound.host == TcpAddress().host:
            # Clients that read this file come to 127.0.0.1 and speak without TLS.
            with told(f"write {home.run.port}", "move it away"):
                home.run.publish_port(bound.port)
            published.callback(remove_own, home.run.port, home.run.port.stat())
        where.append(f"{bound} with TLS" if tls else str(bound))
    return where


def remove_own(path: Path, made: os.stat_result) -> None:
    """Removes a file if it still is the one we made, and not that of a daemon after us."""
    with suppress(OSError):
        if os.path.samestat(path.lstat(), made):
            path.unlink()


class StartError(Exception):
    """The daemon cannot start, with what to do about it."""


@contextmanager
def told(what: str, remedy: str) -> Iterator[None]:
    """What the system refuses, in a sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"cannot {what}: {reason}; {remedy}") from None


def load_tls(config: Config) -> ssl.SSLContext | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    try:
        return server_tls(config.tls_cert, config.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"tls_cert {config.tls_cert} and tls_key {config.tls_key} cannot be used: "
            f"{error.strerror or error}; both must be PEM files that belong together"
        ) from None


def address_of(sock: socket.socket) -> TcpAddress:
    host, port, *_ = sock.getsockname()
    return TcpAddress(host, port)


@dataclass(frozen=True, slots=True)
class Room:
    """For how many callers and turns there are file descriptors."""

    connections: int
    runs: int
    descriptors: int

    def __str__(self) -> str:
        return (
            f"there is room for {self.connections} connections and {self.runs} turns at once, as "
            f"this process may open {self.descriptors} files; allow it more (ulimit -n, or "
            "LimitNOFILE in its unit) to have room for all that [limits] says"
        )

    @classmethod
    def within(cls, limits: Limits, runs: int, descriptors: int) -> "Room":
        """As many as the bounds say, or of both as large a share as there can be."""
        beside = limits.callers - limits.connections + SPARE_DESCRIPTORS
        wanted = limits.connections + DESCRIPTORS_A_RUN * runs
        share = min(1.0, max(0, descriptors - beside) / wanted)
        return cls(max(1, int(limits.connections * share)), max(1, int(runs * share)), descriptors)


def make_room(limits: Limits, runs: int) -> Room:
    """Asks for as many file descriptors as all of that takes, and promises what it got."""
    wanted = limits.callers + DESCRIPTORS_A_RUN * runs + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # a system may have a bound it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return Room.within(limits, runs, wanted if soft == resource.RLIM_INFINITY else soft)
