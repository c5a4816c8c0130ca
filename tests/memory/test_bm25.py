"""BM25: scores equal the formula's, whatever was added and removed before."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.memory import tokenize_text
from crabtalk.memory.bm25 import MIN_COMMON_DOCUMENTS, BM25Index

Documents = dict[int, list[str]]
TERMS = st.sampled_from(["ash", "birch", "cedar", "elm", "fir", "oak"])


def score_by_formula(documents: Documents, query: list[str]) -> list[tuple[int, float]]:
    """All scores, computed with the formula alone."""
    counted = {number: terms for number, terms in documents.items() if terms}
    average = sum(map(len, counted.values())) / max(1, len(counted))
    scores: dict[int, float] = {}
    for term in dict.fromkeys(query):
        matching = [number for number, terms in counted.items() if term in terms]
        idf = math.log((len(counted) - len(matching) + 0.5) / (len(matching) + 0.5) + 1)
        for number in matching:
            tf = counted[number].count(term)
            norm = 1.2 * (1 - 0.75 + 0.75 * len(counted[number]) / average)
            scores[number] = scores.get(number, 0.0) + idf * tf * 2.2 / (tf + norm)
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))


def build_index(documents: Documents) -> BM25Index:
    index = BM25Index()
    for number, terms in documents.items():
        index.add(number, terms)
    return index


def check_same_hits(index: BM25Index, documents: Documents, query: list[str], limit: int) -> None:
    """Any hit of several with equal scores will do: sums differ in their last digit."""
    hits, expected = index.search(query, limit), score_by_formula(documents, query)
    assert [score for _, score in hits] == pytest.approx([score for _, score in expected[:limit]])
    scores = dict(expected)
    assert [score for _, score in hits] == pytest.approx([scores[number] for number, _ in hits])
    assert len({number for number, _ in hits}) == len(hits)


@pytest.mark.req("memory.bm25.formula")
def test_the_worked_example_is_right_to_six_digits() -> None:
    index = build_index(
        {
            1: tokenize_text("deploy pipeline failed twice") + tokenize_text("ship"),
            2: tokenize_text("the deploy went fine"),
            3: tokenize_text("weather is sunny today"),
        }
    )
    hits = [
        (number, round(score, 6)) for number, score in index.search(tokenize_text("deploy ship"), 9)
    ]
    assert hits == [(1, 1.262955), (2, 0.507772)]


@pytest.mark.req("memory.bm25.formula")
@given(
    documents=st.dictionaries(st.integers(1, 40), st.lists(TERMS, max_size=8), max_size=30),
    removed=st.sets(st.integers(1, 40)),
    query=st.lists(TERMS, max_size=5),
    limit=st.integers(0, 12),
)
def test_scores_are_exact_whatever_was_removed(
    documents: Documents, removed: set[int], query: list[str], limit: int
) -> None:
    index = build_index(documents)
    for number in removed & documents.keys():
        index.remove(number, documents.pop(number))
    assert len(index) == sum(1 for terms in documents.values() if terms)
    assert index.term_count == len({term for terms in documents.values() for term in terms})
    check_same_hits(index, documents, query, limit)


@pytest.mark.req("memory.bm25.formula")
@given(
    shape=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=6),
    rare=st.integers(0, 9),
    query=st.lists(st.sampled_from(["ash", "birch", "rare", "none"]), max_size=4),
    first_removed=st.integers(0, 200),
    limit=st.integers(1, 12),
)
def test_scores_are_exact_with_common_terms(
    shape: list[tuple[int, int]], rare: int, query: list[str], first_removed: int, limit: int
) -> None:
    documents = {
        number: ["ash"] * ash + ["birch"] * birch + ["rare"] * (number < rare) + ["filler"]
        for number in range(3 * MIN_COMMON_DOCUMENTS)
        for ash, birch in [shape[number % len(shape)]]
    }
    index = build_index(documents)
    index.search(query, limit)  # groups the documents of common terms
    for number in range(first_removed, first_removed + 20):
        index.remove(number, documents.pop(number, []))
    late = ["ash", "birch", "late"]
    documents[1000] = late
    index.add(1000, late)
    check_same_hits(index, documents, query, limit)


@pytest.mark.req("memory.bm25.formula")
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_scores_are_exact_where_most_documents_have_most_terms(seed: int) -> None:
    dice = random.Random(seed)
    documents: Documents = {}
    for number in range(400):
        terms = dice.choices(["ash", "birch", "cedar", "elm"], (8, 4, 2, 1), k=dice.randint(0, 5))
        rare = ["rare"] * (dice.random() < 0.1) + ["scarce"] * (dice.random() < 0.05)
        documents[number] = terms + rare + ["filler"] * int(dice.expovariate(0.05))
    index = build_index(documents)
    for _ in range(30):
        query = dice.sample(["ash", "birch", "cedar", "elm", "rare", "scarce"], dice.randint(2, 4))
        limit = dice.randint(1, 9)
        check_same_hits(index, documents, query, limit)


@pytest.mark.req("memory.search.ties")
@pytest.mark.parametrize("query", [["ash"], ["ash", "birch"], ["ash", "rare"]])
def test_of_equal_scores_the_lower_id_comes_first(query: list[str]) -> None:
    index = BM25Index()
    for number in reversed(range(1, 200)):
        index.add(number, ["ash", "birch", "rare"] if number % 40 == 0 else ["ash", "birch"])
    best = [40, 80, 120, 160] if "rare" in query else []
    others = [number for number in range(1, 200) if number not in best]
    if not best:
        others = [number for number in others if number % 40]  # the others are longer
    assert [number for number, _ in index.search(query, 12)] == (best + others)[:12]


@pytest.mark.req("memory.remove.cost")
def test_removing_a_document_looks_only_at_its_own_terms() -> None:
    index = BM25Index()
    for number in range(20_000):
        index.add(number, [f"alone{number}"])
    index.add(-1, ["alone7", "mine"])
    touched = Counter[str]()

    class Watched(dict[str, dict[int, int]]):
        def __getitem__(self, term: str) -> dict[int, int]:
            touched[term] += 1
            return super().__getitem__(term)

        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("the whole vocabulary was looked through")

    index._counts = Watched(index._counts)
    index.remove(-1, ["alone7", "mine"])
    assert set(touched) == {"alone7", "mine"}
    assert [number for number, _ in index.search(["alone7"], 5)] == [7]
