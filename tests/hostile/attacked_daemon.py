"""A daemon under fire: crabtalkd as a process, everything around it that must stay as it is, and a
client beside the attackers who must not notice.

    async with target(tmp_path) as fired_at, fired_at.beside() as watch:
        ...
    watch.check()
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crabtalk.client import Client, connect
from crabtalk.transport import RunFiles
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.daemon.in_process_daemon import PATIENCE
from tests.forked_programs import PIPE, ForkedProcess, ForkedProgram
from tests.loop_latency import read_steal_time
from tests.model_server import ROOT, ModelServer, model_server
from tests.scripted_server import RawPeer

# Of the daemon's own time, between a ping and its answer: what the loop did in between.
MAX_BLOCKED_SECONDS = 0.05
# By the clock, but for the time in which the machine had no core to spare for either of the two, or
# in which it was not waited for.
MAX_ANSWER_SECONDS = 1.0
WATCHED_DAEMON = ForkedProgram(
    *(ROOT / "tests" / "hostile" / "watched_daemon.py", "tests.hostile.watched_daemon:main"),
    *(
        "crabtalk.daemon.daemon",
        "crabtalk.daemon.process.main_loop",
        "crabtalk.daemon.handlers.daemon_server",
    ),
    *(
        "crabtalk.daemon.process.log_handler",
        "crabtalk.daemon.config.models_command",
        "crabtalk.model.openai",
    ),
    *("aiohttp", "tantivy", "tomlkit", "uvloop"),
)
CONFIG = """
[[providers]]
name = "tests"
kind = "openai"
base_url = "{url}"
api_key = "k"
models = ["scripted", "spare"]
max_retries = 0
[storage]
durability = "os"
"""
AGENTS = ("crab", "owl", "twin")


class AttackedDaemon(CrabtalkdProcess):
    """The process, in a directory in which only its home may change."""

    def __init__(self, around: Path, tcp: str = "off") -> None:
        super().__init__(around / "home")
        self.around = around
        self.secret = around / "secret"
        self._access_log = around / "notes"
        self._memory_log = around / "held"
        self._tcp = tcp

    def fork_process(self) -> ForkedProcess:
        environment = {
            **os.environ,
            "HOME": str(self.around / "user"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.around / "tmp"),
            "WATCH_HELD": str(self._memory_log),
            "WATCH_NOTES": str(self._access_log),
            "WATCH_SECRET": str(self.secret),
        }
        words = ("run", "--home", self.home, "--tcp", self._tcp)
        return WATCHED_DAEMON.start(*words, stderr=PIPE, env=environment, cwd=self.around / "cwd")

    def client(self) -> Client:
        return connect(home=self.home, timeout=PATIENCE)

    async def peer(self) -> RawPeer:
        return await RawPeer.connect_unix(RunFiles.for_home(self.home).socket_path)

    async def check_answers(self) -> None:
        """To somebody who comes now."""
        async with self.client() as client:
            for _ in range(20):
                await client.ping()

    @property
    def peak_bytes(self) -> int:
        """The most bytes it ever had."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def memory_samples(self) -> list[tuple[int, int]]:
        """Bytes and small objects in use, twenty times a second since it began."""
        lines = self._memory_log.read_text().splitlines()
        return [(int(size), int(objects)) for size, objects in map(str.split, lines)]

    @property
    def forbidden_accesses(self) -> list[str]:
        """What it touched that is not its own."""
        return self._access_log.read_text().splitlines()

    def read_surroundings(self) -> dict[str, bytes]:
        """All there is beside its home."""
        files = (path for path in self.around.rglob("*") if path.is_file())
        return {
            str(path): path.read_bytes()
            for path in files
            if not path.is_relative_to(self.home)
            and path not in (self._access_log, self._memory_log)
        }

    @asynccontextmanager
    async def ping_beside(self) -> AsyncIterator["PingMonitor"]:
        """Somebody who pings all the time; and when it is over nothing was touched."""
        before = self.read_surroundings()
        watch = PingMonitor(self.pid)
        async with self.client() as client:
            task = asyncio.ensure_future(watch.ping(client))
            try:
                yield watch
            finally:
                watch.is_over.set()
                await task
        assert self.read_surroundings() == before
        assert self.forbidden_accesses == []


@dataclass
class PingMonitor:
    """How long pings took: of the daemon's time, and by the clock."""

    pid: int
    daemon_times: list[float] = field(default_factory=list)
    clock_times: list[float] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def ping(self, client: Client) -> None:
        while not self.is_over.is_set():
            before = self._read_clocks()
            async with asyncio.timeout(PATIENCE):
                await client.ping()
            worked, waited = (b - a for a, b in zip(before, self._read_clocks(), strict=True))
            self.daemon_times.append(worked)
            self.clock_times.append(waited)
            await asyncio.sleep(0.002)

    def _read_clocks(self) -> tuple[float, float]:
        """The time its loop has run; and that of the clock, less what the two stood in line, and
        less what this process did itself meanwhile. Both without what the machine was robbed of."""
        (worked, stood), lost = read_schedule(self.pid), read_steal_time()
        return worked - lost, time.monotonic() - lost - stood - sum(read_schedule(os.getpid()))

    @property
    def longest_block(self) -> float:
        """What the daemon did while only this process was late to hear its answer is not in it."""
        return max(map(min, self.daemon_times, self.clock_times))

    def check(self, blocked: float = MAX_BLOCKED_SECONDS) -> None:
        assert len(self.daemon_times) > 3
        assert self.longest_block < blocked, f"the loop was held up for {self.longest_block:.3f} s"
        assert max(self.clock_times) < MAX_ANSWER_SECONDS, (
            f"a ping was answered after {max(self.clock_times):.3f} s"
        )

    def __str__(self) -> str:
        return (
            f"{len(self.daemon_times)} pings: "
            f"most of the daemon's time {self.longest_block * 1000:.1f} ms,"
            f" by the clock {max(self.clock_times) * 1000:.1f} ms"
        )


def measure_growth(sizes: Sequence[int]) -> int:
    """By how much from the first half of the time to the second. What is taken for a moment and
    given back, as the session index does with each commit, is no growth."""
    half = len(sizes) // 2
    first, second = (sorted(some)[len(some) // 4] for some in (sizes[:half], sizes[half:]))
    return second - first


def read_schedule(pid: int) -> tuple[float, float]:
    """Seconds its first thread has run, and has stood in line for a core."""
    running, standing, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(running) / 1e9, int(standing) / 1e9


def prepare_home(around: Path, model: ModelServer) -> None:
    """A home with some agents, and beside it what nobody may touch."""
    for name in ("home", "home/agents", "user", "tmp", "cwd", "secret", "beside"):
        (around / name).mkdir(mode=0o700, exist_ok=True)
    (around / "home" / "config.toml").write_text(CONFIG.replace("{url}", model.url))
    for name in AGENTS:
        (around / "home" / "agents" / f"{name}.toml").write_text(f'prompt = "You are {name}."\n')
    for place in ("secret", "beside", "cwd", "user"):
        (around / place / "key").write_text("canary")
        (around / place / "key.toml").write_text('prompt = "canary"\n')
        (around / place / "key.jsonl").write_text('{"kind":"meta","agent":"crab"}\n')
        (around / place / "SKILL.md").write_text("---\nname: secret\ndescription: canary\n---\n")


@asynccontextmanager
async def attack_target(around: Path, tcp: str = "off") -> AsyncIterator[AttackedDaemon]:
    """One that answers, with a model that is there. What it said in the end is no traceback."""
    async with model_server(is_recording=False) as model:
        prepare_home(around, model)
        child = AttackedDaemon(around, tcp)
        try:
            await child.start()
            yield child
        finally:
            await child.kill()
            if "Traceback" in child.stderr_text:
                pytest.fail(f"the daemon was surprised:\n{child.stderr_text[-6000:]}")
