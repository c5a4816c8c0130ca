"""An index over a storage that other daemons write too, and that may be unavailable."""

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

# The tests are about the order of operations, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop

ELSEWHERE = Pair("crab", "elsewhere")


class SharedMemoryStorage(MemoryStorage):
    """Knows what changed since when. Its answers can be held back."""

    def __init__(self) -> None:
        super().__init__()
        self.is_unavailable = False
        self.unreadable: set[str] = set()
        self.is_asked = asyncio.Event()  # set by a request whose answer is held back
        self.answers_allowed = asyncio.Event()
        self.answers_allowed.set()
        self._changed: dict[str, int] = {}
        self._clock = 0

    def hold_answers(self) -> None:
        """From now on it reads when asked, but does not return the result."""
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
        versions = await super().read_versions()
        await self._wait_until_allowed()
        return versions

    async def read_new_records(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[RecordSlice | StorageError | None]:
        if self.is_unavailable:
            return [StorageUnavailableError("it is away") for _ in positions]
        results = await super().read_new_records(positions, limit)
        handles = [handle for handle, _ in positions]
        refused = StorageError("it cannot be read")
        answers = [
            refused if h in self.unreadable else r for h, r in zip(handles, results, strict=True)
        ]
        await self._wait_until_allowed()
        return answers

    async def _wait_until_allowed(self) -> None:
        if not self.answers_allowed.is_set():
            self.is_asked.set()
            await self.answers_allowed.wait()

    def _require_available(self) -> None:
        if self.is_unavailable:
            raise StorageUnavailableError("it is away")


class SharedSearchHarness(SearchHarness):
    """The index of one daemon, and another daemon that appends without its knowledge."""

    storage: SharedMemoryStorage

    def __init__(self, directory: Path) -> None:
        super().__init__(SharedMemoryStorage(), directory)
        self._other_metas: dict[Pair, ConversationMeta] = {}

    async def append_elsewhere(self, text: str, pair: Pair = ELSEWHERE) -> None:
        """Append as another daemon; ours is not informed."""
        is_new = pair not in self._other_metas
        meta = self._other_metas.get(pair) or ConversationMeta(*pair, created_at=format_minute(0))
        record = MessageRecord(meta.message_count, format_minute(1), Message("user", text))
        self._other_metas[pair] = meta.apply_record(record)
        snapshot: list[Record] = [meta.make_snapshot()] if is_new else []
        await self.storage.append(pair, [*snapshot, record], create=is_new)

    async def wait_until_found(self, query: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(await self.find_senders(query, limit=20)) != count:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def open_shared_harness(home: Path) -> AsyncIterator[SharedSearchHarness]:
    harness = SharedSearchHarness(home / "index")
    try:
        yield harness
    finally:
        harness.storage.is_unavailable = False
        harness.storage.answers_allowed.set()
        await harness.index.close()


@pytest.mark.req("search.away")
async def test_a_storage_that_is_unavailable_for_a_moment_costs_no_log(home: Path) -> None:
    async with open_shared_harness(home) as harness:
        for number in range(15):
            await harness.append_elsewhere(f"walnut {number}", Pair("crab", f"user{number}"))
        harness.storage.hold_answers()
        harness.index.start()
        await harness.storage.is_asked.wait()  # it knows all logs, and has read none
        harness.storage.is_unavailable = True
        harness.storage.answers_allowed.set()
        async with asyncio.timeout(PATIENCE):
            while not harness.index.statistics().error:
                await asyncio.sleep(0.001)
        assert not harness.index.statistics().is_current
        harness.storage.is_unavailable = False
        await harness.wait_until_found("walnut", 15)
        await harness.wait_until_committed()
        assert harness.index.statistics().error == ""
        await harness.restart()
        await harness.wait_until_found("walnut", 15)


@pytest.mark.req("search.away")
async def test_a_log_that_cannot_be_read_is_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_indexer, "AGAIN_SECONDS", 0.05)
    async with open_shared_harness(home) as harness:
        await harness.append_elsewhere("walnut")
        await harness.append_elsewhere("walnut as well", CRAB)
        harness.storage.unreadable = {make_log_name(ELSEWHERE)}
        harness.index.start()
        await harness.wait_until_found("walnut", 1)
        assert not harness.index.statistics().is_current
        harness.storage.unreadable = set()
        await harness.wait_until_found("walnut", 2)
        await harness.wait_until_committed()


@pytest.mark.req("search.away")
async def test_a_log_that_could_not_be_read_is_indexed_after_a_restart(home: Path) -> None:
    async with open_shared_harness(home) as harness:
        await harness.append_elsewhere("walnut")
        await harness.append_elsewhere("hazel", CRAB)
        harness.storage.unreadable = {make_log_name(ELSEWHERE)}
        harness.index.start()
        await harness.wait_until_found("hazel", 1)
        await harness.index.close()
        harness.storage.unreadable = set()
        harness.index = SessionIndex(harness.storage, harness.directory)
        await harness.wait_until_found("walnut", 1)


@pytest.mark.req("search.others")
async def test_changes_by_others_during_a_scan_are_found(home: Path) -> None:
    async with open_shared_harness(home) as harness:
        await harness.append_elsewhere("walnut")
        await harness.wait_until_committed()
        harness.storage.hold_answers()
        harness.index.rescan()
        await harness.storage.is_asked.wait()  # it has read the versions, but not compared them
        await harness.append_elsewhere("hazel")
        searching = asyncio.ensure_future(harness.find_senders("hazel"))  # asks for changes
        await asyncio.sleep(0.05)
        harness.storage.answers_allowed.set()
        assert await searching == ["crab/elsewhere"]
        assert await harness.find_senders("hazel") == ["crab/elsewhere"]


@pytest.mark.req("search.others")
async def test_changes_by_others_while_their_log_is_read_are_found(home: Path) -> None:
    async with open_shared_harness(home) as harness:
        await harness.append_elsewhere("walnut")
        await harness.wait_until_committed()
        harness.storage.hold_answers()
        await harness.append_elsewhere("hazel")
        first = asyncio.ensure_future(harness.find_senders("hazel"))
        await harness.storage.is_asked.wait()  # the log was read up to here
        await harness.append_elsewhere("beech")
        second = asyncio.ensure_future(harness.find_senders("beech"))
        await asyncio.sleep(0.05)
        harness.storage.answers_allowed.set()
        assert await first == ["crab/elsewhere"]
        assert await second == ["crab/elsewhere"]


@pytest.mark.req("search.others")
async def test_messages_appended_while_others_were_read_survive_a_crash(home: Path) -> None:
    async with open_shared_harness(home) as harness:
        await harness.append_messages(CRAB, "walnut")
        await harness.append_elsewhere("maple")
        await harness.wait_until_committed()
        harness.storage.hold_answers()
        await harness.append_elsewhere("hazel")
        searching = asyncio.ensure_future(harness.find_senders("hazel"))
        await harness.storage.is_asked.wait()
        await harness.append_messages(CRAB, "beech")  # it is only among the recent messages
        # This search asks for the changes since.
        assert await harness.find_senders("walnut") == ["crab/user"]
        harness.storage.answers_allowed.set()
        assert await searching == ["crab/elsewhere"]
        await asyncio.sleep(0.2)
        shutil.copytree(home / "index", home / "after a crash")
        index = SessionIndex(harness.storage, home / "after a crash")
        original, harness.index = harness.index, index
        try:
            await harness.wait_until_found("beech", 1)
        finally:
            await index.close()
            harness.index = original
