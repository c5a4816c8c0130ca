"""Fleet: turns on files and on PostgreSQL, with one, two and three daemons.

The database, the daemons, the model and the clients share the cores of one machine. So the table
shows what a turn costs and where this machine saturates, not the gain of more machines. The
database flushes its commits to disk, as the files do.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import uvloop

from crabtalk.client import Client, connect
from crabtalk.model.messages import Message
from crabtalk.storage import FileStorage, MessageRecord, MetaRecord, Pair, Storage
from crabtalk.storage.postgres import PostgresStorage
from tests.model_server import model_process
from tests.postgres import PostgresServer, create_server, execute_sql, with_parameters

from .processes import compute_percentile, read_rss
from .tables import BenchTable

SECONDS = 4.0
WARM_UP = 1.0
CROWDS = (1, 16, 128)
CONVERSATIONS = 100_000
DURABLE = (
    "ALTER SYSTEM SET fsync = on",
    "ALTER SYSTEM SET full_page_writes = on",
    "SELECT pg_reload_conf()",
)
CONFIG = '[llm]\nbase_url = "{url}"\nmodel = "scripted"\n{storage}'


# ── Processes ──────────────────────────────────────────────────────────────────────────────────


class FleetDaemon:
    def __init__(self, home: Path, pid: int) -> None:
        self.home = home
        self.pid = pid

    def cpu_seconds(self) -> float:
        return read_cpu_seconds(self.pid)


@contextmanager
def run_daemon(home: Path, config: str) -> Iterator[FleetDaemon]:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(config)
    command = [str(Path(sys.executable).with_name("crabtalkd")), "run", "--home", str(home)]
    with subprocess.Popen([*command, "--tcp", "off"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "ready" in line, line
            yield FleetDaemon(home, process.pid)
        finally:
            process.terminate()


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_tree_cpu_seconds(pid: int) -> float:
    """Sum the CPU time of a process and its children, including children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in children:
        try:
            total += read_cpu_seconds(int(child))
        except FileNotFoundError:  # it has just ended
            continue
    return total


def format_storage_section(url: str) -> str:
    return f'[storage]\nurl = "{url}"\n' if url else ""


# ── Turns ──────────────────────────────────────────────────────────────────────────────────────


async def run_crowd(homes: list[Path], conversations: int) -> tuple[float, list[float]]:
    """Run people who talk without pause; return turns a second, and each turn's milliseconds."""
    latencies: list[float] = []
    start = time.monotonic()

    async def talk(client: Client, number: int) -> None:
        while (now := time.monotonic()) < start + WARM_UP + SECONDS:
            await client.send("crab", "!say hello there", sender=f"s{number}")
            if now > start + WARM_UP:
                latencies.append((time.monotonic() - now) * 1e3)

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(home=home, timeout=60)) for home in homes
        ]
        for client in clients:
            await client.send("crab", "!say warm", sender="warm")
        start = time.monotonic()
        await asyncio.gather(*(talk(clients[n % len(clients)], n) for n in range(conversations)))
    return len(latencies) / SECONDS, latencies


def measure_turns(model: str, server: PostgresServer, scratch: Path) -> BenchTable:
    table = BenchTable(
        "Turns by storage and number of daemons",
        ["", "daemons", "people", "turns/s", "p50 ms", "p99 ms", "CPU ms a turn", "of it database"],
        note=(
            "Each person has a conversation of their own and says the next thing as soon as the "
            "last was answered. Every turn is two durable writes, and on PostgreSQL a lease taken "
            "and given back. CPU is of the daemons and the database together."
        ),
    )
    for name, count in (("files", 1), ("PostgreSQL", 1), ("PostgreSQL", 2), ("PostgreSQL", 3)):
        url = create_schema(server) if name == "PostgreSQL" else ""
        config = CONFIG.format(url=model, storage=format_storage_section(url))
        with ExitStack() as stack:
            daemons = [
                stack.enter_context(run_daemon(scratch / f"{name}{count}-{n}", config))
                for n in range(count)
            ]
            for people in CROWDS:
                spent = sum(daemon.cpu_seconds() for daemon in daemons)
                database_spent = read_tree_cpu_seconds(server.pid) if url else 0.0
                rate, latencies = uvloop.run(run_crowd([daemon.home for daemon in daemons], people))
                spent = sum(daemon.cpu_seconds() for daemon in daemons) - spent
                database_spent = read_tree_cpu_seconds(server.pid) - database_spent if url else 0.0
                turns = rate * (SECONDS + WARM_UP)
                table.add_row(
                    name,
                    str(count),
                    str(people),
                    f"{rate:,.0f}",
                    f"{compute_percentile(latencies, 0.5):.1f}",
                    f"{compute_percentile(latencies, 0.99):.1f}",
                    f"{(spent + database_spent) / turns * 1e3:.2f}",
                    f"{database_spent / turns * 1e3:.2f}",
                )
    return table


# ── Appends ────────────────────────────────────────────────────────────────────────────────────


async def time_appends(storage: Storage) -> list[float]:
    """Time appends one after the other within one turn, in microseconds."""
    pair = Pair("crab", "user")
    claim = storage.claim_turn(pair, "bench")
    if claim is not None:
        await claim.acquire()
    meta = MetaRecord(agent=pair.agent, created_by=pair.sender, created_at="now")
    await storage.append(pair, [meta], create=True)
    times = []
    for number in range(1_000):
        record = MessageRecord(number, "now", Message("user", "what was said " * 20))
        start = time.perf_counter()
        await storage.append(pair, [record])
        times.append((time.perf_counter() - start) * 1e6)
    if claim is not None:
        claim.release()
    return times[100:]


async def time_claims(storage: PostgresStorage) -> list[float]:
    """Time acquiring and releasing the lease of a turn, in microseconds."""
    times = []
    for _ in range(500):
        start = time.perf_counter()
        claim = storage.claim_turn(Pair("crab", "claimed"), "bench")
        await claim.acquire()
        claim.release()
        times.append((time.perf_counter() - start) * 1e6)
    return times[50:]


async def measure_writes(server: PostgresServer, scratch: Path) -> BenchTable:
    table = BenchTable("Writes by storage, µs", ["", "p50", "p99"], note="One after the other.")
    files = FileStorage(scratch / "written")
    shared = PostgresStorage(scratch, create_schema(server))
    await shared.open()
    results = (
        ("append, files", await time_appends(files)),
        ("append, PostgreSQL", await time_appends(shared)),
        ("lease, PostgreSQL", await time_claims(shared)),
    )
    for name, times in results:
        table.add_row(
            name,
            f"{compute_percentile(times, 0.5):,.0f}",
            f"{compute_percentile(times, 0.99):,.0f}",
        )
    await files.close()
    await shared.close()
    return table


# ── Starting ───────────────────────────────────────────────────────────────────────────────────

FILL = """
WITH made AS (
    INSERT INTO conversations (key, handle, agent, sender, created_at, updated_at, title,
        message_count, approved, last_seq, changed)
    SELECT md5('k' || n), 'crab-s' || n, 'crab', 's' || n, '2026-01-01T00:00:00Z',
        '2026-01-01T00:00:00Z', 'Number ' || n, 4, '{{}}', 5, pg_current_xact_id()
    FROM generate_series({first}, {last}) n RETURNING id, sender
)
INSERT INTO entries (conversation, seq, message_id, kind, body)
SELECT id, m + 2, m, 'message', json_build_object('kind', 'message', 'id', m, 'at',
    '2026-01-01T00:00:00Z', 'message', json_build_object('role',
    CASE m % 2 WHEN 0 THEN 'user' ELSE 'assistant' END, 'text', 'word' || m || ' by ' || sender))
FROM made, generate_series(0, 3) m
"""


def measure_restarts(model: str, server: PostgresServer, scratch: Path) -> BenchTable:
    table = BenchTable(
        "A daemon on PostgreSQL by the number of conversations in it",
        ["conversations", "start to pong ms", "first turn ms", "idle RSS MB"],
        note="The median of five starts; the turn is the first thing said to the daemon.",
    )
    for count in (0, 1_000, CONVERSATIONS):
        url = create_schema(server)
        config = CONFIG.format(url=model, storage=format_storage_section(url))
        with run_daemon(scratch / f"start{count}", config) as daemon:
            uvloop.run(time_first_turn(daemon.home))  # creates the schema
        for start in range(1, count + 1, 10_000):
            execute_sql(url, FILL.format(first=start, last=min(start + 9_999, count)))
        execute_sql(url, "ANALYZE")
        pongs: list[float] = []
        firsts: list[float] = []
        memory = 0.0
        for _ in range(5):
            started = time.perf_counter()
            with run_daemon(scratch / f"start{count}", config) as daemon:
                pong, first = uvloop.run(time_first_turn(daemon.home, started))
                pongs.append(pong)
                firsts.append(first)
                memory = read_rss(daemon.pid)
        table.add_row(
            f"{count:,}",
            f"{compute_percentile(pongs, 0.5):.0f}",
            f"{compute_percentile(firsts, 0.5):.1f}",
            f"{memory:.1f}",
        )
    return table


async def time_first_turn(home: Path, started: float = 0.0) -> tuple[float, float]:
    async with connect(home=home) as client:
        await client.ping()
        pong = time.perf_counter()
        await client.send("crab", "!say hello", sender="first")
        return (pong - started) * 1e3, (time.perf_counter() - pong) * 1e3


def create_schema(server: PostgresServer) -> str:
    name = f"bench_{time.monotonic_ns()}"
    execute_sql(server.url, f"CREATE SCHEMA {name}")
    return with_parameters(server.url, search_path=name)


def run_benchmark() -> list[BenchTable]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, _ = stack.enter_context(model_process("--no-record"))
        server = create_server(scratch / "postgres")
        stack.callback(server.close)
        execute_sql(server.url, *DURABLE)
        return [
            measure_turns(model, server, scratch),
            uvloop.run(measure_writes(server, scratch)),
            measure_restarts(model, server, scratch),
        ]
