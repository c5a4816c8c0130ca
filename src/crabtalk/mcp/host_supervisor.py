"""HostSupervisor: starts and stops the MCP host process, and exchanges messages with it.

The host is started when the first server is to be opened. When it ends, for whatever reason, all
servers it had started are killed.
"""

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from crabtalk.environment import INTERPRETER_VARIABLES, NETWORK_VARIABLES, build_child_environment

from .messages import (
    FromHost,
    HostFrameError,
    OpenPeer,
    ServerSpawned,
    ToHost,
    encode_frame,
    read_frame,
)

log = logging.getLogger(__name__)

READ_AHEAD = 1024 * 1024
# Seconds for the host to close all servers, then for the host to end after it is killed.
CLOSE_TIMEOUT = 3.0
KILL_TIMEOUT = 1.0
MAX_KEPT_LINES = 3
LONGEST_LINE = 500


class HostSupervisor:
    """`on_message` gets each message of the host. `on_death` is called once for each host that ends
    unexpectedly."""

    def __init__(
        self, on_message: Callable[[FromHost], None], on_death: Callable[[str], None]
    ) -> None:
        self._on_message = on_message
        self._on_death = on_death
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._unsent_frames: list[bytes] = []  # until the host runs
        self._server_pids: dict[int, int] = {}  # of process groups, by peer
        self._stderr_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The host's process id while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def server_pids(self) -> list[int]:
        """The server processes of the host; each leads its own process group."""
        return list(self._server_pids.values())

    def send(self, message: ToHost) -> None:
        """Send a message. Raises HostFrameError if it is too large.

        Without a host, OpenPeer starts one; other messages are dropped.
        """
        frame = encode_frame(message)
        if self._is_closed:
            return
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(frame)
            return
        is_starting = bool(self._unsent_frames)
        if is_starting or isinstance(message, OpenPeer):
            self._unsent_frames.append(frame)
        if self._unsent_frames and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run())

    def kill(self) -> None:
        """Kill a host that does not answer. The next OpenPeer starts another."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        """Stop the host, all servers and everything they started."""
        self._is_closed = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._task is None:
            return
        _, late = await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
        if late:
            self.kill()
            _, late = await asyncio.wait([self._task], timeout=KILL_TIMEOUT)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        reason = "it ended"
        try:
            process = await self._start()
            stderr_task = asyncio.ensure_future(self._read_stderr(process))
            try:
                reason = await self._read_messages(process)
            finally:
                self.kill()
                self._process = None
                await process.wait()
                await asyncio.wait([stderr_task], timeout=KILL_TIMEOUT)
                stderr_task.cancel()
        except OSError as error:
            reason = f"it cannot be started: {error.strerror or error}"
        except HostFrameError as error:
            reason = f"it is not understood: {error}"
        finally:
            self._unsent_frames.clear()
            self._kill_servers()
            if not self._is_closed:
                output = f" ({' | '.join(self._stderr_lines)})" if self._stderr_lines else ""
                log.error("the host of MCP servers is gone: %s%s", reason, output)
                self._on_death(f"the host process of MCP servers is gone: {reason}{output}")

    async def _start(self) -> asyncio.subprocess.Process:
        # -P: a folder `mcp` in the daemon's working directory must not be imported as the SDK.
        # Its own session: Ctrl+C in a terminal is only for the daemon.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "crabtalk.mcp.host.main"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Neither the host nor its servers need the keys of model providers.
            env=build_child_environment((*NETWORK_VARIABLES, *INTERPRETER_VARIABLES)),
            start_new_session=True,
            limit=READ_AHEAD,
        )
        self._process = process
        self._stderr_lines.clear()
        assert process.stdin is not None  # noqa: S101 - it was requested above
        process.stdin.write(b"".join(self._unsent_frames))
        self._unsent_frames.clear()
        if self._is_closed:  # closed while the host was starting
            process.stdin.close()
        return process

    async def _read_messages(self, process: asyncio.subprocess.Process) -> str:
        """Handle messages until the host closes its output. Returns how it ended."""
        assert process.stdout is not None  # noqa: S101
        decoder = msgspec.msgpack.Decoder(FromHost)
        while (message := await read_frame(process.stdout, decoder)) is not None:
            if isinstance(message, ServerSpawned):
                self._record_server(message)
                continue
            try:
                self._on_message(message)
            except Exception:
                log.exception("what the host of MCP servers said could not be handled")
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT):
                await process.wait()
        if process.returncode is None:
            return "it closed its output"
        if process.returncode < 0:
            return f"it was killed by signal {-process.returncode}"
        return f"it ended with status {process.returncode}"

    def _record_server(self, message: ServerSpawned) -> None:
        if message.pid:
            self._server_pids[message.peer] = message.pid
        else:
            self._server_pids.pop(message.peer, None)

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # noqa: S101
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # the line is longer than READ_AHEAD
                continue
            if not line:
                return
            text = line.decode(errors="replace").strip()[:LONGEST_LINE]
            self._stderr_lines.append(text)
            log.debug("MCP host: %s", text)

    def _kill_servers(self) -> None:
        for leader in self._server_pids.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        self._server_pids.clear()
