"""The cost of message keys and replay buffers, in time and in memory.

    python -m bench delivery [--against DIR]

`--against` also measures the memory of a daemon from the sources in DIR, under the same load.
"""

import argparse
import asyncio
import http.client
import json
import tempfile
import time
import tracemalloc
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from crabtalk.client import Client, connect
from crabtalk.model import Message
from crabtalk.protocol import wire
from crabtalk.runtime.clock import Clock
from crabtalk.runtime.conversation import Conversation
from crabtalk.runtime.events import TextDelta
from crabtalk.runtime.replay_buffer import ReplayBuffer
from crabtalk.storage import ArchivedKeys, FileStorage, MarkerRecord, MessageRecord, Pair, Record
from tests.model_server import model_process

from .history import AT, TEXT, make_meta, time_best
from .load_generator import BenchDaemon, run_daemon
from .processes import compute_percentile, pin_to_core, read_rss
from .tables import BenchTable

TURNS = 400
RUNS = 1000
PIECE = "0123456789012345678 "  # as long as the model server's chunks
PAIR = Pair("crab", "user")


# ── Time ───────────────────────────────────────────────────────────────────────────────────────


async def time_turn(client: Client, key: str | None, sender: str) -> tuple[float, float]:
    """Return milliseconds until the turn's start and until its end."""
    start = time.perf_counter()
    started = 0.0
    stream = client.stream("crab", "!say good day to you", sender=sender, key=key)
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, wire.StreamStart):
                started = (time.perf_counter() - start) * 1000
    return started, (time.perf_counter() - start) * 1000


async def time_all_turns(home: Path) -> dict[str, list[tuple[float, float]]]:
    """Time turns with and without a key, alternating, and turns with a repeated key."""
    results: dict[str, list[tuple[float, float]]] = {"no key": [], "key": [], "repeated key": []}
    # With a reconnect timeout of 0 a client sends only the keys it is given.
    async with connect(home=home, reconnect_timeout=0) as client:
        for number in range(TURNS + 40):
            sender = f"s{number % 20}"
            # The order alternates, so that neither always runs after the other.
            order = ["no key", "key"][:: 1 if number % 2 else -1]
            for name in [*order, "repeated key"]:
                key = None if name == "no key" else f"k{number}"
                times = await time_turn(client, key, sender)
                if number >= 40:  # the first turns warm up imports and conversations
                    results[name].append(times)
    return results


def measure_by_key() -> BenchTable:
    table = BenchTable(
        f"A turn with a key and one without, ms, {TURNS} of each in turn",
        ["", "start p50", "p99", "end p50", "p99"],
        note="Flushed to disk, one client. A repeated key is answered from the log.",
    )
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with pin_to_core(-1):
            url, _ = stack.enter_context(model_process())
        target = stack.enter_context(run_daemon("now", scratch / "now", url))
        with pin_to_core(-1):
            results = uvloop.run(time_all_turns(target.home))
    for name, times in results.items():
        columns = [[pair[column] for pair in times] for column in (0, 1)]
        shares = [compute_percentile(values, share) for values in columns for share in (0.5, 0.99)]
        table.add_row(name, *(f"{value:.2f}" for value in shares))
    return table


# ── Looking for keys ───────────────────────────────────────────────────────────────────────────


def make_keyed_record(number: int) -> MessageRecord:
    key = f"key-{number}" if number % 2 == 0 else ""
    message = Message("user" if key else "assistant", TEXT)
    return MessageRecord(number, AT, message, run=f"r{number // 2}", key=key)


async def measure_by_length() -> BenchTable:
    table = BenchTable(
        "Searching a whole log for a key, ms",
        ["messages", "file MB", "unknown key", "the oldest key", "the newest key"],
        note="Only where a marker's fingerprints say that the key may be there.",
    )
    for size in (1_000, 10_000, 100_000):
        with tempfile.TemporaryDirectory() as home:
            storage = FileStorage(Path(home), flush=False)
            records: list[Record] = [
                make_meta(PAIR, 0),
                *map(make_keyed_record, range(size)),
                make_meta(PAIR, size),
            ]
            await storage.append(PAIR, records, create=True)
            took = [
                await time_best(partial(storage.find_run, PAIR, key=key))
                for key in ("unknown", "key-0", f"key-{size - 2}")
            ]
            table.add_row(
                f"{size:,}",
                f"{measure_log_size(Path(home)) / 1e6:.1f}",
                *(f"{value:.2f}" for value in took),
            )
            await storage.close()
    return table


def measure_log_size(home: Path) -> int:
    return sum(path.stat().st_size for path in home.glob("sessions/*.jsonl"))


async def measure_by_marker() -> BenchTable:
    table = BenchTable(
        "Looking for a key in a conversation, by the keys before its marker",
        ["keys", "marker KB", "load ms", "unknown key µs", "known key ms"],
        note=(
            "A marker has a fingerprint of eight bytes for each of the newest 10,000 keys. Where "
            "older ones were dropped, every new key is looked for in the log."
        ),
    )
    for count in (0, 1_000, 20_000):
        with tempfile.TemporaryDirectory() as home:
            storage = FileStorage(Path(home), flush=False)
            keys, dropped = ArchivedKeys().pack_with(f"key-{2 * n}" for n in range(count))
            size = max(2 * count, 2)
            marker = MarkerRecord("crab-user-1", AT, "They met.", "They met.", size, keys, dropped)
            records = [
                make_meta(PAIR, 0),
                *map(make_keyed_record, range(size)),
                marker,
                make_meta(PAIR, size),
            ]
            await storage.append(PAIR, records, create=True)
            conversation = Conversation(PAIR, storage, Clock())
            load = await time_best(partial(storage.load_and_repair, PAIR))
            await conversation.load()
            unknown = await time_best(partial(conversation.find_key_use, "unknown"))
            known = await time_best(partial(conversation.find_key_use, "key-0"))
            table.add_row(
                f"{count:,}",
                f"{len(keys) / 1000:.1f}",
                f"{load:.2f}",
                f"{unknown * 1000:.0f}",
                f"{known:.2f}" if count else "",
            )
            await storage.close()
    return table


# ── Memory ─────────────────────────────────────────────────────────────────────────────────────


def measure_by_chunks() -> BenchTable:
    table = BenchTable(
        "A transcript, by the chunks of its answer",
        ["chunks", "text KB", "transcript KB", "added µs/chunk"],
        note="Chunks of 20 characters. Beyond 1 MB, steps that are in the log are dropped.",
    )
    for count in (100, 1_000, 10_000):
        start = time.perf_counter()
        fill_transcript(count)
        took = (time.perf_counter() - start) / count * 1e6
        tracemalloc.start()
        transcript = fill_transcript(count)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert transcript.count == count
        text = count * len(PIECE) / 1000
        table.add_row(f"{count:,}", f"{text:.1f}", f"{size / 1000:.1f}", f"{took:.2f}")
    return table


def fill_transcript(count: int) -> ReplayBuffer:
    transcript = ReplayBuffer(1024 * 1024)
    for number in range(count):
        transcript.add(TextDelta(f"{number:019d} "))
    return transcript


async def hold_runs(
    target: BenchDaemon, url: str, chunks: int, *, keys: bool
) -> tuple[float, float]:
    """Return the daemon's RSS in MB before RUNS runs, and while all have streamed and not ended."""
    script = f"!chunks {chunks} 0\n!wait\n!say done"
    async with connect(home=target.home, timeout=120, reconnect_timeout=0) as client:
        await client.send("crab", "!say warm", sender="warm")

        async def run(number: int) -> None:
            key = f"k{number}" if keys else None
            stream = client.stream("crab", script, sender=f"s{number}", key=key)
            async with aclosing(stream) as events:
                async for _ in events:
                    pass

        before = read_rss(target.pid)
        runs = [asyncio.ensure_future(run(number)) for number in range(RUNS)]
        await asyncio.to_thread(wait_for_runs, url)
        await asyncio.sleep(1)  # clients read the streams
        during = read_rss(target.pid)
        await asyncio.to_thread(ask_model_server, url, "release")
        await asyncio.gather(*runs)
        return before, during


def wait_for_runs(url: str) -> None:
    """Wait until the model server has reached the pause in every run."""
    while json.loads(ask_model_server(url, "statistics"))["waiting"] < RUNS:
        time.sleep(0.1)


def ask_model_server(url: str, what: str) -> bytes:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request("POST" if what == "release" else "GET", f"/control/{what}")
        return connection.getresponse().read()
    finally:
        connection.close()


def measure_by_runs(against: Path | None) -> BenchTable:
    table = BenchTable(
        f"{RUNS:,} runs at once that have said so much, RSS of the daemon in MB",
        ["chunks each", "daemon", "before", "during", "KB a run"],
        note="A fresh daemon for each row. All clients read along.",
    )
    for chunks in (100, 1_000):
        rows: list[tuple[str, Path | None, bool]] = [
            ("now", None, False),
            ("now, keys", None, True),
        ]
        if against is not None:
            rows.insert(0, ("before this", against, False))
        for name, source, keys in rows:
            with ExitStack() as stack:
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                with pin_to_core(-1):
                    url, _ = stack.enter_context(model_process("--no-record"))
                target = stack.enter_context(run_daemon(name, scratch / "home", url, source))
                with pin_to_core(-1):
                    before, during = uvloop.run(hold_runs(target, url, chunks, keys=keys))
            kb_per_run = (during - before) * 1024 / RUNS
            table.add_row(
                f"{chunks:,}", name, f"{before:.1f}", f"{during:.1f}", f"{kb_per_run:.1f}"
            )
    return table


def run_benchmark(arguments: list[str]) -> list[BenchTable]:
    parser = argparse.ArgumentParser("python -m bench delivery")
    parser.add_argument("--against", type=Path)
    options = parser.parse_args(arguments)
    return [
        measure_by_key(),
        uvloop.run(measure_by_length()),
        uvloop.run(measure_by_marker()),
        measure_by_chunks(),
        measure_by_runs(options.against),
    ]
