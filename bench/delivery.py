"""Delivery: what keys and transcripts cost, in time and in memory.

    python -m bench delivery [--against DIR]

`--against` measures the memory of a daemon from the sources in DIR as well, under the same load.
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
from crabtalk.runtime.transcript import Transcript
from crabtalk.storage import ArchivedKeys, FileStorage, MarkerRecord, MessageRecord, Pair, Record
from tests.model_server import model_process

from .crowd import Daemon, daemon
from .history import AT, TEXT, best, meta
from .peers import on_core, percentile, rss
from .report import Table

TURNS = 400
RUNS = 1000
PIECE = "0123456789012345678 "  # as long as the model server's chunks
PAIR = Pair("crab", "user")


# ── Time ───────────────────────────────────────────────────────────────────────────────────────


async def one_turn(client: Client, key: str | None, sender: str) -> tuple[float, float]:
    """Milliseconds to its start and to its end."""
    begun = time.perf_counter()
    started = 0.0
    stream = client.stream("crab", "!say good day to you", sender=sender, key=key)
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, wire.StreamStart):
                started = (time.perf_counter() - begun) * 1000
    return started, (time.perf_counter() - begun) * 1000


async def take_turns(home: Path) -> dict[str, list[tuple[float, float]]]:
    """With and without a key, one after the other, and with keys that were run before."""
    found: dict[str, list[tuple[float, float]]] = {"no key": [], "key": [], "repeated key": []}
    # Without time to reconnect a client gives no keys but those it is told to.
    async with connect(home=home, reconnect_timeout=0) as client:
        for number in range(TURNS + 40):
            sender = f"s{number % 20}"
            # Who is first changes, so that neither always meets the other's leftovers.
            order = ["no key", "key"][:: 1 if number % 2 else -1]
            for name in [*order, "repeated key"]:
                key = None if name == "no key" else f"k{number}"
                took = await one_turn(client, key, sender)
                if number >= 40:  # until then everything is loaded, and conversations begin
                    found[name].append(took)
    return found


def by_key() -> Table:
    table = Table(
        f"A turn with a key and one without, ms, {TURNS} of each in turn",
        ["", "start p50", "p99", "end p50", "p99"],
        note="Flushed to disk, one client. A repeated key is answered from the log.",
    )
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with on_core(-1):
            url, _ = stack.enter_context(model_process())
        target = stack.enter_context(daemon("now", scratch / "now", url))
        with on_core(-1):
            found = uvloop.run(take_turns(target.home))
    for name, times in found.items():
        columns = [[each[column] for each in times] for column in (0, 1)]
        shares = [percentile(values, share) for values in columns for share in (0.5, 0.99)]
        table.row(name, *(f"{value:.2f}" for value in shares))
    return table


# ── Looking for keys ───────────────────────────────────────────────────────────────────────────


def make_keyed_record(number: int) -> MessageRecord:
    key = f"key-{number}" if number % 2 == 0 else ""
    message = Message("user" if key else "assistant", TEXT)
    return MessageRecord(number, AT, message, run=f"r{number // 2}", key=key)


async def by_length() -> Table:
    table = Table(
        "Searching a whole log for a key, ms",
        ["messages", "file MB", "unknown key", "the oldest key", "the newest key"],
        note="Only where a marker's fingerprints say that the key may be there.",
    )
    for size in (1_000, 10_000, 100_000):
        with tempfile.TemporaryDirectory() as home:
            storage = FileStorage(Path(home), flush=False)
            records: list[Record] = [
                meta(PAIR, 0),
                *map(make_keyed_record, range(size)),
                meta(PAIR, size),
            ]
            await storage.append(PAIR, records, create=True)
            took = [
                await best(partial(storage.find_run, PAIR, key=key))
                for key in ("nobody", "key-0", f"key-{size - 2}")
            ]
            table.row(
                f"{size:,}",
                f"{size_of_logs(Path(home)) / 1e6:.1f}",
                *(f"{value:.2f}" for value in took),
            )
            await storage.close()
    return table


def size_of_logs(home: Path) -> int:
    return sum(path.stat().st_size for path in home.glob("sessions/*.jsonl"))


async def by_marker() -> Table:
    table = Table(
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
            keys, dropped = ArchivedKeys().packed_with(f"key-{2 * n}" for n in range(count))
            size = max(2 * count, 2)
            marker = MarkerRecord("crab-user-1", AT, "They met.", "They met.", size, keys, dropped)
            records = [
                meta(PAIR, 0),
                *map(make_keyed_record, range(size)),
                marker,
                meta(PAIR, size),
            ]
            await storage.append(PAIR, records, create=True)
            conversation = Conversation(PAIR, storage, Clock())
            load = await best(partial(storage.load, PAIR))
            await conversation.load()
            unknown = await best(partial(conversation.find_key, "nobody"))
            known = await best(partial(conversation.find_key, "key-0"))
            table.row(
                f"{count:,}",
                f"{len(keys) / 1000:.1f}",
                f"{load:.2f}",
                f"{unknown * 1000:.0f}",
                f"{known:.2f}" if count else "",
            )
            await storage.close()
    return table


# ── Memory ─────────────────────────────────────────────────────────────────────────────────────


def by_chunks() -> Table:
    table = Table(
        "A transcript, by the chunks of its answer",
        ["chunks", "text KB", "transcript KB", "added µs/chunk"],
        note="Chunks of 20 characters. Beyond 1 MB, steps that are in the log are dropped.",
    )
    for count in (100, 1_000, 10_000):
        begun = time.perf_counter()
        fill_transcript(count)
        took = (time.perf_counter() - begun) / count * 1e6
        tracemalloc.start()
        transcript = fill_transcript(count)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert transcript.count == count
        text = count * len(PIECE) / 1000
        table.row(f"{count:,}", f"{text:.1f}", f"{size / 1000:.1f}", f"{took:.2f}")
    return table


def fill_transcript(count: int) -> Transcript:
    transcript = Transcript(1024 * 1024)
    for number in range(count):
        transcript.add(TextDelta(f"{number:019d} "))
    return transcript


async def hold_runs(target: Daemon, url: str, chunks: int, *, keys: bool) -> tuple[float, float]:
    """RSS in MB before, and while as many runs have said so much and are not over."""
    script = f"!chunks {chunks} 0\n!wait\n!say done"
    async with connect(home=target.home, timeout=120, reconnect_timeout=0) as client:
        await client.send("crab", "!say warm", sender="warm")

        async def run(number: int) -> None:
            key = f"k{number}" if keys else None
            stream = client.stream("crab", script, sender=f"s{number}", key=key)
            async with aclosing(stream) as events:
                async for _ in events:
                    pass

        before = rss(target.pid)
        runs = [asyncio.ensure_future(run(number)) for number in range(RUNS)]
        await asyncio.to_thread(wait_for_runs, url)
        await asyncio.sleep(1)  # clients read what was said
        during = rss(target.pid)
        await asyncio.to_thread(ask_model_server, url, "release")
        await asyncio.gather(*runs)
        return before, during


def wait_for_runs(url: str) -> None:
    """Until the model server has said all there is to say before the pause, in every run."""
    while json.loads(ask_model_server(url, "statistics"))["waiting"] < RUNS:
        time.sleep(0.1)


def ask_model_server(url: str, what: str) -> bytes:
    """Asks the model server."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request("POST" if what == "release" else "GET", f"/control/{what}")
        return connection.getresponse().read()
    finally:
        connection.close()


def by_runs(against: Path | None) -> Table:
    table = Table(
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
                with on_core(-1):
                    url, _ = stack.enter_context(model_process("--no-record"))
                target = stack.enter_context(daemon(name, scratch / "home", url, source))
                with on_core(-1):
                    before, during = uvloop.run(hold_runs(target, url, chunks, keys=keys))
            each = (during - before) * 1024 / RUNS
            table.row(f"{chunks:,}", name, f"{before:.1f}", f"{during:.1f}", f"{each:.1f}")
    return table


def run(arguments: list[str]) -> list[Table]:
    parser = argparse.ArgumentParser("python -m bench delivery")
    parser.add_argument("--against", type=Path)
    options = parser.parse_args(arguments)
    return [
        by_key(),
        uvloop.run(by_length()),
        uvloop.run(by_marker()),
        by_chunks(),
        by_runs(options.against),
    ]
