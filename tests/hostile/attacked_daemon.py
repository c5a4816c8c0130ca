"""A daemon under attack: crabtalkd as a child process, the files around its home that must not
change, and a client that pings during the attack and must not be delayed.

    async with attack_target(tmp_path) as attacked, attacked.ping_beside() as monitor:
        ...
    monitor.check()
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

# Maximum CPU time of the daemon between a ping and its answer: how long its loop was blocked.
MAX_BLOCKED_SECONDS = 0.05
# Maximum wall time of an answer, without the time in which either process waited for a core, or in
# which this process did other work.
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
    """The daemon, in a directory in which only its home may change."""

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
        """Check that a new client gets answers."""
        async with self.client() as client:
            for _ in range(20):
                await client.ping()

    @property
    def peak_bytes(self) -> int:
        """The peak of its resident memory, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def memory_samples(self) -> list[tuple[int, int]]:
        """Bytes and small objects in use, sampled twenty times a second since its start."""
        lines = self._memory_log.read_text().splitlines()
        return [(int(size), int(objects)) for size, objects in map(str.split, lines)]

    @property
    def forbidden_accesses(self) -> list[str]:
        """Its accesses to files outside its home."""
        return self._access_log.read_text().splitlines()

    def read_surroundings(self) -> dict[str, bytes]:
        """All files outside its home."""
        files = (path for path in self.around.rglob("*") if path.is_file())
        return {
            str(path): path.read_bytes()
            for path in files
            if not path.is_relative_to(self.home)
            and path not in (self._access_log, self._memory_log)
        }

    @asynccontextmanager
    async def ping_beside(self) -> AsyncIterator["PingMonitor"]:
        """Ping continuously during the block; check at its end that no file outside was touched."""
        before = self.read_surroundings()
        monitor = PingMonitor(self.pid)
        async with self.client() as client:
            task = asyncio.ensure_future(monitor.ping(client))
            try:
                yield monitor
            finally:
                monitor.is_over.set()
                await task
        assert self.read_surroundings() == before
        assert self.forbidden_accesses == []


@dataclass
class PingMonitor:
    """Measures pings, in CPU time of the daemon and in wall time."""

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
        """CPU time of the daemon's loop; and wall time without the time that either process waited
        for a core and without this process's own CPU time. Both without steal time."""
        (worked, queued), stolen = read_schedule(self.pid), read_steal_time()
        return worked - stolen, time.monotonic() - stolen - queued - sum(read_schedule(os.getpid()))

    @property
    def longest_block(self) -> float:
        """Without work that the daemon did while only this process was late to read an answer."""
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
    """The growth from the first half of the samples to the second. Memory that is used only for a
    moment, as by commits of the session index, does not count."""
    half = len(sizes) // 2
    first, second = (sorted(part)[len(part) // 4] for part in (sizes[:half], sizes[half:]))
    return second - first


def read_schedule(pid: int) -> tuple[float, float]:
    """Seconds that its first thread has run, and has waited for a core."""
    running, queued, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(running) / 1e9, int(queued) / 1e9


def prepare_home(around: Path, model: ModelServer) -> None:
    """A home with some agents, and beside it files that must not be touched."""
    for name in ("home", "home/agents", "user", "tmp", "cwd", "secret", "beside"):
        (around / name).mkdir(mode=0o700, exist_ok=True)
    (around / "home" / "config.toml").write_text(CONFIG.replace("{url}", model.url))
    for name in AGENTS:
        (around / "home" / "agents" / f"{name}.toml").write_text(f'prompt = "You are {name}."\n')
    for name in ("secret", "beside", "cwd", "user"):
        (around / name / "key").write_text("canary")
        (around / name / "key.toml").write_text('prompt = "canary"\n')
        (around / name / "key.jsonl").write_text('{"kind":"meta","agent":"crab"}\n')
        (around / name / "SKILL.md").write_text("---\nname: secret\ndescription: canary\n---\n")


@asynccontextmanager
async def attack_target(around: Path, tcp: str = "off") -> AsyncIterator[AttackedDaemon]:
    """A running daemon with a model. Fails at the end if its stderr has a traceback."""
    async with model_server(is_recording=False) as model:
        prepare_home(around, model)
        child = AttackedDaemon(around, tcp)
        try:
            await child.start()
            yield child
        finally:
            await child.kill()
            if "Traceback" in child.stderr_text:
                pytest.fail(f"the daemon printed a traceback:\n{child.stderr_text[-6000:]}")
