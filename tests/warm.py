"""Commands as processes that do not load what they consist of: that is done once for all tests.

    program = Program(Path("bin/crabtalk"), "crabtalk_tui.cli:main", "crabtalk.client")
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

HEARTH = Path(__file__).with_name("hearth.py")
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
# No test waits longer for a process to end, unless it says so.
PATIENCE = 50
# What Python reads as it starts, and never again: a program is loaded anew for another value.
READ_AT_START = ("LANG", "LC_", "PYTHON")


class Started:
    """A process, as asyncio would have it."""

    def __init__(self, news: int, stdin: int | None, *others: int | None) -> None:
        self._news = news
        self._status: int | None = None
        self.pid = self._hear()
        self.stdin = FileIO(stdin, "wb") if stdin is not None else None
        self._out, self._err = (Pipe(end) if end is not None else None for end in others)
        self.stdout = self._out.stream if self._out is not None else None
        self.stderr = self._err.stream if self._err is not None else None

    @property
    def returncode(self) -> int | None:
        if self._status is None and select.select([self._news], [], [], 0)[0]:
            self._bury()
        return self._status

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def ended(self) -> int:
        """Its status, for who has no loop."""
        if self._status is None and not select.select([self._news], [], [], PATIENCE)[0]:
            self.kill()
            raise AssertionError(f"process {self.pid} does not end")
        return self._bury()

    async def wait(self) -> int:
        if self._status is None:
            await readable(self._news)
        return self._bury()

    async def communicate(self, typed: bytes = b"") -> tuple[bytes, bytes]:
        """All it says. What it does not read of what is typed is no error."""
        _, out, err = await asyncio.gather(
            asyncio.to_thread(put, self.stdin, typed) if typed else closed(self.stdin),
            everything(self.stdout),
            everything(self.stderr),
        )
        await self.wait()
        return out, err

    def _bury(self) -> int:
        if self._status is None:
            self._status = self._hear()
            os.close(self._news)
            for pipe in (self._out, self._err):
                if pipe is not None:
                    pipe.drain()
        return self._status

    def _hear(self) -> int:
        data = os.read(self._news, 4)
        assert data, "what it is forked from has ended"
        (number,) = struct.unpack("=i", data)
        return int(number)


class Pipe:
    """What a process says, read by the loop that runs."""

    def __init__(self, end: int) -> None:
        self.stream = asyncio.StreamReader()
        self._end = end
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read)
        os.set_blocking(end, False)

    def drain(self) -> None:
        """Reads all there is, up to its end unless another process holds on to it."""
        with suppress(BlockingIOError):
            while not self._is_over:
                self._read()

    def _read(self) -> None:
        if data := os.read(self._end, 65536):
            self.stream.feed_data(data)
            return
        self._is_over = True
        self.stream.feed_eof()
        self._loop.remove_reader(self._end)
        os.close(self._end)


class Program:
    """A command: its path, what it calls (`module:function`), and modules that it imports late.
    It is loaded when it is first started."""

    def __init__(self, path: Path, entry: str, *modules: str) -> None:
        self._path = path
        self._words = (entry, *modules)
        self._doors: dict[frozenset[tuple[str, str]], socket.socket] = {}
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
    ) -> Started:
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
        given, kept = zip(*map(ends, range(3), (stdin, stdout, stderr)), strict=True)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._door(environment), [b"+"], [theirs.fileno(), *given])
        for end in given:
            os.close(end)
        ours.sendall(f"{json.dumps(order)}\n".encode())
        return Started(ours.detach(), *kept)

    def run(self, *words: str | Path, **options: Any) -> tuple[int, str, str]:
        """What `said` returns, for who has no loop."""
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self.said(*words, **options))
        finally:
            loop.close()

    async def said(
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

    def _door(self, environment: Mapping[str, str]) -> socket.socket:
        """To where it is loaded, in the locale of that environment."""
        read = {(n, v) for n, v in environment.items() if n.startswith(READ_AT_START)}
        with self._lock:
            if (door := self._doors.get(frozenset(read))) is None:
                door = self._doors[frozenset(read)] = loaded(self._words, environment)
            return door


def loaded(words: tuple[str, ...], environment: Mapping[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        hearth = subprocess.Popen(
            [sys.executable, "-P", HEARTH, str(theirs.fileno()), *words],
            pass_fds=[theirs.fileno()],
            stdin=DEVNULL,
            stdout=DEVNULL,
            env=dict(environment),
            start_new_session=True,
        )
    atexit.register(hearth.wait)
    atexit.register(ours.close)  # which comes first, and is what it waits for
    return ours


def ends(number: int, stream: int | None) -> tuple[int, int | None]:
    """Of a standard stream: what the process gets, and what is kept here of a pipe."""
    if stream == PIPE:
        reading, writing = os.pipe()
        return (reading, writing) if number == 0 else (writing, reading)
    if stream == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(number if stream is None else stream), None


async def readable(end: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(end, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(end)


async def everything(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream is not None else b""


async def closed(stream: FileIO | None) -> None:
    if stream is not None:
        stream.close()


def put(stream: FileIO | None, typed: bytes) -> None:
    assert stream is not None
    with suppress(BrokenPipeError), stream:
        rest = memoryview(typed)
        while rest:
            rest = rest[stream.write(rest) :]
