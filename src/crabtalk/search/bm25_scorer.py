"""Scoring: BM25 over the recent messages and the tantivy indexes as if they were one index.

Tantivy scores the documents it holds; recent ones are scored here, by the same formula and with
the statistics of both.
"""

from collections.abc import Iterable, Sequence
from math import log

from .recent_messages import RecentDocument
from .tantivy_index import TantivySearcher
from .terms import Phrase, SearchQuery

K1 = 1.2
B = 0.75


class BM25Scorer:
    """Scores for one query. `length` is the number of all terms in the index."""

    def __init__(
        self,
        query: SearchQuery,
        searcher: TantivySearcher,
        length: int,
        entries: Sequence[RecentDocument],
    ) -> None:
        self._query = query
        entries = [entry for entry in entries if entry.terms]
        documents = searcher.documents + len(entries)
        total = length + sum(len(entry.terms) for entry in entries)
        self._average = total / documents if documents else 1.0
        self._counted_documents = searcher.counted_documents
        self._indexed_frequencies = {
            term: searcher.document_frequencies(term) for term in query.terms
        }
        self._idf: dict[str, float] = {}
        for term, indexed in self._indexed_frequencies.items():
            recent = sum(1 for entry in entries if term in entry.counts)
            self._idf[term] = compute_idf(
                searcher.counted_documents + len(entries), sum(indexed) + recent
            )

    @property
    def factors(self) -> dict[Phrase, list[float]]:
        """Factors that convert tantivy's scores to scores over both, by query part.

        One for each weight, because tantivy sees a term of another weight as another term.
        """
        parts = [*self._query.phrases, *((word,) for word in self._query.words)]
        return {part: self._part_factors(part) for part in parts}

    def _part_factors(self, part: Phrase) -> list[float]:
        """0 where no document of the index has the part."""
        idf = sum(self._idf[term] for term in part)
        by_weight = zip(*(self._indexed_frequencies[term] for term in part), strict=True)
        return [
            idf / sum(compute_idf(self._counted_documents, matching) for matching in frequencies)
            if all(frequencies)
            else 0.0
            for frequencies in by_weight
        ]

    def score(self, entry: RecentDocument) -> float:
        """The score before the weight of the document's kind; 0 if it does not match."""
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


def compute_idf(documents: int, matching: int) -> float:
    matching = min(matching, documents)
    return log(1 + (documents - matching + 0.5) / (matching + 0.5))


def count_occurrences(words: list[str], phrase: Sequence[str]) -> int:
    """How often the phrase occurs in a list of words."""
    count, position, size = 0, -1, len(phrase)
    wanted = list(phrase)
    try:
        while True:
            position = words.index(wanted[0], position + 1)
            count += words[position : position + size] == wanted
    except ValueError:
        return count


def find_best(
    entries: Iterable[RecentDocument], scoring: BM25Scorer
) -> tuple[float, RecentDocument] | None:
    """The entry with the best weighted score; of equal ones the latest."""
    best: tuple[float, RecentDocument] | None = None
    for entry in entries:
        score = scoring.score(entry) * entry.weight
        if score > 0 and (best is None or score >= best[0]):
            best = score, entry
    return best
