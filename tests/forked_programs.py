"""Commands as processes that do not load what they consist of: that is done once for all tests.

    program = Program(Path("bin/crabtalk"), "crabtalk.cli.main:main", "crabtalk.client")
    process = program.start("ask", "hello", stdout=PIPE)
    out, _ = await process.communicate()

Each is a process of its own, with its words, environment, directory and streams, forked from one
that has imported the command (`hearth`). A test about how a command is loaded, or what that costs,
starts the program itself.
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
# No test waits longer for a process to end, unless it says so.
PATIENCE = 50
# What Python reads as it starts, and never again: a program is loaded anew for another value.
STARTUP_VARIABLES = ("LANG", "LC_", "PYTHON")


class ForkedProcess:
    """A process, as asyncio would have it."""

    def __init__(self, news: int, stdin: int | None, *others: int | None) -> None:
        self._status_socket = news
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
        """Its status, for who has no loop."""
        if self._status is None and not select.select([self._status_socket], [], [], PATIENCE)[0]:
            self.kill()
            raise AssertionError(f"process {self.pid} does not end")
        return self._reap()

    async def wait(self) -> int:
        if self._status is None:
            await wait_readable(self._status_socket)
        return self._reap()

    async def communicate(self, typed: bytes = b"") -> tuple[bytes, bytes]:
        """All it says. What it does not read of what is typed is no error."""
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
        assert data, "what it is forked from has ended"
        (number,) = struct.unpack("=i", data)
        return int(number)


class OutputPipe:
    """What a process says, read by the loop that runs."""

    def __init__(self, end: int) -> None:
        self.stream = asyncio.StreamReader()
        self._descriptor = end
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read)
        os.set_blocking(end, False)

    def drain(self) -> None:
        """Reads all there is, up to its end unless another process holds on to it."""
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
    """A command: its path, what it calls (`module:function`), and modules that it imports late.
    It is loaded when it is first started."""

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
        """As subprocess does it; what it says on a pipe is read by the loop that runs. Whoever has
        a terminal, on its stdin, gets the signals of its keys."""
        environment = dict(os.environ if env is None else env)
        order = {
            "words": [str(self._path), *map(str, words)],
            "environment": environment,
            "directory": str(cwd or Path.cwd()),
            "is_apart": start_new_session or has_terminal,
            "has_terminal": has_terminal,
        }
        given, kept = zip(*map(open_stream_ends, range(3), (stdin, stdout, stderr)), strict=True)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._get_fork_server(environment), [b"+"], [theirs.fileno(), *given])
        for end in given:
            os.close(end)
        ours.sendall(f"{json.dumps(order)}\n".encode())
        return ForkedProcess(ours.detach(), *kept)

    def run(self, *words: str | Path, **options: Any) -> tuple[int, str, str]:
        """What `said` returns, for who has no loop."""
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
        """Its status and all it said; `typed` comes on its stdin, which is no terminal."""
        process = self.start(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env)
        try:
            async with asyncio.timeout(patience):
                out, err = await process.communicate(typed)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        return await process.wait(), out.decode(), err.decode()

    def _get_fork_server(self, environment: Mapping[str, str]) -> socket.socket:
        """To where it is loaded, in the locale of that environment."""
        read = {(n, v) for n, v in environment.items() if n.startswith(STARTUP_VARIABLES)}
        with self._lock:
            if (door := self._fork_servers.get(frozenset(read))) is None:
                door = self._fork_servers[frozenset(read)] = start_fork_server(
                    self._server_arguments, environment
                )
            return door


def start_fork_server(words: tuple[str, ...], environment: Mapping[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        hearth = subprocess.Popen(
            [sys.executable, "-P", FORK_SERVER, str(theirs.fileno()), *words],
            pass_fds=[theirs.fileno()],
            stdin=DEVNULL,
            stdout=DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
    atexit.register(hearth.wait)
    atexit.register(ours.close)  # which comes first, and is what it waits for
    return ours


def open_stream_ends(number: int, stream: int | None) -> tuple[int, int | None]:
    """Of a standard stream: what the process gets, and what is kept here of a pipe."""
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
        rest = memoryview(typed)
        while rest:
            rest = rest[stream.write(rest) :]
