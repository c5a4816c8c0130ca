"""Ranking: which conversations answer a query best, of the shelves and the tail together.

A conversation counts as much as its best message, and its title and summary on top of that; those
alone are enough, too. Blocks: it runs in a thread, on a view that does not change meanwhile.
"""

from collections.abc import Iterable
from heapq import nlargest
from math import inf
from operator import itemgetter

import msgspec

from crabtalk.storage import Meta, Pair, log_name

from .document import SUMMARY, TITLE, key_of, milliseconds
from .hit import Scope
from .library import View
from .manifest import Manifest
from .question import Filters, Question
from .scoring import Scoring, best_of
from .shelf import Found, Searcher
from .tail import Entry, Unkept
from .terms import Query

# Documents asked for at first, and at most.
FIRST = 64
MOST = 8192
# Conversations looked at because of their title, or of their summary, for each one asked for, of
# which there are at least so many; messages of those.
NAMED = 6
FEWEST = 5
OF_NAMED = 64
# Candidates beyond those asked for, since some may be gone when they are looked at.
SPARE = 2
# Of those that are as good as each other, so many are put in order.
EQUALS = 64
# The part by which two scores of the same words differ, since shelves count in single precision.
NOISE = 1e-5

# What a conversation goes by here: its number, or who speaks in it while it has none.
Key = int | Pair


class Candidate(msgspec.Struct, frozen=True):
    """A conversation that matches, and the message it is shown by."""

    handle: str
    meta: Meta
    score: float
    message_id: int
    position: int
    by_message: bool  # rather than by its title or summary alone


class Standing(msgspec.Struct):
    """What speaks for one conversation."""

    message: float = 0.0
    title: float = 0.0
    summary: float = 0.0
    id: int = 0  # of the message
    folded: int = 0  # of the last one that the summary stands for
    found: Found | None = None  # the message, if it is in the shelves

    @property
    def score(self) -> float:
        return self.message + self.title + self.summary


Scored = tuple[float, Key, Standing]


class Names(msgspec.Struct):
    """Titles, or summaries: in a shelf, and later ones in the tail."""

    what: str
    shelf: Searcher
    length: int
    weight: float
    entries: dict[Pair, Entry]
    later: set[Key] = msgspec.field(default_factory=set)  # of whom the tail has one
    untimely: dict[Key, tuple[float, int]] = msgspec.field(default_factory=dict)
    # When the shelf has more than was looked at: how to ask for it, and what it counts at most.
    question: Question | None = None
    most: float = 0.0


class Ranking:
    """For one query."""

    def __init__(
        self,
        query: Query,
        scope: Scope,
        times: tuple[int | None, int | None],
        view: View,
        manifest: Manifest,
        tail: dict[Pair, Unkept],
        gone: frozenset[Pair],
    ) -> None:
        self._query = query
        self._scope = scope
        self._times = times
        self._view = view
        self._manifest = manifest
        self._tail = {pair: each for pair, each in tail.items() if self._in_scope(pair)}
        self._entries = [entry for unkept in tail.values() for entry in unkept.entries]
        self._gone = gone  # what the shelves have of these is of conversations deleted since
        self._standings: dict[Key, Standing] = {}
        deleted = [number for pair in gone if (number := manifest.number_of(pair)) is not None]
        self._filters = Filters(
            key_of(scope.agent) if scope.agent is not None else None,
            key_of(scope.sender) if scope.sender is not None else None,
            *times,
            without=deleted,
        )

    def candidates(self, limit: int) -> list[Candidate]:
        """The best first, and a few more than asked for."""
        totals = self._view.totals
        titles = {pair: each.title for pair, each in self._tail.items() if each.title}
        summaries = {pair: each.summary for pair, each in self._tail.items() if each.summary}
        kinds = [
            Names("title", self._view.titles, totals.title_length, TITLE, titles),
            Names("summary", self._view.summaries, totals.summary_length, SUMMARY, summaries),
        ]
        for names in kinds:
            self._weigh_names(names, NAMED * max(limit, FEWEST))
        self._weigh_messages(limit)
        for names in kinds:
            self._complete_names(names, limit)
        return self._best(limit + SPARE)

    def _best(self, count: int) -> list[Candidate]:
        best: list[Candidate] = []
        scores = leveled([(each.score, key, each) for key, each in self._standings.items()])
        for start in range(0, len(scores), count):
            # Those as good as the last one are looked at, too: they are yet to be put in order.
            is_enough = len(best) >= count and scores[start][0] < best[count - 1].score
            if is_enough or len(best) >= count + EQUALS:
                break
            best += self._found(scores[start : start + count])
        return sorted(best, key=order)[:count]

    # ── Titles and summaries ────────────────────────────────────────────────────────────────

    def _weigh_names(self, names: Names, size: int) -> None:
        """So many that match best. What the tail has of a conversation is the later word."""
        if not (names.shelf.documents or names.entries):
            return
        scoring = Scoring(self._query, names.shelf, names.length, list(names.entries.values()))
        for pair, entry in names.entries.items():
            key, score = self._key(pair), scoring.score(entry) * names.weight
            names.later.add(key)
            if score > 0 and self._is_timely(entry):
                self._weigh(names.what, key, score, entry.id)
            elif score > 0:
                names.untimely[key] = score, entry.id
        names.question = names.shelf.question(self._query, scoring.factors)
        whenever = self._filters._replace(since=None, until=None)
        hits = names.shelf.search(names.question, whenever, size)
        names.most = hits[-1].score if len(hits) == size else 0.0
        if self._filters != whenever:
            hits = self._timely_names(names, hits, size)
        self._take_names(names, hits)

    def _timely_names(self, names: Names, hits: list[Found], size: int) -> list[Found]:
        """Those of the time asked about, and as many of them; the others are noted."""
        timely: list[Found] = []
        for each, at in zip(hits, names.shelf.times(hits), strict=True):
            if self._is_within(at):
                timely.append(each)
            elif each.conversation not in names.later:
                names.untimely[each.conversation] = each.score, each.id
        if not names.most or names.question is None:
            return timely
        return names.shelf.search(names.question, self._filters, size)

    def _complete_names(self, names: Names, limit: int) -> None:
        """Of those found by a message: their names count, whenever they were given."""
        for key in self._standings.keys() & names.untimely.keys():
            self._weigh(names.what, key, *names.untimely[key])
        unnamed = [
            key
            for key, standing in self._standings.items()
            if isinstance(key, int) and not getattr(standing, names.what)
        ]
        among = self._promising(unnamed, names.most, limit)
        if among and names.question is not None:
            hits = names.shelf.search(names.question, Filters(among=among), len(among))
            self._take_names(names, hits)

    def _take_names(self, names: Names, hits: Iterable[Found]) -> None:
        for each in hits:
            if each.conversation not in names.later:
                self._weigh(names.what, each.conversation, each.score, each.id)

    def _weigh(self, what: str, key: Key, score: float, number: int) -> None:
        standing = self._standings.setdefault(key, Standing())
        if what == "title":
            standing.title = score
        else:
            standing.summary, standing.folded = score, number

    # ── Messages ────────────────────────────────────────────────────────────────────────────

    def _weigh_messages(self, limit: int) -> None:
        shelf, length = self._view.messages, self._view.totals.length
        scoring = Scoring(self._query, shelf, length, self._entries)
        question = shelf.question(self._query, scoring.factors)
        named = [key for key in self._standings if isinstance(key, int)]
        for pair, unkept in self._tail.items():
            best = best_of(filter(self._is_timely, unkept.entries), scoring)
            if best is not None:
                standing = self._standings.setdefault(self._key(pair), Standing())
                standing.message, standing.id = best[0], best[1].id
        most = self._take_best(question, limit)
        # With a title to help, a message further down may be enough.
        for size in (OF_NAMED, MOST):
            unfound = [number for number in named if self._standings[number].found is None]
            among = self._promising(unfound, most, limit)
            if not among:
                return
            filters = self._filters._replace(among=among)
            hits = shelf.search(question, filters, size)
            self._take_messages(firsts(hits))
            most = hits[-1].score if len(hits) == size else 0.0

    def _promising(self, numbers: list[int], most: float, limit: int) -> list[int]:
        """Those that would be among the best if they had something more that counts `most`."""
        if not most:
            return []
        scores = {
            key: each.message + each.title + each.summary for key, each in self._standings.items()
        }
        least = nlargest(limit, scores.values())[-1] - most if len(scores) >= limit else 0.0
        return [number for number in numbers if scores[number] >= least]

    def _take_best(self, question: Question, wanted: int) -> float:
        """The best messages of so many conversations, however many messages each has.

        Returns what one that was not taken can count at most.
        """
        scores: list[float] = []
        seen = list(self._filters.without)
        size = FIRST
        while True:
            filters = self._filters._replace(without=seen)
            hits = self._view.messages.search(question, filters, size)
            best = firsts(hits)
            self._take_messages(best)
            scores += (each.score for each in best)
            if len(hits) < size:
                return 0.0
            # Where those that follow are as good as the last one wanted, the order among them
            # is not the shelf's to decide.
            is_enough = len(scores) >= wanted and hits[-1].score < sorted(scores)[-wanted]
            if is_enough or size >= MOST:
                return hits[-1].score
            seen += (each.conversation for each in best)
            size *= 4

    def _take_messages(self, found: Iterable[Found]) -> None:
        for each in found:
            standing = self._standings.get(each.conversation)
            if standing is None:
                standing = self._standings[each.conversation] = Standing()
            if each.score > standing.message * (1 + NOISE):  # what the tail has is later
                standing.message, standing.id, standing.found = each.score, each.id, each

    # ── What may be found ───────────────────────────────────────────────────────────────────

    def _key(self, pair: Pair) -> Key:
        number = self._manifest.number_of(pair) if pair not in self._gone else None
        return pair if number is None else number

    def _in_scope(self, pair: Pair) -> bool:
        agent, sender = self._scope.agent, self._scope.sender
        return agent in (None, pair.agent) and sender in (None, pair.sender)

    def _is_timely(self, entry: Entry) -> bool:
        return self._times == (None, None) or self._is_within(milliseconds(entry.at))

    def _is_within(self, at: int) -> bool:
        since, until = self._times
        return (since is None or at >= since) and (until is None or at <= until)

    def _found(self, scores: list[Scored]) -> list[Candidate]:
        """Without those that are gone, or none of what may be found after all."""
        metas = self._manifest.metas([key for _, key, _ in scores if isinstance(key, int)])
        shelved = {key: each.found for _, key, each in scores if each.found is not None}
        positions = self._view.messages.positions(list(shelved.values()))
        places = dict(zip(shelved, positions, strict=True))
        best: list[Candidate] = []
        for score, key, standing in scores:
            if not isinstance(key, int):
                handle, meta = log_name(key), Meta(*key)
            elif key in metas:
                handle, meta = metas[key]
                if meta.pair in self._gone or not self._in_scope(meta.pair):
                    continue
            else:
                continue
            if (unkept := self._tail.get(meta.pair)) is not None:
                meta = unkept.meta(meta)
            number = standing.id if standing.message else standing.folded
            position, is_message = places.get(key, 0), bool(standing.message)
            best.append(Candidate(handle, meta, score, number, position, is_message))
        return best


def leveled(scores: list[Scored]) -> list[Scored]:
    """The best first, and those that differ by noise alone as good as the best of them."""
    scores.sort(key=itemgetter(0), reverse=True)
    found: list[Scored] = []
    level = inf
    for score, key, standing in scores:
        if score < level * (1 - NOISE):
            level = score
        found.append((level, key, standing))
    return found


def firsts(hits: Iterable[Found]) -> list[Found]:
    """The best of each conversation; of equals, the latest."""
    best: dict[int, Found] = {}
    for each in hits:
        known = best.setdefault(each.conversation, each)
        if each.score == known.score and each.id > known.id:
            best[each.conversation] = each
    return list(best.values())


def order(candidate: Candidate) -> tuple[float, int, str]:
    """Best first; of equals the one that was spoken in last."""
    return -candidate.score, -milliseconds(candidate.meta.updated_at), candidate.handle
