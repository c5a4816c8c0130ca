"""MemoryAndSearchHandlers: the requests that search sessions and read or replace memories."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from crabtalk.daemon.daemon import Daemon
from crabtalk.hooks import MemoryAccess
from crabtalk.memory import ALL_ENTRIES, MAX_ALIASES, EntryKind, MemoryEntry
from crabtalk.protocol import BadRequestError, NotFoundError, Server, wire
from crabtalk.runtime import DEFAULT_SENDER, SearchScope, SessionHit

from .error_mapping import translate_errors, unknown_agent_error

if TYPE_CHECKING:
    from crabtalk.memory import Memory, MemoryHit

DEFAULT_HITS = 5
MAX_HITS = 50
DEFAULT_CONTEXT_MESSAGES = 4  # messages before and after a hit
# Bytes of entries on one page; a larger entry has a page of its own.
PAGE_BYTES = 4 * 1024 * 1024
ENTRY_OVERHEAD_BYTES = 64  # of an entry in addition to its texts

MemoryRequest = wire.SearchMemoryMsg | wire.ListMemoryMsg | wire.ReplaceMemoryMsg


class MemoryAndSearchHandlers(Server):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    # ── Sessions ────────────────────────────────────────────────────────────────────────────

    async def search_sessions(self, request: wire.SearchSessionsMsg) -> wire.SessionHitList:
        """Any client may see all sessions; the filters are for its convenience."""
        await self._daemon.wait_until_ready()
        with translate_errors():
            hits = await self._daemon.index.search(
                request.query,
                scope=SearchScope(request.agent or None, request.sender or None),
                limit=request.limit if request.HasField("limit") else DEFAULT_HITS,
                before=request.context_before
                if request.HasField("context_before")
                else DEFAULT_CONTEXT_MESSAGES,
                after=request.context_after
                if request.HasField("context_after")
                else DEFAULT_CONTEXT_MESSAGES,
                since=parse_time_field("since", request.since),
                until=parse_time_field("until", request.until),
            )
        return wire.SessionHitList(hits=map(to_session_hit, hits))

    # ── Memory ──────────────────────────────────────────────────────────────────────────────

    # Without a sender, a client sees all of an agent's memory, with names as stored. With a sender,
    # it sees what that sender may see, with names as that sender gave them.

    async def search_memory(self, request: wire.SearchMemoryMsg) -> wire.MemoryHitList:
        limit = min(max(1, request.limit if request.HasField("limit") else DEFAULT_HITS), MAX_HITS)
        async with self._open_memory(request) as (memory, access):
            view = access.view if access is not None else ALL_ENTRIES
            hits = await asyncio.to_thread(memory.search, request.query, limit, view)
        if access is not None:
            hits = [hit._replace(entry=access.to_visible(hit.entry)) for hit in hits]
        return wire.MemoryHitList(hits=map(to_memory_hit, hits))

    async def list_memory(self, request: wire.ListMemoryMsg) -> wire.MemoryPage:
        async with self._open_memory(request) as (memory, access):
            if request.HasField("name"):
                # In a thread: another thread may hold the memory's lock for long.
                entry = await asyncio.to_thread(find_entry, memory, access, request.name)
                if entry is None:
                    raise NotFoundError(
                        f"{request.agent[:80]} remembers nothing called {request.name[:80]!r}"
                    )
                return wire.MemoryPage(entries=[to_memory_entry(entry)], total=1)
            return await asyncio.to_thread(
                lambda: to_memory_page(list_entries(memory, access), request.after)
            )

    async def replace_memory(self, request: wire.ReplaceMemoryMsg) -> None:
        # In a thread: there can be as many entries as a frame holds.
        entries = await asyncio.to_thread(
            lambda: [parse_memory_entry(message) for message in request.entries]
        )
        async with self._open_memory(request) as (memory, access):
            await asyncio.to_thread(replace_entries, memory, access, entries)

    @asynccontextmanager
    async def _open_memory(
        self, request: MemoryRequest
    ) -> AsyncIterator[tuple["Memory", MemoryAccess | None]]:
        runtime = await self._daemon.wait_until_ready()
        if request.agent not in runtime.agents:
            raise unknown_agent_error(request.agent)
        hook, agent, sender = self._daemon.memory, request.agent, request.sender
        access = hook.grant_sender_access(agent, sender) if sender else None
        with translate_errors():
            async with hook.acquire(agent, sender or DEFAULT_SENDER) as memory:
                yield memory, access


def find_entry(memory: "Memory", access: MemoryAccess | None, name: str) -> MemoryEntry | None:
    if access is None:
        return memory.get(name)
    entry = access.find(memory, name)
    return access.to_visible(entry) if entry is not None else None


def list_entries(memory: "Memory", access: MemoryAccess | None) -> list[MemoryEntry]:
    if access is None:
        return memory.entries()
    return list(map(access.to_visible, memory.entries(access.view)))


def replace_entries(
    memory: "Memory", access: MemoryAccess | None, entries: Iterable[MemoryEntry]
) -> None:
    if access is None:
        memory.replace(entries)
    else:
        memory.replace(map(access.to_stored, entries), access.view)


def parse_time_field(field: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequestError(
            f"{field} must be a time such as 2026-01-31T12:00:00Z, not {text[:40]!r}"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def to_session_hit(hit: SessionHit) -> wire.SessionHit:
    return wire.SessionHit(
        agent=hit.agent,
        sender=hit.sender,
        title=hit.title,
        updated_at=hit.updated_at,
        score=hit.score,
        message_id=hit.message_id,
        window=[
            wire.SessionHitItem(
                message_id=item.id,
                role=item.role,
                snippet=item.snippet,
                truncated=item.truncated,
                tool_name=item.tool_name or None,
            )
            for item in hit.window
        ],
    )


def to_memory_hit(hit: "MemoryHit") -> wire.MemoryHit:
    entry = hit.entry
    return wire.MemoryHit(
        name=entry.name,
        kind=entry.kind.name.lower(),
        content=entry.content,
        aliases=entry.aliases,
        score=hit.score,
        created_at=format_rfc_3339(entry.created_at),
    )


def format_rfc_3339(seconds: int) -> str:
    """Empty if the time is out of range, which happens in files of other programs."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""


def to_memory_page(entries: Sequence[MemoryEntry], after: int) -> wire.MemoryPage:
    page = wire.MemoryPage(total=len(entries))
    room = PAGE_BYTES
    for entry in entries:
        if entry.id <= after:
            continue
        room -= (
            ENTRY_OVERHEAD_BYTES
            + len(entry.content.encode())
            + count_name_bytes([entry.name, *entry.aliases])
        )
        if room < 0 and page.entries:
            page.next_after = page.entries[-1].number
            break
        page.entries.append(to_memory_entry(entry))
    return page


def count_name_bytes(names: Iterable[str]) -> int:
    return sum(len(name.encode()) for name in names)


def to_memory_entry(entry: MemoryEntry) -> wire.MemoryEntry:
    return wire.MemoryEntry(
        number=entry.id,
        name=entry.name,
        kind=entry.kind.name.lower(),
        content=entry.content,
        aliases=entry.aliases,
        created_at=entry.created_at,
    )


def parse_memory_entry(message: wire.MemoryEntry) -> MemoryEntry:
    try:
        kind = EntryKind[message.kind.upper() or "NOTE"]
    except KeyError:
        known = ", ".join(kind.name.lower() for kind in EntryKind)
        raise BadRequestError(f"a kind is one of {known}, not {message.kind[:40]!r}") from None
    # All aliases are built in one step, which blocks other requests.
    if len(message.aliases) > MAX_ALIASES:
        raise BadRequestError(
            f"{message.name[:60]!r} has more than {MAX_ALIASES} aliases; keep the best"
        )
    return MemoryEntry(
        0, message.created_at, kind, message.name, message.content, tuple(message.aliases)
    )
