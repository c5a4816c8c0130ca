"""Runs a command in its own process group and makes sure that the group ends.

However a call ends (normally, by timeout or by cancellation), no process of the group is left. A
process that leaves the group with setsid is not killed: only a sandbox ends those. Of long output
only the beginning and the end are kept.
"""

import asyncio
import codecs
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import msgspec

# Bytes kept of one stream.
MAX_KEPT_BYTES = 48 * 1024
# Bytes read at once: the capacity of a pipe.
READ_SIZE = 64 * 1024
# Seconds: between SIGTERM and SIGKILL; for processes to end after SIGKILL; for output of
# background children after the shell has exited.
GRACE = 0.5
KILL_TIMEOUT = 2.0
LINGER = 0.2
# Seconds between checks whether a group is empty: the system does not notify us.
POLL_INTERVAL = 0.01
PROC_DIRECTORY = Path("/proc")


class CommandStartError(Exception):
    """A command could not be started; the text says why."""


class OutputBuffer:
    """The beginning and the end of a stream, in bounded memory."""

    def __init__(self, limit: int = MAX_KEPT_BYTES) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:
            del self._tail[: len(self._tail) - self._half]

    def text(self, limit: int = MAX_KEPT_BYTES) -> tuple[str, int]:
        """Return at most `limit` bytes as text, and how many bytes were left out."""
        half = min(limit // 2, self._half)
        if self.total <= 2 * half:
            return (self._head + self._tail).decode(errors="replace"), 0
        head = trim_partial_end(bytes(self._head[:half]))
        tail = trim_partial_start(bytes(self._tail[len(self._tail) - half :]))
        missing = self.total - len(head) - len(tail)
        shown = (part.decode(errors="replace") for part in (head, tail))
        return f"\n… {missing} bytes left out …\n".join(shown), missing


def trim_partial_end(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character from the end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return data[: len(data) - len(decoder.getstate()[0])]


def trim_partial_start(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character from the beginning."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


class CommandOutcome(msgspec.Struct, frozen=True):
    """The result of a command. The exit code is -1 if a signal ended it."""

    stdout: OutputBuffer
    stderr: OutputBuffer
    exit_code: int
    timed_out: bool = False


async def run_command(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], seconds: float
) -> CommandOutcome:
    """Run a command for at most `seconds`, with `env` as its whole environment.

    Raises CommandStartError if it cannot be started. After this returns, raises or is cancelled, no
    process of the group is left.
    """
    if not await asyncio.to_thread(cwd.is_dir):
        raise CommandStartError(
            f"the working directory {cwd} is not there; make it, or choose another."
        )
    try:
        group = ProcessGroup(argv, cwd, env)
    except (OSError, ValueError) as error:
        raise CommandStartError(f"it could not be started: {error}.") from None
    try:
        in_time = await wait_for_event(group.exited, seconds)
        if in_time:
            await group.drain(LINGER)
    finally:
        await group.terminate()
    code = group.exit_code if in_time else -1
    return CommandOutcome(group.stdout.buffer, group.stderr.buffer, code, timed_out=not in_time)


class PipeReader:
    """Reads a pipe into a buffer as data arrives."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self.buffer = OutputBuffer()
        self.closed = asyncio.Event()
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), READ_SIZE)
        except BlockingIOError:
            return
        if data:
            self.buffer.add(data)
        else:
            self.close()

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
            self.closed.set()


class ProcessGroup:
    """A process and all it starts, as long as they stay in its group.

    asyncio's subprocesses are not used: uvloop gives those sockets instead of pipes, which cannot
    be opened as /dev/stdout, and lets them inherit unrelated descriptors.
    """

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        """Raises OSError or ValueError if the system refuses to start the process."""
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(env),  # the whole environment: nothing is inherited from the daemon
            bufsize=0,
            start_new_session=True,
        )
        self.id = self._process.pid
        self.exited = asyncio.Event()
        # One thread per process works on every event loop and system. It ends with the process.
        args = (self._process, asyncio.get_running_loop(), self.exited)
        try:
            threading.Thread(target=wait_for_process, args=args, daemon=True).start()
        except RuntimeError as error:
            self._signal(signal.SIGKILL)
            self._process.communicate()
            raise OSError(str(error)) from None
        self.stdout = PipeReader(cast("IO[bytes]", self._process.stdout))
        self.stderr = PipeReader(cast("IO[bytes]", self._process.stderr))

    @property
    def exit_code(self) -> int:
        code = self._process.returncode
        return code if code is not None and code >= 0 else -1

    async def drain(self, seconds: float) -> None:
        """Wait for the end of the output, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stdout.closed.wait()
                await self.stderr.closed.wait()

    async def terminate(self) -> None:
        """Send SIGTERM, then SIGKILL. When this is cancelled, SIGKILL is sent at once."""
        try:
            await self._send_stop_signals()
            await self._wait_until_gone(KILL_TIMEOUT)
            await self.drain(LINGER)
        finally:
            self.stdout.close()
            self.stderr.close()

    async def _send_stop_signals(self) -> None:
        try:
            if self._signal(signal.SIGTERM):
                await self._wait_until_gone(GRACE)
        finally:
            self._signal(signal.SIGKILL)

    async def _wait_until_gone(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited.wait()
                self._reap()
                while self._signal(0) and await asyncio.to_thread(is_group_alive, self.id):
                    await asyncio.sleep(POLL_INTERVAL)
                    self._reap()

    def _reap(self) -> None:
        """Reap orphans, which are our children if we are the first process of a container."""
        with suppress(ChildProcessError):
            while os.waitpid(-self.id, os.WNOHANG)[0]:
                pass

    def _signal(self, number: int) -> bool:
        """Send a signal. Returns whether the group still had processes we may signal."""
        try:
            os.killpg(self.id, number)
        except (ProcessLookupError, PermissionError):  # the latter: sudo changed the user
            return False
        return True


def wait_for_process(
    process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, exited: asyncio.Event
) -> None:
    process.wait()
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(exited.set)


def is_group_alive(group: int) -> bool:
    """Whether the group has a process that is not a zombie.

    Zombies stay in their group until their parent reaps them, which may take seconds. Returns True
    on systems without /proc.
    """
    if not PROC_DIRECTORY.is_dir():
        return True
    return any(is_living_member(path, group) for path in PROC_DIRECTORY.glob("[0-9]*/stat"))


def is_living_member(path: Path, group: int) -> bool:
    try:
        # The fields after the name, which may contain anything: state, parent, group.
        state, _, process_group = path.read_bytes().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False  # the process ended in the meantime
    return int(process_group) == group and state not in (b"Z", b"X")


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most `seconds`. Returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
