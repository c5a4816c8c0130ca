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

from crabtalk.daemon.config.config_file import ConfigError
from crabtalk.daemon.config.settings import Config
from crabtalk.daemon.daemon import Daemon
from crabtalk.protocol import Server
from crabtalk.transport import (
    Listener,
    ListenOptions,
    TcpAddress,
    TransportLimits,
    listen_tcp,
    listen_unix,
    load_server_tls,
)

from .home import Home

# File descriptors of a run, beside the connection of whoever is answered: its own to the model, and
# its log while that is written.
DESCRIPTORS_PER_RUN = 2
# For all that is neither a caller's nor a run's: the daemon's own files, the index, memories, what
# tools start.
SPARE_DESCRIPTORS = 128
# After everything was drained or cancelled.
EXIT_TIMEOUT_SECONDS = 5.0

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
    reloads = ReloadTasks(daemon)
    loop.add_signal_handler(signal.SIGHUP, reloads.start)
    runs = config.runtime_limits.runs
    room = raise_descriptor_limit(config.limits, runs)
    listener = Listener(server, replace(config.limits, connections=room.connections))
    if daemon is not None:
        daemon.limit_runs(room.runs)
    try:
        # Left before the draining: a client that comes then must find no daemon, not a dying one.
        with ExitStack() as published:
            where = open_listeners(listener, home, config, published)
            ready(f"crabtalkd is ready: {', '.join(where)}")
            if (room.connections, room.runs) != (config.limits.connections, runs):
                log.warning("%s", room)
            opening = asyncio.ensure_future(daemon.open()) if daemon is not None else None
            await signals.get()
    finally:
        await close_listener(listener, signals)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        exit_after(EXIT_TIMEOUT_SECONDS)
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        if daemon is not None:
            await daemon.close()


class ReloadTasks:
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
        await daemon.wait_until_ready()
        try:
            await daemon.reload()
        except Exception as error:
            log.error("cannot reload: %s; what was in force stays", error)  # noqa: TRY400


async def close_listener(listener: Listener, signals: asyncio.Queue[None]) -> None:
    """Drains, unless a second signal comes."""
    closing = asyncio.ensure_future(listener.close())
    impatient = asyncio.ensure_future(signals.get())
    await asyncio.wait([closing, impatient], return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    closing.cancel()
    await asyncio.gather(closing, impatient, return_exceptions=True)


def exit_after(seconds: float) -> None:
    """The process ends by then, though a request resists or a thread is stuck."""

    def leave() -> None:
        with suppress(OSError):  # the logs are closed, and who read them may be gone
            os.write(2, b"crabtalkd: something would not stop; leaving it behind\n")
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True  # done sooner, nobody waits for it
    timer.start()


def open_listeners(
    listener: Listener, home: Home, config: Config, published: ExitStack
) -> list[str]:
    """Listens on the Unix socket and on TCP; says where. `published` removes what tells clients."""
    with translate_start_errors(f"remove {home.run_files.port_path}", "move it away"):
        home.run_files.port_path.unlink(missing_ok=True)  # of a daemon that died: we hold the lock
    with translate_start_errors(
        f"listen on {home.run_files.socket_path}", "choose another home with --home"
    ):
        sock = listen_unix(home.run_files.socket_path)
    listener.open(sock, ListenOptions("unix", uid=os.geteuid()))
    published.callback(
        remove_own_file, home.run_files.socket_path, home.run_files.socket_path.stat()
    )
    where = [str(home.run_files.socket_path)]
    if config.tcp is not None:
        tls = load_tls(config)
        with translate_start_errors(
            f"use the token in {home.run_files.token_path}", "delete it for a new one"
        ):
            token = home.run_files.ensure_token()
        with translate_start_errors(
            f"listen on {config.tcp}", "choose another address with --tcp, or off"
        ):
            sock = listen_tcp(config.tcp, or_next=config.any_port)
        listener.open(sock, ListenOptions("tcp", token=token, tls=tls))
        bound = get_address(sock)
        if tls is None and bound.host == TcpAddress().host:
            # Clients that read this file come to 127.0.0.1 and speak without TLS.
            with translate_start_errors(f"write {home.run_files.port_path}", "move it away"):
                home.run_files.publish_port(bound.port)
            published.callback(
                remove_own_file, home.run_files.port_path, home.run_files.port_path.stat()
            )
        where.append(f"{bound} with TLS" if tls else str(bound))
    return where


def remove_own_file(path: Path, made: os.stat_result) -> None:
    """Removes a file if it still is the one we made, and not that of a daemon after us."""
    with suppress(OSError):
        if os.path.samestat(path.lstat(), made):
            path.unlink()


class StartError(Exception):
    """The daemon cannot start, with what to do about it."""


@contextmanager
def translate_start_errors(what: str, remedy: str) -> Iterator[None]:
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
        return load_server_tls(config.tls_cert, config.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"tls_cert {config.tls_cert} and tls_key {config.tls_key} cannot be used: "
            f"{error.strerror or error}; both must be PEM files that belong together"
        ) from None


def get_address(sock: socket.socket) -> TcpAddress:
    host, port, *_ = sock.getsockname()
    return TcpAddress(host, port)


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
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
    def from_limits(
        cls, limits: TransportLimits, runs: int, descriptors: int
    ) -> "DescriptorBudget":
        """As many as the bounds say, or of both as large a share as there can be."""
        beside = limits.max_sockets - limits.connections + SPARE_DESCRIPTORS
        wanted = limits.connections + DESCRIPTORS_PER_RUN * runs
        share = min(1.0, max(0, descriptors - beside) / wanted)
        return cls(max(1, int(limits.connections * share)), max(1, int(runs * share)), descriptors)


def raise_descriptor_limit(limits: TransportLimits, runs: int) -> DescriptorBudget:
    """Asks for as many file descriptors as all of that takes, and promises what it got."""
    wanted = limits.max_sockets + DESCRIPTORS_PER_RUN * runs + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # a system may have a bound it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return DescriptorBudget.from_limits(
        limits, runs, wanted if soft == resource.RLIM_INFINITY else soft
    )
