"""Ranking: the conversations that match a query best, in the indexes and the recent messages.

A conversation scores as much as its best message, plus its title and summary, which are enough
alone, too. Blocking: it runs in a thread, on a view that does not change meanwhile.
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

# Documents requested from an index at first, and at most.
INITIAL_LIMIT = 64
MAX_LIMIT = 8192
# Title hits, and summary hits, per requested result, of which at least MIN_RESULTS are assumed;
# and how many messages of those conversations are searched.
FIELD_HITS_PER_RESULT = 6
MIN_RESULTS = 5
MESSAGES_OF_FIELD_HITS = 64
# Spare candidates, because some may be gone when they are loaded.
SPARE_CANDIDATES = 2
# Of conversations with equal scores, this many are sorted.
MAX_TIED_CANDIDATES = 64
# The relative difference between two equal scores: tantivy computes in single precision.
SCORE_NOISE = 1e-5

# Identifies a conversation here: by its number, or by its pair if it has none yet.
ConversationKey = int | Pair


class HitCandidate(msgspec.Struct, frozen=True):
    """A matching conversation and the message that represents it."""

    handle: str
    meta: ConversationMeta
    score: float
    message_id: int
    position: int
    is_message_match: bool  # not by its title or summary alone


class ConversationScore(msgspec.Struct):
    """The scores of one conversation."""

    message: float = 0.0
    title: float = 0.0
    summary: float = 0.0
    message_id: int = 0  # of the best message
    summary_message_id: int = 0  # of the last message that the summary covers
    hit: IndexHit | None = None  # the best message, if it is in the index

    @property
    def score(self) -> float:
        return self.message + self.title + self.summary


ScoredConversation = tuple[float, ConversationKey, ConversationScore]


class FieldMatches(msgspec.Struct):
    """The titles, or the summaries: those in the index and later ones among the recent messages."""

    field: str
    searcher: TantivySearcher
    length: int
    weight: float
    recent: dict[Pair, RecentDocument]
    # Conversations with a recent one.
    overridden: set[ConversationKey] = msgspec.field(default_factory=set)
    # Hits outside the time range.
    out_of_range: dict[ConversationKey, tuple[float, int]] = msgspec.field(default_factory=dict)
    # When the index has more hits than were requested: the query, and their maximal score.
    query: CompiledQuery | None = None
    max_unseen_score: float = 0.0


class ConversationRanking:
    """Ranks for one query."""

    def __init__(
        self,
        query: SearchQuery,
        scope: SearchScope,
        times: tuple[int | None, int | None],
        view: IndexView,
        manifest: IndexManifest,
        recent: dict[Pair, RecentConversation],
        deleted: frozenset[Pair],
    ) -> None:
        self._query = query
        self._scope = scope
        self._times = times
        self._view = view
        self._manifest = manifest
        self._recent = {
            pair: conversation for pair, conversation in recent.items() if self._is_in_scope(pair)
        }
        self._entries = [
            entry for conversation in recent.values() for entry in conversation.entries
        ]
        self._deleted = deleted  # the indexes may still have these
        self._scores: dict[ConversationKey, ConversationScore] = {}
        deleted_numbers = [
            number for pair in deleted if (number := manifest.find_number(pair)) is not None
        ]
        self._filters = QueryFilters(
            hash_name(scope.agent) if scope.agent is not None else None,
            hash_name(scope.sender) if scope.sender is not None else None,
            *times,
            without=deleted_numbers,
        )

    def find_candidates(self, limit: int) -> list[HitCandidate]:
        """The best candidates first, and a few more than requested."""
        totals = self._view.totals
        recent = self._recent.items()
        titles = {pair: conversation.title for pair, conversation in recent if conversation.title}
        summaries = {
            pair: conversation.summary for pair, conversation in recent if conversation.summary
        }
        fields = [
            FieldMatches("title", self._view.titles, totals.title_length, TITLE_WEIGHT, titles),
            FieldMatches(
                "summary", self._view.summaries, totals.summary_length, SUMMARY_WEIGHT, summaries
            ),
        ]
        for matches in fields:
            self._score_field(matches, FIELD_HITS_PER_RESULT * max(limit, MIN_RESULTS))
        self._score_messages(limit)
        for matches in fields:
            self._complete_field(matches, limit)
        return self._pick_best(limit + SPARE_CANDIDATES)

    def _pick_best(self, count: int) -> list[HitCandidate]:
        best: list[HitCandidate] = []
        scores = level_scores([(score.score, key, score) for key, score in self._scores.items()])
        for start in range(0, len(scores), count):
            # Those with the same score as the last one are included: they are still to be sorted.
            is_enough = len(best) >= count and scores[start][0] < best[count - 1].score
            if is_enough or len(best) >= count + MAX_TIED_CANDIDATES:
                break
            best += self._build_candidates(scores[start : start + count])
        return sorted(best, key=candidate_sort_key)[:count]

    # ── Titles and summaries ────────────────────────────────────────────────────────────────

    def _score_field(self, matches: FieldMatches, size: int) -> None:
        """Score the best hits of a field. A recent value replaces the indexed one."""
        if not (matches.searcher.documents or matches.recent):
            return
        scoring = BM25Scorer(
            self._query, matches.searcher, matches.length, list(matches.recent.values())
        )
        for pair, entry in matches.recent.items():
            key, score = self._key_of_pair(pair), scoring.score(entry) * matches.weight
            matches.overridden.add(key)
            if score > 0 and self._is_entry_in_range(entry):
                self._add_field_score(matches.field, key, score, entry.id)
            elif score > 0:
                matches.out_of_range[key] = score, entry.id
        matches.query = matches.searcher.compile_query(self._query, scoring.factors)
        any_time = self._filters._replace(since=None, until=None)
        hits = matches.searcher.search(matches.query, any_time, size)
        matches.max_unseen_score = hits[-1].score if len(hits) == size else 0.0
        if self._filters != any_time:
            hits = self._filter_field_by_time(matches, hits, size)
        self._add_field_hits(matches, hits)

    def _filter_field_by_time(
        self, matches: FieldMatches, hits: list[IndexHit], size: int
    ) -> list[IndexHit]:
        """Keep hits inside the time range, and search for more; note the others."""
        timely: list[IndexHit] = []
        for hit, at in zip(hits, matches.searcher.load_times(hits), strict=True):
            if self._is_time_in_range(at):
                timely.append(hit)
            elif hit.conversation not in matches.overridden:
                matches.out_of_range[hit.conversation] = hit.score, hit.id
        if not matches.max_unseen_score or matches.query is None:
            return timely
        return matches.searcher.search(matches.query, self._filters, size)

    def _complete_field(self, matches: FieldMatches, limit: int) -> None:
        """Add the field's score to conversations found by a message, whatever the field's time."""
        for key in self._scores.keys() & matches.out_of_range.keys():
            self._add_field_score(matches.field, key, *matches.out_of_range[key])
        unscored = [
            key
            for key, score in self._scores.items()
            if isinstance(key, int) and not getattr(score, matches.field)
        ]
        among = self._find_promising(unscored, matches.max_unseen_score, limit)
        if among and matches.query is not None:
            hits = matches.searcher.search(matches.query, QueryFilters(among=among), len(among))
            self._add_field_hits(matches, hits)

    def _add_field_hits(self, matches: FieldMatches, hits: Iterable[IndexHit]) -> None:
        for hit in hits:
            if hit.conversation not in matches.overridden:
                self._add_field_score(matches.field, hit.conversation, hit.score, hit.id)

    def _add_field_score(
        self, field: str, key: ConversationKey, score: float, message_id: int
    ) -> None:
        conversation = self._scores.setdefault(key, ConversationScore())
        if field == "title":
            conversation.title = score
        else:
            conversation.summary, conversation.summary_message_id = score, message_id

    # ── Messages ────────────────────────────────────────────────────────────────────────────

    def _score_messages(self, limit: int) -> None:
        searcher, length = self._view.messages, self._view.totals.length
        scoring = BM25Scorer(self._query, searcher, length, self._entries)
        query = searcher.compile_query(self._query, scoring.factors)
        field_hits = [key for key in self._scores if isinstance(key, int)]
        for pair, recent in self._recent.items():
            best = find_best(filter(self._is_entry_in_range, recent.entries), scoring)
            if best is not None:
                score = self._scores.setdefault(self._key_of_pair(pair), ConversationScore())
                score.message, score.message_id = best[0], best[1].id
        max_unseen_score = self._add_best_messages(query, limit)
        # With the score of a title or summary, a lower-ranked message may be enough.
        for size in (MESSAGES_OF_FIELD_HITS, MAX_LIMIT):
            unfound = [number for number in field_hits if self._scores[number].hit is None]
            among = self._find_promising(unfound, max_unseen_score, limit)
            if not among:
                return
            filters = self._filters._replace(among=among)
            hits = searcher.search(query, filters, size)
            self._add_message_hits(pick_best_per_conversation(hits))
            max_unseen_score = hits[-1].score if len(hits) == size else 0.0

    def _find_promising(self, numbers: list[int], bonus: float, limit: int) -> list[int]:
        """The conversations that would be among the best with `bonus` added to their score."""
        if not bonus:
            return []
        scores = {key: score.score for key, score in self._scores.items()}
        least = nlargest(limit, scores.values())[-1] - bonus if len(scores) >= limit else 0.0
        return [number for number in numbers if scores[number] >= least]

    def _add_best_messages(self, query: CompiledQuery, wanted: int) -> float:
        """Add the best messages of `wanted` conversations, however many messages each has.

        Returns the maximal score of the messages not seen.
        """
        scores: list[float] = []
        seen = list(self._filters.without)
        size = INITIAL_LIMIT
        while True:
            filters = self._filters._replace(without=seen)
            hits = self._view.messages.search(query, filters, size)
            best = pick_best_per_conversation(hits)
            self._add_message_hits(best)
            scores += (hit.score for hit in best)
            if len(hits) < size:
                return 0.0
            # While the next hits score the same as the last one wanted, search on: tantivy's order
            # among equals does not count.
            is_enough = len(scores) >= wanted and hits[-1].score < sorted(scores)[-wanted]
            if is_enough or size >= MAX_LIMIT:
                return hits[-1].score
            seen += (hit.conversation for hit in best)
            size *= 4

    def _add_message_hits(self, hits: Iterable[IndexHit]) -> None:
        for hit in hits:
            score = self._scores.get(hit.conversation)
            if score is None:
                score = self._scores[hit.conversation] = ConversationScore()
            if hit.score > score.message * (1 + SCORE_NOISE):  # recent messages win: they are later
                score.message, score.message_id, score.hit = hit.score, hit.id, hit

    # ── Scope and results ───────────────────────────────────────────────────────────────────

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
        """Build candidates, without deleted conversations and those out of scope."""
        metas = self._manifest.load_metas([key for _, key, _ in scores if isinstance(key, int)])
        hits = {key: score.hit for _, key, score in scores if score.hit is not None}
        positions_in_order = self._view.messages.load_positions(list(hits.values()))
        positions = dict(zip(hits, positions_in_order, strict=True))
        best: list[HitCandidate] = []
        for total, key, score in scores:
            if not isinstance(key, int):
                handle, meta = make_log_name(key), ConversationMeta(*key)
            elif key in metas:
                handle, meta = metas[key]
                if meta.pair in self._deleted or not self._is_in_scope(meta.pair):
                    continue
            else:
                continue
            if (recent := self._recent.get(meta.pair)) is not None:
                meta = recent.update_meta(meta)
            number = score.message_id if score.message else score.summary_message_id
            position, is_message = positions.get(key, 0), bool(score.message)
            best.append(HitCandidate(handle, meta, total, number, position, is_message))
        return best


def level_scores(scores: list[ScoredConversation]) -> list[ScoredConversation]:
    """Sort by score, and give scores that differ by noise alone the best of their values."""
    scores.sort(key=itemgetter(0), reverse=True)
    leveled: list[ScoredConversation] = []
    level = inf
    for total, key, score in scores:
        if total < level * (1 - SCORE_NOISE):
            level = total
        leveled.append((level, key, score))
    return leveled


def pick_best_per_conversation(hits: Iterable[IndexHit]) -> list[IndexHit]:
    """The best hit of each conversation; of equal ones the latest."""
    best: dict[int, IndexHit] = {}
    for hit in hits:
        known = best.setdefault(hit.conversation, hit)
        if hit.score == known.score and hit.id > known.id:
            best[hit.conversation] = hit
    return list(best.values())


def candidate_sort_key(candidate: HitCandidate) -> tuple[float, int, str]:
    """Best score first; of equal ones the conversation updated last."""
    return -candidate.score, -parse_milliseconds(candidate.meta.updated_at), candidate.handle
