"""The daemon as a process of the tests' own, and a client's turn with it."""

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

# What a start or an end may take on the slowest of machines.
START_TIMEOUT = 20.0
# It is killed and started again so often that it must not load itself each time.
LAUNCHER = ForkedProgram(
    *(ROOT / "tests" / "crash" / "launcher.py", "tests.crash.launcher:main"),
    *("crabtalk.model.openai", "aiohttp", "tantivy", "uvloop"),
)


class LaunchedDaemon:
    """The daemon of `home` as a process of ours."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.stderr_text = ""  # on stderr
        self._process: ForkedProcess | None = None
        self._stderr_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Starts it, and does not wait until it answers."""
        self.stderr_text = ""
        self._process = self.fork_process()

    def fork_process(self) -> ForkedProcess:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return LAUNCHER.start(self.home, stderr=PIPE, env=environment)

    async def start(self) -> float:
        """Until it answers a ping; says how many seconds that took."""
        begun = time.monotonic()
        self.spawn()
        async with asyncio.timeout(START_TIMEOUT):
            ready = await self._read_line()
            if "is ready" not in ready:
                await self._read_stderr()
                raise AssertionError(self.stderr_text)
            self._stderr_task = asyncio.ensure_future(self._read_stderr())
            async with connect(home=self.home, reconnect_timeout=0) as client:
                await client.ping()
        return time.monotonic() - begun

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
        """Also from a thread, and to one that is gone already."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def wait_until_stopped(self) -> None:
        """A signal to stop is sent before it is obeyed."""
        stat = Path(f"/proc/{self.pid}/stat")
        async with asyncio.timeout(START_TIMEOUT):
            while stat.read_text().rpartition(")")[2].split()[0] != "T":
                await asyncio.sleep(0.001)

    async def wait_for_exit(self) -> int:
        """Its exit code, once it has ended by itself or by a signal."""
        assert self._process is not None
        async with asyncio.timeout(START_TIMEOUT):
            if self._stderr_task is not None:
                await self._stderr_task
                self._stderr_task = None
            else:
                await self._read_stderr()
            return await self._process.wait()

    async def kill(self) -> None:
        """Nothing of it is left, whatever state it was in."""
        if self._process is not None and self._process.returncode is None:
            self.send_signal(signal.SIGKILL)
            await self.wait_for_exit()


@asynccontextmanager
async def run_process(home: Path) -> AsyncIterator[LaunchedDaemon]:
    """A daemon that answers, for the length of the block."""
    process = LaunchedDaemon(home)
    try:
        await process.start()
        yield process
    finally:
        await process.kill()


def prepare_home(home: Path, model: ModelServer, *, durability: str = "fsync") -> None:
    """A home whose daemon asks `model`, with the agents crab and owl."""
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
    """A turn to its end, as it is streamed."""
    stream = client.stream(pair.agent, turn.said, sender=pair.sender, guest=turn.guest or None)
    try:
        async with aclosing(stream) as events:
            async for event in events:
                record_event(turn, event)
    except ServerError as error:
        if error.code != 500 or turn.events:
            raise
        turn.is_over, turn.error = True, error.message  # it could not be kept, so it never began
    return turn


async def wait_until_recovered(client: Client) -> None:
    """Until what an earlier process had accepted is closed."""
    async with asyncio.timeout(START_TIMEOUT):
        while (await client.get_stats()).runs:
            await asyncio.sleep(0.005)


def record_event(turn: ClientTurn, event: Event) -> None:
    turn.events.append(event)
    if isinstance(event, wire.StreamEnd):
        # Killed, it is cut off like any other: what was not whole by then is not kept.
        turn.is_over = event.stop_reason != wire.STOP_REASON_CANCELLED
        turn.error = event.error
