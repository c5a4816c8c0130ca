"""History: the cost of long conversations, and of many conversations.

The time of an append should not depend on the length of the log, loading should be linear in the
messages after the last marker, and listings and starts should hardly depend on the number of
conversations.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import uvloop

from crabtalk.client import connect
from crabtalk.model import Message
from crabtalk.storage import (
    ConversationMeta,
    FileStorage,
    MarkerRecord,
    MessageRecord,
    Pair,
    Record,
)

from .processes import compute_percentile, read_clock, read_rss
from .tables import BenchTable

AT = "2026-01-01T00:00:00.000Z"
TEXT = "The quick brown crab walks sideways over the lazy lobster, as it does every evening. " * 3
SIZES = (10, 1_000, 10_000)
CONVERSATIONS = 10_000


def make_messages(count: int, first: int = 0) -> list[Record]:
    return [
        MessageRecord(number, AT, Message("user" if number % 2 == 0 else "assistant", TEXT))
        for number in range(first, first + count)
    ]


def make_meta(pair: Pair, count: int) -> Record:
    return ConversationMeta(
        *pair, created_at=AT, updated_at=AT, message_count=count
    ).make_snapshot()


async def measure_by_length() -> BenchTable:
    table = BenchTable(
        "One conversation, by its length, ms",
        ["messages", "append p50", "load", "load after a marker", "page of 100 at its end"],
        note="Append is one message, flushed to disk. Loads are of a file the system has cached.",
    )
    for size in SIZES:
        with tempfile.TemporaryDirectory() as home:
            storage = FileStorage(Path(home))
            pair = Pair("crab", "user")
            await storage.append(
                pair, [make_meta(pair, 0), *make_messages(size), make_meta(pair, size)], create=True
            )
            load = await time_best(partial(storage.load_and_repair, pair))
            page = await time_best(partial(storage.read_page, pair, size - 100, 100))
            appends = []
            for number in range(200):
                start = read_clock()
                await storage.append(pair, make_messages(1, size + number))
                appends.append((read_clock() - start) * 1e3)
            total = size + 200
            marker = MarkerRecord("crab-user-1", AT, "They met.", "They met.", total)
            await storage.append(pair, [marker, make_meta(pair, total), *make_messages(2, total)])
            after_marker = await time_best(partial(storage.load_and_repair, pair))
            await storage.close()
        table.add_row(
            f"{size:,}",
            f"{compute_percentile(appends, 0.5):.2f}",
            f"{load:.2f}",
            f"{after_marker:.2f}",
            f"{page:.2f}",
        )
    return table


async def time_best(work: Callable[[], Awaitable[object]], rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        start = read_clock()
        await work()
        times.append((read_clock() - start) * 1e3)
    return min(times)


async def fill_home(home: Path, count: int) -> None:
    """Create `count` conversations of a few messages each."""
    storage = FileStorage(home, flush=False)
    for start in range(0, count, 500):
        pairs = [Pair("crab", f"tg:{number}") for number in range(start, min(start + 500, count))]
        await asyncio.gather(
            *(
                storage.append(
                    pair, [make_meta(pair, 0), *make_messages(4), make_meta(pair, 4)], create=True
                )
                for pair in pairs
            )
        )
    await storage.close()


def measure_by_number() -> BenchTable:
    table = BenchTable(
        "A daemon by the number of its conversations",
        [
            "conversations",
            "start to pong ms",
            "first listing ms",
            "listing ms",
            "idle RSS MB",
            "after MB",
        ],
        note="Five starts each, the median. Listings come over the socket, with every row.",
    )
    for count in (0, 1_000, CONVERSATIONS):
        with tempfile.TemporaryDirectory() as scratch:
            home = Path(scratch) / "home"
            home.mkdir(mode=0o700)
            uvloop.run(fill_home(home, count))
            starts = []
            for _ in range(5):
                started, firsts, later, idle, after = uvloop.run(measure_start(home, count))
                starts.append(started)
        table.add_row(
            f"{count:,}",
            f"{compute_percentile(starts, 0.5):.0f}",
            f"{firsts:.0f}",
            f"{later:.0f}",
            f"{idle:.1f}",
            f"{after:.1f}",
        )
    return table


async def measure_start(home: Path, count: int) -> tuple[float, float, float, float, float]:
    crabtalkd = str(Path(sys.executable).with_name("crabtalkd"))
    start = read_clock()
    process = await asyncio.create_subprocess_exec(
        crabtalkd, "run", "--home", str(home), "--tcp", "off", stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        await process.stderr.readline()
        async with connect(home=home) as client:
            await client.ping()
            started = (read_clock() - start) * 1e3
            idle = read_rss(process.pid)
            listings = []
            for _ in range(3):
                start = read_clock()
                reply = await client.list_conversations()
                listings.append((read_clock() - start) * 1e3)
                assert len(reply.conversations) == count
            return started, listings[0], min(listings[1:]), idle, read_rss(process.pid)
    finally:
        process.terminate()
        await process.wait()


def run_benchmark() -> list[BenchTable]:
    return [uvloop.run(measure_by_length()), measure_by_number()]
