"""Starts the daemon as a child process, and runs turns with it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from crabtalk.client import Client, ServerError, connect
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk.storage import Pair
from tests.crash.checks import ClientTurn
from tests.forked_programs import PIPE, ForkedProcess, ForkedProgram
from tests.model_server import ROOT, ModelServer

# Seconds for a start or an exit on the slowest machines.
START_TIMEOUT = 20.0
# It is killed and started so often that it must not import everything each time.
LAUNCHER = ForkedProgram(
    *(ROOT / "tests" / "crash" / "launcher.py", "tests.crash.launcher:main"),
    *("crabtalk.model.openai", "aiohttp", "tantivy", "uvloop"),
)


class LaunchedDaemon:
    """The daemon of `home` as a child process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.stderr_text = ""
        self._process: ForkedProcess | None = None
        self._stderr_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Starts the process without waiting until it answers."""
        self.stderr_text = ""
        self._process = self.fork_process()

    def fork_process(self) -> ForkedProcess:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return LAUNCHER.start(self.home, stderr=PIPE, env=environment)

    async def start(self) -> float:
        """Starts the process and waits until it answers a ping. Returns the seconds that took."""
        started = time.monotonic()
        self.spawn()
        async with asyncio.timeout(START_TIMEOUT):
            ready = await self._read_line()
            if "is ready" not in ready:
                await self._read_stderr()
                raise AssertionError(self.stderr_text)
            self._stderr_task = asyncio.ensure_future(self._read_stderr())
            async with connect(home=self.home, reconnect_timeout=0) as client:
                await client.ping()
        return time.monotonic() - started

    async def _read_line(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        line = (await self._process.stderr.readline()).decode()
        self.stderr_text += line
        return line

    async def _read_stderr(self) -> None:
        while await self._read_line():
            pass

    def send_signal(self, number: signal.Signals) -> None:
        """May be called from a thread, and for a process that has exited already."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def wait_until_stopped(self) -> None:
        """Waits until SIGSTOP has taken effect."""
        stat = Path(f"/proc/{self.pid}/stat")
        async with asyncio.timeout(START_TIMEOUT):
            while stat.read_text().rpartition(")")[2].split()[0] != "T":
                await asyncio.sleep(0.001)

    async def wait_for_exit(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        assert self._process is not None
        async with asyncio.timeout(START_TIMEOUT):
            if self._stderr_task is not None:
                await self._stderr_task
                self._stderr_task = None
            else:
                await self._read_stderr()
            return await self._process.wait()

    async def kill(self) -> None:
        """Kills the process in any state, and waits for its end."""
        if self._process is not None and self._process.returncode is None:
            self.send_signal(signal.SIGKILL)
            await self.wait_for_exit()


@asynccontextmanager
async def run_process(home: Path) -> AsyncIterator[LaunchedDaemon]:
    """A running daemon for the duration of the block."""
    process = LaunchedDaemon(home)
    try:
        await process.start()
        yield process
    finally:
        await process.kill()


def prepare_home(home: Path, model: ModelServer, *, durability: str = "fsync") -> None:
    """Creates a home whose daemon uses `model`, with the agents crab and owl."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(
        f'[[providers]]\nname = "tests"\nkind = "openai"\nbase_url = "{model.url}"\n'
        'api_key = "k"\nmodels = ["scripted", "spare"]\n'
        f'[storage]\ndurability = "{durability}"\n'
    )
    (home / "agents").mkdir(exist_ok=True)
    for name in ("crab", "owl"):
        (home / "agents" / f"{name}.toml").write_text(f'prompt = "You are {name}."\n')


async def run_turn(client: Client, pair: Pair, turn: ClientTurn) -> ClientTurn:
    """Streams a turn to its end and records its events."""
    stream = client.stream(pair.agent, turn.content, sender=pair.sender, guest=turn.guest or None)
    try:
        async with aclosing(stream) as events:
            async for event in events:
                record_event(turn, event)
    except ServerError as error:
        if error.code != 500 or turn.events:
            raise
        turn.is_over, turn.error = True, error.message  # not stored, so it never began
    return turn


async def wait_until_recovered(client: Client) -> None:
    """Waits until the messages that an earlier process accepted are closed."""
    async with asyncio.timeout(START_TIMEOUT):
        while (await client.get_stats()).runs:
            await asyncio.sleep(0.005)


def record_event(turn: ClientTurn, event: Event) -> None:
    turn.events.append(event)
    if isinstance(event, wire.StreamEnd):
        # A killed turn is incomplete: text that was not complete by then is not stored.
        turn.is_over = event.stop_reason != wire.STOP_REASON_CANCELLED
        turn.error = event.error
