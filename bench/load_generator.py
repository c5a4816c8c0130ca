"""The load: many people who talk to a daemon at once, and checks of everything they receive.

The model server stamps each chunk when it writes it. From the stamps a client knows how late a
chunk is, and whether chunks are missing or out of order; afterwards all are compared with the
stored messages. Of a hundred turns five call a tool and one is a guest's. Other clients search,
remember and ping meanwhile. The daemon has a core; all others share another.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from crabtalk.client import Client, connect
from crabtalk.protocol import encode_frame, wire
from crabtalk.transport import RunFiles

from .fleet import read_cpu_seconds
from .processes import pin_to_core, read_rss
from .turns import WARM_UP, FramedChunkReader, open_reader

PATIENCE = 120.0
CROWD_NUMBERS = itertools.count()
CONFIG = '[llm]\nbase_url = "{url}"\nmodel = "scripted"\n'
TOOLS = (
    'recall {"query": "low tide"}',
    'search_sessions {"query": "shells"}',
    'bash {"command": "true"}',
    'remember {"name": "tide", "content": "low at noon, high at six"}',
)
TEXT_EVENTS = ["text_start", "chunk", "text_end"]
PLAIN_TURN_EVENTS = ["start", *TEXT_EVENTS, "context_usage", "end"]
TOOL_TURN_EVENTS = [
    *["start", *TEXT_EVENTS[:2], "tool_start", "text_end", "tool_start", "tool_result"],
    *["tools_complete", "context_usage", *TEXT_EVENTS, "context_usage", "end"],
]


@dataclass(frozen=True)
class CrowdLoad:
    conversations: int
    rate: int  # chunks a second of each conversation
    seconds: int

    @property
    def chunks(self) -> int:
        """The chunks of one conversation."""
        return self.rate * self.seconds

    def __str__(self) -> str:
        return f"{self.conversations:,} x {self.rate}/s"


# ── Turns ──────────────────────────────────────────────────────────────────────────────────────


class TurnListener(FramedChunkReader):
    """Reads one turn and records everything it receives."""

    def __init__(self, request: bytes, chunks: int) -> None:
        super().__init__(request, chunks)
        self.received_stamps: list[int] = []  # of the chunks
        self.event_kinds: list[str] = []  # consecutive events of one kind count once
        self.error = ""

    def find_stamps(self, data: bytes) -> Iterator[int]:
        for frame in self._decoder.feed(data):
            message = wire.ServerMessage.FromString(bytes(frame))
            kind = message.stream.WhichOneof("event") or "none"
            if not self.event_kinds or self.event_kinds[-1] != kind:
                self.event_kinds.append(kind)
            if kind == "chunk":
                stamp = int(message.stream.chunk.content)
                self.received_stamps.append(stamp)
                self._left += 1  # the turn ends with its end event, not with its last chunk
                yield stamp
            elif kind in ("end", "none"):
                self.error = message.stream.end.error or message.error.message
                self._left = 0


@dataclass
class CrowdTurn:
    """A turn of the crowd: its request and the expected result."""

    number: int
    chunks: int
    rate: int
    crowd: int = 0  # part of the sender, so that crowds share no conversations

    @property
    def sender(self) -> str:
        return f"crowd{self.crowd}-{self.number}"

    @property
    def is_guest(self) -> bool:
        return self.number % 100 == 50

    @property
    def calls_tool(self) -> bool:
        return self.number % 20 == 1

    @property
    def expected_events(self) -> list[str]:
        return TOOL_TURN_EVENTS if self.calls_tool else PLAIN_TURN_EVENTS

    def encode_request(self) -> bytes:
        script = f"!chunks {self.chunks} {self.rate}"
        if self.calls_tool:
            half = self.chunks // 2
            tool = TOOLS[self.number // 20 % len(TOOLS)]
            first, rest = f"!chunks {half} {self.rate}", f"!chunks {self.chunks - half} {self.rate}"
            script = f"{first}\n!tool {tool}\n!then\n{rest}"
        message = wire.StreamMsg(agent="crab", content=script, sender=self.sender)
        if self.is_guest:
            message.guest = "shrimp"
        return encode_frame(wire.ClientMessage(stream=message))

    def find_fault(self, listener: TurnListener, stored: list[str]) -> str:
        """Say what was lost or came in another order; empty if nothing is wrong."""
        if listener.error:
            return listener.error
        if len(listener.received_stamps) != self.chunks:
            return f"{self.chunks - len(listener.received_stamps)} of {self.chunks} chunks lost"
        if any(
            a >= b
            for a, b in zip(listener.received_stamps, listener.received_stamps[1:], strict=False)
        ):
            return "chunks out of order"
        if listener.event_kinds != self.expected_events:
            return f"events out of order: {' '.join(listener.event_kinds)}"
        is_stored = "".join(stored) == join_stamps(listener.received_stamps)
        return "" if is_stored else "what is kept differs"


def join_stamps(stamps: list[int]) -> str:
    return "".join(f"{stamp:019d} " for stamp in stamps)


# ── Background requests ────────────────────────────────────────────────────────────────────────


class BackgroundRequests:
    """Searches, memory and pings while the turns go on, with their latencies in ms."""

    def __init__(self) -> None:
        self.latencies: dict[str, list[float]] = {}

    @asynccontextmanager
    async def run_beside(self, home: Path) -> AsyncIterator[None]:
        async with connect(home=home, timeout=PATIENCE) as client:
            for number in range(20):  # so that there is something to find
                await self._remember(client, number)
            self.latencies.clear()
            acts: dict[str, tuple[float, Callable[[Client, int], Awaitable[object]]]] = {
                "ping": (0.05, lambda c, _: c.ping()),
                "search_sessions": (0.2, lambda c, _: c.search_sessions("shells on the beach")),
                "search_memory": (0.2, lambda c, _: c.search_memory("crab", "low tide")),
                "remember, a turn": (0.5, self._remember),
            }
            tasks = [
                asyncio.ensure_future(self._repeat(name, client, pause, act))
                for name, (pause, act) in acts.items()
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                done, _ = await asyncio.wait(tasks)
                for task in done:
                    if not task.cancelled():
                        task.result()  # raises the error that ended the task

    async def _repeat(
        self,
        name: str,
        client: Client,
        pause: float,
        act: Callable[[Client, int], Awaitable[object]],
    ) -> None:
        latencies = self.latencies.setdefault(name, [])
        number = 0
        while True:
            number += 1
            start = time.monotonic()
            await act(client, number)
            latencies.append((time.monotonic() - start) * 1e3)
            await asyncio.sleep(pause)

    async def _remember(self, client: Client, number: int) -> None:
        note = f'{{"name": "note {number % 200}", "content": "shells and low tide, {number}"}}'
        script = f"!tool remember {note}\n!then\n!say shells on the beach, kept"
        await client.send("crab", script, sender="beside")


# ── The daemon and its resources ───────────────────────────────────────────────────────────────


@dataclass
class BenchDaemon:
    name: str
    home: Path
    pid: int
    log: Path

    def count_descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())


@contextmanager
def run_daemon(
    name: str, home: Path, url: str, source: Path | None = None
) -> Iterator[BenchDaemon]:
    """Run a daemon with two agents on its own core, from the sources in `source` if given."""
    (home / "agents").mkdir(mode=0o700, parents=True)
    (home / "config.toml").write_text(CONFIG.format(url=url))
    for agent in ("crab", "shrimp"):
        (home / "agents" / f"{agent}.toml").write_text(f'prompt = "You are {agent}."\n')
    log = home / "stderr"
    command = [str(Path(sys.executable).with_name("crabtalkd")), "run", "--home", str(home)]
    environment = {**os.environ, **({"PYTHONPATH": str(source / "src")} if source else {})}
    with log.open("wb") as stderr:
        with pin_to_core(0):
            process = subprocess.Popen([*command, "--tcp", "off"], stderr=stderr, env=environment)
        with process:
            try:
                while b"ready" not in log.read_bytes():
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.01)
                yield BenchDaemon(name, home, process.pid, log)
            finally:
                process.terminate()


@dataclass
class ResourceMonitor:
    """Samples the resources of the processes once a second."""

    daemon: BenchDaemon
    model: int
    samples: list[tuple[float, float, int]] = field(default_factory=list)  # time, RSS, descriptors
    cpu: dict[str, float] = field(default_factory=dict)  # cores used by each process
    queued_share: float = 0.0  # share of the time in which the daemon waited for its core

    @asynccontextmanager
    async def watch_processes(self) -> AsyncIterator[None]:
        pids = {"daemon": self.daemon.pid, "model": self.model, "clients": os.getpid()}
        before = {name: read_cpu_seconds(pid) for name, pid in pids.items()}
        waited = read_queued_seconds(self.daemon.pid)
        start = time.monotonic()
        task = asyncio.ensure_future(self._sample())
        try:
            yield
        finally:
            task.cancel()
            seconds = time.monotonic() - start
            self.queued_share = (read_queued_seconds(self.daemon.pid) - waited) / seconds
            self.cpu = {
                name: (read_cpu_seconds(pid) - before[name]) / seconds for name, pid in pids.items()
            }

    async def _sample(self) -> None:
        while True:
            sample = time.monotonic(), read_rss(self.daemon.pid), self.daemon.count_descriptors()
            self.samples.append(sample)
            await asyncio.sleep(1)

    def memory_slope(self) -> float:
        """Return the growth in MB a minute after all conversations have begun."""
        steady = self.samples[int(len(self.samples) * WARM_UP) :]
        return fit_slope([(when, size) for when, size, _ in steady]) * 60

    def find_peaks(self) -> tuple[float, int]:
        return max(s[1] for s in self.samples), max(s[2] for s in self.samples)


def read_queued_seconds(pid: int) -> float:
    """Return the seconds a process was ready to run while others had its core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def fit_slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the straight line that fits the points best."""
    x = sum(p[0] for p in points) / len(points)
    y = sum(p[1] for p in points) / len(points)
    spread = sum((p[0] - x) ** 2 for p in points)
    return sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0


@dataclass
class CrowdOutcome:
    lags: list[float]
    faults: Counter[str]
    background: BackgroundRequests
    monitor: ResourceMonitor


async def run_load(work: CrowdLoad, subject: BenchDaemon, model: int) -> CrowdOutcome:
    """Run all turns at once, begun evenly over two seconds, and compare them with the storage."""
    loop = asyncio.get_running_loop()
    path = RunFiles.for_home(subject.home).socket_path
    crowd = next(CROWD_NUMBERS)
    turns = [
        CrowdTurn(number, work.chunks, work.rate, crowd) for number in range(work.conversations)
    ]
    listeners: list[TurnListener | OSError] = []
    monitor, background = ResourceMonitor(subject, model), BackgroundRequests()
    async with connect(home=subject.home, timeout=PATIENCE) as client:
        async with background.run_beside(subject.home), monitor.watch_processes():
            start = loop.time()
            for turn in turns:
                try:
                    listener = await open_reader(
                        path, TurnListener, turn.encode_request(), turn.chunks
                    )
                    listeners.append(cast("TurnListener", listener))
                except OSError as error:
                    listeners.append(error)
                due = start + (turn.number + 1) / work.conversations * 2
                await asyncio.sleep(max(0.0, due - loop.time()))
            waits = [listener.done for listener in listeners if isinstance(listener, TurnListener)]
            await asyncio.wait(waits, timeout=work.seconds + PATIENCE)
        lags, faults = await compare_turns(client, turns, listeners)
    for listener_or_error in listeners:
        if isinstance(listener_or_error, TurnListener):
            if listener_or_error.done.done():
                listener_or_error.done.exception()  # a broken stream is already among the faults
            listener_or_error.close()
    return CrowdOutcome(lags, faults, background, monitor)


async def compare_turns(
    client: Client, turns: list[CrowdTurn], listeners: list[TurnListener | OSError]
) -> tuple[list[float], Counter[str]]:
    lags: list[float] = []
    faults: Counter[str] = Counter()
    for turn, listener in zip(turns, listeners, strict=True):
        if isinstance(listener, OSError):
            faults[f"no connection: {listener.strerror}"] += 1
            continue
        page = await client.list_messages("crab", sender=turn.sender)
        stored = [m.content for m in page.messages if m.role == "assistant" and m.content]
        if fault := turn.find_fault(listener, stored):
            faults[fault] += 1
        lags += listener.lags[int(turn.chunks * WARM_UP) :]
    return lags, faults
