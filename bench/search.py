"""Search: what it costs to find something again, and to keep it findable.

A corpus that is the same every time, in real logs: words with Zipf's frequencies, identifiers,
accents and CJK; about fifty messages a conversation, of twenty agents and five hundred senders.
Each size is built, opened and asked in a process of its own: memory is what that size takes.
"""

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import uvloop

from crabtalk.model import Message, ToolCall
from crabtalk.search import SearchScope, SessionIndex
from crabtalk.storage import ConversationMeta, FileStorage, MessageRecord, Pair, Record

from .processes import compute_percentile, read_clock, read_rss
from .tables import BenchTable

SIZES = (10_000, 100_000, 1_000_000)
WORDS = 200_000
MESSAGES_PER_CONVERSATION = 50
AGENTS = 20
SENDERS = 500
START_TIME = datetime(2026, 1, 1, tzinfo=UTC)
QUERIES = 50
APPENDS = 2_000
SYLLABLES = [consonant + vowel for consonant in "bdklmn" for vowel in "aeiou"]
HAN = [chr(code) for code in range(0x4E00, 0x4E00 + 2_000)]
ACCENTED = str.maketrans("aeiou", "àéîöü")


class SearchCorpus:
    """Deterministic: the same seed, the same words, the same messages."""

    def __init__(self, seed: int = 185) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self.words = [self._make_word(rank) for rank in range(WORDS)]
        self._weights = list(accumulate(1 / (rank + 2.7) ** 1.07 for rank in range(WORDS)))
        self._word_stream: Iterator[str] = iter(())

    def _make_word(self, rank: int) -> str:
        pick = self._random.choice
        base = "".join(SYLLABLES[rank // 30**n % 30] for n in range(2 if rank < 900 else 4))
        kind = rank % 20
        if kind == 3:
            return f"{base}_{pick(SYLLABLES)}{pick(SYLLABLES)}"
        if kind == 7:
            return f"{base}{pick(SYLLABLES).title()}{pick(SYLLABLES).title()}"
        if kind == 11:
            return "".join(self._random.choices(HAN, k=2 + rank % 5))
        if kind == 13:
            return base.translate(ACCENTED)
        return base

    def make_text(self, median: int) -> str:
        count = max(1, min(2_000, int(median * self._random.lognormvariate(0, 0.6))))
        words: list[str] = []
        while len(words) < count:
            word = next(self._word_stream, None)
            if word is None:
                many = self._random.choices(self.words, cum_weights=self._weights, k=100_000)
                self._word_stream = iter(many)
            else:
                words.append(word)
        return " ".join(words)

    def make_conversation(self, number: int) -> tuple[Pair, list[Record]]:
        pair = Pair(f"agent{number % AGENTS}", f"tg:{number}:{number % SENDERS}")
        begun = START_TIME + timedelta(minutes=number * 7)
        meta = ConversationMeta(*pair, created_at=begun.isoformat(), title=self.make_text(5))
        records: list[Record] = [meta.make_snapshot()]
        for position in range(MESSAGES_PER_CONVERSATION):
            records.append(self.make_message(position, begun + timedelta(seconds=position)))
            meta = meta.apply_record(records[-1])
        return pair, [*records, meta.make_snapshot()]

    def make_message(self, number: int, at: datetime) -> MessageRecord:
        match number % 5:
            case 0 | 3:
                message = Message("user", self.make_text(25))
            case 1:
                call = ToolCall("c", "bash", json.dumps({"command": self.make_text(8)}))
                message = Message("assistant", "", tool_calls=(call,))
            case 2:
                message = Message("tool", self.make_text(40), call_id="c", name="bash")
            case _:
                message = Message("assistant", self.make_text(60))
        return MessageRecord(number, at.isoformat(), message)

    def make_queries(self, corpus_size: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """By class: what is asked, and with which limits."""
        pick = random.Random(7)  # noqa: S311
        known = min(WORDS, corpus_size)
        common, mid = self.words[:50], self.words[200:3_000]
        rare = self.words[known // 10 : known // 4]

        def some(words: list[str], count: int) -> str:
            return " ".join(pick.choices(words, k=count))

        def filters() -> dict[str, Any]:
            since = START_TIME + timedelta(
                minutes=pick.randrange(corpus_size // MESSAGES_PER_CONVERSATION * 7)
            )
            return pick.choice(
                [{"scope": SearchScope(agent=f"agent{pick.randrange(AGENTS)}")}, {"since": since}]
            )

        rounds = range(QUERIES)
        return {
            "rare": [(some(rare, 2), {}) for _ in rounds],
            "mid": [(some(mid, 2), {}) for _ in rounds],
            "common": [(some(common, 2), {}) for _ in rounds],
            "mixed": [(f"{some(common, 2)} {some(mid, 2)} {some(rare, 2)}", {}) for _ in rounds],
            "phrase": [(f'"{some(common, 2)}"', {}) for _ in rounds],
            "miss": [(some(["zzyzx", "qwxyz", "xyzzyx"], 2), {}) for _ in rounds],
            "filtered": [(f"{some(common, 1)} {some(mid, 2)}", filters()) for _ in rounds],
        }


async def fill_home(home: Path, size: int) -> SearchCorpus:
    corpus = SearchCorpus()
    storage = FileStorage(home, flush=False)
    for start in range(0, size // MESSAGES_PER_CONVERSATION, 100):
        end = min(start + 100, size // MESSAGES_PER_CONVERSATION)
        made = [corpus.make_conversation(number) for number in range(start, end)]
        await asyncio.gather(*(storage.append(*each, create=True) for each in made))
    await storage.close()
    return corpus


# ── In a process of its own, for each size ─────────────────────────────────────────────────────


def open_index(home: Path) -> tuple[FileStorage, SessionIndex]:
    storage = FileStorage(home, flush=False)
    return storage, SessionIndex(storage, home / "index" / "sessions")


async def wait_until_current(index: SessionIndex) -> None:
    """Until all logs are read."""
    index.start()
    while not index.statistics().is_current:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def measure_rebuild(home: Path, size: int) -> dict[str, float]:
    """From the logs alone. How long the loop is held up meanwhile is what others would feel."""
    storage, index = open_index(home)
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            begun = read_clock()
            await asyncio.sleep(0.001)
            stalls.append((read_clock() - begun) * 1e3 - 1)

    watching = asyncio.ensure_future(watch())
    begun, cpu = read_clock(), time.process_time()
    await wait_until_current(index)
    taken, spent = read_clock() - begun, time.process_time() - cpu
    watching.cancel()
    held = read_rss(os.getpid())
    await index.close()
    await storage.close()
    return {
        "rate": size / taken,
        "cpu_rate": size / spent,
        "stall_p99": compute_percentile(stalls, 0.99),
        "stall_max": max(stalls),
        "rss": held,
    }


async def measure_queries(home: Path, size: int) -> dict[str, Any]:
    """A daemon's day: it starts, is asked, and is told."""
    corpus = SearchCorpus()
    storage, index = open_index(home)
    await storage.read_versions()
    base = read_rss(os.getpid())
    begun = read_clock()
    await index.search("anything", scope=SearchScope())
    opened = (read_clock() - begun) * 1e3
    await wait_until_current(index)
    while not index.statistics().is_verified:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await index.search("once à 数", scope=SearchScope())  # what is made on first use is made
    gc.collect()
    gc.freeze()
    times: dict[str, list[float]] = {}
    for name, queries in corpus.make_queries(size).items():
        for text, options in queries:
            cpu = time.process_time()
            await index.search(text, **{"scope": SearchScope(), **options})
            times.setdefault(name, []).append((time.process_time() - cpu) * 1e3)
    grown = read_rss(os.getpid()) - base
    appends = await time_appends(storage, index, corpus)
    await index.close()
    await storage.close()
    return {"opened": opened, "rss": grown, "times": times, "appends": appends}


async def time_appends(
    storage: FileStorage, index: SessionIndex, corpus: SearchCorpus
) -> list[float]:
    """What the loop spends on each message, in microseconds, while the index commits them."""
    pair = Pair("agent0", "bench")
    await storage.append(
        pair,
        [ConversationMeta(*pair, created_at=START_TIME.isoformat()).make_snapshot()],
        create=True,
    )
    taken = []
    for number in range(APPENDS):
        record = corpus.make_message(number, START_TIME)
        await storage.append(pair, [record])
        begun = time.thread_time()
        index.add_records(pair, [record])
        taken.append((time.thread_time() - begun) * 1e6)
    await storage.delete_conversation(pair)
    index.remove_conversation(pair)
    return taken


def run_in_process(what: str, home: Path, size: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.search", what, str(home), str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ── The tables ──────────────────────────────────────────────────────────────────────────────────


def run_benchmark(sizes: tuple[int, ...] = SIZES) -> list[BenchTable]:
    queries = BenchTable(
        "Session search, CPU ms of a query with its excerpts, p50 / p99",
        ["messages", "rare", "mid", "common", "mixed", "phrase", "miss", "filtered", "all p99"],
        note="Fifty queries a class, five conversations each. All threads are counted.",
    )
    keeping = BenchTable(
        "Session search, what it takes to keep up",
        [
            "messages",
            "append µs p50 / p99",
            "reopen ms",
            "rebuild messages/s",
            "loop held up ms p99 / max",
            "RSS grown MB",
            "after a rebuild MB",
            "index MB",
            "logs MB",
        ],
        note="Append is the time on the event loop. A rebuild is from logs that are in the cache.",
    )
    for size in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            home = Path(scratch)
            uvloop.run(fill_home(home, size))
            built = run_in_process("rebuild", home, size)
            asked = run_in_process("ask", home, size)
            disk = [measure_megabytes(home / name) for name in ("index", "sessions")]
        times: dict[str, list[float]] = asked["times"]
        everything = [each for some in times.values() for each in some]
        queries.add_row(
            f"{size:,}",
            *(format_percentiles(some, ".1f") for some in times.values()),
            f"{compute_percentile(everything, 0.99):.1f}",
        )
        keeping.add_row(
            f"{size:,}",
            format_percentiles(asked["appends"], ".0f"),
            f"{asked['opened']:.0f}",
            f"{built['rate']:,.0f}",
            f"{built['stall_p99']:.1f} / {built['stall_max']:.0f}",
            f"{asked['rss']:.0f}",
            f"{built['rss']:.0f}",
            *(f"{each:.0f}" for each in disk),
        )
    return [queries, keeping]


def format_percentiles(samples: list[float], form: str) -> str:
    return f"{compute_percentile(samples, 0.5):{form}} / {compute_percentile(samples, 0.99):{form}}"


def measure_megabytes(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6


def run_measurement(what: str, home: Path, size: int) -> None:
    found = uvloop.run(
        measure_rebuild(home, size) if what == "rebuild" else measure_queries(home, size)
    )
    print(json.dumps(found))


if __name__ == "__main__":
    run_measurement(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
