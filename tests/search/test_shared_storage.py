"""An index over a storage that others append to as well, and that may be away for a while."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.model.messages import Message
from crabtalk.search import SessionIndex, log_indexer
from crabtalk.storage import (
    ConversationMeta,
    LogChanges,
    MemoryStorage,
    MessageRecord,
    Pair,
    Record,
    RecordSlice,
    StorageError,
    StorageUnavailableError,
    make_log_name,
)
from tests.search.search_harness import CRAB, PATIENCE, SearchHarness, format_minute

# What it tests is the order of things: which loop it is makes no difference.
pytestmark = pytest.mark.one_loop

ELSEWHERE = Pair("crab", "elsewhere")


class SharedMemoryStorage(MemoryStorage):
    """It knows what changed since when. What it is asked can be held up on its way back."""

    def __init__(self) -> None:
        super().__init__()
        self.is_unavailable = False
        self.unreadable: set[str] = set()
        self.is_asked = asyncio.Event()  # to follow, or for all versions, while that is held up
        self.answers_allowed = asyncio.Event()
        self.answers_allowed.set()
        self._changed: dict[str, int] = {}
        self._clock = 0

    def hold_answers(self) -> None:
        """From now on it has looked, and does not say what it saw."""
        self.answers_allowed.clear()
        self.is_asked.clear()

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        await super().append(pair, records, create=create)
        self._clock += 1
        self._changed[make_log_name(pair)] = self._clock

    async def read_changes(self, since: str) -> LogChanges:  # type: ignore[override] # ours can tell
        self._require_available()
        if not since:
            return LogChanges(str(self._clock), None, ())
        versions = await super().read_versions()
        new = {h: versions[h] for h, when in self._changed.items() if when > int(since)}
        return LogChanges(str(self._clock), new, ())

    async def read_versions(self) -> dict[str, int]:
        self._require_available()
        found = await super().read_versions()
        await self._wait_until_allowed()
        return found

    async def read_new_records(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[RecordSlice | StorageError | None]:
        if self.is_unavailable:
            return [StorageUnavailableError("it is away") for _ in positions]
        found = await super().read_new_records(positions, limit)
        handles = [handle for handle, _ in positions]
        refused = StorageError("it cannot be read")
        seen = [refused if h in self.unreadable else f for h, f in zip(handles, found, strict=True)]
        await self._wait_until_allowed()
        return seen

    async def _wait_until_allowed(self) -> None:
        if not self.answers_allowed.is_set():
            self.is_asked.set()
            await self.answers_allowed.wait()

    def _require_available(self) -> None:
        if self.is_unavailable:
            raise StorageUnavailableError("it is away")


class SharedSearchHarness(SearchHarness):
    """Our daemon's index, and another daemon that appends behind its back."""

    storage: SharedMemoryStorage

    def __init__(self, directory: Path) -> None:
        super().__init__(SharedMemoryStorage(), directory)
        self._other_metas: dict[Pair, ConversationMeta] = {}

    async def append_elsewhere(self, text: str, pair: Pair = ELSEWHERE) -> None:
        """Another daemon keeps this; ours is not told."""
        is_new = pair not in self._other_metas
        meta = self._other_metas.get(pair) or ConversationMeta(*pair, created_at=format_minute(0))
        record = MessageRecord(meta.message_count, format_minute(1), Message("user", text))
        self._other_metas[pair] = meta.apply_record(record)
        head: list[Record] = [meta.make_snapshot()] if is_new else []
        await self.storage.append(pair, [*head, record], create=is_new)

    async def wait_until_found(self, query: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(await self.find_senders(query, limit=20)) != count:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def open_shared_harness(home: Path) -> AsyncIterator[SharedSearchHarness]:
    found = SharedSearchHarness(home / "index")
    try:
        yield found
    finally:
        found.storage.is_unavailable = False
        found.storage.answers_allowed.set()
        await found.index.close()


@pytest.mark.req("search.away")
async def test_a_storage_that_is_away_for_a_moment_costs_no_log(home: Path) -> None:
    async with open_shared_harness(home) as on:
        for number in range(15):
            await on.append_elsewhere(f"walnut {number}", Pair("crab", f"user{number}"))
        on.storage.hold_answers()
        on.index.start()
        await on.storage.is_asked.wait()  # it knows of all, and has read none
        on.storage.is_unavailable = True
        on.storage.answers_allowed.set()
        async with asyncio.timeout(PATIENCE):
            while not on.index.statistics().error:
                await asyncio.sleep(0.001)
        assert not on.index.statistics().is_current
        on.storage.is_unavailable = False
        await on.wait_until_found("walnut", 15)
        await on.wait_until_committed()
        assert on.index.statistics().error == ""
        await on.restart()
        await on.wait_until_found("walnut", 15)


@pytest.mark.req("search.away")
async def test_a_log_that_cannot_be_read_is_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_indexer, "AGAIN_SECONDS", 0.05)
    async with open_shared_harness(home) as on:
        await on.append_elsewhere("walnut")
        await on.append_elsewhere("walnut as well", CRAB)
        on.storage.unreadable = {make_log_name(ELSEWHERE)}
        on.index.start()
        await on.wait_until_found("walnut", 1)
        assert not on.index.statistics().is_current
        on.storage.unreadable = set()
        await on.wait_until_found("walnut", 2)
        await on.wait_until_committed()


@pytest.mark.req("search.away")
async def test_a_log_that_could_not_be_read_is_read_after_a_restart(home: Path) -> None:
    async with open_shared_harness(home) as on:
        await on.append_elsewhere("walnut")
        await on.append_elsewhere("hazel", CRAB)
        on.storage.unreadable = {make_log_name(ELSEWHERE)}
        on.index.start()
        await on.wait_until_found("hazel", 1)
        await on.index.close()
        on.storage.unreadable = set()
        on.index = SessionIndex(on.storage, on.directory)
        await on.wait_until_found("walnut", 1)


@pytest.mark.req("search.others")
async def test_what_others_say_while_all_logs_are_looked_at_is_found(home: Path) -> None:
    async with open_shared_harness(home) as on:
        await on.append_elsewhere("walnut")
        await on.wait_until_committed()
        on.storage.hold_answers()
        on.index.rescan()
        await on.storage.is_asked.wait()  # the versions are known, and not yet compared
        await on.append_elsewhere("hazel")
        searching = asyncio.ensure_future(on.find_senders("hazel"))  # asks what has changed
        await asyncio.sleep(0.05)
        on.storage.answers_allowed.set()
        assert await searching == ["crab/elsewhere"]
        assert await on.find_senders("hazel") == ["crab/elsewhere"]


@pytest.mark.req("search.others")
async def test_what_others_say_while_their_log_is_read_is_found(home: Path) -> None:
    async with open_shared_harness(home) as on:
        await on.append_elsewhere("walnut")
        await on.wait_until_committed()
        on.storage.hold_answers()
        await on.append_elsewhere("hazel")
        first = asyncio.ensure_future(on.find_senders("hazel"))
        await on.storage.is_asked.wait()  # it was read as far as this
        await on.append_elsewhere("beech")
        second = asyncio.ensure_future(on.find_senders("beech"))
        await asyncio.sleep(0.05)
        on.storage.answers_allowed.set()
        assert await first == ["crab/elsewhere"]
        assert await second == ["crab/elsewhere"]


@pytest.mark.req("search.others")
async def test_what_was_said_while_others_were_read_outlives_a_crash(home: Path) -> None:
    async with open_shared_harness(home) as on:
        await on.append_messages(CRAB, "walnut")
        await on.append_elsewhere("maple")
        await on.wait_until_committed()
        on.storage.hold_answers()
        await on.append_elsewhere("hazel")
        searching = asyncio.ensure_future(on.find_senders("hazel"))
        await on.storage.is_asked.wait()
        await on.append_messages(CRAB, "beech")  # it is in the tail alone
        assert await on.find_senders("walnut") == [
            "crab/user"
        ]  # it has asked what changed meanwhile
        on.storage.answers_allowed.set()
        assert await searching == ["crab/elsewhere"]
        await asyncio.sleep(0.2)
        shutil.copytree(home / "index", home / "after a crash")
        index = SessionIndex(on.storage, home / "after a crash")
        ours, on.index = on.index, index
        try:
            await on.wait_until_found("beech", 1)
        finally:
            await index.close()
            on.index = ours
