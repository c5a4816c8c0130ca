"""Checksums of logs: every change to a line is detected and reported, and changed lines are never
returned. Logs without checksums are read as before."""

import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crabtalk.model.messages import Message, ToolCall
from crabtalk.storage import (
    ConversationMeta,
    FileStorage,
    MarkerRecord,
    MessageRecord,
    Record,
    WindowRequest,
    make_log_name,
    verify_log,
)
from crabtalk.storage.checksums import check_sum, read_link, read_prev, remove_seal, seal_lines
from crabtalk.storage.log_tail import read_records_after
from crabtalk.storage.log_writer import MAX_REMEMBERED_SUMS, LogWriter
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
PLENTY = 1 << 20


def write_log(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.with_suffix(".damaged").unlink(missing_ok=True)
    return path


def split_lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def make_log_lines() -> list[bytes]:
    """A log of six lines: a meta, and messages 0 to 4."""
    return split_lines(seal_records([make_opening(), *map(make_message, range(5))]))


async def read_everything(storage: FileStorage) -> list[Record | ConversationMeta | None]:
    """The records from every reading method."""
    records: list[Record | ConversationMeta | None] = []
    if (stored := await storage.read_conversation(PAIR)) is not None:
        records += [*stored.messages, stored.marker]
    if (page := await storage.read_page(PAIR, 0, 1000)) is not None:
        records += page.messages
    (followed,) = await storage.read_new_records([(NAME, 0)], PLENTY)
    if followed is not None and not isinstance(followed, Exception):
        records += [record for _, record in followed.records]
        for at, record in followed.records:
            if isinstance(record, MessageRecord):
                (window,) = await storage.read_windows([WindowRequest(NAME, record.id, at, 2, 2)])
                records += window
    records += [
        MarkerRecord(a.name, a.archived_at, a.title, a.summary, a.end_id)
        for a in await storage.list_archives(PAIR) or []
    ]
    return [record for record in records if record is not None]


# ── The format ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("checksums.log.format")
async def test_each_line_ends_in_the_sum_of_the_one_before_and_its_own(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, make_every_kind()[:3], create=True)
        for record in make_every_kind()[3:]:
            await storage.append(PAIR, [record])
    prev = ""
    lines = log_path(home).read_bytes().splitlines()
    for line, record in zip(lines, make_every_kind(), strict=True):
        members = msgspec.json.decode(line)
        assert list(members)[-2:] == ["prev", "sum"]
        assert members["prev"] == prev
        prev = members["sum"]
        assert len(prev) == 16
        assert remove_seal(line) + b"\n" == encode_line(record)
        assert decode_record(line) == record


@pytest.mark.req("checksums.log.format")
async def test_the_chain_goes_on_after_a_restart_and_in_a_log_of_another_size(home: Path) -> None:
    for number in range(5):
        async with open_file_storage(home) as storage:
            if not number:
                await storage.append(PAIR, [make_opening()], create=True)
            await storage.append(PAIR, [make_message(2 * number)])
            # Another program adds a line meanwhile, so the remembered checksum is stale.
            before = log_path(home).read_bytes()
            log_path(home).write_bytes(
                before + seal_records([make_message(2 * number + 1)], before)
            )
    assert verify_log(log_path(home)) == []
    assert log_path(home).read_bytes() == seal_records(
        [make_opening(), *map(make_message, range(10))]
    )


async def test_only_so_many_sums_are_remembered(tmp_path: Path) -> None:
    log_writer = LogWriter(tmp_path, flush=False)
    for number in range(MAX_REMEMBERED_SUMS + 3):
        await log_writer.append(f"log-{number}", b"{}\n", create=True, seal=True)
    assert len(log_writer._last_sums) == MAX_REMEMBERED_SUMS
    await log_writer.append("log-0", b"{}\n", seal=True)
    await log_writer.close()
    one, two = (tmp_path / "log-0.jsonl").read_bytes().splitlines()
    assert read_prev(two) == read_link(one)


async def test_a_failed_write_is_no_link_of_the_chain(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No real file system fails a flush on demand, so this test simulates a broken disk."""
    import errno
    import os

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with open_file_storage(home, flush=True) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync" if hasattr(os, "fdatasync") else "fsync", refuse)
            with pytest.raises(Exception, match="nothing of it was kept"):
                await storage.append(PAIR, [make_message(1, "lost")])
        await storage.append(PAIR, [make_message(1)])
    assert log_path(home).read_bytes() == seal_records(
        [make_opening(), make_message(0), make_message(1)]
    )


# ── Old logs ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("checksums.log.old")
async def test_an_old_log_is_read_and_goes_on_with_checksums(home: Path) -> None:
    old = encode_records(make_every_kind())
    write_log(log_path(home), old)
    assert verify_log(log_path(home)) == []
    async with open_file_storage(home) as storage:
        stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert (len(stored.messages), stored.damaged) == (2, ())
        await storage.append(PAIR, [make_message(5), make_message(6)])
    assert log_path(home).read_bytes() == old + seal_records(
        [make_message(5), make_message(6)], old
    )
    assert verify_log(log_path(home)) == []
    async with open_file_storage(home) as storage:
        page = await storage.read_page(PAIR, 0, 100)
        assert page is not None
        assert [record.id for record in page.messages] == list(range(7))


@pytest.mark.req("checksums.log.old")
def test_the_last_old_line_is_sealed_by_the_first_new_one(tmp_path: Path) -> None:
    old = encode_records([make_opening(), make_message(0), make_message(1)])
    data = old + seal_records([make_message(2)], old)
    path = write_log(tmp_path / "x.jsonl", data.replace(b"message 1", b"message I"))
    (damage,) = verify_log(path)
    assert (damage.line, damage.fault) == (4, "missing")


@pytest.mark.req("checksums.log.old")
def test_lines_that_an_older_version_added_are_fine_once_a_newer_one_went_on(
    tmp_path: Path,
) -> None:
    data = seal_records([make_opening(), make_message(0)]) + encode_records(
        [make_message(1), make_message(2)]
    )
    path = write_log(tmp_path / "x.jsonl", data + seal_records([make_message(3)], data))
    assert verify_log(path) == []
    path.write_bytes(data)
    assert [(d.line, d.fault) for d in verify_log(path)] == [(3, "foreign"), (4, "foreign")]


# ── Flipped bytes ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("checksums.log.flip")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(seal_records(make_every_kind())) - 1), flip=st.integers(1, 255))
async def test_a_flipped_byte_is_found_and_never_served(home: Path, at: int, flip: int) -> None:
    data = bytearray(seal_records(make_every_kind()))
    data[at] ^= flip
    path = write_log(log_path(home), bytes(data))
    damage = verify_log(path)
    assert damage, (at, flip)
    flipped_line = bytes(seal_records(make_every_kind()))[:at].count(b"\n") + 1
    assert flipped_line in {d.line for d in damage}
    assert all(f"line {d.line}" in d.text for d in damage)
    async with open_file_storage(home) as storage:
        for record in await read_everything(storage):
            assert record in make_every_kind(), (at, flip)
        assert await storage.load_and_repair(PAIR) is not None
    if at == len(data) - 1:  # the last line feed can be repaired
        assert path.read_bytes() == seal_records(make_every_kind())
    else:
        assert verify_log(path) == damage


@pytest.mark.req("checksums.log.flip")
def test_every_bit_of_every_line_is_covered() -> None:
    for line in seal_records(make_every_kind()).splitlines():
        for at in range(len(line)):
            for bit in range(8):
                data = bytearray(line)
                data[at] ^= 1 << bit
                with pytest.raises(ValueError, match=r"."):
                    for piece in bytes(data).split(b"\n"):
                        decode_record(piece)


@pytest.mark.req("checksums.log.flip")
async def test_a_damaged_message_is_reported_set_aside_and_its_id_not_used_again(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = make_log_lines()
    flipped = lines[5].replace(b"message 4", b"message 5")
    write_log(log_path(home), b"".join([*lines[:5], flipped]))
    async with open_file_storage(home) as storage:
        stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert [record.id for record in stored.messages] == [0, 1, 2, 3]
        assert stored.damaged == (4,)
        assert stored.meta.message_count == 5
        meta = await storage.read_meta(PAIR)
        assert meta is not None
        assert meta.message_count == 5
        await storage.append(PAIR, [make_message(5)])
        page = await storage.read_page(PAIR, 0, 100)
        assert page is not None
        assert [record.id for record in page.messages] == [0, 1, 2, 3, 5]
        assert (page.damaged, page.total) == ((4,), 6)
    assert log_path(home).with_suffix(".damaged").read_bytes() == flipped
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    (damage,) = verify_log(log_path(home))
    assert damage.text == (
        f"line 6 (message 4 of {AT}) was changed after it was written: its checksum does not match"
    )
    assert (damage.message_id, damage.at, damage.fault) == (4, AT, "changed")


@pytest.mark.req("checksums.log.flip")
async def test_pages_count_damaged_messages_and_lead_past_them(home: Path) -> None:
    lines = make_log_lines()
    for number in (2, 3, 5):
        lines[number] = lines[number].replace(b"message", b"massage", 2)
    write_log(log_path(home), b"".join(lines))
    async with open_file_storage(home) as storage:
        offset: int | None = 0
        seen: list[tuple[list[int], tuple[int, ...]]] = []
        while offset is not None:
            page = await storage.read_page(PAIR, offset, 2)
            assert page is not None
            assert page.total == 5
            seen.append(([record.id for record in page.messages], page.damaged))
            offset = page.next_offset
    assert seen == [([0], (1,)), ([3], (2,)), ([], (4,))]


@pytest.mark.req("checksums.log.flip")
async def test_a_damaged_marker_hides_nothing_and_a_damaged_snapshot_is_not_believed(
    home: Path,
) -> None:
    last = ConversationMeta(*PAIR, created_at=AT, title="Tides", message_count=3).make_snapshot()
    records: list[Record] = [
        make_opening(),
        make_message(0),
        make_message(1),
        make_marker(2, "secret"),
        make_message(2),
        last,
    ]
    data = seal_records(records).replace(b"secret", b"sacret").replace(b"Tides", b"Sides")
    write_log(log_path(home), data)
    async with open_file_storage(home) as storage:
        stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert (stored.marker, len(stored.messages)) == (None, 3)
        assert stored.meta.title == ""
        assert await storage.list_archives(PAIR) == []
        ((_, meta),) = await storage.list_conversations()
        assert (meta.title, meta.message_count) == ("", 3)


@pytest.mark.req("checksums.log.flip")
async def test_the_search_index_is_not_given_damaged_messages(home: Path) -> None:
    lines = make_log_lines()
    lines[2] = lines[2].replace(b"message 1", b"message l")
    path = write_log(log_path(home), b"".join(lines))
    followed = read_records_after(path, 0, PLENTY)
    assert followed is not None
    assert [r.id for _, r in followed.records if isinstance(r, MessageRecord)] == [0, 2, 3, 4]


# ── Cut, moved, added, repeated, removed ───────────────────────────────────────────────────────


def find_faults(path: Path, lines: list[bytes]) -> list[tuple[int, str]]:
    write_log(path, b"".join(lines))
    damage = verify_log(path)
    assert all(d.text.startswith(f"line {d.line} ") for d in damage)
    return [(d.line, d.fault) for d in damage]


@pytest.mark.req("checksums.log.verify")
def test_verify_names_lines_that_were_cut_removed_moved_added_or_repeated(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    a, b, c, d, e, f = lines = make_log_lines()
    other = split_lines(seal_records([make_opening(title="other"), *map(make_message, range(9))]))
    assert find_faults(path, lines) == []
    assert find_faults(path, [a, b, c[:-9]]) == [(3, "cut")]
    assert find_faults(path, [a, b, c[:-1]]) == []  # lacks its line feed only
    assert find_faults(path, [b, c, d]) == [(1, "missing")]
    assert find_faults(path, [a, b, d, e, f]) == [(3, "missing")]
    assert find_faults(path, [a, b, f]) == [(3, "missing")]
    assert find_faults(path, [a, c, b, d, e, f]) == [(2, "moved")]
    assert find_faults(path, [a, c, d, b, e, f]) == [(2, "moved"), (3, "moved")]
    assert find_faults(path, [a, b, other[7], c, d, e, f]) == [(3, "foreign")]
    assert find_faults(path, [a, b, other[7], other[8], c, d]) == [(3, "foreign"), (4, "foreign")]
    assert find_faults(path, [a, b, b, c, d]) == [(3, "repeated")]
    assert find_faults(path, [a, b, c, b, c, d]) == [(4, "repeated"), (5, "repeated")]
    assert find_faults(path, [a, b, c, c]) == [(4, "repeated")]
    assert find_faults(path, [*lines, *other]) == [(7, "missing")]
    assert find_faults(path, [a, b, encode_line(make_message(9)), c, d]) == [(3, "foreign")]
    assert find_faults(path, [a, b, b"garbage\n", c, d]) == [(3, "unreadable")]
    assert find_faults(path, []) == []


@pytest.mark.req("checksums.log.verify")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.lists(st.integers(0, 9), max_size=12))
def test_any_other_sequence_of_lines_is_found(tmp_path: Path, order: list[int]) -> None:
    """Lines of two logs in any order: only the beginning of one of them is valid."""
    lines = [
        *make_log_lines()[:5],
        *split_lines(seal_records([make_opening(title="other"), *map(make_message, range(4))])),
    ]
    path = write_log(tmp_path / "x.jsonl", b"".join(lines[number] for number in order))
    is_beginning = order in ([*range(len(order))], [*range(5, 5 + len(order))])
    assert (verify_log(path) == []) is (is_beginning and len(order) <= 5)


@pytest.mark.req("checksums.log.verify")
async def test_readers_leave_out_copies_and_moved_messages_and_report_the_rest(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c, d, e, f = make_log_lines()
    for lines, ids, missing in (
        ([a, b, c, c, d, e, f], [0, 1, 2, 3, 4], ()),
        ([a, b, c, b, c, d, e, f], [0, 1, 2, 3, 4], ()),
        ([a, b, d, c, e, f], [0, 2, 3, 4], (1,)),
        ([a, b, e, f], [0, 3, 4], (1, 2)),
    ):
        write_log(log_path(home), b"".join(lines))
        caplog.clear()
        async with open_file_storage(home) as storage:
            stored = await storage.load_and_repair(PAIR)
            page = await storage.read_page(PAIR, 0, 100)
        assert stored is not None
        assert page is not None
        for messages, damaged in (
            (stored.messages, stored.damaged),
            (page.messages, page.damaged),
        ):
            assert [record.id for record in messages] == ids
            assert damaged == missing
        assert logging.ERROR in {record.levelno for record in caplog.records}


@pytest.mark.req("checksums.log.verify")
async def test_a_log_can_be_verified_while_it_is_written(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        for number in range(100):
            await storage.append(PAIR, [make_message(number)])
            assert verify_log(log_path(home)) == []


@pytest.mark.req("checksums.log.flip")
async def test_a_last_line_whose_line_feed_is_damaged_is_put_right_and_never_cut(
    home: Path,
) -> None:
    whole = b"".join(make_log_lines())
    for end in (b"K", b" ", b"\r", b"\0"):
        write_log(log_path(home), whole[:-1] + end)
        assert verify_log(log_path(home)) != []
        async with open_file_storage(home) as storage:
            stored = await storage.load_and_repair(PAIR)
        assert stored is not None
        assert [record.id for record in stored.messages] == [0, 1, 2, 3, 4]
        assert log_path(home).read_bytes() == whole


# ── Codec ──────────────────────────────────────────────────────────────────────────────────────

TEXTS = st.text(max_size=60)


@given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from([b"", b"0123456789abcdef"]))
def test_any_lines_can_be_sealed_and_come_back(texts: list[str], prev: bytes) -> None:
    data = encode_records([make_message(number, text) for number, text in enumerate(texts)])
    lines, last = seal_lines(data, prev)
    for line in lines.splitlines():
        check_sum(line)
        assert read_prev(line) == prev
        prev = read_link(line)
    assert prev == last
    assert b"".join(remove_seal(line) + b"\n" for line in lines.split(b"\n")[:-1]) == data


@given(st.binary(max_size=80))
def test_any_bytes_can_be_asked_about(data: bytes) -> None:
    remove_seal(data)
    read_prev(data)
    assert read_link(data)


def test_calls_that_look_like_seals_are_none() -> None:
    seal = '","prev":"0123456789abcdef","sum":"0123456789abcdef"}'
    call = ToolCall("c", "bash", seal)
    for message in (Message("user", seal), Message("assistant", tool_calls=(call,))):
        record = MessageRecord(0, AT, message)
        assert decode_record(encode_line(record)[:-1]) == record
