"""BM25: an inverted index from terms to document ids. Scores are exact.

Adding or removing a document costs as much as it has terms. Terms are opaque strings here. Each
document has a label, and a search may be limited to some labels; that does not change the scores.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nlargest
from math import log
from operator import itemgetter

K1 = 1.2
B = 0.75
# Documents with the same count of a term and the same length have the same score for it. For terms
# with at least this many documents they are grouped, so that a search computes few scores.
MIN_COMMON_DOCUMENTS = 64
# Sums of the same numbers differ by less than this when they are added in another order.
ROUNDING_SLACK = 1 - 1e-9

# Documents by their count of the term and their length. A dict serves as an ordered set.
TermGroups = dict[tuple[int, int], dict[int, None]]
# Returns whether documents with a label are searched.
LabelFilter = Callable[[str], bool]


class BM25Index:
    """Internally a document is a slot number: slots are dense, so a list can hold sums."""

    def __init__(self) -> None:
        self._slot_by_document: dict[int, int] = {}
        self._documents: list[int] = []
        self._lengths: list[int] = []
        self._labels: list[str] = []
        self._slots_by_label: dict[str, dict[int, None]] = {}
        self._free_slots: list[int] = []
        self._total_length = 0
        self._counts: dict[str, dict[int, int]] = {}
        self._groups: dict[str, TermGroups] = {}

    def __len__(self) -> int:
        """The number of documents with terms; others are not counted."""
        return len(self._slot_by_document)

    @property
    def term_count(self) -> int:
        return len(self._counts)

    def add(self, document: int, terms: Sequence[str], label: str = "") -> None:
        if not terms:
            return
        length = len(terms)
        slot = self._allocate_slot(document, length, label)
        all_counts, all_groups = self._counts, self._groups
        for term, count in Counter(terms).items():
            counts = all_counts.get(term)
            if counts is None:
                all_counts[term] = {slot: count}
                continue
            counts[slot] = count
            if term in all_groups:
                all_groups[term].setdefault((count, length), {})[slot] = None

    def remove(self, document: int, terms: Iterable[str]) -> None:
        """Remove a document. `terms` are those it was added with."""
        slot = self._slot_by_document.pop(document, None)
        if slot is None:
            return
        length = self._lengths[slot]
        self._free_slots.append(slot)
        self._total_length -= length
        label = self._labels[slot]
        del self._slots_by_label[label][slot]
        if not self._slots_by_label[label]:
            del self._slots_by_label[label]
        for term in set(terms):
            counts = self._counts[term]
            count = counts.pop(slot)
            if (groups := self._groups.get(term)) is not None:
                del groups[count, length][slot]
                if not groups[count, length]:
                    del groups[count, length]
            if not counts:
                del self._counts[term]
                self._groups.pop(term, None)

    def clear(self) -> None:
        """Release all data piece by piece, see `EntryTable.clear`."""
        while self._counts:
            self._counts.popitem()
        while self._groups:
            self._groups.popitem()
        while self._slots_by_label:
            self._slots_by_label.popitem()
        while self._slot_by_document:
            self._slot_by_document.popitem()

    def search(
        self,
        terms: Iterable[str],
        limit: int,
        accepts: LabelFilter | None = None,
        labels: Collection[str] | None = None,
    ) -> list[tuple[int, float]]:
        """The best documents and their scores, best first; of equal ones the lower id first.

        `accepts` filters documents by their label. `labels` are all labels that it accepts: when
        few documents have them, only those are scored.
        """
        known = [term for term in dict.fromkeys(terms) if term in self._counts]
        if limit < 1 or not known:
            return []
        # Rarest first: documents without any of the rare terms are excluded early.
        known.sort(key=lambda term: len(self._counts[term]))
        labelled = self._find_labelled(known, labels) if labels is not None else None
        if labelled is not None:
            scores = self._score_slots(labelled, known)
        elif len(known) == 1:
            scores = self._score_single_term(known[0], limit, accepts)
        else:
            scores = self._score_with_rare_terms(known, limit, accepts) or self._score_all(
                known, limit, accepts
            )
        return self._pick_best(scores, limit)

    def _find_labelled(self, terms: list[str], labels: Collection[str]) -> list[int] | None:
        """The slots with these labels, if they are fewer than those that have the terms."""
        groups = [
            group for label in labels if (group := self._slots_by_label.get(label)) is not None
        ]
        term_matches = sum(len(self._counts[term]) for term in terms)
        if len(terms) * sum(map(len, groups)) > term_matches:
            return None
        return [slot for group in groups for slot in group]

    def _score_slots(self, slots: Iterable[int], terms: list[str]) -> dict[int, float]:
        """The scores of those slots that have any of the terms."""
        scores: dict[int, float] = {}
        slope, lengths, fixed = self._length_slope, self._lengths, K1 * (1 - B)
        weighted = [(self._counts[term], self._term_weight(term)) for term in terms]
        for slot in slots:
            for counts, weight in weighted:
                if (count := counts.get(slot)) is not None:
                    score = weight * count / (count + fixed + slope * lengths[slot])
                    scores[slot] = scores.get(slot, 0.0) + score
        return scores

    def _score_single_term(
        self, term: str, limit: int, accepts: LabelFilter | None
    ) -> dict[int, float]:
        """The best slots for a single term, and all with the same score as the last of them."""
        scores: dict[int, float] = {}
        last = 0.0
        for score, slots in sorted(self._term_scores(term), key=itemgetter(0), reverse=True):
            if len(scores) >= limit and score < last:
                break
            if accepts is not None:
                slots = self._filter_slots(slots, accepts)
            if slots:
                scores |= dict.fromkeys(slots, score)
                last = score
        return scores

    def _filter_slots(self, slots: Iterable[int], accepts: LabelFilter) -> list[int]:
        labels = self._labels
        return [slot for slot in slots if accepts(labels[slot])]

    def _score_with_rare_terms(
        self, terms: list[str], limit: int, accepts: LabelFilter | None
    ) -> dict[int, float] | None:
        """The scores of slots with rare terms; None when other slots may be among the best."""
        rare = [term for term in terms if len(self._counts[term]) < MIN_COMMON_DOCUMENTS]
        scores = {slot: 0.0 for term in rare for slot in self._counts[term]}
        if accepts is not None:
            scores = dict.fromkeys(self._filter_slots(scores, accepts), 0.0)
        # A term adds less than its weight, however often it occurs.
        common_weight = sum(self._term_weight(term) for term in terms[len(rare) :])
        slope, lengths, fixed = self._length_slope, self._lengths, K1 * (1 - B)
        for term in terms:
            counts, weight = self._counts[term], self._term_weight(term)
            for slot in scores:
                if (count := counts.get(slot)) is not None:
                    scores[slot] += weight * count / (count + fixed + slope * lengths[slot])
        return (
            None
            if common_weight
            and common_weight >= find_threshold(scores.values(), limit) * ROUNDING_SLACK
            else scores
        )

    def _score_all(
        self, terms: list[str], limit: int, accepts: LabelFilter | None
    ) -> dict[int, float]:
        """The scores of slots that have any term of which the best must have one."""
        sums = [0.0] * len(self._documents)
        max_scores = []
        for term in terms:
            term_scores = self._term_scores(term)
            max_scores.append(max(map(itemgetter(0), term_scores)))
            for score, slots in term_scores:
                for slot in slots:
                    sums[slot] += score
        scores: dict[int, float] = {}
        threshold = 0.0
        for number, term in enumerate(terms):
            if sum(max_scores[number:]) < threshold * ROUNDING_SLACK:
                break
            slots_with_term: Iterable[int] = self._counts[term]
            if accepts is not None:
                slots_with_term = self._filter_slots(slots_with_term, accepts)
            scores |= {slot: sums[slot] for slot in slots_with_term if sums[slot] >= threshold}
            threshold = find_threshold(scores.values(), limit)
        return scores

    def _term_scores(self, term: str) -> list[tuple[float, Iterable[int]]]:
        """The scores that a term adds, each with the slots it is added to."""
        counts, weight, slope = self._counts[term], self._term_weight(term), self._length_slope
        fixed = K1 * (1 - B)
        if len(counts) < MIN_COMMON_DOCUMENTS:
            lengths = self._lengths
            return [
                (weight * count / (count + fixed + slope * lengths[slot]), (slot,))
                for slot, count in counts.items()
            ]
        return [
            (weight * count / (count + fixed + slope * length), slots)
            for (count, length), slots in self._term_groups(term).items()
        ]

    def _term_groups(self, term: str) -> TermGroups:
        groups = self._groups.get(term)
        if groups is None:
            groups = self._groups[term] = {}
            for slot, count in self._counts[term].items():
                groups.setdefault((count, self._lengths[slot]), {})[slot] = None
        return groups

    def _term_weight(self, term: str) -> float:
        matching = len(self._counts[term])
        return log((len(self._slot_by_document) - matching + 0.5) / (matching + 0.5) + 1) * (K1 + 1)

    @property
    def _length_slope(self) -> float:
        """How much each further term of a document lowers its score."""
        return K1 * B * len(self._slot_by_document) / self._total_length

    def _pick_best(self, scores: dict[int, float], limit: int) -> list[tuple[int, float]]:
        # Comparing numbers alone is fastest: first the threshold, then the documents that reach it.
        threshold = find_threshold(scores.values(), limit)
        best = [
            (self._documents[slot], score) for slot, score in scores.items() if score >= threshold
        ]
        return sorted(best, key=lambda hit: (-hit[1], hit[0]))[:limit]

    def _allocate_slot(self, document: int, length: int, label: str) -> int:
        self._total_length += length
        if self._free_slots:
            slot = self._free_slots.pop()
            self._documents[slot], self._lengths[slot], self._labels[slot] = document, length, label
        else:
            slot = len(self._documents)
            self._documents.append(document)
            self._lengths.append(length)
            self._labels.append(label)
        self._slots_by_label.setdefault(label, {})[slot] = None
        self._slot_by_document[document] = slot
        return slot


def find_threshold(scores: Collection[float], limit: int) -> float:
    """The lowest score among the best `limit`; 0 while there are fewer scores."""
    return nlargest(limit, scores)[-1] if len(scores) >= limit else 0.0
