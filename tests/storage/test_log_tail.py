"""Following the logs: the records after a position, and the messages around a message."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model.messages import Message
from crabtalk.storage import (
    FileStorage,
    MessageRecord,
    Pair,
    Record,
    RecordSlice,
    Storage,
    StorageError,
    WindowRequest,
    make_log_name,
)
from crabtalk.storage.log_tail import (
    MAX_WINDOW_BYTES,
    WINDOW_BYTES,
    read_records_after,
    read_window,
)
from crabtalk.storage.records import EventRecord, encode_line, encode_records
from tests.storage.backends import BACKENDS, open_backend
from tests.storage.sample_records import (
    AT,
    PAIR,
    log_path,
    make_every_kind,
    make_marker,
    make_message,
    make_opening,
    open_file_storage,
    seal_records,
)

HANDLE = make_log_name(PAIR)
OTHER = Pair("crab", "user")
PLENTY = 1 << 20


@pytest.fixture(params=BACKENDS)
async def storage(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Storage]:
    async with open_backend(request.param, home, request) as backend:
        yield backend


async def read_slice(storage: Storage, position: int = 0, limit: int = PLENTY) -> RecordSlice:
    (part,) = await storage.read_new_records([(HANDLE, position)], limit)
    assert isinstance(part, RecordSlice)
    return part


def list_records(part: RecordSlice) -> list[Record]:
    return [record for _, record in part.records]


async def read_window_ids(
    storage: Storage, number: int, before: int, after: int, position: int = 0
) -> list[int]:
    request = WindowRequest(HANDLE, number, position, before, after)
    (window,) = await storage.read_windows([request])
    return [record.id for record in window]


# ── Versions ────────────────────────────────────────────────────────────────────────────────────


async def test_versions_are_of_every_conversation_and_change_with_it(storage: Storage) -> None:
    assert await storage.read_versions() == {}
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    await storage.append(OTHER, [make_opening(OTHER)], create=True)
    before = await storage.read_versions()
    assert before.keys() == {HANDLE, make_log_name(OTHER)}
    await storage.append(PAIR, [make_message(1)])
    after = await storage.read_versions()
    assert after[HANDLE] != before[HANDLE]
    assert after[make_log_name(OTHER)] == before[make_log_name(OTHER)]
    await storage.delete_conversation(OTHER)
    assert (await storage.read_versions()).keys() == {HANDLE}


async def test_another_conversation_of_the_same_length_has_another_version(
    storage: Storage,
) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0, "one")], create=True)
    before = await storage.read_versions()
    await storage.delete_conversation(PAIR)
    await storage.append(OTHER, [make_opening(OTHER)], create=True)
    await storage.append(PAIR, [make_opening(), make_message(0, "two")], create=True)
    assert (await storage.read_versions())[HANDLE] != before[HANDLE]


async def test_a_slice_up_to_the_end_has_the_current_version(storage: Storage) -> None:
    await storage.append(PAIR, make_every_kind(), create=True)
    assert (await read_slice(storage)).version == (await storage.read_versions())[HANDLE]


# ── Following ───────────────────────────────────────────────────────────────────────────────────


async def test_new_records_are_all_but_event_records_in_order(storage: Storage) -> None:
    await storage.append(PAIR, make_every_kind(), create=True)
    part = await read_slice(storage)
    assert part.pair == PAIR
    assert part.origin == AT
    assert part.start == 0
    assert not part.has_more
    assert list_records(part) == [r for r in make_every_kind() if not isinstance(r, EventRecord)]


async def test_following_goes_on_where_it_stopped(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    first = await read_slice(storage)
    await storage.append(PAIR, [make_message(1), make_message(2)])
    second = await read_slice(storage, first.position)
    assert second.start == first.position
    assert list_records(second) == [make_message(1), make_message(2)]
    third = await read_slice(storage, second.position)
    assert third.records == ()
    assert third.position == second.position


async def test_any_position_of_a_record_can_be_followed_from(storage: Storage) -> None:
    await storage.append(PAIR, make_every_kind(), create=True)
    everything = await read_slice(storage)
    for number, (position, _) in enumerate(everything.records):
        rest = await read_slice(storage, position)
        assert rest.records == everything.records[number:]


@pytest.mark.parametrize("limit", [0, 1, 300, 5_000])
async def test_a_limit_makes_it_come_in_parts_with_nothing_lost(
    storage: Storage, limit: int
) -> None:
    records: list[Record] = [make_opening(), *(make_message(n, "x" * (37 * n)) for n in range(40))]
    await storage.append(PAIR, records, create=True)
    found: list[Record] = []
    position, parts, more = 0, 0, True
    while more:
        part = await read_slice(storage, position, limit)
        assert part.start == position
        assert part.records
        found += list_records(part)
        position, more = part.position, part.has_more
        parts += 1
    assert found == records
    assert parts > 2


async def test_a_missing_conversation_is_not_followed(storage: Storage) -> None:
    missing = [(HANDLE, 0), ("../../etc/passwd", 0)]
    assert await storage.read_new_records(missing, PLENTY) == [None, None]
    await storage.append(PAIR, [make_opening()], create=True)
    await storage.delete_conversation(PAIR)
    assert await storage.read_new_records(missing, PLENTY) == [None, None]


async def test_several_are_followed_at_once_each_from_where_it_was_read_to(
    storage: Storage,
) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    half = (await read_slice(storage)).position
    await storage.append(PAIR, [make_message(1)])
    await storage.append(OTHER, [make_opening(OTHER), make_message(0)], create=True)
    other, missing, first = await storage.read_new_records(
        [(make_log_name(OTHER), 0), (make_log_name(Pair("crab", "stranger")), 0), (HANDLE, half)],
        PLENTY,
    )
    assert isinstance(other, RecordSlice)
    assert isinstance(first, RecordSlice)
    assert missing is None
    assert (other.pair, first.pair) == (OTHER, PAIR)
    assert list_records(other)[-1] == make_message(0)
    assert list_records(first) == [make_message(1)]


async def test_a_position_past_the_end_starts_again(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    found = await read_slice(storage, 1_000_000)
    assert found.start == 0
    assert list_records(found) == [make_opening(), make_message(0)]


async def test_a_line_that_is_being_written_is_not_followed(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
        whole = log_path(home).stat().st_size
        line = encode_line(make_message(1, "y" * 100_000))
        for cut in (1, 20, len(line) - 1):
            with log_path(home).open("r+b") as log:
                log.truncate(whole)
                log.seek(whole)
                log.write(line[:cut])
            for limit in (10, PLENTY):
                found = await read_slice(storage, whole, limit)
                assert found.records == ()
                assert found.position == whole
                assert not found.has_more


async def test_a_position_inside_a_line_starts_again(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0), make_message(1)], create=True)
        lines = seal_records([make_opening(), make_message(0)])
        assert (await read_slice(storage, len(lines))).start == len(lines)
        assert (await read_slice(storage, len(lines) - 2)).start == 0


async def test_unreadable_lines_are_skipped(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
        with log_path(home).open("ab") as log:
            log.write(b'\0\0\0\n\n{"kind":"message"}\n')
        await storage.append(PAIR, [make_message(1)])
        assert list_records(await read_slice(storage)) == [
            make_opening(),
            make_message(0),
            make_message(1),
        ]


async def test_a_log_whose_first_line_is_unreadable_is_followed_all_the_same(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0), make_opening()], create=True)
        data = log_path(home).read_bytes()
        log_path(home).write_bytes(b"?" + data[1:])
        found = await read_slice(storage)
        assert found.pair == PAIR
        assert list_records(found) == [make_message(0), make_opening()]


async def test_a_log_without_an_owner_is_not_followed(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        log_path(home).write_bytes(encode_records([make_message(0)]))
        assert await storage.read_new_records([(HANDLE, 0)], PLENTY) == [None]


async def test_a_log_that_cannot_be_read_does_not_keep_others_from_being_followed(
    home: Path,
) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(OTHER, [make_opening(OTHER), make_message(0)], create=True)
        log_path(home).mkdir()
        error, other = await storage.read_new_records(
            [(HANDLE, 0), (make_log_name(OTHER), 0)], PLENTY
        )
        assert isinstance(error, StorageError)
        assert isinstance(other, RecordSlice)


async def test_a_line_larger_than_the_limit_comes_whole(home: Path) -> None:
    async with open_file_storage(home) as storage:
        large = make_message(0, "z" * 700_000)
        await storage.append(PAIR, [make_opening(), large, make_message(1)], create=True)
        start = len(seal_records([make_opening()]))
        found = await read_slice(storage, start, 1_000)
        assert list_records(found) == [large]
        assert found.has_more
        assert list_records(await read_slice(storage, found.position, 1_000)) == [make_message(1)]


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
    await storage.append(
        PAIR, [make_opening(), *map(make_message, range(4)), make_marker(4)], create=True
    )
    await storage.append(
        PAIR, [EventRecord("done", AT), *map(make_message, range(4, 10)), make_opening()]
    )
    positions = {r.id: at for at, r in (await read_slice(storage)).records if hasattr(r, "id")}
    hints = [positions.get(number, 0), 0, 7, 1_000_000]
    for hint in hints:
        assert await read_window_ids(storage, number, before, after, hint) == expected


async def test_windows_come_in_the_order_of_the_requests(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), *map(make_message, range(4))], create=True)
    await storage.append(OTHER, [make_opening(OTHER), make_message(0, "other")], create=True)
    requests = [
        WindowRequest(make_log_name(OTHER), 0, 0, 1, 1),
        WindowRequest("gone", 0, 0, 1, 1),
        WindowRequest(HANDLE, 3, 0, 1, 1),
    ]
    windows = await storage.read_windows(requests)
    assert windows == [(make_message(0, "other"),), (), (make_message(2), make_message(3))]
    assert await storage.read_windows([]) == []


async def test_a_message_that_is_damaged_has_no_window(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), *map(make_message, range(4))], create=True)
        data = log_path(home).read_bytes()
        log_path(home).write_bytes(data.replace(b'"id":2,', b'"id":x,'))
        assert await read_window_ids(storage, 2, 1, 1) == []
        assert await read_window_ids(storage, 3, 2, 0) == [1, 3]


async def test_a_large_message_has_a_window_and_is_left_out_of_others(
    home: Path,
) -> None:
    async with open_file_storage(home) as storage:
        large = make_message(2, "w" * (2 * MAX_WINDOW_BYTES))
        records: list[Record] = [
            make_opening(),
            make_message(0),
            make_message(1),
            large,
            make_message(3),
            make_message(4),
        ]
        await storage.append(PAIR, records, create=True)
        position = len(seal_records(records[:3]))
        assert await read_window_ids(storage, 2, 1, 1, position) == [1, 2, 3]
        assert await read_window_ids(storage, 1, 1, 1, len(seal_records(records[:2]))) == [0, 1]
        assert await read_window_ids(storage, 3, 1, 1, len(seal_records(records[:4]))) == [3, 4]


LENGTHS = st.lists(st.integers(0, 3 * WINDOW_BYTES), min_size=1, max_size=12)


@given(lengths=LENGTHS, data=st.data())
def test_a_window_is_the_same_wherever_its_slices_end(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("logs") / "x.jsonl"
    records: list[Record] = [make_opening()]
    for number, length in enumerate(lengths):
        records.append(MessageRecord(number, AT, Message("user", "é" * (length // 2))))
        if length % 3 == 0:
            records.append(EventRecord("done", AT, "r"))
    path.write_bytes(seal_records(records) if data.draw(st.booleans()) else encode_records(records))
    found = read_records_after(path, 0, PLENTY)
    assert found is not None
    at, wanted = data.draw(
        st.sampled_from([(at, r) for at, r in found.records if isinstance(r, MessageRecord)])
    )
    before, after = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    hint = data.draw(st.sampled_from([at, 0, at + 1, max(0, at - 1)]))
    window = read_window(path, WindowRequest("x", wanted.id, hint, before, after))
    messages = [r for r in records if isinstance(r, MessageRecord)]
    assert window == tuple(messages[max(0, wanted.id - before) : wanted.id + after + 1])


async def test_following_does_not_disturb_the_writer(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        position = 0
        seen: list[Record] = []
        for number in range(50):
            await storage.append(PAIR, [make_message(number)])
            found = await read_slice(storage, position)
            seen += list_records(found)
            position = found.position
        assert seen == [make_opening(), *map(make_message, range(50))]
        assert isinstance(storage, FileStorage)
        assert log_path(home).read_bytes() == seal_records(seen)
