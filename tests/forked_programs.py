"""Runs commands as forked processes, so that their modules are loaded once for all tests.

    program = ForkedProgram(Path("bin/crabtalk"), "crabtalk.cli.main:main", "crabtalk.client")
    process = program.start("ask", "hello", stdout=PIPE)
    out, _ = await process.communicate()

Each is a real process with its own arguments, environment, directory and streams, forked from one
that has imported the command (`fork_server.py`). Tests of how a command is loaded, or what that
costs, start the program itself.
"""

import asyncio
import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any

FORK_SERVER = Path(__file__).with_name("fork_server.py")
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
# How long tests wait for a process to end, unless they say otherwise.
PATIENCE = 50
# Variables that Python reads only at startup: each combination needs its own fork server.
STARTUP_VARIABLES = ("LANG", "LC_", "PYTHON")


class ForkedProcess:
    """A process with the interface of asyncio's."""

    def __init__(self, status_socket: int, stdin: int | None, *others: int | None) -> None:
        self._status_socket = status_socket
        self._status: int | None = None
        self.pid = self._read_number()
        self.stdin = FileIO(stdin, "wb") if stdin is not None else None
        self._out, self._err = (OutputPipe(end) if end is not None else None for end in others)
        self.stdout = self._out.stream if self._out is not None else None
        self.stderr = self._err.stream if self._err is not None else None

    @property
    def returncode(self) -> int | None:
        if self._status is None and select.select([self._status_socket], [], [], 0)[0]:
            self._reap()
        return self._status

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait_blocking(self) -> int:
        """Wait for its exit status without an event loop."""
        if self._status is None and not select.select([self._status_socket], [], [], PATIENCE)[0]:
            self.kill()
            raise AssertionError(f"process {self.pid} does not end")
        return self._reap()

    async def wait(self) -> int:
        if self._status is None:
            await wait_readable(self._status_socket)
        return self._reap()

    async def communicate(self, typed: bytes = b"") -> tuple[bytes, bytes]:
        """Write `typed` to its stdin and read all its output. It need not read all its input."""
        _, out, err = await asyncio.gather(
            asyncio.to_thread(write_all, self.stdin, typed) if typed else close_stream(self.stdin),
            read_all(self.stdout),
            read_all(self.stderr),
        )
        await self.wait()
        return out, err

    def _reap(self) -> int:
        if self._status is None:
            self._status = self._read_number()
            os.close(self._status_socket)
            for pipe in (self._out, self._err):
                if pipe is not None:
                    pipe.drain()
        return self._status

    def _read_number(self) -> int:
        data = os.read(self._status_socket, 4)
        assert data, "the fork server has ended"
        (number,) = struct.unpack("=i", data)
        return int(number)


class OutputPipe:
    """An output stream of a process, read by the running loop."""

    def __init__(self, end: int) -> None:
        self.stream = asyncio.StreamReader()
        self._descriptor = end
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read)
        os.set_blocking(end, False)

    def drain(self) -> None:
        """Read all that is there: up to the end, unless another process holds the pipe open."""
        with suppress(BlockingIOError):
            while not self._is_closed:
                self._read()

    def _read(self) -> None:
        if data := os.read(self._descriptor, 65536):
            self.stream.feed_data(data)
            return
        self._is_closed = True
        self.stream.feed_eof()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


class ForkedProgram:
    """A command: its path, its entry point (`module:function`), and modules that it imports late.

    It is loaded when it is first started.
    """

    def __init__(self, path: Path, entry: str, *modules: str) -> None:
        self._path = path
        self._server_arguments = (entry, *modules)
        self._fork_servers: dict[frozenset[tuple[str, str]], socket.socket] = {}
        self._lock = Lock()

    def start(
        self,
        *words: str | Path,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start_new_session: bool = False,
        has_terminal: bool = False,
    ) -> ForkedProcess:
        """Start a process like subprocess does; the running loop reads its output pipes.

        With `has_terminal`, stdin is a terminal whose keys send signals to the process.
        """
        environment = dict(os.environ if env is None else env)
        options = {
            "arguments": [str(self._path), *map(str, words)],
            "environment": environment,
            "directory": str(cwd or Path.cwd()),
            "new_session": start_new_session or has_terminal,
            "has_terminal": has_terminal,
        }
        child_ends, own_ends = zip(
            *map(open_stream_ends, range(3), (stdin, stdout, stderr)), strict=True
        )
        ours, theirs = socket.socketpair()
        with theirs:
            fork_server = self._get_fork_server(environment)
            socket.send_fds(fork_server, [b"+"], [theirs.fileno(), *child_ends])
        for end in child_ends:
            os.close(end)
        ours.sendall(f"{json.dumps(options)}\n".encode())
        return ForkedProcess(ours.detach(), *own_ends)

    def run(self, *words: str | Path, **options: Any) -> tuple[int, str, str]:
        """`run_and_capture` for callers without an event loop."""
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self.run_and_capture(*words, **options))
        finally:
            loop.close()

    async def run_and_capture(
        self,
        *words: str | Path,
        typed: bytes = b"",
        env: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> tuple[int, str, str]:
        """Return its exit status and output; `typed` is its stdin, which is not a terminal."""
        process = self.start(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env)
        try:
            async with asyncio.timeout(patience):
                out, err = await process.communicate(typed)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        return await process.wait(), out.decode(), err.decode()

    def _get_fork_server(self, environment: Mapping[str, str]) -> socket.socket:
        """The control socket of a fork server that was loaded in the same locale."""
        startup = {(n, v) for n, v in environment.items() if n.startswith(STARTUP_VARIABLES)}
        with self._lock:
            if (server := self._fork_servers.get(frozenset(startup))) is None:
                server = self._fork_servers[frozenset(startup)] = start_fork_server(
                    self._server_arguments, environment
                )
            return server


def start_fork_server(arguments: tuple[str, ...], environment: Mapping[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", FORK_SERVER, str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            stdin=DEVNULL,
            stdout=DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # runs before the wait, which it ends
    return ours


def open_stream_ends(number: int, stream: int | None) -> tuple[int, int | None]:
    """Open a standard stream: the child's end, and our end if it is a pipe."""
    if stream == PIPE:
        reading, writing = os.pipe()
        return (reading, writing) if number == 0 else (writing, reading)
    if stream == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(number if stream is None else stream), None


async def wait_readable(end: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(end, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(end)


async def read_all(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream is not None else b""


async def close_stream(stream: FileIO | None) -> None:
    if stream is not None:
        stream.close()


def write_all(stream: FileIO | None, typed: bytes) -> None:
    assert stream is not None
    with suppress(BrokenPipeError), stream:
        remaining = memoryview(typed)
        while remaining:
            remaining = remaining[stream.write(remaining) :]
