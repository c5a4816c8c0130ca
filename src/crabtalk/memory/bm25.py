"""BM25: an inverted index over terms, by the id of the document that has them. Scores are exact.

Adding or removing a document costs what its terms cost. Nothing here knows what a term is. Each
document has a label, and a search may be for documents with some labels only; scores are the same
then.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nlargest
from math import log
from operator import itemgetter

K1 = 1.2
B = 0.75
# Documents that have a term as often and are as long score alike. A term that this many have keeps
# those together, so that a search works out few scores and adds them to many.
MIN_COMMON_DOCUMENTS = 64
# Sums of the same numbers differ by less than this when they are added in another order.
ROUNDING_SLACK = 1 - 1e-9

# By how often they have the term and by their length: documents, as keys.
TermGroups = dict[tuple[int, int], dict[int, None]]
# Whether documents with a label are searched.
LabelFilter = Callable[[str], bool]


class BM25Index:
    """Inside, a document is the number of its slot: slots are dense, and a list can hold sums."""

    def __init__(self) -> None:
        self._slot_by_document: dict[int, int] = {}
        self._documents: list[int] = []
        self._lengths: list[int] = []
        self._labels: list[str] = []
        self._slots_by_label: dict[str, dict[int, None]] = {}  # slots by their label
        self._free_slots: list[int] = []
        self._total_length = 0
        self._counts: dict[str, dict[int, int]] = {}
        self._groups: dict[str, TermGroups] = {}

    def __len__(self) -> int:
        """Documents that have any terms; the others are not counted."""
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
        """`terms` are those it was added with."""
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
        """Lets go of all it has, piece by piece."""
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
        """The best documents and their scores, best first; of equals the one with the lower id.

        `accepts` leaves out documents by their label. `labels` are all labels that it accepts:
        where few documents have them, only those are looked at.
        """
        known = [term for term in dict.fromkeys(terms) if term in self._counts]
        if limit < 1 or not known:
            return []
        # The rarest first: whoever has none of the rare ones is soon out of the running.
        known.sort(key=lambda term: len(self._counts[term]))
        few = self._find_labelled(known, labels) if labels is not None else None
        if few is not None:
            found = self._score_slots(few, known)
        elif len(known) == 1:
            found = self._score_single_term(known[0], limit, accepts)
        else:
            found = self._score_with_rare_terms(known, limit, accepts) or self._score_all(
                known, limit, accepts
            )
        return self._pick_best(found, limit)

    def _find_labelled(self, terms: list[str], labels: Collection[str]) -> list[int] | None:
        """The documents with these labels, when they are fewer than those that have the terms."""
        groups = [
            group for label in labels if (group := self._slots_by_label.get(label)) is not None
        ]
        most = sum(len(self._counts[term]) for term in terms)
        if len(terms) * sum(map(len, groups)) > most:
            return None
        return [slot for group in groups for slot in group]

    def _score_slots(self, slots: Iterable[int], terms: list[str]) -> dict[int, float]:
        """The scores of those of the slots that have any of the terms."""
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
        """Who is best by a single term, and all that equal them."""
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
        """The scores of those who have rare terms; None when others may be among the best."""
        rare = [term for term in terms if len(self._counts[term]) < MIN_COMMON_DOCUMENTS]
        scores = {slot: 0.0 for term in rare for slot in self._counts[term]}
        if accepts is not None:
            scores = dict.fromkeys(self._filter_slots(scores, accepts), 0.0)
        # No count is high enough for a term to be worth more than its weight.
        rest = sum(self._term_weight(term) for term in terms[len(rare) :])
        slope, lengths, fixed = self._length_slope, self._lengths, K1 * (1 - B)
        for term in terms:
            counts, weight = self._counts[term], self._term_weight(term)
            for slot in scores:
                if (count := counts.get(slot)) is not None:
                    scores[slot] += weight * count / (count + fixed + slope * lengths[slot])
        return (
            None
            if rest and rest >= find_threshold(scores.values(), limit) * ROUNDING_SLACK
            else scores
        )

    def _score_all(
        self, terms: list[str], limit: int, accepts: LabelFilter | None
    ) -> dict[int, float]:
        """The scores of those who have any of the terms that the best must have one of."""
        sums = [0.0] * len(self._documents)
        most = []
        for term in terms:
            scored = self._term_scores(term)
            most.append(max(map(itemgetter(0), scored)))
            for score, slots in scored:
                for slot in slots:
                    sums[slot] += score
        found: dict[int, float] = {}
        least = 0.0
        for number, term in enumerate(terms):
            if sum(most[number:]) < least * ROUNDING_SLACK:
                break
            having: Iterable[int] = self._counts[term]
            if accepts is not None:
                having = self._filter_slots(having, accepts)
            found |= {slot: sums[slot] for slot in having if sums[slot] >= least}
            least = find_threshold(found.values(), limit)
        return found

    def _term_scores(self, term: str) -> list[tuple[float, Iterable[int]]]:
        """What a term adds to the scores of whom."""
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
        having = len(self._counts[term])
        return log((len(self._slot_by_document) - having + 0.5) / (having + 0.5) + 1) * (K1 + 1)

    @property
    def _length_slope(self) -> float:
        """How much a term more in the document counts against it."""
        return K1 * B * len(self._slot_by_document) / self._total_length

    def _pick_best(self, scores: dict[int, float], limit: int) -> list[tuple[int, float]]:
        # Numbers alone compare fastest: first the bar, then who reaches it.
        least = find_threshold(scores.values(), limit)
        found = [(self._documents[slot], score) for slot, score in scores.items() if score >= least]
        return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:limit]

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
    """What one must have to be among the best; nothing, while there is room for more."""
    return nlargest(limit, scores)[-1] if len(scores) >= limit else 0.0
