"""Following the logs: what comes after a position, and what is around a message."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model.messages import Message
from crabtalk.storage import (
    FileStorage,
    Followed,
    MessageRecord,
    Pair,
    Place,
    Record,
    Storage,
    StorageError,
    log_name,
)
from crabtalk.storage.records import EventRecord, encode, encode_line
from crabtalk.storage.trail import SLICE, SLICES, follow, read_window
from tests.storage.backends import BACKENDS, backend
from tests.storage.samples import (
    AT,
    PAIR,
    every_kind,
    folded,
    log_of,
    opened,
    opening,
    said,
    sealed,
)

HANDLE = log_name(PAIR)
OTHER = Pair("crab", "user")
PLENTY = 1 << 20


@pytest.fixture(params=BACKENDS)
async def storage(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Storage]:
    async with backend(request.param, home, request) as made:
        yield made


async def followed(storage: Storage, position: int = 0, limit: int = PLENTY) -> Followed:
    (found,) = await storage.follow([(HANDLE, position)], limit)
    assert isinstance(found, Followed)
    return found


def records_of(found: Followed) -> list[Record]:
    return [record for _, record in found.records]


async def around(
    storage: Storage, number: int, before: int, after: int, position: int = 0
) -> list[int]:
    place = Place(HANDLE, number, position, before, after)
    (window,) = await storage.windows([place])
    return [record.id for record in window]


# ── Versions ────────────────────────────────────────────────────────────────────────────────────


async def test_versions_are_of_every_conversation_and_change_with_it(storage: Storage) -> None:
    assert await storage.versions() == {}
    await storage.append(PAIR, [opening(), said(0)], create=True)
    await storage.append(OTHER, [opening(OTHER)], create=True)
    before = await storage.versions()
    assert before.keys() == {HANDLE, log_name(OTHER)}
    await storage.append(PAIR, [said(1)])
    after = await storage.versions()
    assert after[HANDLE] != before[HANDLE]
    assert after[log_name(OTHER)] == before[log_name(OTHER)]
    await storage.delete(OTHER)
    assert (await storage.versions()).keys() == {HANDLE}


async def test_another_conversation_of_the_same_length_has_another_version(
    storage: Storage,
) -> None:
    await storage.append(PAIR, [opening(), said(0, "one")], create=True)
    before = await storage.versions()
    await storage.delete(PAIR)
    await storage.append(OTHER, [opening(OTHER)], create=True)
    await storage.append(PAIR, [opening(), said(0, "two")], create=True)
    assert (await storage.versions())[HANDLE] != before[HANDLE]


async def test_who_has_followed_to_the_end_knows_the_version(storage: Storage) -> None:
    await storage.append(PAIR, every_kind(), create=True)
    assert (await followed(storage)).version == (await storage.versions())[HANDLE]


# ── Following ───────────────────────────────────────────────────────────────────────────────────


async def test_what_is_followed_is_all_but_the_traces_in_order(storage: Storage) -> None:
    await storage.append(PAIR, every_kind(), create=True)
    found = await followed(storage)
    assert found.pair == PAIR
    assert found.origin == AT
    assert found.start == 0
    assert not found.more
    assert records_of(found) == [r for r in every_kind() if not isinstance(r, EventRecord)]


async def test_following_goes_on_where_it_stopped(storage: Storage) -> None:
    await storage.append(PAIR, [opening(), said(0)], create=True)
    first = await followed(storage)
    await storage.append(PAIR, [said(1), said(2)])
    second = await followed(storage, first.position)
    assert second.start == first.position
    assert records_of(second) == [said(1), said(2)]
    third = await followed(storage, second.position)
    assert third.records == ()
    assert third.position == second.position


async def test_any_position_of_a_record_can_be_followed_from(storage: Storage) -> None:
    await storage.append(PAIR, every_kind(), create=True)
    everything = await followed(storage)
    for number, (position, _) in enumerate(everything.records):
        rest = await followed(storage, position)
        assert rest.records == everything.records[number:]


@pytest.mark.parametrize("limit", [0, 1, 300, 5_000])
async def test_a_limit_makes_it_come_in_parts_with_nothing_lost(
    storage: Storage, limit: int
) -> None:
    records: list[Record] = [opening(), *(said(n, "x" * (37 * n)) for n in range(40))]
    await storage.append(PAIR, records, create=True)
    found: list[Record] = []
    position, parts, more = 0, 0, True
    while more:
        part = await followed(storage, position, limit)
        assert part.start == position
        assert part.records
        found += records_of(part)
        position, more = part.position, part.more
        parts += 1
    assert found == records
    assert parts > 2


async def test_a_conversation_that_is_not_there_is_not_followed(storage: Storage) -> None:
    missing = [(HANDLE, 0), ("../../etc/passwd", 0)]
    assert await storage.follow(missing, PLENTY) == [None, None]
    await storage.append(PAIR, [opening()], create=True)
    await storage.delete(PAIR)
    assert await storage.follow(missing, PLENTY) == [None, None]


async def test_several_are_followed_at_once_each_from_where_it_was_read_to(
    storage: Storage,
) -> None:
    await storage.append(PAIR, [opening(), said(0)], create=True)
    half = (await followed(storage)).position
    await storage.append(PAIR, [said(1)])
    await storage.append(OTHER, [opening(OTHER), said(0)], create=True)
    other, missing, first = await storage.follow(
        [(log_name(OTHER), 0), (log_name(Pair("crab", "nobody")), 0), (HANDLE, half)], PLENTY
    )
    assert isinstance(other, Followed)
    assert isinstance(first, Followed)
    assert missing is None
    assert (other.pair, first.pair) == (OTHER, PAIR)
    assert records_of(other)[-1] == said(0)
    assert records_of(first) == [said(1)]


async def test_a_position_past_the_end_starts_again(storage: Storage) -> None:
    await storage.append(PAIR, [opening(), said(0)], create=True)
    found = await followed(storage, 1_000_000)
    assert found.start == 0
    assert records_of(found) == [opening(), said(0)]


async def test_a_line_that_is_being_written_is_not_followed(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), said(0)], create=True)
        whole = log_of(home).stat().st_size
        line = encode_line(said(1, "y" * 100_000))
        for cut in (1, 20, len(line) - 1):
            with log_of(home).open("r+b") as log:
                log.truncate(whole)
                log.seek(whole)
                log.write(line[:cut])
            for limit in (10, PLENTY):
                found = await followed(storage, whole, limit)
                assert found.records == ()
                assert found.position == whole
                assert not found.more


async def test_a_position_inside_a_line_starts_again(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), said(0), said(1)], create=True)
        lines = sealed([opening(), said(0)])
        assert (await followed(storage, len(lines))).start == len(lines)
        assert (await followed(storage, len(lines) - 2)).start == 0


async def test_lines_nobody_can_read_are_passed_over(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), said(0)], create=True)
        with log_of(home).open("ab") as log:
            log.write(b'\0\0\0\n\n{"kind":"message"}\n')
        await storage.append(PAIR, [said(1)])
        assert records_of(await followed(storage)) == [opening(), said(0), said(1)]


async def test_a_log_whose_first_line_is_unreadable_is_followed_all_the_same(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), said(0), opening()], create=True)
        data = log_of(home).read_bytes()
        log_of(home).write_bytes(b"?" + data[1:])
        found = await followed(storage)
        assert found.pair == PAIR
        assert records_of(found) == [said(0), opening()]


async def test_a_log_of_nobody_is_not_followed(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening()], create=True)
        log_of(home).write_bytes(encode([said(0)]))
        assert await storage.follow([(HANDLE, 0)], PLENTY) == [None]


async def test_a_log_that_cannot_be_read_does_not_keep_others_from_being_followed(
    home: Path,
) -> None:
    async with opened(home) as storage:
        await storage.append(OTHER, [opening(OTHER), said(0)], create=True)
        log_of(home).mkdir()
        error, other = await storage.follow([(HANDLE, 0), (log_name(OTHER), 0)], PLENTY)
        assert isinstance(error, StorageError)
        assert isinstance(other, Followed)


async def test_a_line_larger_than_the_limit_comes_whole(home: Path) -> None:
    async with opened(home) as storage:
        large = said(0, "z" * 700_000)
        await storage.append(PAIR, [opening(), large, said(1)], create=True)
        start = len(sealed([opening()]))
        found = await followed(storage, start, 1_000)
        assert records_of(found) == [large]
        assert found.more
        assert records_of(await followed(storage, found.position, 1_000)) == [said(1)]


# ── Windows ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("number", "before", "after", "expected"),
    [
        (5, 2, 2, [3, 4, 5, 6, 7]),
        (0, 4, 1, [0, 1]),
        (9, 1, 4, [8, 9]),
        (5, 0, 0, [5]),
        (4, 100, 100, list(range(10))),
        (10, 3, 3, []),
    ],
)
async def test_a_window_is_the_message_and_those_around_it(
    storage: Storage, number: int, before: int, after: int, expected: list[int]
) -> None:
    await storage.append(PAIR, [opening(), *map(said, range(4)), folded(4)], create=True)
    await storage.append(PAIR, [EventRecord("done", AT), *map(said, range(4, 10)), opening()])
    positions = {r.id: at for at, r in (await followed(storage)).records if hasattr(r, "id")}
    hints = [positions.get(number, 0), 0, 7, 1_000_000]
    for hint in hints:
        assert await around(storage, number, before, after, hint) == expected


async def test_windows_come_in_the_order_of_their_places(storage: Storage) -> None:
    await storage.append(PAIR, [opening(), *map(said, range(4))], create=True)
    await storage.append(OTHER, [opening(OTHER), said(0, "other")], create=True)
    places = [
        Place(log_name(OTHER), 0, 0, 1, 1),
        Place("gone", 0, 0, 1, 1),
        Place(HANDLE, 3, 0, 1, 1),
    ]
    windows = await storage.windows(places)
    assert windows == [(said(0, "other"),), (), (said(2), said(3))]
    assert await storage.windows([]) == []


async def test_a_message_that_is_damaged_has_no_window(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening(), *map(said, range(4))], create=True)
        data = log_of(home).read_bytes()
        log_of(home).write_bytes(data.replace(b'"id":2,', b'"id":x,'))
        assert await around(storage, 2, 1, 1) == []
        assert await around(storage, 3, 2, 0) == [1, 3]


async def test_a_large_message_has_its_window_and_is_in_none_that_it_would_burst(
    home: Path,
) -> None:
    async with opened(home) as storage:
        large = said(2, "w" * (2 * SLICES))
        records: list[Record] = [opening(), said(0), said(1), large, said(3), said(4)]
        await storage.append(PAIR, records, create=True)
        position = len(sealed(records[:3]))
        assert await around(storage, 2, 1, 1, position) == [1, 2, 3]
        assert await around(storage, 1, 1, 1, len(sealed(records[:2]))) == [0, 1]
        assert await around(storage, 3, 1, 1, len(sealed(records[:4]))) == [3, 4]


LENGTHS = st.lists(st.integers(0, 3 * SLICE), min_size=1, max_size=12)


@given(lengths=LENGTHS, data=st.data())
def test_a_window_is_the_same_wherever_its_slices_end(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("logs") / "x.jsonl"
    records: list[Record] = [opening()]
    for number, length in enumerate(lengths):
        records.append(MessageRecord(number, AT, Message("user", "é" * (length // 2))))
        if length % 3 == 0:
            records.append(EventRecord("done", AT, "r"))
    path.write_bytes(sealed(records) if data.draw(st.booleans()) else encode(records))
    found = follow(path, 0, PLENTY)
    assert found is not None
    at, wanted = data.draw(
        st.sampled_from([(at, r) for at, r in found.records if isinstance(r, MessageRecord)])
    )
    before, after = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    hint = data.draw(st.sampled_from([at, 0, at + 1, max(0, at - 1)]))
    window = read_window(path, Place("x", wanted.id, hint, before, after))
    messages = [r for r in records if isinstance(r, MessageRecord)]
    assert window == tuple(messages[max(0, wanted.id - before) : wanted.id + after + 1])


async def test_following_does_not_disturb_who_writes(home: Path) -> None:
    async with opened(home) as storage:
        await storage.append(PAIR, [opening()], create=True)
        position = 0
        seen: list[Record] = []
        for number in range(50):
            await storage.append(PAIR, [said(number)])
            found = await followed(storage, position)
            seen += records_of(found)
            position = found.position
        assert seen == [opening(), *map(said, range(50))]
        assert isinstance(storage, FileStorage)
        assert log_of(home).read_bytes() == sealed(seen)
