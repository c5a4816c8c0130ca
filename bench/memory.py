"""Memory: what writing, opening and searching cost, by the number of entries.

A write should not notice how many there are, and a search of ten thousand should stay below a
millisecond. Words are used as words are: few in half of all entries, most in hardly any. Each size
has a process of its own, so that what it occupies is what it needs.
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
    """In milliseconds, but for `rss`, which is in MB: before it is opened, and after."""
    dice = random.Random(1)  # noqa: S311
    before = read_rss(os.getpid())
    begun = read_clock()
    with Memory.open(path) as memory:
        found = {"open": [(read_clock() - begun) * 1e3], "rss": [before, read_rss(os.getpid())]}
        for label, ranges in QUERIES.items():
            queries = [
                " ".join(format_word(dice.choice(some)) for some in ranges) for _ in range(ROUNDS)
            ]
            found[label] = [time_search(memory, query) for query in queries]
        found["add"] = [
            time_add(memory, f"later {number}", text)
            for number, text in enumerate(generate_texts(dice, ROUNDS))
        ]
    return found


def time_search(memory: Memory, query: str) -> float:
    begun = read_clock()
    memory.search(query)
    return (read_clock() - begun) * 1e3


def time_add(memory: Memory, name: str, text: str) -> float:
    begun = read_clock()
    memory.apply(AddEntry(name, text))
    return (read_clock() - begun) * 1e3


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
        found = json.loads(child.stdout)
        before, after = found["rss"]
        writes.add_row(
            f"{size:,}",
            f"{compute_percentile(found['add'], 0.5):.2f}",
            f"{compute_percentile(found['add'], 0.99):.2f}",
            f"{found['open'][0]:.1f}",
            f"{after - before:.1f}",
        )
        searches.add_row(
            f"{size:,}",
            *(
                f"{compute_percentile(found[label], 0.5):.3f} / "
                f"{compute_percentile(found[label], 0.99):.3f}"
                for label in QUERIES
            ),
        )
    return [writes, searches]


if __name__ == "__main__":
    print(json.dumps(measure_memory(Path(sys.argv[1]))))
