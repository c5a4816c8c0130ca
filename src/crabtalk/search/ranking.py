"""Ranking: which conversations answer a query best, of the shelves and the tail together.

A conversation counts as much as its best message, and its title and summary on top of that; those
alone are enough, too. Blocks: it runs in a thread, on a view that does not change meanwhile.
"""

from collections.abc import Iterable
from heapq import nlargest
from math import inf
from operator import itemgetter

import msgspec

from crabtalk.storage import ConversationMeta, Pair, make_log_name

from .bm25_scorer import BM25Scorer, find_best
from .compiled_query import CompiledQuery, QueryFilters
from .index_store import IndexView
from .manifest import IndexManifest
from .recent_messages import RecentConversation, RecentDocument
from .results import SearchScope
from .searchable_text import SUMMARY_WEIGHT, TITLE_WEIGHT, hash_name, parse_milliseconds
from .tantivy_index import IndexHit, TantivySearcher
from .terms import SearchQuery

# Documents asked for at first, and at most.
INITIAL_LIMIT = 64
MAX_LIMIT = 8192
# Conversations looked at because of their title, or of their summary, for each one asked for, of
# which there are at least so many; messages of those.
FIELD_HITS_PER_RESULT = 6
MIN_RESULTS = 5
MESSAGES_OF_FIELD_HITS = 64
# Candidates beyond those asked for, since some may be gone when they are looked at.
SPARE_CANDIDATES = 2
# Of those that are as good as each other, so many are put in order.
MAX_TIED_CANDIDATES = 64
# The part by which two scores of the same words differ, since shelves count in single precision.
SCORE_NOISE = 1e-5

# What a conversation goes by here: its number, or who speaks in it while it has none.
ConversationKey = int | Pair


class HitCandidate(msgspec.Struct, frozen=True):
    """A conversation that matches, and the message it is shown by."""

    handle: str
    meta: ConversationMeta
    score: float
    message_id: int
    position: int
    is_message_match: bool  # rather than by its title or summary alone


class ConversationScore(msgspec.Struct):
    """What speaks for one conversation."""

    message: float = 0.0
    title: float = 0.0
    summary: float = 0.0
    message_id: int = 0  # of the message
    summary_message_id: int = 0  # of the last one that the summary stands for
    hit: IndexHit | None = None  # the message, if it is in the shelves

    @property
    def score(self) -> float:
        return self.message + self.title + self.summary


ScoredConversation = tuple[float, ConversationKey, ConversationScore]


class FieldMatches(msgspec.Struct):
    """Titles, or summaries: in a shelf, and later ones in the tail."""

    field: str
    searcher: TantivySearcher
    length: int
    weight: float
    recent: dict[Pair, RecentDocument]
    overridden: set[ConversationKey] = msgspec.field(
        default_factory=set
    )  # of whom the tail has one
    out_of_range: dict[ConversationKey, tuple[float, int]] = msgspec.field(default_factory=dict)
    # When the shelf has more than was looked at: how to ask for it, and what it counts at most.
    query: CompiledQuery | None = None
    max_unseen_score: float = 0.0


class ConversationRanking:
    """For one query."""

    def __init__(
        self,
        query: SearchQuery,
        scope: SearchScope,
        times: tuple[int | None, int | None],
        view: IndexView,
        manifest: IndexManifest,
        tail: dict[Pair, RecentConversation],
        gone: frozenset[Pair],
    ) -> None:
        self._query = query
        self._scope = scope
        self._times = times
        self._view = view
        self._manifest = manifest
        self._recent = {pair: each for pair, each in tail.items() if self._is_in_scope(pair)}
        self._entries = [entry for unkept in tail.values() for entry in unkept.entries]
        self._deleted = gone  # what the shelves have of these is of conversations deleted since
        self._scores: dict[ConversationKey, ConversationScore] = {}
        deleted = [number for pair in gone if (number := manifest.find_number(pair)) is not None]
        self._filters = QueryFilters(
            hash_name(scope.agent) if scope.agent is not None else None,
            hash_name(scope.sender) if scope.sender is not None else None,
            *times,
            without=deleted,
        )

    def find_candidates(self, limit: int) -> list[HitCandidate]:
        """The best first, and a few more than asked for."""
        totals = self._view.totals
        titles = {pair: each.title for pair, each in self._recent.items() if each.title}
        summaries = {pair: each.summary for pair, each in self._recent.items() if each.summary}
        kinds = [
            FieldMatches("title", self._view.titles, totals.title_length, TITLE_WEIGHT, titles),
            FieldMatches(
                "summary", self._view.summaries, totals.summary_length, SUMMARY_WEIGHT, summaries
            ),
        ]
        for names in kinds:
            self._score_field(names, FIELD_HITS_PER_RESULT * max(limit, MIN_RESULTS))
        self._score_messages(limit)
        for names in kinds:
            self._complete_field(names, limit)
        return self._pick_best(limit + SPARE_CANDIDATES)

    def _pick_best(self, count: int) -> list[HitCandidate]:
        best: list[HitCandidate] = []
        scores = level_scores([(each.score, key, each) for key, each in self._scores.items()])
        for start in range(0, len(scores), count):
            # Those as good as the last one are looked at, too: they are yet to be put in order.
            is_enough = len(best) >= count and scores[start][0] < best[count - 1].score
            if is_enough or len(best) >= count + MAX_TIED_CANDIDATES:
                break
            best += self._build_candidates(scores[start : start + count])
        return sorted(best, key=candidate_sort_key)[:count]

    # ── Titles and summaries ────────────────────────────────────────────────────────────────

    def _score_field(self, names: FieldMatches, size: int) -> None:
        """So many that match best. What the tail has of a conversation is the later word."""
        if not (names.searcher.documents or names.recent):
            return
        scoring = BM25Scorer(self._query, names.searcher, names.length, list(names.recent.values()))
        for pair, entry in names.recent.items():
            key, score = self._key_of_pair(pair), scoring.score(entry) * names.weight
            names.overridden.add(key)
            if score > 0 and self._is_entry_in_range(entry):
                self._add_field_score(names.field, key, score, entry.id)
            elif score > 0:
                names.out_of_range[key] = score, entry.id
        names.query = names.searcher.compile_query(self._query, scoring.factors)
        whenever = self._filters._replace(since=None, until=None)
        hits = names.searcher.search(names.query, whenever, size)
        names.max_unseen_score = hits[-1].score if len(hits) == size else 0.0
        if self._filters != whenever:
            hits = self._filter_field_by_time(names, hits, size)
        self._add_field_hits(names, hits)

    def _filter_field_by_time(
        self, names: FieldMatches, hits: list[IndexHit], size: int
    ) -> list[IndexHit]:
        """Those of the time asked about, and as many of them; the others are noted."""
        timely: list[IndexHit] = []
        for each, at in zip(hits, names.searcher.load_times(hits), strict=True):
            if self._is_time_in_range(at):
                timely.append(each)
            elif each.conversation not in names.overridden:
                names.out_of_range[each.conversation] = each.score, each.id
        if not names.max_unseen_score or names.query is None:
            return timely
        return names.searcher.search(names.query, self._filters, size)

    def _complete_field(self, names: FieldMatches, limit: int) -> None:
        """Of those found by a message: their names count, whenever they were given."""
        for key in self._scores.keys() & names.out_of_range.keys():
            self._add_field_score(names.field, key, *names.out_of_range[key])
        unnamed = [
            key
            for key, standing in self._scores.items()
            if isinstance(key, int) and not getattr(standing, names.field)
        ]
        among = self._find_promising(unnamed, names.max_unseen_score, limit)
        if among and names.query is not None:
            hits = names.searcher.search(names.query, QueryFilters(among=among), len(among))
            self._add_field_hits(names, hits)

    def _add_field_hits(self, names: FieldMatches, hits: Iterable[IndexHit]) -> None:
        for each in hits:
            if each.conversation not in names.overridden:
                self._add_field_score(names.field, each.conversation, each.score, each.id)

    def _add_field_score(self, what: str, key: ConversationKey, score: float, number: int) -> None:
        standing = self._scores.setdefault(key, ConversationScore())
        if what == "title":
            standing.title = score
        else:
            standing.summary, standing.summary_message_id = score, number

    # ── Messages ────────────────────────────────────────────────────────────────────────────

    def _score_messages(self, limit: int) -> None:
        shelf, length = self._view.messages, self._view.totals.length
        scoring = BM25Scorer(self._query, shelf, length, self._entries)
        question = shelf.compile_query(self._query, scoring.factors)
        named = [key for key in self._scores if isinstance(key, int)]
        for pair, unkept in self._recent.items():
            best = find_best(filter(self._is_entry_in_range, unkept.entries), scoring)
            if best is not None:
                standing = self._scores.setdefault(self._key_of_pair(pair), ConversationScore())
                standing.message, standing.message_id = best[0], best[1].id
        most = self._add_best_messages(question, limit)
        # With a title to help, a message further down may be enough.
        for size in (MESSAGES_OF_FIELD_HITS, MAX_LIMIT):
            unfound = [number for number in named if self._scores[number].hit is None]
            among = self._find_promising(unfound, most, limit)
            if not among:
                return
            filters = self._filters._replace(among=among)
            hits = shelf.search(question, filters, size)
            self._add_message_hits(pick_best_per_conversation(hits))
            most = hits[-1].score if len(hits) == size else 0.0

    def _find_promising(self, numbers: list[int], most: float, limit: int) -> list[int]:
        """Those that would be among the best if they had something more that counts `most`."""
        if not most:
            return []
        scores = {
            key: each.message + each.title + each.summary for key, each in self._scores.items()
        }
        least = nlargest(limit, scores.values())[-1] - most if len(scores) >= limit else 0.0
        return [number for number in numbers if scores[number] >= least]

    def _add_best_messages(self, question: CompiledQuery, wanted: int) -> float:
        """The best messages of so many conversations, however many messages each has.

        Returns what one that was not taken can count at most.
        """
        scores: list[float] = []
        seen = list(self._filters.without)
        size = INITIAL_LIMIT
        while True:
            filters = self._filters._replace(without=seen)
            hits = self._view.messages.search(question, filters, size)
            best = pick_best_per_conversation(hits)
            self._add_message_hits(best)
            scores += (each.score for each in best)
            if len(hits) < size:
                return 0.0
            # Where those that follow are as good as the last one wanted, the order among them
            # is not the shelf's to decide.
            is_enough = len(scores) >= wanted and hits[-1].score < sorted(scores)[-wanted]
            if is_enough or size >= MAX_LIMIT:
                return hits[-1].score
            seen += (each.conversation for each in best)
            size *= 4

    def _add_message_hits(self, found: Iterable[IndexHit]) -> None:
        for each in found:
            standing = self._scores.get(each.conversation)
            if standing is None:
                standing = self._scores[each.conversation] = ConversationScore()
            if each.score > standing.message * (1 + SCORE_NOISE):  # what the tail has is later
                standing.message, standing.message_id, standing.hit = each.score, each.id, each

    # ── What may be found ───────────────────────────────────────────────────────────────────

    def _key_of_pair(self, pair: Pair) -> ConversationKey:
        number = self._manifest.find_number(pair) if pair not in self._deleted else None
        return pair if number is None else number

    def _is_in_scope(self, pair: Pair) -> bool:
        agent, sender = self._scope.agent, self._scope.sender
        return agent in (None, pair.agent) and sender in (None, pair.sender)

    def _is_entry_in_range(self, entry: RecentDocument) -> bool:
        return self._times == (None, None) or self._is_time_in_range(parse_milliseconds(entry.at))

    def _is_time_in_range(self, at: int) -> bool:
        since, until = self._times
        return (since is None or at >= since) and (until is None or at <= until)

    def _build_candidates(self, scores: list[ScoredConversation]) -> list[HitCandidate]:
        """Without those that are gone, or none of what may be found after all."""
        metas = self._manifest.load_metas([key for _, key, _ in scores if isinstance(key, int)])
        shelved = {key: each.hit for _, key, each in scores if each.hit is not None}
        positions = self._view.messages.load_positions(list(shelved.values()))
        places = dict(zip(shelved, positions, strict=True))
        best: list[HitCandidate] = []
        for score, key, standing in scores:
            if not isinstance(key, int):
                handle, meta = make_log_name(key), ConversationMeta(*key)
            elif key in metas:
                handle, meta = metas[key]
                if meta.pair in self._deleted or not self._is_in_scope(meta.pair):
                    continue
            else:
                continue
            if (unkept := self._recent.get(meta.pair)) is not None:
                meta = unkept.update_meta(meta)
            number = standing.message_id if standing.message else standing.summary_message_id
            position, is_message = places.get(key, 0), bool(standing.message)
            best.append(HitCandidate(handle, meta, score, number, position, is_message))
        return best


def level_scores(scores: list[ScoredConversation]) -> list[ScoredConversation]:
    """The best first, and those that differ by noise alone as good as the best of them."""
    scores.sort(key=itemgetter(0), reverse=True)
    found: list[ScoredConversation] = []
    level = inf
    for score, key, standing in scores:
        if score < level * (1 - SCORE_NOISE):
            level = score
        found.append((level, key, standing))
    return found


def pick_best_per_conversation(hits: Iterable[IndexHit]) -> list[IndexHit]:
    """The best of each conversation; of equals, the latest."""
    best: dict[int, IndexHit] = {}
    for each in hits:
        known = best.setdefault(each.conversation, each)
        if each.score == known.score and each.id > known.id:
            best[each.conversation] = each
    return list(best.values())


def candidate_sort_key(candidate: HitCandidate) -> tuple[float, int, str]:
    """Best first; of equals the one that was spoken in last."""
    return -candidate.score, -parse_milliseconds(candidate.meta.updated_at), candidate.handle
