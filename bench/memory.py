"""Memory: the cost of writing, opening and searching, by the number of entries.

The time of a write should not depend on the number of entries, and a search of ten thousand should
stay below a millisecond. Word frequencies are realistic: a few words are in half of all entries,
most in hardly any. Each size runs in a process of its own, so that its memory can be measured.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from crabtalk.memory import AddEntry, Memory

from .processes import compute_percentile, read_clock, read_rss
from .tables import BenchTable

SIZES = (100, 1_000, 10_000)
VOCABULARY = 30_000
# Positions in the vocabulary, the most used word first.
COMMON, RARE = range(5, 60), range(2_000, 20_000)
QUERIES = {
    "1 common": (COMMON,),
    "2 common": (COMMON,) * 2,
    "4 common": (COMMON,) * 4,
    "1 rare": (RARE,),
    "2 rare": (RARE,) * 2,
    "1 + 1": (COMMON, RARE),
    "2 + 2": (COMMON, COMMON, RARE, RARE),
}
ROUNDS = 300


def format_word(position: int) -> str:
    return f"w{position:05d}"


def generate_texts(dice: random.Random, count: int) -> Iterator[str]:
    ranks = list(accumulate(1 / (position + 3) for position in range(VOCABULARY)))
    positions = range(VOCABULARY)
    for _ in range(count):
        length = max(4, int(dice.lognormvariate(3.7, 0.6)))
        yield " ".join(map(format_word, dice.choices(positions, cum_weights=ranks, k=length)))


def fill_memory(path: Path, size: int) -> None:
    with Memory.open(path, flush=False) as memory:
        for number, text in enumerate(generate_texts(random.Random(size), size)):  # noqa: S311
            memory.apply(AddEntry(f"note {number}", text))


def measure_memory(path: Path) -> dict[str, list[float]]:
    """Return milliseconds by label; `rss` is in MB, before and after opening."""
    dice = random.Random(1)  # noqa: S311
    before = read_rss(os.getpid())
    start = read_clock()
    with Memory.open(path) as memory:
        results = {"open": [(read_clock() - start) * 1e3], "rss": [before, read_rss(os.getpid())]}
        for label, ranges in QUERIES.items():
            queries = [
                " ".join(format_word(dice.choice(some)) for some in ranges) for _ in range(ROUNDS)
            ]
            results[label] = [time_search(memory, query) for query in queries]
        results["add"] = [
            time_add(memory, f"later {number}", text)
            for number, text in enumerate(generate_texts(dice, ROUNDS))
        ]
    return results


def time_search(memory: Memory, query: str) -> float:
    start = read_clock()
    memory.search(query)
    return (read_clock() - start) * 1e3


def time_add(memory: Memory, name: str, text: str) -> float:
    start = read_clock()
    memory.apply(AddEntry(name, text))
    return (read_clock() - start) * 1e3


def run_benchmark() -> list[BenchTable]:
    writes = BenchTable(
        "Memory, by the number of its entries",
        ["entries", "add p50 ms", "add p99 ms", "open ms", "occupies MB"],
        note="An add is flushed to disk. What it occupies includes the entries and their index.",
    )
    searches = BenchTable(
        "Memory, a search by its words, ms p50 / p99",
        ["entries", *QUERIES],
        note="Of 5. A common word is in 8 to 43 of a hundred entries, a rare one in less than one.",
    )
    for size in SIZES:
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "crab.crmem"
            fill_memory(path, size)
            command = [sys.executable, "-m", "bench.memory", str(path)]
            child = subprocess.run(command, check=True, capture_output=True)
        results = json.loads(child.stdout)
        before, after = results["rss"]
        writes.add_row(
            f"{size:,}",
            f"{compute_percentile(results['add'], 0.5):.2f}",
            f"{compute_percentile(results['add'], 0.99):.2f}",
            f"{results['open'][0]:.1f}",
            f"{after - before:.1f}",
        )
        searches.add_row(
            f"{size:,}",
            *(
                f"{compute_percentile(results[label], 0.5):.3f} / "
                f"{compute_percentile(results[label], 0.99):.3f}"
                for label in QUERIES
            ),
        )
    return [writes, searches]


if __name__ == "__main__":
    print(json.dumps(measure_memory(Path(sys.argv[1]))))
