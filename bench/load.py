"""Load: a whole daemon under the work of a thousand people, until it breaks.

The model server stamps each chunk as it writes it. A client knows by the stamps how late a chunk
is, that none is missing or out of order, and afterwards compares all of them with what the daemon
has kept. Of a hundred turns five call a tool and one is a guest's; searches, memory and pings go on
beside them, from clients of their own. The daemon has a core; all others share another.

    python -m bench load [--seconds N] [--against DIR] [--profile] [--steps] [--no-crowds]

`--against` measures a second daemon from the sources in DIR as well, turn and turn about with this
one. `--profile` adds where the time goes, as py-spy sees it. `--steps` adds more and more work
until something gives.
"""

import argparse
import asyncio
import gc
import itertools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

from crabtalk.client import Client, connect
from crabtalk.protocol import encode_frame, wire
from crabtalk.transport import RunFiles
from tests.model_server import model_process

from .fleet import cpu_of
from .peers import on_core, percentile, rss
from .report import Table
from .turns import WARM_UP, Framed, listen

MINUTE = 60
# A step of those that are taken until it breaks.
STEP = 8
# Behind by more than this, a daemon no longer keeps up.
BROKEN = 1000.0
PATIENCE = 120.0
CROWDS = itertools.count()
CONFIG = '[llm]\nbase_url = "{url}"\nmodel = "scripted"\n'
TOOLS = (
    'recall {"query": "low tide"}',
    'search_sessions {"query": "shells"}',
    'bash {"command": "true"}',
    'remember {"name": "tide", "content": "low at noon, high at six"}',
)
SPOKEN = ["text_start", "chunk", "text_end"]
PLAIN = ["start", *SPOKEN, "context_usage", "end"]
CALLING = [
    *["start", *SPOKEN[:2], "tool_start", "text_end", "tool_start", "tool_result"],
    *["tools_complete", "context_usage", *SPOKEN, "context_usage", "end"],
]


@dataclass(frozen=True)
class Work:
    conversations: int
    rate: int  # chunks a second, each
    seconds: int

    @property
    def chunks(self) -> int:
        """Of one conversation."""
        return self.rate * self.seconds

    def __str__(self) -> str:
        return f"{self.conversations:,} x {self.rate}/s"


# ── Turns ──────────────────────────────────────────────────────────────────────────────────────


class Voice(Framed):
    """One turn, with everything that is heard of it."""

    def __init__(self, request: bytes, chunks: int) -> None:
        super().__init__(request, chunks)
        self.said: list[int] = []  # its chunks
        self.order: list[str] = []  # kinds of its events; of several alike in a row, one
        self.error = ""

    def stamps(self, data: bytes) -> Iterator[int]:
        for frame in self._decoder.feed(data):
            message = wire.ServerMessage.FromString(bytes(frame))
            kind = message.stream.WhichOneof("event") or "none"
            if not self.order or self.order[-1] != kind:
                self.order.append(kind)
            if kind == "chunk":
                stamp = int(message.stream.chunk.content)
                self.said.append(stamp)
                self._left += 1  # it is over with its end, not with its last chunk
                yield stamp
            elif kind in ("end", "none"):
                self.error = message.stream.end.error or message.error.message
                self._left = 0


@dataclass
class Turn:
    """What is asked of the daemon, and what has to come of it."""

    number: int
    chunks: int
    rate: int
    crowd: int = 0  # no two have a conversation in common

    @property
    def sender(self) -> str:
        return f"crowd{self.crowd}-{self.number}"

    @property
    def is_guest(self) -> bool:
        return self.number % 100 == 50

    @property
    def calls(self) -> bool:
        return self.number % 20 == 1

    @property
    def order(self) -> list[str]:
        return CALLING if self.calls else PLAIN

    def request(self) -> bytes:
        script = f"!chunks {self.chunks} {self.rate}"
        if self.calls:
            half = self.chunks // 2
            tool = TOOLS[self.number // 20 % len(TOOLS)]
            first, rest = f"!chunks {half} {self.rate}", f"!chunks {self.chunks - half} {self.rate}"
            script = f"{first}\n!tool {tool}\n!then\n{rest}"
        message = wire.StreamMsg(agent="crab", content=script, sender=self.sender)
        if self.is_guest:
            message.guest = "shrimp"
        return encode_frame(wire.ClientMessage(stream=message))

    def wrong(self, voice: Voice, kept: list[str]) -> str:
        """What was lost, or came in another order; empty when all is as it should be."""
        if voice.error:
            return voice.error
        if len(voice.said) != self.chunks:
            return f"{self.chunks - len(voice.said)} of {self.chunks} chunks lost"
        if any(a >= b for a, b in zip(voice.said, voice.said[1:], strict=False)):
            return "chunks out of order"
        if voice.order != self.order:
            return f"events out of order: {' '.join(voice.order)}"
        return "" if "".join(kept) == said(voice.said) else "what is kept differs"


def said(stamps: list[int]) -> str:
    return "".join(f"{stamp:019d} " for stamp in stamps)


# ── Beside them ────────────────────────────────────────────────────────────────────────────────


class Beside:
    """Searches, memory and pings while the turns go on: how long each took, in ms."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    @asynccontextmanager
    async def going_on(self, home: Path) -> AsyncIterator[None]:
        async with connect(home=home, timeout=PATIENCE) as client:
            for number in range(20):  # so that there is something to find
                await self._remember(client, number)
            self.took.clear()
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
                        task.result()  # it ended because something failed

    async def _repeat(
        self,
        name: str,
        client: Client,
        pause: float,
        act: Callable[[Client, int], Awaitable[object]],
    ) -> None:
        took = self.took.setdefault(name, [])
        number = 0
        while True:
            number += 1
            begun = time.monotonic()
            await act(client, number)
            took.append((time.monotonic() - begun) * 1e3)
            await asyncio.sleep(pause)

    async def _remember(self, client: Client, number: int) -> None:
        note = f'{{"name": "note {number % 200}", "content": "shells and low tide, {number}"}}'
        script = f"!tool remember {note}\n!then\n!say shells on the beach, kept"
        await client.send("crab", script, sender="beside")


# ── What it takes ──────────────────────────────────────────────────────────────────────────────


@dataclass
class Daemon:
    name: str
    home: Path
    pid: int
    log: Path

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())


@contextmanager
def daemon(name: str, home: Path, url: str, source: Path | None = None) -> Iterator[Daemon]:
    """A daemon with two agents, on its own core. From other sources, if they are given."""
    (home / "agents").mkdir(mode=0o700, parents=True)
    (home / "config.toml").write_text(CONFIG.format(url=url))
    for agent in ("crab", "shrimp"):
        (home / "agents" / f"{agent}.toml").write_text(f'prompt = "You are {agent}."\n')
    log = home / "stderr"
    command = [str(Path(sys.executable).with_name("crabtalkd")), "run", "--home", str(home)]
    environment = {**os.environ, **({"PYTHONPATH": str(source / "src")} if source else {})}
    with (
        log.open("wb") as stderr,
        on_core(0),
        subprocess.Popen([*command, "--tcp", "off"], stderr=stderr, env=environment) as process,
    ):
        try:
            while b"ready" not in log.read_bytes():
                assert process.poll() is None, log.read_text()
                time.sleep(0.01)
            yield Daemon(name, home, process.pid, log)
        finally:
            process.terminate()


@dataclass
class Watch:
    """What the processes take, once a second."""

    daemon: Daemon
    model: int
    samples: list[tuple[float, float, int]] = field(default_factory=list)  # when, RSS, descriptors
    cpu: dict[str, float] = field(default_factory=dict)  # cores, of each process
    queued: float = 0.0  # share of the time in which the daemon waited for its core

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        pids = {"daemon": self.daemon.pid, "model": self.model, "clients": os.getpid()}
        before = {name: cpu_of(pid) for name, pid in pids.items()}
        waited = queued_for(self.daemon.pid)
        begun = time.monotonic()
        task = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            task.cancel()
            lasted = time.monotonic() - begun
            self.queued = (queued_for(self.daemon.pid) - waited) / lasted
            self.cpu = {name: (cpu_of(pid) - before[name]) / lasted for name, pid in pids.items()}

    async def _look(self) -> None:
        while True:
            one = time.monotonic(), rss(self.daemon.pid), self.daemon.descriptors()
            self.samples.append(one)
            await asyncio.sleep(1)

    def slope(self) -> float:
        """MB a minute, once everybody is there."""
        steady = self.samples[int(len(self.samples) * WARM_UP) :]
        return slope([(when, size) for when, size, _ in steady]) * 60

    def most(self) -> tuple[float, int]:
        return max(s[1] for s in self.samples), max(s[2] for s in self.samples)


def queued_for(pid: int) -> float:
    """Seconds a process was ready to run and others had its core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line closest to them."""
    x = sum(p[0] for p in points) / len(points)
    y = sum(p[1] for p in points) / len(points)
    spread = sum((p[0] - x) ** 2 for p in points)
    return sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0


@dataclass
class Outcome:
    lags: list[float]
    wrong: Counter[str]
    beside: Beside
    watch: Watch


async def carry_out(work: Work, subject: Daemon, model: int) -> Outcome:
    """All of it at once, begun evenly over two seconds, and compared with what is kept."""
    loop = asyncio.get_running_loop()
    path = RunFiles.of(subject.home).socket
    crowd = next(CROWDS)
    turns = [Turn(number, work.chunks, work.rate, crowd) for number in range(work.conversations)]
    voices: list[Voice | OSError] = []
    watch, beside = Watch(subject, model), Beside()
    async with connect(home=subject.home, timeout=PATIENCE) as client:
        async with beside.going_on(subject.home), watch.looking():
            start = loop.time()
            for turn in turns:
                try:
                    voice = await listen(path, Voice, turn.request(), turn.chunks)
                    voices.append(cast("Voice", voice))
                except OSError as error:
                    voices.append(error)
                due = start + (turn.number + 1) / work.conversations * 2
                await asyncio.sleep(max(0.0, due - loop.time()))
            waits = [voice.done for voice in voices if isinstance(voice, Voice)]
            await asyncio.wait(waits, timeout=work.seconds + PATIENCE)
        lags, wrong = await compare(client, turns, voices)
    for one in voices:
        if isinstance(one, Voice):
            if one.done.done():
                one.done.exception()  # a stream that broke is among what is wrong
            one.close()
    return Outcome(lags, wrong, beside, watch)


async def compare(
    client: Client, turns: list[Turn], voices: list[Voice | OSError]
) -> tuple[list[float], Counter[str]]:
    lags: list[float] = []
    wrong: Counter[str] = Counter()
    for turn, voice in zip(turns, voices, strict=True):
        if isinstance(voice, OSError):
            wrong[f"no connection: {voice.strerror}"] += 1
            continue
        page = await client.list_messages("crab", sender=turn.sender)
        kept = [m.content for m in page.messages if m.role == "assistant" and m.content]
        if fault := turn.wrong(voice, kept):
            wrong[fault] += 1
        lags += voice.lags[int(turn.chunks * WARM_UP) :]
    return lags, wrong


# ── Tables ─────────────────────────────────────────────────────────────────────────────────────


def crowd_table() -> Table:
    return Table(
        "Load: the daemon on one core",
        [
            *["", "conversations", "lag p50 ms", "p99", "max", "lost or reordered", "µs a chunk"],
            *["CPU %", "queued %", "RSS MB", "MB a minute", "descriptors"],
        ],
        note=(
            "Lag is from the model's write to the client's read. Queued is the time in which the "
            "daemon could have run and others had its core. RSS and descriptors are the most "
            "there were; MB a minute is how RSS grows from the time all conversations are there."
        ),
    )


def add_crowd(table: Table, work: Work, outcome: Outcome) -> None:
    watch = outcome.watch
    size, descriptors = watch.most()
    chunks = work.conversations * work.chunks
    lasted = watch.samples[-1][0] - watch.samples[0][0]
    table.row(
        watch.daemon.name,
        str(work),
        *lag_columns(outcome.lags),
        str(sum(outcome.wrong.values())),
        f"{watch.cpu['daemon'] * lasted / chunks * 1e6:.0f}",
        f"{watch.cpu['daemon'] * 100:.0f}",
        f"{watch.queued * 100:.0f}",
        f"{size:.0f}",
        f"{watch.slope():+.1f}",
        f"{descriptors:,}",
    )


def lag_columns(lags: list[float]) -> list[str]:
    if not lags:
        return ["", "", ""]
    return [
        f"{percentile(lags, 0.5):.2f}",
        f"{percentile(lags, 0.99):.1f}",
        f"{max(lags):.0f}",
    ]


def beside_table(outcomes: list[tuple[Work, Outcome]]) -> Table:
    table = Table("Load: what goes on beside it, ms", ["", "beside", "times", "p50", "p99", "max"])
    for work, outcome in outcomes:
        for name, took in outcome.beside.took.items():
            table.row(
                f"{name}, {outcome.watch.daemon.name}",
                str(work),
                f"{len(took):,}",
                f"{percentile(took, 0.5):.1f}",
                f"{percentile(took, 0.99):.1f}",
                f"{max(took):.0f}",
            )
    return table


def steps(subject: Daemon, model: int) -> Table:
    """More and more of the same work, until something gives."""
    table = Table(
        "Load: until it breaks",
        [
            *["", "chunks/s", "lag p50 ms", "p99", "max", "failed turns", "daemon CPU %"],
            *["queued %", "model CPU %", "clients CPU %", "RSS MB", "descriptors", "why"],
        ],
        note=f"Broken is a turn that fails, or a p99 above {BROKEN:.0f} ms. {STEP} seconds each.",
    )
    for rate, sizes in ((5, range(1000, 8001, 1000)), (50, range(150, 1201, 150))):
        for conversations in sizes:
            work = Work(conversations, rate, STEP)
            outcome = uvloop.run(carry_out(work, subject, model))
            watch = outcome.watch
            size, descriptors = watch.most()
            table.row(
                str(work),
                f"{conversations * rate:,}",
                *lag_columns(outcome.lags),
                str(sum(outcome.wrong.values())),
                f"{watch.cpu['daemon'] * 100:.0f}",
                f"{watch.queued * 100:.0f}",
                *(f"{watch.cpu[name] * 100:.0f}" for name in ("model", "clients")),
                f"{size:.0f}",
                f"{descriptors:,}",
                next((fault for fault, _ in outcome.wrong.most_common(1)), ""),
            )
            print(table.rows[-1], flush=True)
            if outcome.wrong or percentile(outcome.lags, 0.99) > BROKEN:
                break
    return table


# ── Profiles ───────────────────────────────────────────────────────────────────────────────────


def profile(subject: Daemon, work: Work, model: int, seconds: int) -> Table:
    """Where the daemon's time goes while it works, as py-spy sees it from outside."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if spy is None:
        raise SystemExit("py-spy is not installed; pip install py-spy")
    raw = subject.home / "profile"
    options = ["-p", str(subject.pid), "-d", str(seconds), "-r", "250"]
    command = [spy, "record", *options, "-f", "raw", "-o", str(raw)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        outcome = uvloop.run(carry_out(work, subject, model))
        process.wait()
    assert not outcome.wrong, outcome.wrong
    own, within = read_profile(raw.read_text())
    total = sum(own.values())
    table = Table(
        f"Load: where the time goes with {work}, {subject.name}",
        ["function", "itself %", "with what it calls %"],
        note="Shares of the samples in which the event loop's thread ran Python or what it calls.",
    )
    for name, count in within.most_common(60):
        table.row(name, f"{own[name] / total * 100:.1f}", f"{count / total * 100:.1f}")
    return table


def read_profile(raw: str) -> tuple[Counter[str], Counter[str]]:
    """Samples by function: those it was seen at work in itself, and those it was part of."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if not stack.startswith("<module> (crabtalkd"):  # other threads wait for disks
            continue
        frames = [frame.rpartition(":")[0] + ")" for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        for frame in set(frames):
            within[frame] += int(count)
    return own, within


# ── All of it ──────────────────────────────────────────────────────────────────────────────────


def run(arguments: list[str]) -> list[Table]:
    parser = argparse.ArgumentParser(prog="python -m bench load")
    parser.add_argument("--seconds", type=int, default=MINUTE)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--no-crowds", action="store_true")
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tables: list[Table] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with on_core(-1), descriptors(hard):
            url, model = stack.enter_context(model_process("--no-record"))
        subjects = [stack.enter_context(daemon("this", scratch / "this", url))]
        if options.against:
            other = daemon("before", scratch / "before", url, options.against)
            subjects.insert(0, stack.enter_context(other))
        stack.enter_context(on_core(-1))
        stack.enter_context(descriptors(hard))
        gc.disable()  # the clients' own pauses are not the daemon's
        crowds = crowd_table()
        outcomes = []
        for work in (Work(1000, 5, options.seconds), Work(150, 50, options.seconds)):
            for subject in subjects * (not options.no_crowds):
                outcome = uvloop.run(carry_out(work, subject, model))
                add_crowd(crowds, work, outcome)
                print(crowds.rows[-1], dict(outcome.wrong), flush=True)
                outcomes.append((work, outcome))
                gc.collect()
        if outcomes:
            tables += [crowds, beside_table(outcomes)]
        if options.profile:
            work = Work(300, 50, 20)
            tables += [profile(subject, work, model, 18) for subject in subjects]
        if options.steps:
            tables.append(steps(subjects[-1], model))
    return tables


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Lets this process, and those it starts, have so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
