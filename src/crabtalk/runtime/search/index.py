"""SessionIndex: every message of every conversation, findable the moment it is appended.

What was just said is in the tail, all else in the library, which follows the logs. What is found is
shown as the logs have it: nothing comes out of here that is not in them.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from crabtalk.storage import MessageRecord, Pair, Place, Record, Storage

from .document import in_utc
from .follower import Follower
from .hit import MAX_HITS, Scope, SessionHit, bounded_window
from .library import Library, View
from .ranking import Candidate, Ranking
from .shelf import DamagedError
from .tail import Tail
from .terms import Query, query_of
from .window import matches, window_of

# Text in which matches are found so quickly that no thread is needed for it, in characters.
SHORT = 128 * 1024


def never(agent: str) -> bool:
    return False


class Statistics(msgspec.Struct, frozen=True):
    """What the index is about."""

    messages: int  # that can be found, those in the tail included
    in_tail: int
    logs_behind: int  # still to be read, as far as is known
    commits: int
    rebuilds: int
    is_open: bool
    is_current: bool  # all that was ever appended is committed
    is_verified: bool  # all that is in its files was read once, and is as it was written
    error: str  # why it does not get on; empty when it does


class SessionIndex:
    """Nothing happens before the first append or search. Without a directory it is in memory.

    `index_tool_results` says of an agent whether what its tools answer may be found and shown.
    """

    def __init__(
        self,
        storage: Storage,
        directory: Path | None = None,
        *,
        index_tool_results: Callable[[str], bool] = never,
    ) -> None:
        self._storage = storage
        self._index_tool_results = index_tool_results
        self._tail = Tail()
        self._follower = Follower(storage, directory, self._tail, index_tool_results)

    # ── What the runtime tells ──────────────────────────────────────────────────────────────

    def appended(self, pair: Pair, records: Sequence[Record]) -> None:
        """These are kept: they can be found from now on."""
        self._tail.add(pair, records, tool_results=self._index_tool_results(pair.agent))
        self._follower.wake()

    def deleted(self, pair: Pair) -> None:
        """It is gone: nothing of it can be found from now on."""
        self._tail.delete(pair)
        self._follower.wake()

    def refresh(self) -> None:
        """Looks through the logs again: agents may have changed what is to be found."""
        self._follower.survey()

    def start(self) -> None:
        """Opens in the background what is there, and catches up with the logs. Once."""
        self._follower.start()

    def statistics(self) -> Statistics:
        follower, tail = self._follower, self._tail
        shelved = follower.view.totals.documents if follower.view is not None else 0
        return Statistics(
            messages=shelved + tail.messages,
            in_tail=tail.messages,
            logs_behind=follower.behind,
            commits=follower.commits,
            rebuilds=follower.rebuilds,
            is_open=follower.library is not None,
            is_current=follower.is_current,
            is_verified=follower.is_verified,
            error=follower.error,
        )

    async def close(self) -> None:
        """Keeps what it can within a moment; the rest is in the logs, and read next time."""
        await self._follower.close()

    # ── Searching ───────────────────────────────────────────────────────────────────────────

    async def search(
        self,
        query: str,
        *,
        scope: Scope,
        limit: int = 5,
        before: int = 4,
        after: int = 4,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[SessionHit]:
        """The conversations that match best, each with what was said around the match.

        Whatever was appended before is looked at, committed or not; while old logs are being read
        for the first time, those not read yet are not. Cancelled, it leaves nothing behind.
        """
        asked = query_of(query)
        if not asked:
            return []
        await self._follower.opened()
        await self._follower.caught_up()
        limit = min(max(limit, 1), MAX_HITS)
        candidates = await self._ranked(asked, scope, (stamp(since), stamp(until)), limit)
        hits: list[SessionHit] = []
        while candidates and len(hits) < limit:
            some, candidates = candidates[: limit - len(hits)], candidates[limit - len(hits) :]
            hits += await self._looked_at(some, asked, *bounded_window(before, after))
        return hits

    async def _ranked(
        self, query: Query, scope: Scope, times: tuple[int | None, int | None], limit: int
    ) -> list[Candidate]:
        library, view = self._follower.library, self._follower.view
        tail, gone = self._tail.snapshot()

        def rank(library: Library, view: View) -> list[Candidate]:
            ranking = Ranking(query, scope, times, view, library.manifest, tail, gone)
            return ranking.candidates(limit)

        if library is not None and view is not None:
            try:
                return await asyncio.to_thread(rank, library, view)
            except DamagedError as error:
                self._follower.has_failed(library, str(error))
        # What was just said can be found in any case.
        return await asyncio.to_thread(lambda: rank(nothing := Library(None), nothing.view()))

    async def _looked_at(
        self, candidates: list[Candidate], query: Query, before: int, after: int
    ) -> list[SessionHit]:
        """As their logs have them. What is not there any more is none."""
        windows = await self._storage.windows(
            [Place(c.handle, c.message_id, c.position, before, after) for c in candidates]
        )

        def show() -> list[SessionHit | None]:
            return [
                hit_of(candidate, window, query, self._index_tool_results(candidate.meta.agent))
                for candidate, window in zip(candidates, windows, strict=True)
            ]

        size = sum(len(each.message.text) for window in windows for each in window)
        found = show() if size < SHORT else await asyncio.to_thread(show)
        for candidate, hit in zip(candidates, found, strict=True):
            if hit is None:
                self._follower.is_stale(candidate.handle)
        return [hit for hit in found if hit is not None]


def hit_of(
    candidate: Candidate, window: Sequence[MessageRecord], query: Query, tool_results: bool
) -> SessionHit | None:
    """None when the log does not have what was found in it."""
    number, meta = candidate.message_id, candidate.meta
    matched = next((each.message for each in window if each.id == number), None)
    if matched is None:
        return None
    if candidate.by_message and not matches(matched, query, tool_results=tool_results):
        return None
    return SessionHit(
        handle=candidate.handle,
        agent=meta.agent,
        sender=meta.created_by,
        title=meta.title,
        created_at=meta.created_at,
        updated_at=meta.updated_at,
        message_count=meta.message_count,
        score=candidate.score,
        message_id=number,
        window=window_of(window, number, query, tool_results=tool_results),
    )


def stamp(at: datetime | None) -> int | None:
    """In milliseconds since 1970, as documents have it."""
    return None if at is None else max(0, int(in_utc(at).timestamp() * 1000))
