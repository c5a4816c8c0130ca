"""Accepted messages: the guarantees of every storage, and the journal of FileStorage."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from crabtalk.storage import (
    AcceptedMessage,
    EventRecord,
    MessageRecord,
    Pair,
    Record,
    Storage,
    StorageError,
)
from crabtalk.storage.accepted_journal import REPLACE_BYTES, AcceptedJournal
from crabtalk.storage.log_writer import LogWriter
from tests.storage.backends import BACKENDS, open_backend
from tests.storage.sample_records import (
    AT,
    PAIR,
    log_path,
    make_marker,
    make_message,
    make_opening,
    open_file_storage,
)

OTHER = Pair("crab", "user")


@pytest.fixture(params=BACKENDS)
async def storage(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Storage]:
    async with open_backend(request.param, home, request) as backend:
        yield backend


def make_accepted(
    number: int, text: str = "", pair: Pair = PAIR, *, steer: int = 0
) -> AcceptedMessage:
    run = "r0" if steer else f"r{number}"
    at = f"2026-04-28T10:00:{number:02}.000Z"
    text = text or f"text {number}"
    return AcceptedMessage(*pair, run, text, at, number=number, steer=steer, speaker=pair.agent)


def make_message_of(number: int, entry: AcceptedMessage) -> MessageRecord:
    return MessageRecord(
        number, AT, make_message(0, entry.text).message, run=entry.run, steer=entry.steer
    )


async def read_texts(storage: Storage, pair: Pair = PAIR) -> list[str]:
    page = await storage.read_page(pair, 0, 100)
    return [record.message.text for record in page.messages] if page is not None else []


# ── Every storage ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("accepted.recovery")
async def test_abandoned_texts_are_put_into_the_log_when_it_is_loaded(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    entries = [
        make_accepted(1),
        make_accepted(2),
        make_accepted(3, "steer", steer=1),
        make_accepted(4, pair=OTHER),
    ]
    for entry in entries:
        await storage.accept_message(entry)
    assert await storage.list_unsettled() == []
    storage.abandon_messages(entries)
    assert set(await storage.list_unsettled()) == {PAIR, OTHER}
    stored = await storage.load_and_repair(PAIR)
    assert stored is not None
    assert [record.message.text for record in stored.messages] == [
        "message 0",
        "steer",
        "text 1",
        "text 2",
    ]
    assert [(r.id, r.run, r.steer) for r in stored.messages[1:]] == [
        (1, "r0", 1),
        (2, "r1", 0),
        (3, "r2", 0),
    ]
    assert stored.meta.message_count == 4
    assert await storage.load_and_repair(PAIR) == stored
    assert await storage.list_unsettled() == [OTHER]
    other = await storage.load_and_repair(OTHER)  # a conversation that does not exist yet
    assert other is not None
    assert [record.message.text for record in other.messages] == ["text 4"]
    assert other.meta.created_at
    assert await storage.list_unsettled() == []


@pytest.mark.req("accepted.waiting_turn")
async def test_messages_of_running_turns_are_left_to_their_runs(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    await storage.accept_message(make_accepted(1))
    await storage.accept_message(make_accepted(2))
    storage.abandon_messages([make_accepted(2)])
    await storage.load_and_repair(PAIR)
    assert await read_texts(storage) == ["message 0", "text 2"]
    await storage.append(PAIR, [make_message_of(2, make_accepted(1))])
    storage.abandon_messages([make_accepted(1)])  # too late: it is settled
    await storage.load_and_repair(PAIR)
    assert await read_texts(storage) == ["message 0", "text 2", "text 1"]
    assert await storage.list_unsettled() == []


async def test_withdrawn_messages_come_into_no_log(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    await storage.accept_message(make_accepted(1))
    await storage.withdraw_messages([make_accepted(1)])
    storage.abandon_messages([make_accepted(1)])
    await storage.load_and_repair(PAIR)
    assert await read_texts(storage) == ["message 0"]


@pytest.mark.req("accepted.steer")
async def test_a_message_settles_the_text_of_its_run_and_steer_alone(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
    entries = [make_accepted(n, f"steer {n}", steer=n) for n in (1, 2, 3)]
    for entry in entries:
        await storage.accept_message(entry)
    await storage.append(PAIR, [make_message_of(1, entries[1])])
    storage.abandon_messages(entries)
    await storage.load_and_repair(PAIR)
    assert await read_texts(storage) == ["message 0", "steer 2", "steer 1", "steer 3"]


async def test_half_a_surrogate_pair_can_be_accepted(storage: Storage) -> None:
    entry = make_accepted(1, "half \ud83e x")
    await storage.accept_message(entry)
    storage.abandon_messages([entry])
    await storage.load_and_repair(PAIR)
    assert (await read_texts(storage))[0].endswith(" x")


async def test_closed_storage_accepts_nothing(storage: Storage) -> None:
    await storage.close()
    with pytest.raises(StorageError, match="closed"):
        await storage.accept_message(make_accepted(1))


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


def read_log_lines(home: Path, pair: Pair = PAIR) -> list[dict[str, object]]:
    return [json.loads(line) for line in log_path(home, pair).read_bytes().splitlines()]


def journal_path(home: Path) -> Path:
    return home / "sessions" / "accepted.journal"


async def accept_and_exit(
    home: Path, *entries: AcceptedMessage, records: Sequence[Record] = ()
) -> None:
    """Leaves what a killed process leaves: accepted messages without an end."""
    async with open_file_storage(home) as storage:
        if records:
            await storage.append(PAIR, records, create=True)
        for entry in entries:
            await storage.accept_message(entry)


async def recover_texts(home: Path) -> list[str]:
    async with open_file_storage(home) as storage:
        for pair in await storage.list_unsettled():
            await storage.load_and_repair(pair)
        return await read_texts(storage)


@pytest.mark.req("accepted.recovery")
async def test_the_next_process_closes_leftover_messages_once(home: Path) -> None:
    await accept_and_exit(
        home, make_accepted(1), make_accepted(2), records=[make_opening(), make_message(0)]
    )
    for _ in range(3):
        assert await recover_texts(home) == ["message 0", "text 1", "text 2"]
    ends = [line for line in read_log_lines(home) if line["kind"] == "event"]
    assert [(e["event"], e["run"]) for e in ends] == [("done", "r1"), ("done", "r2")]
    assert all(e["data"]["stop_reason"] == "interrupted" for e in ends)  # type: ignore[index]


@pytest.mark.req("accepted.recovery")
async def test_a_message_that_is_in_the_log_is_not_put_there_again(home: Path) -> None:
    """The process was killed after the append and before the journal was updated."""
    await accept_and_exit(
        home, make_accepted(1), make_accepted(2), records=[make_opening(), make_message(0)]
    )
    before = journal_path(home).read_bytes()
    async with open_file_storage(home) as storage:
        await storage.append(
            PAIR, [make_message_of(1, make_accepted(1)), EventRecord("done", AT, "r1")]
        )
        await storage.append(PAIR, [make_marker(2)])  # the message is behind a marker by now
    journal_path(home).write_bytes(before)
    assert await recover_texts(home) == ["message 0", "text 1", "text 2"]
    runs = [line["run"] for line in read_log_lines(home) if line["kind"] == "event"]
    assert runs == ["r1", "r2"]


@pytest.mark.req("accepted.recovery")
async def test_a_recovery_that_is_cut_at_any_byte_is_completed_and_doubles_nothing(
    home: Path,
) -> None:
    await accept_and_exit(
        home,
        make_accepted(1),
        make_accepted(2),
        make_accepted(3, steer=1),
        records=[make_opening(), make_message(0)],
    )
    before, pending = log_path(home).read_bytes(), journal_path(home).read_bytes()
    expected = await recover_texts(home)
    whole = log_path(home).read_bytes()
    assert whole.startswith(before)
    for end in range(len(before), len(whole), 7):
        log_path(home).write_bytes(whole[:end])
        journal_path(home).write_bytes(pending)
        assert await recover_texts(home) == expected
        runs = [line["run"] for line in read_log_lines(home) if line["kind"] == "event"]
        assert sorted(map(str, runs)) == ["r0", "r1", "r2"], end


@pytest.mark.req("accepted.recovery")
async def test_an_incomplete_journal_line_is_removed_and_a_damaged_one_set_aside(
    home: Path,
) -> None:
    await accept_and_exit(home, make_accepted(1), make_accepted(2), make_accepted(3))
    whole = journal_path(home).read_bytes()
    first, second, third = whole.splitlines(keepends=True)
    flipped = second.replace(b"text 2", b"text 9")
    journal_path(home).write_bytes(first + flipped + third + first[: len(first) // 2])
    async with open_file_storage(home) as storage:
        await storage.accept_message(make_accepted(4))
    assert await recover_texts(home) == ["text 1", "text 3", "text 4"]
    assert journal_path(home).with_suffix(".damaged").read_bytes() == flipped


async def test_lines_carry_a_checksum_of_what_follows(home: Path) -> None:
    await accept_and_exit(home, make_accepted(1))
    (line,) = journal_path(home).read_bytes().splitlines()
    checksum, _, body = line.partition(b" ")
    assert int(checksum, 16) == zlib.crc32(body)
    assert json.loads(body)["accepted"]["run"] == "r1"


@pytest.mark.req("accepted.recovery_cost")
async def test_recovery_reads_the_end_of_a_long_log(home: Path) -> None:
    """The part before the end is made unreadable, which must not matter."""
    many: list[Record] = [
        make_opening(),
        *[make_message(n, "x" * 1000) for n in range(2000)],
        make_marker(2000),
    ]
    entry = msgspec.structs.replace(make_accepted(1), after=2000)
    await accept_and_exit(home, entry, records=many)
    path = log_path(home)
    data = path.read_bytes()
    start = data.index(b"\n") + 1
    damage = b"#" * 500_000 + b"\n"
    path.write_bytes(data[:start] + damage + data[start + len(damage) :])
    async with open_file_storage(home) as storage:
        assert await storage.list_unsettled() == [PAIR]
        stored = await storage.load_and_repair(PAIR)
    assert stored is not None
    assert [record.message.text for record in stored.messages] == ["text 1"]
    assert not path.with_suffix(".damaged").exists()


@pytest.mark.req("accepted.recovery_cost")
async def test_a_journal_that_has_grown_is_replaced_by_one_with_the_pending_entries(
    home: Path,
) -> None:
    first, second = journal_path(home), journal_path(home).with_name("accepted-2.journal")
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        await storage.accept_message(make_accepted(99, "it stays"))
        for number in range(40):
            entry = make_accepted(number + 1, "x" * (REPLACE_BYTES // 10), OTHER)
            await storage.accept_message(entry)
            await storage.withdraw_messages([entry])
        await storage.accept_message(make_accepted(98, "it stays too"))
    sizes = [path.stat().st_size for path in (first, second) if path.exists()]
    assert sum(sizes) < 3 * REPLACE_BYTES  # of more than four that were written
    assert await recover_texts(home) == ["it stays too", "it stays"]


@pytest.mark.req("accepted.recovery")
async def test_both_journals_of_a_crash_amid_the_replacement_are_read(home: Path) -> None:
    await accept_and_exit(home, make_accepted(1), make_accepted(2))
    whole = journal_path(home).read_bytes()
    journal_path(home).with_name("accepted-2.journal").write_bytes(
        whole.splitlines(keepends=True)[1]
    )
    assert await recover_texts(home) == ["text 1", "text 2"]
    assert [path.name for path in (home / "sessions").glob("accepted*")] == ["accepted-2.journal"]
    assert await recover_texts(home) == ["text 1", "text 2"]


@pytest.mark.req("accepted.steer")
async def test_a_text_that_cannot_be_written_is_not_accepted(home: Path) -> None:
    async with open_file_storage(home) as storage:
        await storage.append(PAIR, [make_opening()], create=True)
        journal_path(home).mkdir()
        with pytest.raises(StorageError, match="accepted"):
            await storage.accept_message(make_accepted(1))
        journal_path(home).rmdir()
        await storage.accept_message(make_accepted(2))
    assert await recover_texts(home) == ["text 2"]


async def test_accepting_shares_the_flush_of_the_logs(home: Path) -> None:
    async with open_file_storage(home, flush=True) as storage:
        await storage.append(PAIR, [make_opening(), make_message(0)], create=True)
        await storage.accept_message(make_accepted(1))
        flushes = storage.log_writer.flushes
        pairs = [Pair("crab", f"s{n}") for n in range(50)]
        await asyncio.gather(
            *[storage.accept_message(make_accepted(n + 1, pair=p)) for n, p in enumerate(pairs)]
        )
        assert storage.log_writer.flushes - flushes < 10


async def test_settled_lines_are_not_flushed(home: Path) -> None:
    home.mkdir(exist_ok=True)
    log_writer = LogWriter(home / "sessions")
    accepted = AcceptedJournal(home / "sessions", log_writer)
    entries = [make_accepted(n) for n in range(1, 11)]
    for entry in entries:
        await accepted.accept(entry)
    flushes = log_writer.flushes
    for entry in entries:
        accepted.settle([entry.key])
    await log_writer.close()
    await accepted.close()
    assert log_writer.flushes == flushes
