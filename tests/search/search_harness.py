"""SearchHarness: conversations in a storage, and an index that is informed as by the runtime."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from crabtalk.model.messages import Message, ToolCall
from crabtalk.search import SearchScope, SessionHit, SessionIndex
from crabtalk.storage import (
    ConversationMeta,
    FileStorage,
    MarkerRecord,
    MemoryStorage,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    Storage,
)

CRAB = Pair("crab", "user")
OWL = Pair("owl", "user")
PATIENCE = 10.0
UNLIMITED = SearchScope()


def format_minute(number: int) -> str:
    """A timestamp, one minute later for each number."""
    return f"2026-01-{1 + number // 1440:02}T{number // 60 % 24:02}:{number % 60:02}:00.000Z"


class SearchHarness:
    def __init__(
        self,
        storage: Storage,
        directory: Path | None = None,
        *,
        index_tool_results: Callable[[str], bool] = lambda agent: False,
    ) -> None:
        self.storage = storage
        self.directory = directory
        self._index_tool_results = index_tool_results
        self.index = self._new_index()
        self.metas: dict[Pair, ConversationMeta] = {}
        self.minute = 0
        self.commits_first = False  # searches wait for the commit

    def _new_index(self) -> SessionIndex:
        return SessionIndex(
            self.storage, self.directory, index_tool_results=self._index_tool_results
        )

    # ── Appending ───────────────────────────────────────────────────────────────────────────

    async def append_messages(self, pair: Pair, *messages: Message | str) -> None:
        """Append messages; a text is a user's. The log gets a snapshot last, as after a turn."""
        converted = [Message("user", m) if isinstance(m, str) else m for m in messages]
        self.minute += 1
        await self.append_timed(pair, [(m, format_minute(self.minute)) for m in converted])

    async def append_timed(self, pair: Pair, messages: Sequence[tuple[Message, str]]) -> None:
        new = pair not in self.metas
        meta = (
            ConversationMeta(*pair, created_at=format_minute(self.minute))
            if new
            else self.metas[pair]
        )
        records: list[Record] = [meta.make_snapshot()] if new else []
        for message, time in messages:
            records.append(MessageRecord(meta.message_count, time, message))
            meta = meta.apply_record(records[-1])
        records.append(meta.make_snapshot())
        self.metas[pair] = meta
        await self.storage.append(pair, records, create=new)
        self.index.add_records(pair, records)

    async def set_title(self, pair: Pair, title: str) -> None:
        await self._append_record(pair, MetaRecord(title=title))

    async def append_summary(self, pair: Pair, summary: str) -> None:
        self.minute += 1
        count = self.metas[pair].message_count
        await self._append_record(
            pair, MarkerRecord("archive", format_minute(self.minute), "Title", summary, count)
        )

    async def _append_record(self, pair: Pair, record: Record) -> None:
        self.metas[pair] = self.metas[pair].apply_record(record)
        await self.storage.append(pair, [record])
        self.index.add_records(pair, [record])

    async def delete(self, pair: Pair) -> None:
        del self.metas[pair]
        await self.storage.delete_conversation(pair)
        self.index.remove_conversation(pair)

    # ── Searching ───────────────────────────────────────────────────────────────────────────

    async def search(self, query: str, **options: Any) -> list[SessionHit]:
        if self.commits_first:
            await self.wait_until_committed()
        return await self.index.search(query, scope=options.pop("scope", UNLIMITED), **options)

    async def find_senders(self, query: str, **options: Any) -> list[str]:
        """The agents and senders of the hits, best first."""
        return [f"{hit.agent}/{hit.sender}" for hit in await self.search(query, **options)]

    async def search_one(self, query: str, **options: Any) -> SessionHit:
        (hit,) = await self.search(query, **options)
        return hit

    # ── The index as a whole ────────────────────────────────────────────────────────────────

    async def wait_until_committed(self) -> None:
        """Wait until everything is committed, and no log is behind."""
        self.index.start()
        self.index.rescan()
        async with asyncio.timeout(PATIENCE):
            while not self.index.statistics().is_current:
                await asyncio.sleep(0.002)

    async def index_for(self, seconds: float) -> None:
        """Start a commit, and let it get as far as it gets in this time."""
        self.index.start()
        self.index.rescan()
        await asyncio.sleep(seconds)

    async def wait_until_verified(self) -> None:
        """Wait until the files were verified, and any repair is done."""
        self.index.start()
        async with asyncio.timeout(PATIENCE):
            while not (self.index.statistics().is_verified and self.index.statistics().is_current):
                await asyncio.sleep(0.002)

    async def restart(self) -> None:
        """Close the index properly, and open another in its place."""
        await self.index.close()
        self.index = self._new_index()


@asynccontextmanager
async def open_harness(home: Path, **options: Any) -> AsyncIterator[SearchHarness]:
    home.mkdir(exist_ok=True)
    storage = FileStorage(home, flush=False)
    harness = SearchHarness(storage, home / "index" / "sessions", **options)
    try:
        yield harness
    finally:
        await harness.index.close()
        await storage.close()


@asynccontextmanager
async def open_harness_in_memory(**options: Any) -> AsyncIterator[SearchHarness]:
    harness = SearchHarness(MemoryStorage(), **options)
    try:
        yield harness
    finally:
        await harness.index.close()


def make_tool_call(name: str, arguments: str, text: str = "") -> Message:
    return Message("assistant", text, tool_calls=(ToolCall("c1", name, arguments),))


def make_tool_result(text: str, name: str = "bash") -> Message:
    return Message("tool", text, call_id="c1", name=name)
