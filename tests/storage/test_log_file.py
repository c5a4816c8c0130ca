"""Log files: cut or damaged anywhere, and read from either end."""

import asyncio
import logging
import random
from pathlib import Path

import msgspec
import pytest

from crabtalk.model.messages import Message
from crabtalk.storage import (
    ConversationMeta,
    EventRecord,
    FileStorage,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Record,
    StoredConversation,
    make_log_name,
)
from crabtalk.storage import log_file as logs
from crabtalk.storage.file_storage import PAGE_BYTES
from crabtalk.storage.records import decode_record, encode_line, encode_records
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

NAME = make_log_name(PAIR)


async def write_log(home: Path, records: list[Record]) -> Path:
    """Writes a log through FileStorage."""
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, records[:1], create=True)
        for record in records[1:]:
            await storage.append(PAIR, [record])
    return log_path(home)


async def load_log(home: Path) -> StoredConversation | None:
    async with open_file_storage(home) as storage:
        return await storage.load_and_repair(PAIR)


def find_since_marker(records: list[Record]) -> list[MessageRecord]:
    """The messages after the last marker, found without the code under test."""
    markers = [n for n, record in enumerate(records) if isinstance(record, MarkerRecord)]
    rest = records[markers[-1] :] if markers else records
    return [record for record in rest if isinstance(record, MessageRecord)]


def decode_log(path: Path) -> list[Record]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [decode_record(line) for line in data[:-1].split(b"\n")]


# ── Torn ends ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("storage.jsonl")
async def test_the_log_is_one_object_a_line_that_says_what_it_is(home: Path) -> None:
    path = await write_log(home, make_every_kind())
    assert path.read_bytes() == seal_records(make_every_kind())
    assert decode_log(path) == make_every_kind()


async def check_goes_on(storage: FileStorage, path: Path, data: bytes, whole: list[Record]) -> None:
    """With `data` as its log, the conversation has the records `whole`, and can go on."""
    path.write_bytes(data)
    stored = await storage.load_and_repair(PAIR)
    if not whole:
        assert stored is None
        assert not path.exists()
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
        assert decode_log(path) == [make_opening(), make_message(0)]
        return
    assert stored is not None
    assert list(stored.messages) == find_since_marker(whole)
    whole = [*whole, *find_closing_records(path, whole)]
    assert decode_log(path) == whole
    count = sum(isinstance(record, MessageRecord) for record in whole)
    assert stored.meta.message_count == count
    more = make_message(count, "go on")
    await storage.append(PAIR, [more])
    assert decode_log(path) == [*whole, more]
    stored = await storage.load_and_repair(PAIR)
    assert stored is not None
    assert list(stored.messages) == find_since_marker([*whole, more])


def find_closing_records(path: Path, whole: list[Record]) -> list[Record]:
    """The records that loading appends to a log whose last run has no end."""
    runs = [record for record in whole if isinstance(record, MessageRecord | EventRecord)]
    since = max([n for n, r in enumerate(whole) if isinstance(r, MarkerRecord)], default=0)
    is_ended = isinstance(runs[-1], EventRecord) and runs[-1].event == "done" if runs else True
    if is_ended or not runs[-1].run or runs[-1] not in whole[since:]:
        return []
    end, snapshot = decode_log(path)[len(whole) :]
    assert isinstance(end, EventRecord)
    assert (end.event, end.run) == ("done", runs[-1].run)
    assert end.data["stop_reason"] == "interrupted"
    assert isinstance(snapshot, MetaRecord)
    return [end, snapshot]


def list_cuts(records: list[Record]) -> list[tuple[bytes, list[Record]]]:
    """The log cut at every byte, with its complete records; a line that lacks only its line feed is
    complete."""
    data, cuts, whole = seal_records(records), [], 0
    ends = [len(seal_records(records[: n + 1])) - 1 for n in range(len(records))]
    for cut in range(len(data)):
        while whole < len(ends) and ends[whole] <= cut:
            whole += 1
        cuts.append((data[:cut], records[:whole]))
    return cuts


@pytest.mark.req("storage.torn_line")
def test_a_log_cut_at_any_byte_keeps_its_complete_lines_and_goes_on(home: Path) -> None:
    async def main() -> None:
        path = await write_log(home, make_every_kind())
        async with open_file_storage(home) as storage:
            for data, whole in list_cuts(make_every_kind()):
                await check_goes_on(storage, path, data, whole)

    asyncio.run(main())


@pytest.mark.req("storage.torn_line")
def test_a_log_whose_end_became_zeros_keeps_its_complete_lines_and_goes_on(home: Path) -> None:
    """A power cut may leave blocks that were allocated and never written."""

    async def main() -> None:
        records = make_every_kind()
        path = await write_log(home, records)
        size = len(seal_records(records))
        async with open_file_storage(home) as storage:
            for data, whole in list_cuts(records)[::2]:
                # A line whose line feed became a zero is not complete.
                if len(seal_records(whole)) > len(data):
                    whole = whole[:-1]
                await check_goes_on(storage, path, data.ljust(size, b"\0"), whole)

    asyncio.run(main())


async def test_a_last_line_that_only_lacks_its_end_is_kept(home: Path) -> None:
    path = await write_log(home, [make_opening(), make_message(0)])
    path.write_bytes(path.read_bytes()[:-1])
    stored = await load_log(home)
    assert stored is not None
    assert stored.messages == (make_message(0),)
    assert path.read_bytes() == seal_records([make_opening(), make_message(0)])


async def test_a_removed_incomplete_line_is_reported(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = await write_log(home, [make_opening(), make_message(0)])
    path.write_bytes(path.read_bytes() + b'{"kind":"mess')
    assert await load_log(home) is not None
    assert caplog.messages == [f"{NAME}.jsonl ended in half a line of 13 bytes, cut"]


async def test_half_a_line_longer_than_a_block_is_cut(home: Path) -> None:
    path = await write_log(home, [make_opening(), make_message(0)])
    path.write_bytes(path.read_bytes() + encode_line(make_message(1, "x" * 200_000))[:-9])
    stored = await load_log(home)
    assert stored is not None
    assert stored.messages == (make_message(0),)
    assert decode_log(path) == [make_opening(), make_message(0)]


async def test_reading_leaves_half_a_line_alone_since_it_may_be_one_being_written(
    home: Path,
) -> None:
    path = await write_log(home, [make_opening(), make_message(0)])
    data = path.read_bytes() + encode_line(make_message(1))[:-5]
    path.write_bytes(data)
    async with open_file_storage(home) as storage:
        stored = await storage.read_conversation(PAIR)
        page = await storage.read_page(PAIR, 0, 10)
        meta = await storage.read_meta(PAIR)
    assert stored is not None
    assert stored.messages == (make_message(0),)
    assert page is not None
    assert (page.messages, page.total, page.next_offset) == ((make_message(0),), 1, None)
    assert meta is not None
    assert meta.message_count == 1
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


# ── Damage ──────────────────────────────────────────────────────────────────────────────────────

GARBAGE = [
    b"\0" * 50,
    b"what is this",
    b'{"kind":"message","id":1,"at":"x"}',
    b'{"kind":"poem","lines":["a","b"]}',
    b'{"kind":"event","event":"\xff\xfe","at":""}',
    b'{"kind":"event","event":"","at":"","data":{"a":' + b"[" * 5000,
]


@pytest.mark.req("storage.damaged_line")
@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_an_unreadable_line_is_reported_copied_once_and_skipped(
    home: Path, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    path = await write_log(home, [make_opening(), make_message(0)])
    before = (
        path.read_bytes() + garbage + b"\n" + encode_records([make_message(2), make_message(3)])
    )
    path.write_bytes(before)
    for _ in range(2):
        stored = await load_log(home)
        assert stored is not None
        assert stored.messages == (make_message(0), make_message(2), make_message(3))
        assert stored.damaged == (1,)
        assert stored.meta.message_count == 4
    async with open_file_storage(home) as storage:
        page = await storage.read_page(PAIR, 0, 10)
        assert page is not None
        assert page.messages == (make_message(0), make_message(2), make_message(3))
        assert page.damaged == (1,)
        assert page.total == 4
        await storage.append(PAIR, [make_message(4)])
    assert path.read_bytes() == before + seal_records([make_message(4)], before)
    copies = path.with_suffix(".damaged")
    assert copies.read_bytes() == garbage + b"\n"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert f"{NAME}.jsonl has 1 unreadable lines" in caplog.text
    assert f"a copy in {NAME}.damaged" in caplog.text


async def test_only_lines_that_are_new_to_the_copy_are_added_to_it(home: Path) -> None:
    path = await write_log(home, [make_opening()])
    for garbage in (b"one\none\n", b"two\n", b"one\n"):
        path.write_bytes(path.read_bytes() + garbage)
        assert await load_log(home) is not None
    assert path.with_suffix(".damaged").read_bytes() == b"one\ntwo\n"
    assert path.with_suffix(".damaged").stat().st_mode & 0o777 == 0o600


async def test_an_unreadable_marker_hides_nothing(home: Path) -> None:
    """Its summary is lost, so the conversation goes on from the messages before it."""
    path = await write_log(
        home,
        [
            make_opening(),
            make_message(0),
            make_marker(1, "first"),
            make_message(1),
            make_marker(2, "second"),
            make_message(2),
        ],
    )
    path.write_bytes(path.read_bytes().replace(b'"summary":"second"', b'"summary":"sec\0nd"'))
    stored = await load_log(home)
    assert stored is not None
    assert stored.marker == make_marker(1, "first")
    assert stored.messages == (make_message(1), make_message(2))
    assert stored.meta.summary == "first"
    assert path.with_suffix(".damaged").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("first", [b"", b'{"kind":"meta","ag', b"\0" * 30])
async def test_a_log_without_a_whole_line_does_not_block_its_pair(home: Path, first: bytes) -> None:
    path = log_path(home)
    path.parent.mkdir(parents=True)
    path.write_bytes(first)
    async with open_file_storage(home) as storage:
        assert await storage.read_conversation(PAIR) is None
        assert await storage.read_meta(PAIR) is None
        assert await storage.load_and_repair(PAIR) is None
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
        stored = await storage.load_and_repair(PAIR)
    assert stored is not None
    assert stored.messages == (make_message(0),)
    assert decode_log(path) == [make_opening(), make_message(0)]


async def test_a_log_whose_meta_is_unreadable_still_belongs_to_the_pair_it_is_named_for(
    home: Path,
) -> None:
    path = await write_log(home, [make_opening(), *map(make_message, range(5))])
    path.write_bytes(path.read_bytes().replace(b'{"kind":"meta"', b'{"kind":"me\0a"', 1))
    async with open_file_storage(home) as storage:
        stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert [record.id for record in stored.messages] == [0, 1, 2, 3, 4]
        assert await storage.read_meta(PAIR) == ConversationMeta(
            *PAIR, updated_at=AT, message_count=5
        )
        page = await storage.read_page(PAIR, 0, 2)
        assert page is not None
        assert (page.total, page.next_offset) == (5, 2)
        await storage.append(PAIR, [make_message(5), stored.meta.make_snapshot()])
        assert await storage.resolve_handle(NAME) == PAIR
    stored = await load_log(home)
    assert stored is not None
    assert len(stored.messages) == 6


@pytest.mark.parametrize("data", [b"", b'{"kind":"meta","agent":"crab"}\n', b"?\n", b"half a lin"])
async def test_a_log_that_does_not_say_whose_it_is_is_not_listed(
    home: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    await write_log(home, [make_opening()])
    (home / "sessions" / "stray.jsonl").write_bytes(data)
    async with open_file_storage(home) as storage:
        assert [name for name, _ in await storage.list_conversations()] == [NAME]
        assert await storage.resolve_handle("stray") is None
    sentence = "the log stray does not say whose it is; not listed"
    assert caplog.messages == ([sentence] if data else [])  # an empty log may be in creation


@pytest.mark.req("storage.meta.unknown")
async def test_an_unknown_key_of_the_meta_survives(home: Path) -> None:
    path = await write_log(home, [make_opening(title="t")])
    line = encode_line(make_opening(title="t")).replace(b'"meta"', b'"meta","topic":"tides"')
    path.write_bytes(line)
    for number in range(20):
        async with open_file_storage(home) as storage:
            stored = await storage.load_and_repair(PAIR)
            assert stored is not None
            meta = stored.meta.apply_record(make_message(number))
            await storage.append(PAIR, [make_message(number), meta.make_snapshot()])
    assert path.read_bytes().startswith(line)
    async with open_file_storage(home) as storage:
        assert await storage.read_meta(PAIR) == ConversationMeta(*PAIR, AT, "t", AT, 20)


# ── Meta ────────────────────────────────────────────────────────────────────────────────────────


async def test_meta_set_before_a_marker_holds_when_the_snapshot_after_it_is_lost(
    home: Path,
) -> None:
    path = await write_log(
        home,
        [
            make_opening(title="Files"),
            make_message(0),
            MetaRecord(title="Two files"),
            make_marker(1),
        ],
    )
    path.write_bytes(path.read_bytes() + encode_line(make_opening())[:30])
    stored = await load_log(home)
    assert stored is not None
    assert stored.meta == ConversationMeta(*PAIR, AT, "Two files", AT, 1, "They talked.")


async def test_patches_are_applied_in_order(home: Path) -> None:
    records: list[Record] = [
        MetaRecord(agent=PAIR.agent, created_by=PAIR.sender, created_at="1"),
        MetaRecord(title="a"),
        make_message(0),
        MetaRecord(agent=PAIR.agent, created_by=PAIR.sender, message_count=1),
        MetaRecord(updated_at="3", created_at=""),
    ]
    await write_log(home, records)
    async with open_file_storage(home) as storage:
        stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert stored.meta == ConversationMeta(*PAIR, "", "a", "3", 1)
        assert await storage.read_meta(PAIR) == stored.meta
        assert await storage.list_conversations() == [(NAME, stored.meta)]


@pytest.mark.req("storage.meta")
async def test_the_meta_is_found_however_far_the_last_snapshot_is_from_the_end(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(title="t"), make_message(0)], create=True)
        for size in (10, 8_000, 70_000, 600_000):
            await storage.append(PAIR, [EventRecord("e", AT, data={"x": "y" * size})])
            assert await storage.read_meta(PAIR) == ConversationMeta(*PAIR, AT, "t", AT, 1)


# ── From the last marker ────────────────────────────────────────────────────────────────────────


@pytest.mark.req("storage.replay_from_marker")
@pytest.mark.parametrize("since", [0, 100, 70_000, 1_200_000])
@pytest.mark.parametrize("before", [0, 70_000, 1_200_000])
async def test_a_load_reads_only_from_the_last_marker_on(
    home: Path, before: int, since: int
) -> None:
    async with open_file_storage(home) as storage:
        old = [make_message(n, "o" * 5000) for n in range(before // 5000)]
        new = [make_message(n, "n" * 5000) for n in range(len(old), len(old) + since // 5000)]
        await storage.append(PAIR, [make_opening(), make_marker(0), *old], create=True)
        await storage.append(PAIR, [make_marker(len(old), "old"), *new])
        stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert stored.marker == make_marker(len(old), "old")
        assert list(stored.messages) == new
        past = seal_records([make_opening(), make_marker(0), *old])
        assert stored.size == len(seal_records([make_marker(len(old), "old"), *new], past))
        assert stored.meta.message_count == len(old) + len(new)
        assert await storage.read_conversation(PAIR) == stored
        page = await storage.read_page(PAIR, 0, 10_000)
        assert page is not None
        assert list(page.messages) == old + new


async def test_a_message_that_quotes_a_marker_is_no_marker(home: Path) -> None:
    quote = make_message(0, "\n" + encode_line(make_marker(9)).decode())
    await write_log(home, [make_opening(), quote])
    stored = await load_log(home)
    assert stored is not None
    assert stored.marker is None
    assert stored.messages == (quote,)


# ── Pages ───────────────────────────────────────────────────────────────────────────────────────


def test_a_page_begins_where_it_is_asked_to_in_any_log(tmp_path: Path) -> None:
    """The log has lines of all sizes, gaps in ids, other records, and damage like a message."""
    rng = random.Random(5)
    path, lines, messages, number = tmp_path / "x.jsonl", [encode_line(make_opening())], [], 0
    for _ in range(400):
        size = rng.choice([0, 10, 100, 3000, 3000, 70_000])
        match rng.randrange(8):
            case 0:
                lines.append(encode_line(EventRecord("e", AT, data={"x": "y" * size})))
            case 1:
                lines.append(b'{"kind":"message","id":' + b"7" * size + b"\n")
            case 2:
                lines.append(encode_line(make_marker(number)))
                number += rng.randrange(3)
            case _:
                messages.append(make_message(number, "z" * size))
                lines.append(encode_line(messages[-1]))
                number += 1
    path.write_bytes(b"".join(lines))
    for offset in [-1, 0, 1, *rng.sample(range(number), 60), number - 1, number, number + 5]:
        page, _ = logs.read_messages(path, offset, 3, PAGE_BYTES)
        assert page == [record for record in messages if record.id >= offset][:3]


async def test_a_page_holds_no_more_bytes_than_a_frame_has_room_for(home: Path) -> None:
    half = "h" * (PAGE_BYTES // 2)
    records = [
        make_message(0, half),
        make_message(1, half),
        make_message(2, half * 3),
        make_message(3),
        make_message(4),
    ]
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), *records], create=True)
        offset, pages = 0, []
        while True:
            page = await storage.read_page(PAIR, offset, 100)
            assert page is not None
            pages.append([record.id for record in page.messages])
            assert page.total == 5
            if page.next_offset is None:
                break
            offset = page.next_offset
    # Two halves with their JSON are too large for a page; a message that is too large comes alone.
    assert pages == [[0], [1], [2], [3, 4]]


async def test_a_page_of_nothing_is_empty(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0), make_message(1)], create=True)
        for offset, limit in ((0, 0), (1, 0), (2, 5), (1000, 5)):
            page = await storage.read_page(PAIR, offset, limit)
            assert page is not None
            assert (page.messages, page.total, page.next_offset) == ((), 2, None)


async def test_pages_go_on_past_damage_at_the_end_of_one(home: Path) -> None:
    path = await write_log(
        home, [make_opening(), make_message(0), make_message(1), make_message(2), make_message(3)]
    )
    path.write_bytes(path.read_bytes().replace(b'"text":"message 2"', b'"text":"messa\xff\xff 2"'))
    async with open_file_storage(home) as storage:
        first = await storage.read_page(PAIR, 0, 2)
        assert first is not None
        assert first.next_offset == 2
        second = await storage.read_page(PAIR, 2, 2)
        assert second is not None
        assert (second.messages, second.next_offset) == ((make_message(3),), None)
        assert (first.damaged, second.damaged) == ((), (2,))


async def test_the_archives_are_those_of_the_markers_that_can_be_read(home: Path) -> None:
    half = msgspec.structs.replace(make_marker(2), title="half \ud83e of it")
    path = await write_log(
        home,
        [
            make_opening(),
            make_message(0),
            make_marker(1),
            make_message(1),
            half,
            make_message(2),
            make_marker(3),
        ],
    )
    path.write_bytes(path.read_bytes() + b'{"kind":"compact"}\n')
    async with open_file_storage(home) as storage:
        archives = await storage.list_archives(PAIR)
    assert archives is not None
    assert [(a.first_id, a.end_id, a.title) for a in archives] == [
        (0, 1, "They talked"),
        (1, 2, "half ? of it"),
        (2, 3, "They talked"),
    ]


async def test_a_message_with_every_field_comes_back_as_it_was(home: Path) -> None:
    await write_log(home, make_every_kind())
    async with open_file_storage(home) as storage:
        page = await storage.read_page(PAIR, 0, 100)
    assert page is not None
    assert list(page.messages) == [r for r in make_every_kind() if isinstance(r, MessageRecord)]
    assert page.messages[0].message == Message(
        "user", 'look\n"here"', images=page.messages[0].message.images
    )
