"""Soak: everything at once for a long time, after which the daemon must have released everything.

People talk, call tools, steer, compact, leave in mid-stream and read slowly; runs are killed, MCP
servers crash, agents and configuration are reloaded, feeds come and go. Afterwards there must be as
many tasks, threads and descriptors as before, and memory must not keep growing.

    python -m bench soak [--minutes N] [--seed N]
"""

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from crabtalk.client import Client, ServerError, connect
from crabtalk.protocol import FrameDecoder, encode_frame, wire
from crabtalk.transport import RunFiles
from tests.mcp.world import TINY_SERVER
from tests.model_server import model_process

from .load_generator import fit_slope
from .processes import compute_percentile, pin_to_core, read_rss
from .tables import BenchTable

MINUTES = 30.0
VISITORS = 24
# Conversations that the visitors share.
SENDERS = 64
# Seconds without reading after which a client is disconnected.
STALL = 2.0
# Seconds until the daemon has settled: connections to the model stay open for a minute after their
# last use and are checked once a minute.
SETTLING = 150.0
CONFIG = """
[llm]
base_url = "{url}"
model = "scripted"
[limits]
stall_timeout = {stall}
"""
CRAB = """
prompt = "You are crab."
[[mcps]]
name = "beach"
command = "{python}"
args = ["-S", "{tiny}"]
"""


# ── The daemon ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ProcessCounts:
    tasks: dict[str, int]
    threads: int
    objects: int
    descriptors: int
    size: float


@dataclass
class SoakDaemon:
    home: Path
    pid: int
    model: str

    @property
    def log(self) -> Path:
        return self.home / "stderr"

    def read_counts(self) -> ProcessCounts:
        """Read the current counts, as the daemon and the system report them."""
        file = self.home / "probe"
        lines_before = file.read_bytes().count(b"\n") if file.exists() else 0
        os.kill(self.pid, signal.SIGUSR1)
        while not file.exists() or file.read_bytes().count(b"\n") == lines_before:
            time.sleep(0.01)
        counts = json.loads(file.read_text().splitlines()[-1])
        return ProcessCounts(
            **counts, descriptors=self.count_descriptors(), size=read_rss(self.pid)
        )

    def count_descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())


@contextmanager
def run_daemon(home: Path, url: str) -> Iterator[SoakDaemon]:
    (home / "agents").mkdir(mode=0o700, parents=True)
    (home / "config.toml").write_text(CONFIG.format(url=url, stall=STALL))
    text = CRAB.format(python=sys.executable, tiny=TINY_SERVER)
    (home / "agents" / "crab.toml").write_text(text)
    (home / "agents" / "shrimp.toml").write_text('prompt = "You are shrimp."\n')
    command = [sys.executable, "-m", "bench.probed_daemon", str(home / "probe"), "run"]
    with (
        (home / "stderr").open("wb") as stderr,
        subprocess.Popen([*command, "--home", str(home), "--tcp", "off"], stderr=stderr) as process,
    ):
        try:
            subject = SoakDaemon(home, process.pid, url)
            while b"ready" not in subject.log.read_bytes():
                assert process.poll() is None, subject.log.read_text()
                time.sleep(0.01)
            yield subject
        finally:
            process.terminate()


# ── Visits ─────────────────────────────────────────────────────────────────────────────────────


@dataclass
class SoakRun:
    """All visitors together. `faults` counts what must not happen."""

    subject: SoakDaemon
    rng: random.Random
    until: float
    done: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)  # seconds, by kind of visit
    pings: list[float] = field(default_factory=list)  # ms
    sizes: list[tuple[float, float]] = field(default_factory=list)  # time, MB

    async def run(self) -> None:
        visits: list[tuple[int, Callable[[Client, str], Awaitable[None]]]] = [
            (30, self.talk),
            (12, self.call),
            (6, self.ask_guest),
            (8, self.kill),
            (6, self.steer),
            (8, self.disconnect_early),
            (3, self.read_slowly),
            (2, self.stall),
            (6, self.send_garbage),
            (3, self.compact),
            (4, self.delete),
            (4, self.follow_events),
            (4, self.search),
            (2, self.crash),
            (1, self.reload),
        ]
        weights = [weight for weight, _ in visits]

        async def visitor(client: Client) -> None:
            while time.monotonic() < self.until:
                _, visit = self.rng.choices(visits, weights)[0]
                await self._visit(visit, client)

        async with connect(home=self.subject.home, timeout=60) as client:
            background = [
                asyncio.ensure_future(self._ping()),
                asyncio.ensure_future(self._sample_memory()),
            ]
            await asyncio.gather(*(visitor(client) for _ in range(VISITORS)))
            for task in background:
                task.cancel()
            await asyncio.wait(background)

    async def _visit(self, visit: Callable[[Client, str], Awaitable[None]], client: Client) -> None:
        name = visit.__name__
        sender = f"s{self.rng.randrange(SENDERS)}"
        start = time.monotonic()
        try:
            async with asyncio.timeout(120):
                await visit(client, sender)
            self.done[name] += 1
        except ServerError as error:
            if not is_expected(error):
                self.faults[f"{name}: {error}"] += 1
        except Exception as error:
            if isinstance(error, TimeoutError):
                print(f"{name} by {sender} heard nothing; the log says who waits", flush=True)
                os.kill(self.subject.pid, signal.SIGUSR2)
            self.faults[f"{name}: {type(error).__name__} {error}"[:160]] += 1
        self.slowest[name] = max(self.slowest.get(name, 0.0), time.monotonic() - start)

    async def _ping(self) -> None:
        """Ping from a client of its own, which does nothing else."""
        async with connect(home=self.subject.home, timeout=60) as client:
            while True:
                start = time.monotonic()
                await client.ping()
                self.pings.append((time.monotonic() - start) * 1e3)
                await asyncio.sleep(0.1)

    async def _sample_memory(self) -> None:
        while True:
            self.sizes.append((time.monotonic(), read_rss(self.subject.pid)))
            await asyncio.sleep(2)

    async def talk(self, client: Client, sender: str) -> None:
        answer, is_whole = await run_turn(client, "!chunks 20 20\n!say and so on", sender)
        if is_whole and not answer.endswith("and so on"):
            self.faults["a turn lost its end"] += 1

    async def call(self, client: Client, sender: str) -> None:
        tool = self.rng.choice(['echo {"text": "sand"}', 'recall {"query": "tide"}', "pid {}"])
        note = f'remember {{"name": "{sender}", "content": "it likes the tide"}}'
        await run_turn(client, f"!tool {tool}\n!tool {note}\n!then\n!say done", sender)

    async def ask_guest(self, client: Client, sender: str) -> None:
        await run_turn(client, "!chunks 5 50", sender, guest="shrimp")

    async def kill(self, client: Client, sender: str) -> None:
        sender = f"k{sender}"
        turn = asyncio.ensure_future(run_turn(client, "!chunks 100 20", sender))
        await asyncio.sleep(self.rng.random())
        with suppress(ServerError):
            await client.kill("crab", sender=sender)
        await turn

    async def steer(self, client: Client, sender: str) -> None:
        turn = asyncio.ensure_future(run_turn(client, "!chunks 20 40", sender))
        await asyncio.sleep(self.rng.random() / 2)
        with suppress(ServerError):
            await client.steer_session("crab", "!say a little to the left", sender=sender)
        await turn

    async def disconnect_early(self, client: Client, sender: str) -> None:
        """Disconnect in the middle of the answer."""
        event_count = 0
        async with aclosing(client.stream("crab", "!chunks 200 50", sender=sender)) as events:
            async for _ in events:
                event_count += 1
                if event_count > 10:
                    return

    async def read_slowly(self, client: Client, sender: str) -> None:
        """Read slowly for a while, or until another visitor has steered the answer to its end."""
        reader, writer = await self._connection("!chunks 3000 0", sender)
        decoder = FrameDecoder()
        try:
            for _ in range(20):
                data = await reader.read(2048)
                replies = [wire.ServerMessage.FromString(bytes(f)) for f in decoder.feed(data)]
                if not data or any(is_last(reply) for reply in replies):
                    return
                await asyncio.sleep(0.1)
        finally:
            writer.transport.abort()

    async def stall(self, client: Client, sender: str) -> None:
        """Read nothing until the daemon disconnects."""
        _, writer = await self._connection("!chunks 20000 0", f"stalled-{sender}")
        try:
            await asyncio.sleep(STALL * 2.5)
        finally:
            writer.transport.abort()

    async def send_garbage(self, client: Client, sender: str) -> None:
        """Connect, send part of a frame or garbage, and disconnect."""
        path = RunFiles.for_home(self.subject.home).socket_path
        for _ in range(5):
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(self.rng.choice([b"", b"\0\0", b"\0\0\0\4\xff\xff\xff\xff", b"\0\0\1\0x"]))
            await asyncio.sleep(self.rng.random() / 20)
            writer.transport.abort()

    async def compact(self, client: Client, sender: str) -> None:
        await client.compact("crab", sender=sender, fresh=self.rng.random() < 0.5)

    async def delete(self, client: Client, sender: str) -> None:
        rows = await client.list_conversations()
        for row in self.rng.sample(list(rows.conversations), min(6, len(rows.conversations))):
            await client.delete_conversation(row.file_path)

    async def follow_events(self, client: Client, sender: str) -> None:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self.rng.random() * 2),
                aclosing(client.subscribe_events()) as events,
            ):
                async for _ in events:
                    pass

    async def search(self, client: Client, sender: str) -> None:
        await client.search_sessions("little left")
        await client.search_memory("crab", "tide")
        await client.list_conversations()

    async def crash(self, client: Client, sender: str) -> None:
        """Let the MCP server crash during a call."""
        await run_turn(client, "!tool crash {}\n!then\n!say it is gone", sender)

    async def reload(self, client: Client, sender: str) -> None:
        if self.rng.random() < 0.5:
            os.kill(self.subject.pid, signal.SIGHUP)
        else:
            await client.reload()

    async def _connection(
        self, script: str, sender: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = RunFiles.for_home(self.subject.home).socket_path
        reader, writer = await asyncio.open_unix_connection(path, limit=1024)
        message = wire.StreamMsg(agent="crab", content=script, sender=sender)
        writer.write(encode_frame(wire.ClientMessage(stream=message)))
        return reader, writer


async def run_turn(client: Client, script: str, sender: str, guest: str = "") -> tuple[str, bool]:
    """Return the answer of a turn, and whether it was neither stopped nor steered."""
    pieces, is_steered = [], False
    async for event in client.stream("crab", script, sender=sender, guest=guest):
        if isinstance(event, wire.StreamChunk):
            pieces.append(event.content)
        elif isinstance(event, wire.UserSteeredEvent):
            is_steered = True
        elif isinstance(event, wire.StreamEnd):
            if event.error:
                raise RuntimeError(event.error)
            is_whole = event.stop_reason == wire.STOP_REASON_COMPLETED and not is_steered
            return "".join(pieces), is_whole
    raise RuntimeError("a stream without an end")


def is_last(reply: wire.ServerMessage) -> bool:
    return reply.HasField("error") or reply.stream.HasField("end")


def is_expected(error: ServerError) -> bool:
    """Whether an error is normal while others delete, kill and compact the same conversations."""
    return error.code in (404, 409) or "nothing was said" in str(error)


# ── Before and after ───────────────────────────────────────────────────────────────────────────


async def warm_up(subject: SoakDaemon) -> None:
    """Use each part of the daemon once, so that everything it loads and opens for good is there."""
    async with connect(home=subject.home, timeout=60) as client:
        await run_turn(client, '!tool echo {"text": "x"}\n!then\n!say done', "first")
        await run_turn(
            client, '!tool remember {"name": "a", "content": "b"}\n!then\n!say x', "first"
        )
        await client.set_title("crab", "The first one", sender="first")
        await client.search_sessions("done")
        await client.compact("crab", sender="first")
        await client.reload()


async def wait_until_settled(
    subject: SoakDaemon, patience: float, wanted: ProcessCounts | None = None
) -> ProcessCounts:
    """Wait until nothing runs and the counts are back at `wanted`, or the patience is over."""
    deadline = time.monotonic() + patience
    async with connect(home=subject.home, timeout=60) as client:
        while (await client.get_stats()).runs:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.2)
    while True:
        await asyncio.sleep(1)
        counts = subject.read_counts()
        if time.monotonic() > deadline:
            return counts
        if wanted is not None and has_returned(counts, wanted):
            return counts


def has_returned(now: ProcessCounts, before: ProcessCounts) -> bool:
    return now.descriptors <= before.descriptors and sum(now.tasks.values()) <= sum(
        before.tasks.values()
    )


def find_log_errors(log: Path) -> Counter[str]:
    """Count the errors in the daemon's log."""
    errors: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        words = line.split(maxsplit=2)
        if len(words) == 3 and words[1] in ("ERROR", "CRITICAL"):
            errors[words[2][:160]] += 1
    return errors


def run_soak(subject: SoakDaemon, minutes: float, seed: int) -> tuple[list[BenchTable], bool]:
    uvloop.run(warm_up(subject))
    patience = min(SETTLING, minutes * 60)
    before = uvloop.run(wait_until_settled(subject, patience))
    start = time.monotonic()
    run = SoakRun(subject, random.Random(seed), start + minutes * 60)  # noqa: S311 - traffic
    uvloop.run(run.run())
    after = uvloop.run(wait_until_settled(subject, patience, before))
    # Python, tantivy and the allocator allocate their permanent memory in the first minutes.
    steady = [size for size in run.sizes if size[0] > start + minutes * 60 * 0.4]
    slope = fit_slope(steady) * 60
    comparison = BenchTable(
        f"Soak: {minutes:g} minutes, before and after",
        ["", "before", "after"],
        note=f"Each when nothing runs, the second at most {patience:.0f} s after the last visit.",
    )
    numbers: list[tuple[str, Callable[[ProcessCounts], Any]]] = [
        ("tasks", lambda alive: sum(alive.tasks.values())),
        ("threads", lambda alive: alive.threads),
        ("descriptors", lambda alive: alive.descriptors),
        ("objects", lambda alive: f"{alive.objects:,}"),
        ("RSS MB", lambda alive: f"{alive.size:.1f}"),
    ]
    for name, number in numbers:
        comparison.add_row(name, str(number(before)), str(number(after)))
    summary = BenchTable("Soak: all the while", ["", ""])
    summary.add_row("visits", f"{sum(run.done.values()):,}")
    summary.add_row("visits that went wrong", str(sum(run.faults.values())))
    summary.add_row("errors in the daemon's log", str(sum(find_log_errors(subject.log).values())))
    summary.add_row("RSS MB, smallest, of the last 60 %", f"{min(s[1] for s in steady):.1f}")
    summary.add_row("RSS MB, largest, of the last 60 %", f"{max(s[1] for s in steady):.1f}")
    summary.add_row("RSS slope of it, MB a minute", f"{slope:+.2f}")
    summary.add_row("pings", f"{len(run.pings):,}")
    summary.add_row("ping p50 ms", f"{compute_percentile(run.pings, 0.5):.1f}")
    summary.add_row("ping p99 ms", f"{compute_percentile(run.pings, 0.99):.1f}")
    summary.add_row("ping max ms", f"{max(run.pings):.0f}")
    visits = BenchTable("Soak: visits", ["", "times", "slowest s"])
    for name, count in run.done.most_common():
        visits.add_row(name.replace("_", " "), f"{count:,}", f"{run.slowest[name]:.1f}")
    for sentence, count in (run.faults + find_log_errors(subject.log)).most_common(12):
        print(f"WRONG {count}: {sentence}", flush=True)
    remaining = Counter(after.tasks) - Counter(before.tasks)
    if remaining:
        print(f"TASKS LEFT: {dict(remaining)}", flush=True)
    return [comparison, summary, visits], not run.faults and not remaining


def run_benchmark(arguments: list[str]) -> list[BenchTable]:
    parser = argparse.ArgumentParser(prog="python -m bench soak")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with pin_to_core(-1):
            url, _ = stack.enter_context(model_process("--no-record", "--summary", "They talked."))
        with pin_to_core(0):
            subject = stack.enter_context(run_daemon(scratch / "home", url))
        stack.enter_context(pin_to_core(-1))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        tables, _ = run_soak(subject, options.minutes, options.seed)
        return tables
