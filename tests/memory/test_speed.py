"""Limits on the cost of writes and searches, generous enough for a slow and busy machine."""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crabtalk.memory import AddEntry, Memory, UpdateEntry
from tests.memory.memory_samples import open_memory

WORDS = [f"w{number}" for number in range(8000)]
WEIGHTS = [1 / (number + 3) for number in range(8000)]


def fill_memory(path: Path, count: int) -> Memory:
    dice = random.Random(count)
    memory = open_memory(path)
    for number in range(count):
        memory.apply(AddEntry(f"note {number}", " ".join(dice.choices(WORDS, WEIGHTS, k=30))))
    return memory


def compute_median(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory of ten thousand entries. Filling it costs more than all the measurements."""
    path = tmp_path_factory.mktemp("large") / "crab.crmem"
    memory = fill_memory(path, 10_000)
    memory.checkpoint()
    memory.close()
    return path


@pytest.fixture
def large_copy(large: Path, tmp_path: Path) -> Iterator[Memory]:
    """A copy of the large memory for one test."""
    shutil.copy(large, tmp_path)
    memory = open_memory(tmp_path / large.name)
    yield memory
    memory.close()


@pytest.mark.slow
@pytest.mark.req("memory.search.speed")
@pytest.mark.clock
def test_ten_thousand_entries_are_searched_in_about_a_millisecond(large_copy: Memory) -> None:
    dice = random.Random(1)
    taken = []
    for _ in range(200):
        query = " ".join([*dice.sample(WORDS[5:60], 2), *dice.sample(WORDS[500:], 2)])
        start = time.process_time()
        assert len(large_copy.search(query)) == 5
        taken.append(time.process_time() - start)
    assert compute_median(taken) < 0.005


@pytest.mark.slow
@pytest.mark.req("memory.write.cost")
@pytest.mark.clock
def test_the_cost_of_a_write_does_not_depend_on_the_number_of_entries(
    large_copy: Memory, tmp_path: Path
) -> None:
    few = fill_memory(tmp_path / "few.crmem", 100)
    few.checkpoint()
    costs = []
    for memory in (few, large_copy):
        taken = []
        for number in range(100):
            start = time.process_time()
            memory.apply(UpdateEntry(f"note {number % 50}", f"changed {number}"))
            taken.append(time.process_time() - start)
        costs.append(compute_median(taken))
    few.close()
    assert costs[1] < 5 * costs[0]
