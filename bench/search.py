"""Search: the cost of queries and of keeping the index current.

The corpus is the same every time, in real logs: words with Zipf frequencies, identifiers, accents
and CJK; fifty messages a conversation, of twenty agents and five hundred senders. Each size is
built, opened and queried in a process of its own, so that its memory can be measured.
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
    """A deterministic corpus: the same seed gives the same messages."""

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
                batch = self._random.choices(self.words, cum_weights=self._weights, k=100_000)
                self._word_stream = iter(batch)
            else:
                words.append(word)
        return " ".join(words)

    def make_conversation(self, number: int) -> tuple[Pair, list[Record]]:
        pair = Pair(f"agent{number % AGENTS}", f"tg:{number}:{number % SENDERS}")
        start = START_TIME + timedelta(minutes=number * 7)
        meta = ConversationMeta(*pair, created_at=start.isoformat(), title=self.make_text(5))
        records: list[Record] = [meta.make_snapshot()]
        for position in range(MESSAGES_PER_CONVERSATION):
            records.append(self.make_message(position, start + timedelta(seconds=position)))
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
        """Return the queries and their filters, by class."""
        pick = random.Random(7)  # noqa: S311
        vocabulary = min(WORDS, corpus_size)
        common, mid = self.words[:50], self.words[200:3_000]
        rare = self.words[vocabulary // 10 : vocabulary // 4]

        def choose_words(words: list[str], count: int) -> str:
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
            "rare": [(choose_words(rare, 2), {}) for _ in rounds],
            "mid": [(choose_words(mid, 2), {}) for _ in rounds],
            "common": [(choose_words(common, 2), {}) for _ in rounds],
            "mixed": [
                (f"{choose_words(common, 2)} {choose_words(mid, 2)} {choose_words(rare, 2)}", {})
                for _ in rounds
            ],
            "phrase": [(f'"{choose_words(common, 2)}"', {}) for _ in rounds],
            "miss": [(choose_words(["zzyzx", "qwxyz", "xyzzyx"], 2), {}) for _ in rounds],
            "filtered": [
                (f"{choose_words(common, 1)} {choose_words(mid, 2)}", filters()) for _ in rounds
            ],
        }


async def fill_home(home: Path, size: int) -> SearchCorpus:
    corpus = SearchCorpus()
    storage = FileStorage(home, flush=False)
    for start in range(0, size // MESSAGES_PER_CONVERSATION, 100):
        end = min(start + 100, size // MESSAGES_PER_CONVERSATION)
        conversations = [corpus.make_conversation(number) for number in range(start, end)]
        await asyncio.gather(
            *(storage.append(*conversation, create=True) for conversation in conversations)
        )
    await storage.close()
    return corpus


# ── Run in a process for each size ─────────────────────────────────────────────────────────────


def open_index(home: Path) -> tuple[FileStorage, SessionIndex]:
    storage = FileStorage(home, flush=False)
    return storage, SessionIndex(storage, home / "index" / "sessions")


async def wait_until_current(index: SessionIndex) -> None:
    """Start the index and wait until it has read all logs."""
    index.start()
    while not index.statistics().is_current:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def measure_rebuild(home: Path, size: int) -> dict[str, float]:
    """Rebuild the index from the logs, and measure how long the event loop is blocked meanwhile."""
    storage, index = open_index(home)
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            before = read_clock()
            await asyncio.sleep(0.001)
            stalls.append((read_clock() - before) * 1e3 - 1)

    watcher = asyncio.ensure_future(watch())
    start, cpu = read_clock(), time.process_time()
    await wait_until_current(index)
    seconds, cpu_seconds = read_clock() - start, time.process_time() - cpu
    watcher.cancel()
    rss = read_rss(os.getpid())
    await index.close()
    await storage.close()
    return {
        "rate": size / seconds,
        "cpu_rate": size / cpu_seconds,
        "stall_p99": compute_percentile(stalls, 0.99),
        "stall_max": max(stalls),
        "rss": rss,
    }


async def measure_queries(home: Path, size: int) -> dict[str, Any]:
    """Measure an index as a daemon uses it: opening, queries, then appends."""
    corpus = SearchCorpus()
    storage, index = open_index(home)
    await storage.read_versions()
    base = read_rss(os.getpid())
    start = read_clock()
    await index.search("anything", scope=SearchScope())
    opened = (read_clock() - start) * 1e3
    await wait_until_current(index)
    while not index.statistics().is_verified:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await index.search("once à 数", scope=SearchScope())  # warm up what is created on first use
    gc.collect()
    gc.freeze()
    times: dict[str, list[float]] = {}
    for name, queries in corpus.make_queries(size).items():
        for text, options in queries:
            cpu = time.process_time()
            await index.search(text, **{"scope": SearchScope(), **options})
            times.setdefault(name, []).append((time.process_time() - cpu) * 1e3)
    rss_growth = read_rss(os.getpid()) - base
    appends = await time_appends(storage, index, corpus)
    await index.close()
    await storage.close()
    return {"opened": opened, "rss": rss_growth, "times": times, "appends": appends}


async def time_appends(
    storage: FileStorage, index: SessionIndex, corpus: SearchCorpus
) -> list[float]:
    """Time the event loop's work for each message in microseconds, while the index commits."""
    pair = Pair("agent0", "bench")
    await storage.append(
        pair,
        [ConversationMeta(*pair, created_at=START_TIME.isoformat()).make_snapshot()],
        create=True,
    )
    times = []
    for number in range(APPENDS):
        record = corpus.make_message(number, START_TIME)
        await storage.append(pair, [record])
        start = time.thread_time()
        index.add_records(pair, [record])
        times.append((time.thread_time() - start) * 1e6)
    await storage.delete_conversation(pair)
    index.remove_conversation(pair)
    return times


def run_in_process(what: str, home: Path, size: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.search", what, str(home), str(size)]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(process.stdout)
    return result


# ── Tables ──────────────────────────────────────────────────────────────────────────────────────


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
            rebuilt = run_in_process("rebuild", home, size)
            queried = run_in_process("ask", home, size)
            disk = [measure_megabytes(home / name) for name in ("index", "sessions")]
        times: dict[str, list[float]] = queried["times"]
        all_times = [time for samples in times.values() for time in samples]
        queries.add_row(
            f"{size:,}",
            *(format_percentiles(samples, ".1f") for samples in times.values()),
            f"{compute_percentile(all_times, 0.99):.1f}",
        )
        keeping.add_row(
            f"{size:,}",
            format_percentiles(queried["appends"], ".0f"),
            f"{queried['opened']:.0f}",
            f"{rebuilt['rate']:,.0f}",
            f"{rebuilt['stall_p99']:.1f} / {rebuilt['stall_max']:.0f}",
            f"{queried['rss']:.0f}",
            f"{rebuilt['rss']:.0f}",
            *(f"{megabytes:.0f}" for megabytes in disk),
        )
    return [queries, keeping]


def format_percentiles(samples: list[float], form: str) -> str:
    return f"{compute_percentile(samples, 0.5):{form}} / {compute_percentile(samples, 0.99):{form}}"


def measure_megabytes(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6


def run_measurement(what: str, home: Path, size: int) -> None:
    result = uvloop.run(
        measure_rebuild(home, size) if what == "rebuild" else measure_queries(home, size)
    )
    print(json.dumps(result))


if __name__ == "__main__":
    run_measurement(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
