"""The main loop: listens for clients, serves until a signal, and cleans up."""

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

# File descriptors of a run, besides the client's connection: the connection to the model, and the
# log while it is written.
DESCRIPTORS_PER_RUN = 2
# File descriptors for everything else: the daemon's own files, the index, memories, processes that
# tools start.
SPARE_DESCRIPTORS = 128
# Seconds for the exit after requests were drained or cancelled.
EXIT_TIMEOUT_SECONDS = 5.0

log = logging.getLogger(__name__)


async def serve(
    home: Home,
    config: Config,
    server: Server,
    ready: Callable[[str], None],
    daemon: Daemon | None = None,
) -> None:
    """Serve `server` from a locked home until SIGINT or SIGTERM; SIGHUP reloads `daemon`.

    `ready` is called once with a sentence, when clients can connect; the daemon is opened after
    that, so that its slow work does not delay the first answer. At the end, whatever the reason,
    the socket and port file are removed, requests are drained and the daemon is closed. A second
    signal stops the draining.
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
        # Removed before draining: a new client must find no daemon rather than one that is ending.
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
    """Runs the reloads that SIGHUP asks for; errors go to the log."""

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
    """Drain requests until done or until a second signal."""
    closing = asyncio.ensure_future(listener.close())
    second_signal = asyncio.ensure_future(signals.get())
    await asyncio.wait([closing, second_signal], return_when=asyncio.FIRST_COMPLETED)
    second_signal.cancel()
    closing.cancel()
    await asyncio.gather(closing, second_signal, return_exceptions=True)


def exit_after(seconds: float) -> None:
    """End the process after `seconds`, even if a request or a thread does not end."""

    def force_exit() -> None:
        with suppress(OSError):  # stderr may be closed; the logs are
            os.write(2, b"crabtalkd: something would not stop; leaving it behind\n")
        os._exit(1)

    timer = threading.Timer(seconds, force_exit)
    timer.daemon = True  # does not delay an earlier exit
    timer.start()


def open_listeners(
    listener: Listener, home: Home, config: Config, published: ExitStack
) -> list[str]:
    """Listen on the Unix socket and TCP. `published` removes the files that clients look for."""
    with translate_start_errors(f"remove {home.run_files.port_path}", "move it away"):
        # Left by a daemon that died: we hold the lock.
        home.run_files.port_path.unlink(missing_ok=True)
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
            # Clients that read this file connect to 127.0.0.1 without TLS.
            with translate_start_errors(f"write {home.run_files.port_path}", "move it away"):
                home.run_files.publish_port(bound.port)
            published.callback(
                remove_own_file, home.run_files.port_path, home.run_files.port_path.stat()
            )
        where.append(f"{bound} with TLS" if tls else str(bound))
    return where


def remove_own_file(path: Path, created: os.stat_result) -> None:
    """Remove a file unless a later daemon has replaced it."""
    with suppress(OSError):
        if os.path.samestat(path.lstat(), created):
            path.unlink()


class StartError(Exception):
    """The daemon cannot start; says what to do about it."""


@contextmanager
def translate_start_errors(action: str, remedy: str) -> Iterator[None]:
    """Raise OSErrors and ValueErrors as StartErrors."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"cannot {action}: {reason}; {remedy}") from None


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
    """How many connections and turns the available file descriptors allow."""

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
        """As many as the limits allow, or the same share of both if descriptors are short."""
        reserved = limits.max_sockets - limits.connections + SPARE_DESCRIPTORS
        wanted = limits.connections + DESCRIPTORS_PER_RUN * runs
        share = min(1.0, max(0, descriptors - reserved) / wanted)
        return cls(max(1, int(limits.connections * share)), max(1, int(runs * share)), descriptors)


def raise_descriptor_limit(limits: TransportLimits, runs: int) -> DescriptorBudget:
    """Raise RLIMIT_NOFILE as far as needed and possible."""
    wanted = limits.max_sockets + DESCRIPTORS_PER_RUN * runs + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # a system may have a further limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return DescriptorBudget.from_limits(
        limits, runs, wanted if soft == resource.RLIM_INFINITY else soft
    )
