"""SessionIndex: search over every message of every conversation, as soon as it is appended.

New messages are in RecentMessages, all others in the IndexStore, which is fed from the logs. Hits
are shown as the logs have them: search returns nothing that is not in a log.
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

# Up to this many characters, building the hits is fast enough to need no thread.
INLINE_MATCH_CHARACTERS = 128 * 1024


def exclude_tool_results(agent: str) -> bool:
    return False


class SessionIndexStatistics(msgspec.Struct, frozen=True):
    """Counters and states of the index."""

    messages: int  # searchable ones, uncommitted ones included
    uncommitted: int
    logs_behind: int  # known logs still to be read
    commits: int
    rebuilds: int
    is_open: bool
    is_current: bool  # everything that was ever appended is committed
    is_verified: bool  # all its files were read once and are intact
    error: str  # why indexing does not progress; empty when it does


class SessionIndex:
    """Does nothing before the first append or search. Without a directory it is in memory.

    `index_tool_results` says of an agent whether its tool results may be found and shown.
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

    # ── Called by the runtime ───────────────────────────────────────────────────────────────

    def add_records(self, pair: Pair, records: Sequence[Record]) -> None:
        """These records were stored: they are searchable from now on."""
        self._recent.add(pair, records, tool_results=self._index_tool_results(pair.agent))
        self._indexer.wake()

    def remove_conversation(self, pair: Pair) -> None:
        """The conversation was deleted: nothing of it is found from now on."""
        self._recent.delete(pair)
        self._indexer.wake()

    def rescan(self) -> None:
        """Look through the logs again: agents may have changed what is searchable."""
        self._indexer.rescan()

    def start(self) -> None:
        """Open the index and catch up with the logs, in the background. Later calls do nothing."""
        self._indexer.start()

    def statistics(self) -> SessionIndexStatistics:
        indexer, recent = self._indexer, self._recent
        indexed = indexer.view.totals.documents if indexer.view is not None else 0
        return SessionIndexStatistics(
            messages=indexed + recent.messages,
            uncommitted=recent.messages,
            logs_behind=indexer.logs_behind,
            commits=indexer.commits,
            rebuilds=indexer.rebuilds,
            is_open=indexer.store is not None,
            is_current=indexer.is_current,
            is_verified=indexer.is_verified,
            error=indexer.error,
        )

    async def close(self) -> None:
        """Commit what a moment allows; the rest is read from the logs next time."""
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
        """Return the conversations that match best, each with the messages around its match.

        Everything appended before the call is searched, committed or not; but while old logs are
        read for the first time, those not read yet are not. Cancelled, it leaves nothing behind.
        """
        parsed = parse_query(query)
        if not parsed:
            return []
        await self._indexer.wait_until_open()
        await self._indexer.wait_until_current()
        limit = min(max(limit, 1), MAX_HITS)
        candidates = await self._rank(
            parsed, scope, (to_milliseconds(since), to_milliseconds(until)), limit
        )
        hits: list[SessionHit] = []
        while candidates and len(hits) < limit:
            batch, candidates = candidates[: limit - len(hits)], candidates[limit - len(hits) :]
            hits += await self._load_hits(batch, parsed, *clamp_window(before, after))
        return hits

    async def _rank(
        self,
        query: SearchQuery,
        scope: SearchScope,
        times: tuple[int | None, int | None],
        limit: int,
    ) -> list[HitCandidate]:
        store, view = self._indexer.store, self._indexer.view
        recent, deleted = self._recent.snapshot()

        def rank(store: IndexStore, view: IndexView) -> list[HitCandidate]:
            ranking = ConversationRanking(
                query, scope, times, view, store.manifest, recent, deleted
            )
            return ranking.find_candidates(limit)

        if store is not None and view is not None:
            try:
                return await asyncio.to_thread(rank, store, view)
            except DamagedIndexError as error:
                self._indexer.report_failure(store, str(error))
        # Recent messages are searched in any case.
        return await asyncio.to_thread(lambda: rank(empty := IndexStore(None), empty.view()))

    async def _load_hits(
        self, candidates: list[HitCandidate], query: SearchQuery, before: int, after: int
    ) -> list[SessionHit]:
        """Load the hits from their logs. Leaves out those whose log has changed."""
        windows = await self._storage.read_windows(
            [WindowRequest(c.handle, c.message_id, c.position, before, after) for c in candidates]
        )

        def build_hits() -> list[SessionHit | None]:
            return [
                build_hit(candidate, window, query, self._index_tool_results(candidate.meta.agent))
                for candidate, window in zip(candidates, windows, strict=True)
            ]

        size = sum(len(record.message.text) for window in windows for record in window)
        is_small = size < INLINE_MATCH_CHARACTERS
        built = build_hits() if is_small else await asyncio.to_thread(build_hits)
        for candidate, hit in zip(candidates, built, strict=True):
            if hit is None:
                self._indexer.mark_stale(candidate.handle)
        return [hit for hit in built if hit is not None]


def build_hit(
    candidate: HitCandidate, window: Sequence[MessageRecord], query: SearchQuery, tool_results: bool
) -> SessionHit | None:
    """Build a hit; None when the log no longer has the match."""
    number, meta = candidate.message_id, candidate.meta
    matched = next((record.message for record in window if record.id == number), None)
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
    """Milliseconds since 1970, as in the index."""
    return None if at is None else max(0, int(to_utc(at).timestamp() * 1000))
