"""Bounds on what writing and searching cost, with room for a slow and busy machine."""

import random
import time
from pathlib import Path

import pytest

from crabtalk.memory import Add, Memory, Update
from tests.memory.samples import opened

WORDS = [f"w{number}" for number in range(8000)]
WEIGHTS = [1 / (number + 3) for number in range(8000)]


def filled(path: Path, count: int) -> Memory:
    dice = random.Random(count)
    memory = opened(path)
    for number in range(count):
        memory.apply(Add(f"note {number}", " ".join(dice.choices(WORDS, WEIGHTS, k=30))))
    return memory


def typical(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]


@pytest.mark.req("memory.search.speed")
def test_ten_thousand_entries_are_searched_in_about_a_millisecond(tmp_path: Path) -> None:
    memory = filled(tmp_path / "crab.crmem", 10_000)
    dice = random.Random(1)
    taken = []
    for _ in range(200):
        query = " ".join([*dice.sample(WORDS[5:60], 2), *dice.sample(WORDS[500:], 2)])
        begun = time.process_time()
        assert len(memory.search(query)) == 5
        taken.append(time.process_time() - begun)
    assert typical(taken) < 0.005
    memory.close()


@pytest.mark.req("memory.write.cost")
def test_a_write_does_not_notice_how_many_entries_there_are(tmp_path: Path) -> None:
    costs = {}
    for count in (100, 5_000):
        memory = filled(tmp_path / str(count) / "crab.crmem", count)
        memory.checkpoint()
        taken = []
        for number in range(100):
            begun = time.process_time()
            memory.apply(Update(f"note {number % 50}", f"changed {number}"))
            taken.append(time.process_time() - begun)
        costs[count] = typical(taken)
        memory.close()
    assert costs[5_000] < 5 * costs[100]
