"""SessionIndex: every message of every conversation, findable the moment it is appended.

What was just said is in the tail, all else in the library, which follows the logs. What is found is
shown as the logs have it: nothing comes out of here that is not in them.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from crabtalk.storage import MessageRecord, Pair, Record, Storage, WindowRequest

from .hit_window import build_window, matches_query
from .index_store import IndexStore, IndexView
from .log_indexer import LogIndexer
from .ranking import ConversationRanking, HitCandidate
from .recent_messages import RecentMessages
from .results import MAX_HITS, SearchScope, SessionHit, clamp_window
from .searchable_text import to_utc
from .tantivy_index import DamagedIndexError
from .terms import SearchQuery, parse_query

# Text in which matches are found so quickly that no thread is needed for it, in characters.
INLINE_MATCH_CHARACTERS = 128 * 1024


def exclude_tool_results(agent: str) -> bool:
    return False


class SessionIndexStatistics(msgspec.Struct, frozen=True):
    """What the index is about."""

    messages: int  # that can be found, those in the tail included
    uncommitted: int
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
        index_tool_results: Callable[[str], bool] = exclude_tool_results,
    ) -> None:
        self._storage = storage
        self._index_tool_results = index_tool_results
        self._recent = RecentMessages()
        self._indexer = LogIndexer(storage, directory, self._recent, index_tool_results)

    # ── What the runtime tells ──────────────────────────────────────────────────────────────

    def add_records(self, pair: Pair, records: Sequence[Record]) -> None:
        """These are kept: they can be found from now on."""
        self._recent.add(pair, records, tool_results=self._index_tool_results(pair.agent))
        self._indexer.wake()

    def remove_conversation(self, pair: Pair) -> None:
        """It is gone: nothing of it can be found from now on."""
        self._recent.delete(pair)
        self._indexer.wake()

    def rescan(self) -> None:
        """Looks through the logs again: agents may have changed what is to be found."""
        self._indexer.rescan()

    def start(self) -> None:
        """Opens in the background what is there, and catches up with the logs. Once."""
        self._indexer.start()

    def statistics(self) -> SessionIndexStatistics:
        follower, tail = self._indexer, self._recent
        shelved = follower.view.totals.documents if follower.view is not None else 0
        return SessionIndexStatistics(
            messages=shelved + tail.messages,
            uncommitted=tail.messages,
            logs_behind=follower.logs_behind,
            commits=follower.commits,
            rebuilds=follower.rebuilds,
            is_open=follower.store is not None,
            is_current=follower.is_current,
            is_verified=follower.is_verified,
            error=follower.error,
        )

    async def close(self) -> None:
        """Keeps what it can within a moment; the rest is in the logs, and read next time."""
        await self._indexer.close()

    # ── Searching ───────────────────────────────────────────────────────────────────────────

    async def search(
        self,
        query: str,
        *,
        scope: SearchScope,
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
        asked = parse_query(query)
        if not asked:
            return []
        await self._indexer.wait_until_open()
        await self._indexer.wait_until_current()
        limit = min(max(limit, 1), MAX_HITS)
        candidates = await self._rank(
            asked, scope, (to_milliseconds(since), to_milliseconds(until)), limit
        )
        hits: list[SessionHit] = []
        while candidates and len(hits) < limit:
            some, candidates = candidates[: limit - len(hits)], candidates[limit - len(hits) :]
            hits += await self._load_hits(some, asked, *clamp_window(before, after))
        return hits

    async def _rank(
        self,
        query: SearchQuery,
        scope: SearchScope,
        times: tuple[int | None, int | None],
        limit: int,
    ) -> list[HitCandidate]:
        library, view = self._indexer.store, self._indexer.view
        tail, gone = self._recent.snapshot()

        def rank(library: IndexStore, view: IndexView) -> list[HitCandidate]:
            ranking = ConversationRanking(query, scope, times, view, library.manifest, tail, gone)
            return ranking.find_candidates(limit)

        if library is not None and view is not None:
            try:
                return await asyncio.to_thread(rank, library, view)
            except DamagedIndexError as error:
                self._indexer.report_failure(library, str(error))
        # What was just said can be found in any case.
        return await asyncio.to_thread(lambda: rank(nothing := IndexStore(None), nothing.view()))

    async def _load_hits(
        self, candidates: list[HitCandidate], query: SearchQuery, before: int, after: int
    ) -> list[SessionHit]:
        """As their logs have them. What is not there any more is none."""
        windows = await self._storage.read_windows(
            [WindowRequest(c.handle, c.message_id, c.position, before, after) for c in candidates]
        )

        def show() -> list[SessionHit | None]:
            return [
                build_hit(candidate, window, query, self._index_tool_results(candidate.meta.agent))
                for candidate, window in zip(candidates, windows, strict=True)
            ]

        size = sum(len(each.message.text) for window in windows for each in window)
        found = show() if size < INLINE_MATCH_CHARACTERS else await asyncio.to_thread(show)
        for candidate, hit in zip(candidates, found, strict=True):
            if hit is None:
                self._indexer.mark_stale(candidate.handle)
        return [hit for hit in found if hit is not None]


def build_hit(
    candidate: HitCandidate, window: Sequence[MessageRecord], query: SearchQuery, tool_results: bool
) -> SessionHit | None:
    """None when the log does not have what was found in it."""
    number, meta = candidate.message_id, candidate.meta
    matched = next((each.message for each in window if each.id == number), None)
    if matched is None:
        return None
    if candidate.is_message_match and not matches_query(matched, query, tool_results=tool_results):
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
        window=build_window(window, number, query, tool_results=tool_results),
    )


def to_milliseconds(at: datetime | None) -> int | None:
    """In milliseconds since 1970, as documents have it."""
    return None if at is None else max(0, int(to_utc(at).timestamp() * 1000))
