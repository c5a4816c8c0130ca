"""An index over a storage that others append to as well, and that may be away for a while."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.model.messages import Message
from crabtalk.runtime.search import SessionIndex, follower
from crabtalk.storage import (
    Changes,
    Followed,
    MemoryStorage,
    MessageRecord,
    Meta,
    Pair,
    Record,
    StorageError,
    StorageUnavailableError,
    log_name,
)
from tests.runtime.search.talk import CRAB, PATIENCE, Talk, at

# What it tests is the order of things: which loop it is makes no difference.
pytestmark = pytest.mark.one_loop

ELSEWHERE = Pair("crab", "elsewhere")


class Shared(MemoryStorage):
    """It knows what changed since when. What it is asked can be held up on its way back."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.unreadable: set[str] = set()
        self.asked = asyncio.Event()  # to follow, or for all versions, while that is held up
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._changed: dict[str, int] = {}
        self._clock = 0

    def hold(self) -> None:
        """From now on it has looked, and does not say what it saw."""
        self.may_answer.clear()
        self.asked.clear()

    async def append(self, pair: Pair, records: Sequence[Record], *, create: bool = False) -> None:
        await super().append(pair, records, create=create)
        self._clock += 1
        self._changed[log_name(pair)] = self._clock

    async def changes(self, since: str) -> Changes:  # type: ignore[override] # ours can tell
        self._check()
        if not since:
            return Changes(str(self._clock), None, ())
        versions = await super().versions()
        new = {h: versions[h] for h, when in self._changed.items() if when > int(since)}
        return Changes(str(self._clock), new, ())

    async def versions(self) -> dict[str, int]:
        self._check()
        found = await super().versions()
        await self._let()
        return found

    async def follow(
        self, positions: Sequence[tuple[str, int]], limit: int
    ) -> list[Followed | StorageError | None]:
        if self.is_away:
            return [StorageUnavailableError("it is away") for _ in positions]
        found = await super().follow(positions, limit)
        handles = [handle for handle, _ in positions]
        refused = StorageError("it cannot be read")
        seen = [refused if h in self.unreadable else f for h, f in zip(handles, found, strict=True)]
        await self._let()
        return seen

    async def _let(self) -> None:
        if not self.may_answer.is_set():
            self.asked.set()
            await self.may_answer.wait()

    def _check(self) -> None:
        if self.is_away:
            raise StorageUnavailableError("it is away")


class Shore(Talk):
    """Our daemon's index, and another daemon that appends behind its back."""

    storage: Shared

    def __init__(self, directory: Path) -> None:
        super().__init__(Shared(), directory)
        self._others: dict[Pair, Meta] = {}

    async def elsewhere(self, text: str, pair: Pair = ELSEWHERE) -> None:
        """Another daemon keeps this; ours is not told."""
        is_new = pair not in self._others
        meta = self._others.get(pair) or Meta(*pair, created_at=at(0))
        record = MessageRecord(meta.message_count, at(1), Message("user", text))
        self._others[pair] = meta.patched(record)
        head: list[Record] = [meta.snapshot()] if is_new else []
        await self.storage.append(pair, [*head, record], create=is_new)

    async def found_soon(self, query: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(await self.found(query, limit=20)) != count:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def shore(home: Path) -> AsyncIterator[Shore]:
    found = Shore(home / "index")
    try:
        yield found
    finally:
        found.storage.is_away = False
        found.storage.may_answer.set()
        await found.index.close()


@pytest.mark.req("search.away")
async def test_a_storage_that_is_away_for_a_moment_costs_no_log(home: Path) -> None:
    async with shore(home) as on:
        for number in range(15):
            await on.elsewhere(f"walnut {number}", Pair("crab", f"user{number}"))
        on.storage.hold()
        on.index.start()
        await on.storage.asked.wait()  # it knows of all, and has read none
        on.storage.is_away = True
        on.storage.may_answer.set()
        async with asyncio.timeout(PATIENCE):
            while not on.index.statistics().error:
                await asyncio.sleep(0.001)
        assert not on.index.statistics().is_current
        on.storage.is_away = False
        await on.found_soon("walnut", 15)
        await on.committed()
        assert on.index.statistics().error == ""
        await on.restart()
        await on.found_soon("walnut", 15)


@pytest.mark.req("search.away")
async def test_a_log_that_cannot_be_read_is_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "AGAIN_SECONDS", 0.05)
    async with shore(home) as on:
        await on.elsewhere("walnut")
        await on.elsewhere("walnut as well", CRAB)
        on.storage.unreadable = {log_name(ELSEWHERE)}
        on.index.start()
        await on.found_soon("walnut", 1)
        assert not on.index.statistics().is_current
        on.storage.unreadable = set()
        await on.found_soon("walnut", 2)
        await on.committed()


@pytest.mark.req("search.away")
async def test_a_log_that_could_not_be_read_is_read_after_a_restart(home: Path) -> None:
    async with shore(home) as on:
        await on.elsewhere("walnut")
        await on.elsewhere("hazel", CRAB)
        on.storage.unreadable = {log_name(ELSEWHERE)}
        on.index.start()
        await on.found_soon("hazel", 1)
        await on.index.close()
        on.storage.unreadable = set()
        on.index = SessionIndex(on.storage, on.directory)
        await on.found_soon("walnut", 1)


@pytest.mark.req("search.others")
async def test_what_others_say_while_all_logs_are_looked_at_is_found(home: Path) -> None:
    async with shore(home) as on:
        await on.elsewhere("walnut")
        await on.committed()
        on.storage.hold()
        on.index.refresh()
        await on.storage.asked.wait()  # the versions are known, and not yet compared
        await on.elsewhere("hazel")
        searching = asyncio.ensure_future(on.found("hazel"))  # asks what has changed
        await asyncio.sleep(0.05)
        on.storage.may_answer.set()
        assert await searching == ["crab/elsewhere"]
        assert await on.found("hazel") == ["crab/elsewhere"]


@pytest.mark.req("search.others")
async def test_what_others_say_while_their_log_is_read_is_found(home: Path) -> None:
    async with shore(home) as on:
        await on.elsewhere("walnut")
        await on.committed()
        on.storage.hold()
        await on.elsewhere("hazel")
        first = asyncio.ensure_future(on.found("hazel"))
        await on.storage.asked.wait()  # it was read as far as this
        await on.elsewhere("beech")
        second = asyncio.ensure_future(on.found("beech"))
        await asyncio.sleep(0.05)
        on.storage.may_answer.set()
        assert await first == ["crab/elsewhere"]
        assert await second == ["crab/elsewhere"]


@pytest.mark.req("search.others")
async def test_what_was_said_while_others_were_read_outlives_a_crash(home: Path) -> None:
    async with shore(home) as on:
        await on.say(CRAB, "walnut")
        await on.elsewhere("maple")
        await on.committed()
        on.storage.hold()
        await on.elsewhere("hazel")
        searching = asyncio.ensure_future(on.found("hazel"))
        await on.storage.asked.wait()
        await on.say(CRAB, "beech")  # it is in the tail alone
        assert await on.found("walnut") == ["crab/user"]  # it has asked what changed meanwhile
        on.storage.may_answer.set()
        assert await searching == ["crab/elsewhere"]
        await asyncio.sleep(0.2)
        shutil.copytree(home / "index", home / "after a crash")
        index = SessionIndex(on.storage, home / "after a crash")
        ours, on.index = on.index, index
        try:
            await on.found_soon("beech", 1)
        finally:
            await index.close()
            on.index = ours
