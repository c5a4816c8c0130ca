"""Scoring: BM25 over the tail and the shelves as if they were one.

The shelves score what is in them; what is in the tail is scored here, by the same formula and with
the numbers of both.
"""

from collections.abc import Iterable, Sequence
from math import log

from .recent_messages import RecentDocument
from .tantivy_index import TantivySearcher
from .terms import Phrase, SearchQuery

K1 = 1.2
B = 0.75


class BM25Scorer:
    """For one query. `length` is of all terms in the shelf."""

    def __init__(
        self,
        query: SearchQuery,
        shelf: TantivySearcher,
        length: int,
        entries: Sequence[RecentDocument],
    ) -> None:
        self._query = query
        entries = [entry for entry in entries if entry.terms]
        documents = shelf.documents + len(entries)
        total = length + sum(len(entry.terms) for entry in entries)
        self._average = total / documents if documents else 1.0
        self._counted_documents = shelf.counted_documents
        self._indexed_frequencies = {term: shelf.document_frequencies(term) for term in query.terms}
        self._idf: dict[str, float] = {}
        for term, shelved in self._indexed_frequencies.items():
            fresh = sum(1 for entry in entries if term in entry.counts)
            self._idf[term] = compute_idf(
                shelf.counted_documents + len(entries), sum(shelved) + fresh
            )

    @property
    def factors(self) -> dict[Phrase, list[float]]:
        """What to multiply the shelf's scores with to speak of the same numbers: part by part, and
        for each of its weights, since to it a term of another weight is another term."""
        parts = [*self._query.phrases, *((word,) for word in self._query.words)]
        return {part: self._part_factors(part) for part in parts}

    def _part_factors(self, part: Phrase) -> list[float]:
        """0 where the shelf has nothing of it."""
        wanted = sum(self._idf[term] for term in part)
        by_weight = zip(*(self._indexed_frequencies[term] for term in part), strict=True)
        return [
            wanted / sum(compute_idf(self._counted_documents, having) for having in each)
            if all(each)
            else 0.0
            for each in by_weight
        ]

    def score(self, entry: RecentDocument) -> float:
        """0 for what is not found, before the weight of its kind."""
        counts, length = entry.counts, len(entry.terms)
        score = 0.0
        for phrase in self._query.phrases:
            times = count_occurrences(entry.terms.words, phrase) if phrase[0] in counts else 0
            if not times:
                return 0.0
            score += self._part_score(times, length) * sum(self._idf[term] for term in phrase)
        for word in self._query.words:
            if times := counts.get(word, 0):
                score += self._part_score(times, length) * self._idf[word]
        return score

    def _part_score(self, times: int, length: int) -> float:
        return times * (K1 + 1) / (times + K1 * (1 - B + B * length / self._average))


def compute_idf(documents: int, having: int) -> float:
    having = min(having, documents)
    return log(1 + (documents - having + 0.5) / (having + 0.5))


def count_occurrences(row: list[str], phrase: Sequence[str]) -> int:
    """How often the phrase stands in a row of words."""
    count, at, size = 0, -1, len(phrase)
    wanted = list(phrase)
    try:
        while True:
            at = row.index(wanted[0], at + 1)
            count += row[at : at + size] == wanted
    except ValueError:
        return count


def find_best(
    entries: Iterable[RecentDocument], scoring: BM25Scorer
) -> tuple[float, RecentDocument] | None:
    """The one that counts most; of equals, the latest."""
    best: tuple[float, RecentDocument] | None = None
    for entry in entries:
        score = scoring.score(entry) * entry.weight
        if score > 0 and (best is None or score >= best[0]):
            best = score, entry
    return best
