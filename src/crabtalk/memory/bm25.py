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
COMMON = 64
# Sums of the same numbers differ by less than this when they are added in another order.
SLACK = 1 - 1e-9

# By how often they have the term and by their length: documents, as keys.
Groups = dict[tuple[int, int], dict[int, None]]
# Whether documents with a label are searched.
Filter = Callable[[str], bool]


class Index:
    """Inside, a document is the number of its slot: slots are dense, and a list can hold sums."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._ids: list[int] = []
        self._lengths: list[int] = []
        self._labels: list[str] = []
        self._labelled: dict[str, dict[int, None]] = {}  # slots by their label
        self._free: list[int] = []
        self._total = 0
        self._counts: dict[str, dict[int, int]] = {}
        self._groups: dict[str, Groups] = {}

    def __len__(self) -> int:
        """Documents that have any terms; the others are not counted."""
        return len(self._slots)

    @property
    def terms(self) -> int:
        return len(self._counts)

    def add(self, document: int, terms: Sequence[str], label: str = "") -> None:
        if not terms:
            return
        length = len(terms)
        slot = self._new_slot(document, length, label)
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
        slot = self._slots.pop(document, None)
        if slot is None:
            return
        length = self._lengths[slot]
        self._free.append(slot)
        self._total -= length
        label = self._labels[slot]
        del self._labelled[label][slot]
        if not self._labelled[label]:
            del self._labelled[label]
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

    def dissolve(self) -> None:
        """Lets go of all it has, piece by piece."""
        while self._counts:
            self._counts.popitem()
        while self._groups:
            self._groups.popitem()
        while self._labelled:
            self._labelled.popitem()
        while self._slots:
            self._slots.popitem()

    def search(
        self,
        terms: Iterable[str],
        limit: int,
        accepts: Filter | None = None,
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
        few = self._find_few(known, labels) if labels is not None else None
        if few is not None:
            found = self._by_slots(few, known)
        elif len(known) == 1:
            found = self._by_one(known[0], limit, accepts)
        else:
            found = self._by_rare(known, limit, accepts) or self._by_all(known, limit, accepts)
        return self._ranked(found, limit)

    def _find_few(self, terms: list[str], labels: Collection[str]) -> list[int] | None:
        """The documents with these labels, when they are fewer than those that have the terms."""
        groups = [group for label in labels if (group := self._labelled.get(label)) is not None]
        most = sum(len(self._counts[term]) for term in terms)
        if len(terms) * sum(map(len, groups)) > most:
            return None
        return [slot for group in groups for slot in group]

    def _by_slots(self, slots: Iterable[int], terms: list[str]) -> dict[int, float]:
        """The scores of those of the slots that have any of the terms."""
        scores: dict[int, float] = {}
        slope, lengths, fixed = self._slope, self._lengths, K1 * (1 - B)
        weighted = [(self._counts[term], self._weight(term)) for term in terms]
        for slot in slots:
            for counts, weight in weighted:
                if (count := counts.get(slot)) is not None:
                    score = weight * count / (count + fixed + slope * lengths[slot])
                    scores[slot] = scores.get(slot, 0.0) + score
        return scores

    def _by_one(self, term: str, limit: int, accepts: Filter | None) -> dict[int, float]:
        """Who is best by a single term, and all that equal them."""
        scores: dict[int, float] = {}
        last = 0.0
        for score, slots in sorted(self._scored(term), key=itemgetter(0), reverse=True):
            if len(scores) >= limit and score < last:
                break
            if accepts is not None:
                slots = self._accepted(slots, accepts)
            if slots:
                scores |= dict.fromkeys(slots, score)
                last = score
        return scores

    def _accepted(self, slots: Iterable[int], accepts: Filter) -> list[int]:
        labels = self._labels
        return [slot for slot in slots if accepts(labels[slot])]

    def _by_rare(
        self, terms: list[str], limit: int, accepts: Filter | None
    ) -> dict[int, float] | None:
        """The scores of those who have rare terms; None when others may be among the best."""
        rare = [term for term in terms if len(self._counts[term]) < COMMON]
        scores = {slot: 0.0 for term in rare for slot in self._counts[term]}
        if accepts is not None:
            scores = dict.fromkeys(self._accepted(scores, accepts), 0.0)
        # No count is high enough for a term to be worth more than its weight.
        rest = sum(self._weight(term) for term in terms[len(rare) :])
        slope, lengths, fixed = self._slope, self._lengths, K1 * (1 - B)
        for term in terms:
            counts, weight = self._counts[term], self._weight(term)
            for slot in scores:
                if (count := counts.get(slot)) is not None:
                    scores[slot] += weight * count / (count + fixed + slope * lengths[slot])
        return None if rest and rest >= bar(scores.values(), limit) * SLACK else scores

    def _by_all(self, terms: list[str], limit: int, accepts: Filter | None) -> dict[int, float]:
        """The scores of those who have any of the terms that the best must have one of."""
        sums = [0.0] * len(self._ids)
        most = []
        for term in terms:
            scored = self._scored(term)
            most.append(max(map(itemgetter(0), scored)))
            for score, slots in scored:
                for slot in slots:
                    sums[slot] += score
        found: dict[int, float] = {}
        least = 0.0
        for number, term in enumerate(terms):
            if sum(most[number:]) < least * SLACK:
                break
            having: Iterable[int] = self._counts[term]
            if accepts is not None:
                having = self._accepted(having, accepts)
            found |= {slot: sums[slot] for slot in having if sums[slot] >= least}
            least = bar(found.values(), limit)
        return found

    def _scored(self, term: str) -> list[tuple[float, Iterable[int]]]:
        """What a term adds to the scores of whom."""
        counts, weight, slope = self._counts[term], self._weight(term), self._slope
        fixed = K1 * (1 - B)
        if len(counts) < COMMON:
            lengths = self._lengths
            return [
                (weight * count / (count + fixed + slope * lengths[slot]), (slot,))
                for slot, count in counts.items()
            ]
        return [
            (weight * count / (count + fixed + slope * length), slots)
            for (count, length), slots in self._grouped(term).items()
        ]

    def _grouped(self, term: str) -> Groups:
        groups = self._groups.get(term)
        if groups is None:
            groups = self._groups[term] = {}
            for slot, count in self._counts[term].items():
                groups.setdefault((count, self._lengths[slot]), {})[slot] = None
        return groups

    def _weight(self, term: str) -> float:
        having = len(self._counts[term])
        return log((len(self._slots) - having + 0.5) / (having + 0.5) + 1) * (K1 + 1)

    @property
    def _slope(self) -> float:
        """How much a term more in the document counts against it."""
        return K1 * B * len(self._slots) / self._total

    def _ranked(self, scores: dict[int, float], limit: int) -> list[tuple[int, float]]:
        # Numbers alone compare fastest: first the bar, then who reaches it.
        least = bar(scores.values(), limit)
        found = [(self._ids[slot], score) for slot, score in scores.items() if score >= least]
        return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:limit]

    def _new_slot(self, document: int, length: int, label: str) -> int:
        self._total += length
        if self._free:
            slot = self._free.pop()
            self._ids[slot], self._lengths[slot], self._labels[slot] = document, length, label
        else:
            slot = len(self._ids)
            self._ids.append(document)
            self._lengths.append(length)
            self._labels.append(label)
        self._labelled.setdefault(label, {})[slot] = None
        self._slots[document] = slot
        return slot


def bar(scores: Collection[float], limit: int) -> float:
    """What one must have to be among the best; nothing, while there is room for more."""
    return nlargest(limit, scores)[-1] if len(scores) >= limit else 0.0
