"""A server's process, in the host: started in a group of its own, heard line by line, ended whole.

It is a transport of the SDK's. Unlike the SDK's own it bounds what it reads, keeps the last words
of standard error, and knows how the process ended.
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
# Lines in a row that are not the protocol's before a server is given up: some print a banner.
MAX_GARBAGE_LINES = 1000
# Of what is said on standard error, and of garbage.
MAX_KEPT_LINES = 5
MAX_KEPT_LENGTH = 300
# How long it has to leave when its input ends, then when asked, then for the system to reap it.
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
        spawned: Callable[[int], None],
    ) -> None:
        self._command = [command, *args]
        self._env = env
        self._on_spawned = spawned
        self._process: asyncio.subprocess.Process | None = None
        self._stderr_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)  # on standard error
        self._garbage_lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)  # on standard output
        self._stderr_ended = asyncio.Event()  # all of standard error
        self._failure = ""  # why we gave it up, if we did
        self.ended = asyncio.Event()  # nothing more will be said

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[tuple[ReadStream, WriteStream]]:
        """Left, also by a cancellation, the process and all it started are gone."""
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
        heard_in, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        said, said_out = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._read_stdout, process, heard_in)
            group.start_soon(self._write_stdin, process, said_out)
            group.start_soon(self._read_stderr, process)
            try:
                yield heard, said
            finally:
                with anyio.CancelScope(shield=True):
                    for stream in (heard, heard_in, said, said_out):
                        stream.close()
                    await self._stop(process)
                group.cancel_scope.cancel()

    def describe_end(self) -> str:
        """How it ended, as far as that is known, with its last words."""
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
        """In brackets, for the end of a sentence; empty if there were none."""
        said = " | ".join(self._stderr_lines)
        printed = " | ".join(self._garbage_lines)
        text = f" (stderr: {said})" if said else ""
        return text + (f" (it printed: {printed})" if printed else "")

    async def _read_stdout(
        self,
        process: asyncio.subprocess.Process,
        heard: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Hands on what it says. Ends with its output, or when it says what it should not."""
        assert process.stdout is not None  # noqa: S101 - it was asked for
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
                        await heard.send(message)
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
            pass  # whoever listened has left
        finally:
            heard.close()
            if not self._failure:
                await self._wait_for_exit(process, TERMINATE_TIMEOUT)  # so that its status is known
            self.ended.set()

    async def _write_stdin(
        self,
        process: asyncio.subprocess.Process,
        said: MemoryObjectReceiveStream[SessionMessage],
    ) -> None:
        assert process.stdin is not None  # noqa: S101
        try:
            async for message in said:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
        except anyio.ClosedResourceError:
            pass  # whoever spoke has left
        except OSError:
            # Most that do not listen are about to end, and how they do says more.
            if not await self._wait_for_exit(process, TERMINATE_TIMEOUT):
                self._failure = "it closed its input"
                self.ended.set()

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Keeps the last lines of standard error; a full pipe would stop the server."""
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
        """As MCP wants it: its input ends, then it is asked, then it is killed; and so is all that
        it started, though the process itself left at once."""
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
        # What survives us holds the pipes; nobody must wait for them.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()
        self._on_spawned(0)

    async def _wait_for_exit(self, process: asyncio.subprocess.Process, patience: float) -> bool:
        """Whether it ended in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        # Waiting for the process would wait for everybody who holds its pipes as well.
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
