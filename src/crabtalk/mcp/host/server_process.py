"""ServerProcess: the stdio transport of the host, for a server that runs as a child process.

The process has its own process group, which is ended as a whole. Unlike the SDK's stdio transport,
this one limits what it reads, keeps the last lines of stderr, and knows how the process ended.
"""

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from crabtalk.environment import NETWORK_VARIABLES, build_child_environment

log = logging.getLogger(__name__)

LONGEST_LINE = 16 * 1024 * 1024
READ_SIZE = 64 * 1024
# Invalid lines in a row before a server is given up: some print a banner first.
MAX_GARBAGE_LINES = 1000
# Kept of stderr, and of invalid lines on stdout.
MAX_KEPT_LINES = 5
MAX_KEPT_LENGTH = 300
# Seconds to end after stdin is closed, then after SIGTERM, then after SIGKILL.
CLOSE_TIMEOUT = 1.0
TERMINATE_TIMEOUT = 0.5
KILL_TIMEOUT = 1.0

ReadStream = MemoryObjectReceiveStream[SessionMessage | Exception]
WriteStream = MemoryObjectSendStream[SessionMessage]


class ServerProcess:
    def __init__(
        self,
        command: str,
        args: Sequence[str],
        env: Mapping[str, str],
        on_spawned: Callable[[int], None],
    ) -> None:
        self._command = [command, *args]
        self._env = env
        self._on_spawned = on_spawned
        self._process: asyncio.subprocess.Process | None = None
        self._stderr_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._garbage_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)  # invalid lines on stdout
        self._stderr_ended = asyncio.Event()
        self._failure = ""  # why we gave it up, if we did
        self.ended = asyncio.Event()  # no more messages follow

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[tuple[ReadStream, WriteStream]]:
        """Start the process. On exit, also by cancellation, its whole group is ended."""
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=build_child_environment(NETWORK_VARIABLES, self._env),
            start_new_session=True,
            limit=READ_SIZE,
        )
        self._on_spawned(process.pid)
        from_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, to_server = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._read_stdout, process, from_server)
            group.start_soon(self._write_stdin, process, to_server)
            group.start_soon(self._read_stderr, process)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    for stream in (incoming, from_server, outgoing, to_server):
                        stream.close()
                    await self._stop(process)
                group.cancel_scope.cancel()

    def describe_end(self) -> str:
        """Return how the process ended, as far as known, with its last output."""
        status = self._process.returncode if self._process is not None else None
        if self._failure:
            reason = self._failure
        elif status is None:
            reason = "it closed its output"
        elif status < 0:
            reason = f"its process was killed by {get_signal_name(-status)}"
        else:
            reason = f"its process ended with status {status}"
        return reason + self.quote_output()

    def quote_output(self) -> str:
        """Return the last output in brackets, to append to a sentence; empty if there was none."""
        stderr = " | ".join(self._stderr_lines)
        printed = " | ".join(self._garbage_lines)
        text = f" (stderr: {stderr})" if stderr else ""
        return text + (f" (it printed: {printed})" if printed else "")

    async def _read_stdout(
        self,
        process: asyncio.subprocess.Process,
        from_server: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Pass on messages until stdout ends, or the server prints too much that is invalid."""
        assert process.stdout is not None  # noqa: S101 - it was requested above
        buffer = bytearray()
        garbage = 0
        try:
            while piece := await process.stdout.read(READ_SIZE):
                start = len(buffer)
                buffer += piece
                while (end := buffer.find(b"\n", start)) >= 0:
                    line = bytes(buffer[:end]).strip()
                    del buffer[: end + 1]
                    start = 0
                    if not line:
                        continue
                    message = parse_message(line)
                    if message is not None:
                        garbage = 0
                        await from_server.send(message)
                        continue
                    garbage += 1
                    self._garbage_lines.append(truncate_line(line))
                    if garbage > MAX_GARBAGE_LINES:
                        self._failure = "it prints what is no MCP"
                        return
                if len(buffer) > LONGEST_LINE:
                    self._failure = f"it sent a line of more than {LONGEST_LINE} bytes"
                    return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the SDK has closed the stream
        finally:
            from_server.close()
            if not self._failure:
                await self._wait_for_exit(process, TERMINATE_TIMEOUT)  # so that its status is known
            self.ended.set()

    async def _write_stdin(
        self,
        process: asyncio.subprocess.Process,
        to_server: MemoryObjectReceiveStream[SessionMessage],
    ) -> None:
        assert process.stdin is not None  # noqa: S101
        try:
            async for message in to_server:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
        except anyio.ClosedResourceError:
            pass  # the SDK has closed the stream
        except OSError:
            # Most servers that close stdin are about to end, and their exit status says more.
            if not await self._wait_for_exit(process, TERMINATE_TIMEOUT):
                self._failure = "it closed its input"
                self.ended.set()

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines of stderr. Left unread, a full pipe would block the server."""
        assert process.stderr is not None  # noqa: S101
        rest = b""
        while piece := await process.stderr.read(READ_SIZE):
            *lines, rest = (rest + piece).split(b"\n")
            self._stderr_lines.extend(truncate_line(line) for line in lines if line.strip())
            rest = rest[-MAX_KEPT_LENGTH * 4 :]
        if rest.strip():
            self._stderr_lines.append(truncate_line(rest))
        self._stderr_ended.set()

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        """Stop the server as MCP specifies: close stdin, then SIGTERM, then SIGKILL.

        SIGKILL goes to the whole group, even if the server itself has ended.
        """
        if process.stdin is not None:
            process.stdin.close()
        if not self._failure and not await self._wait_for_exit(process, CLOSE_TIMEOUT):
            signal_group(process.pid, signal.SIGTERM)
            await self._wait_for_exit(process, TERMINATE_TIMEOUT)
        signal_group(process.pid, signal.SIGKILL)
        await self._wait_for_exit(process, KILL_TIMEOUT)
        with suppress(TimeoutError):
            async with asyncio.timeout(TERMINATE_TIMEOUT):
                await self._stderr_ended.wait()
        # Surviving processes may hold the pipes open, so close our ends without waiting.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()
        self._on_spawned(0)

    async def _wait_for_exit(self, process: asyncio.subprocess.Process, seconds: float) -> bool:
        """Return whether the process ended in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        # process.wait() would also wait for all other processes that hold its pipes.
        while process.returncode is None and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return process.returncode is not None


def parse_message(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


def truncate_line(line: bytes) -> str:
    text = line[: MAX_KEPT_LENGTH * 4].decode(errors="replace").strip()
    return text if len(text) <= MAX_KEPT_LENGTH else text[:MAX_KEPT_LENGTH] + "…"


def signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
