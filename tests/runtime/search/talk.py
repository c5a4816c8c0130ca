"""Talk: conversations in a storage, and an index that is told of them, as the runtime would."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from crabtalk.model.messages import Message, ToolCall
from crabtalk.runtime.search import Scope, SessionHit, SessionIndex
from crabtalk.storage import (
    FileStorage,
    MarkerRecord,
    MemoryStorage,
    MessageRecord,
    Meta,
    MetaRecord,
    Pair,
    Record,
    Storage,
)

CRAB = Pair("crab", "user")
OWL = Pair("owl", "user")
PATIENCE = 10.0
EVERYTHING = Scope()


def at(number: int) -> str:
    """A minute later with each number."""
    return f"2026-01-{1 + number // 1440:02}T{number // 60 % 24:02}:{number % 60:02}:00.000Z"


class Talk:
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
        self.metas: dict[Pair, Meta] = {}
        self.time = 0
        self.settles = False  # searches wait for the commit

    def _new_index(self) -> SessionIndex:
        return SessionIndex(
            self.storage, self.directory, index_tool_results=self._index_tool_results
        )

    # ── Speaking ────────────────────────────────────────────────────────────────────────────

    async def say(self, pair: Pair, *messages: Message | str) -> None:
        """A text is the user's. The log gets a snapshot at the end, as after a turn."""
        said = [Message("user", each) if isinstance(each, str) else each for each in messages]
        self.time += 1
        await self.keep(pair, [(each, at(self.time)) for each in said])

    async def keep(self, pair: Pair, messages: Sequence[tuple[Message, str]]) -> None:
        new = pair not in self.metas
        meta = Meta(*pair, created_at=at(self.time)) if new else self.metas[pair]
        records: list[Record] = [meta.snapshot()] if new else []
        for message, time in messages:
            records.append(MessageRecord(meta.message_count, time, message))
            meta = meta.patched(records[-1])
        records.append(meta.snapshot())
        self.metas[pair] = meta
        await self.storage.append(pair, records, create=new)
        self.index.appended(pair, records)

    async def title(self, pair: Pair, title: str) -> None:
        await self._patch(pair, MetaRecord(title=title))

    async def fold(self, pair: Pair, summary: str) -> None:
        self.time += 1
        count = self.metas[pair].message_count
        await self._patch(pair, MarkerRecord("archive", at(self.time), "Title", summary, count))

    async def _patch(self, pair: Pair, record: Record) -> None:
        self.metas[pair] = self.metas[pair].patched(record)
        await self.storage.append(pair, [record])
        self.index.appended(pair, [record])

    async def delete(self, pair: Pair) -> None:
        del self.metas[pair]
        await self.storage.delete(pair)
        self.index.deleted(pair)

    # ── Searching ───────────────────────────────────────────────────────────────────────────

    async def search(self, query: str, **options: Any) -> list[SessionHit]:
        if self.settles:
            await self.committed()
        return await self.index.search(query, scope=options.pop("scope", EVERYTHING), **options)

    async def found(self, query: str, **options: Any) -> list[str]:
        """Who speaks in what is found, best first."""
        return [f"{hit.agent}/{hit.sender}" for hit in await self.search(query, **options)]

    async def one(self, query: str, **options: Any) -> SessionHit:
        (hit,) = await self.search(query, **options)
        return hit

    # ── The index as a whole ────────────────────────────────────────────────────────────────

    async def committed(self) -> None:
        """Until all that was said is in the shelves, and no log is behind."""
        self.index.start()
        self.index.refresh()
        async with asyncio.timeout(PATIENCE):
            while not self.index.statistics().is_current:
                await asyncio.sleep(0.002)

    async def work_for(self, seconds: float) -> None:
        """Lets it begin with a commit, and come as far as it comes."""
        self.index.start()
        self.index.refresh()
        await asyncio.sleep(seconds)

    async def verified(self) -> None:
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
async def talking(home: Path, **options: Any) -> AsyncIterator[Talk]:
    home.mkdir(exist_ok=True)
    storage = FileStorage(home, flush=False)
    talk = Talk(storage, home / "index" / "sessions", **options)
    try:
        yield talk
    finally:
        await talk.index.close()
        await storage.close()


@asynccontextmanager
async def talking_in_memory(**options: Any) -> AsyncIterator[Talk]:
    talk = Talk(MemoryStorage(), **options)
    try:
        yield talk
    finally:
        await talk.index.close()


def calling(name: str, arguments: str, text: str = "") -> Message:
    return Message("assistant", text, tool_calls=(ToolCall("c1", name, arguments),))


def answering(text: str, name: str = "bash") -> Message:
    return Message("tool", text, call_id="c1", name=name)
