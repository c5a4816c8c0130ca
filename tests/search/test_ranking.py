"""Ranking compared with textbook BM25, computed here from scratch."""

import random
from collections import Counter
from math import log
from pathlib import Path

import pytest

from crabtalk.memory import tokenize_text
from crabtalk.model.messages import Message
from crabtalk.storage import Pair
from tests.search.search_harness import SearchHarness, make_tool_call, open_harness

# The work is done in threads, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop

CONVERSATIONS = 150
QUERIES = 200
WEIGHTS = {"user": 1.5, "assistant": 1.0, "call": 1.3}


class ExactBM25:
    """BM25 over some texts: k1 1.2, b 0.75."""

    def __init__(self, texts: list[str]) -> None:
        self.counts = [Counter(tokenize_text(text)) for text in texts]
        self.lengths = [counts.total() for counts in self.counts]
        self.size = sum(length > 0 for length in self.lengths)
        self.average = sum(self.lengths) / self.size if self.size else 1.0
        self.matching = Counter(term for counts in self.counts for term in counts)

    def scores(self, query: str) -> list[float]:
        scores = [0.0] * len(self.counts)
        for term in set(tokenize_text(query)):
            matching = self.matching[term]
            idf = log(1 + (self.size - matching + 0.5) / (matching + 0.5))
            for number, counts in enumerate(self.counts):
                if times := counts[term]:
                    share = self.lengths[number] / self.average
                    scores[number] += idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * share))
        return scores


class ReferenceRanking:
    """Scores of the same conversations by the formula.

    The best message, plus twice the title, plus three times the summary.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[Pair, str, float]] = []
        self.titles: dict[Pair, str] = {}
        self.summaries: dict[Pair, str] = {}

    def build(self) -> None:
        self._messages = ExactBM25([text for _, text, _ in self.messages])
        self._titles = ExactBM25(list(self.titles.values()))
        self._summaries = ExactBM25(list(self.summaries.values()))

    def scores(self, query: str) -> dict[Pair, float]:
        best: dict[Pair, float] = {}
        for (pair, _, weight), score in zip(
            self.messages, self._messages.scores(query), strict=True
        ):
            best[pair] = max(best.get(pair, 0.0), weight * score)
        for pair, score in zip(self.titles, self._titles.scores(query), strict=True):
            best[pair] = best.get(pair, 0.0) + 2 * score
        for pair, score in zip(self.summaries, self._summaries.scores(query), strict=True):
            best[pair] = best.get(pair, 0.0) + 3 * score
        return {pair: score for pair, score in best.items() if score > 0}


class ZipfWords:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.vocabulary = [f"w{number:04}" for number in range(3_000)]
        self.weights = [1 / (rank + 2) for rank in range(3_000)]

    def choose(self, count: int) -> str:
        return " ".join(self.random.choices(self.vocabulary, self.weights, k=max(1, count)))

    def choose_length(self, median: int) -> int:
        return int(median * self.random.lognormvariate(0, 0.6))


async def fill_index(harness: SearchHarness, words: ZipfWords) -> ReferenceRanking:
    reference = ReferenceRanking()
    for number in range(CONVERSATIONS):
        if number == CONVERSATIONS // 2:
            await harness.wait_until_committed()
        pair = Pair(f"agent{number % 3}", f"user{number}")
        for _ in range(words.random.randrange(4, 20)):
            kind = words.random.choice(list(WEIGHTS))
            text = words.choose(words.choose_length(40 if kind == "assistant" else 20))
            match kind:
                case "call":
                    message = make_tool_call("tool", f'"{text}"')
                    text = f"tool {text}"
                case _:
                    message = Message("user" if kind == "user" else "assistant", text)
            await harness.append_messages(pair, message)
            reference.messages.append((pair, text, WEIGHTS[kind]))
        if number % 3 == 0:
            reference.titles[pair] = words.choose(4)
            await harness.set_title(pair, reference.titles[pair])
        if number % 7 == 0:
            reference.summaries[pair] = words.choose(words.choose_length(40))
            await harness.append_summary(pair, reference.summaries[pair])
    reference.build()
    return reference


def measure_overlap(found: list[Pair], exact: dict[Pair, float], count: int) -> float:
    """The share of the best that were found. Those with the last one's score count as well."""
    ranked = sorted(exact.values(), reverse=True)[:count]
    if not ranked:
        return 1.0 if not found else 0.0
    least = ranked[-1] * (1 - 1e-6)
    return sum(exact.get(pair, 0.0) >= least for pair in found) / len(ranked)


@pytest.mark.req("search.ranking")
@pytest.mark.parametrize("state", ["committed", "half committed"])
async def test_the_best_ten_are_those_of_exact_bm25(home: Path, state: str) -> None:
    words = ZipfWords(seed=185)
    async with open_harness(home) as harness:
        reference = await fill_index(harness, words)
        if state == "committed":
            await harness.wait_until_committed()
        shares: list[float] = []
        firsts = 0
        for _ in range(QUERIES):
            query = words.choose(words.random.choice([1, 2, 3, 6]))
            hits = await harness.search(query, limit=10)
            exact = reference.scores(query)
            shares.append(measure_overlap([Pair(h.agent, h.sender) for h in hits], exact, 10))
            best = max(exact, key=lambda pair: exact[pair])
            firsts += bool(hits) and Pair(hits[0].agent, hits[0].sender) == best
        assert sum(shares) / len(shares) >= 0.95
        assert firsts >= 0.9 * QUERIES
