"""Talk: conversations in a storage, and an index that is told of them, as the runtime would."""

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
    """A minute later with each number."""
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

    # ── Speaking ────────────────────────────────────────────────────────────────────────────

    async def append_messages(self, pair: Pair, *messages: Message | str) -> None:
        """A text is the user's. The log gets a snapshot at the end, as after a turn."""
        said = [Message("user", each) if isinstance(each, str) else each for each in messages]
        self.minute += 1
        await self.append_timed(pair, [(each, format_minute(self.minute)) for each in said])

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
        """Who speaks in what is found, best first."""
        return [f"{hit.agent}/{hit.sender}" for hit in await self.search(query, **options)]

    async def search_one(self, query: str, **options: Any) -> SessionHit:
        (hit,) = await self.search(query, **options)
        return hit

    # ── The index as a whole ────────────────────────────────────────────────────────────────

    async def wait_until_committed(self) -> None:
        """Until all that was said is in the shelves, and no log is behind."""
        self.index.start()
        self.index.rescan()
        async with asyncio.timeout(PATIENCE):
            while not self.index.statistics().is_current:
                await asyncio.sleep(0.002)

    async def index_for(self, seconds: float) -> None:
        """Lets it begin with a commit, and come as far as it comes."""
        self.index.start()
        self.index.rescan()
        await asyncio.sleep(seconds)

    async def wait_until_verified(self) -> None:
        """Until its files were looked through, and what came of that is done."""
        self.index.start()
        async with asyncio.timeout(PATIENCE):
            while not (self.index.statistics().is_verified and self.index.statistics().is_current):
                await asyncio.sleep(0.002)

    async def restart(self) -> None:
        """The index ends as it should, and another begins where it was."""
        await self.index.close()
        self.index = self._new_index()


@asynccontextmanager
async def open_harness(home: Path, **options: Any) -> AsyncIterator[SearchHarness]:
    home.mkdir(exist_ok=True)
    storage = FileStorage(home, flush=False)
    talk = SearchHarness(storage, home / "index" / "sessions", **options)
    try:
        yield talk
    finally:
        await talk.index.close()
        await storage.close()


@asynccontextmanager
async def open_harness_in_memory(**options: Any) -> AsyncIterator[SearchHarness]:
    talk = SearchHarness(MemoryStorage(), **options)
    try:
        yield talk
    finally:
        await talk.index.close()


def make_tool_call(name: str, arguments: str, text: str = "") -> Message:
    return Message("assistant", text, tool_calls=(ToolCall("c1", name, arguments),))


def make_tool_result(text: str, name: str = "bash") -> Message:
    return Message("tool", text, call_id="c1", name=name)
