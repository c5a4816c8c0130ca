"""Restarts, crashes and damage of an index, and logs that change without its knowledge."""

import asyncio
import json
import resource
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from crabtalk.model.messages import Message
from crabtalk.search import SearchScope, SessionIndex
from crabtalk.search.index_store import IndexStore
from crabtalk.storage import ConversationMeta, Pair, RecordSlice, make_log_name
from crabtalk.storage.checksums import remove_seal
from crabtalk.storage.records import MessageRecord, encode_records
from tests.search.search_harness import CRAB, OWL, SearchHarness, format_minute, open_harness

# The tests are about files and threads, so the event loop makes no difference.
pytestmark = pytest.mark.one_loop

PATIENCE = 10.0


def make_message(text: str) -> Message:
    return Message("user", text)


def index_path(home: Path) -> Path:
    return home / "index" / "sessions"


def log_path(home: Path, pair: Pair = CRAB) -> Path:
    return home / "sessions" / f"{make_log_name(pair)}.jsonl"


async def fill_index(harness: SearchHarness, count: int = 30) -> None:
    for number in range(count):
        await harness.append_messages(
            Pair("crab", f"user{number}"), f"common word{number}", f"tide {number}"
        )
    await harness.set_title(Pair("crab", "user0"), "granite")
    await harness.append_summary(Pair("crab", "user1"), "basalt")


async def check_everything_found(harness: SearchHarness, count: int = 30) -> None:
    """Everything is found, and only once."""
    for number in range(count):
        hit = await harness.search_one(f"word{number}")
        assert hit.sender == f"user{number}"
    assert await harness.find_senders("granite") == ["crab/user0"]
    assert await harness.find_senders("basalt") == ["crab/user1"]
    assert harness.index.statistics().messages == 2 * count
    store = harness.index._indexer.store
    assert store is not None
    assert store.view().messages.documents == 2 * count  # none is there twice


async def wait_until_found(harness: SearchHarness, query: str, expected: list[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await harness.find_senders(query) != expected:
            await asyncio.sleep(0.005)


# ── Restarts ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.restart")
async def test_everything_is_found_again_after_a_restart(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.restart()
        for number in range(30):  # from the first search on
            assert await harness.find_senders(f"word{number}") == [f"crab/user{number}"]
        await harness.wait_until_committed()
        await check_everything_found(harness)
        assert harness.index.statistics().rebuilds == 0


@pytest.mark.req("search.restart")
async def test_messages_appended_after_the_last_commit_are_found_by_the_first_search(
    home: Path,
) -> None:
    """As after a crash: the logs have the message, the index has not."""
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.wait_until_committed()
        await harness.index.close()
        record = MessageRecord(99, format_minute(99), Message("user", "periwinkle"))
        await harness.storage.append(Pair("crab", "user3"), [record])
        for marker in index_path(home).glob("complete"):
            marker.unlink()
        harness.index = SessionIndex(harness.storage, harness.directory)
        assert await harness.find_senders("periwinkle") == ["crab/user3"]


async def test_a_restart_does_not_read_logs_again(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.wait_until_committed()
        await harness.restart()
        await harness.wait_until_committed()
        assert harness.index.statistics().commits == 0
        await check_everything_found(harness)


@pytest.mark.req("search.close.bounded")
async def test_closing_commits_the_last_messages(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.append_messages(CRAB, "famous last words")
        start = time.monotonic()
        await harness.restart()
        assert time.monotonic() - start < PATIENCE
        await wait_until_found(harness, "famous", ["crab/user"])
        assert harness.index.statistics().uncommitted == 0


async def test_an_index_that_was_never_used_leaves_no_files(home: Path) -> None:
    async with open_harness(home) as harness:
        assert not harness.index.statistics().is_open
        await harness.restart()
    assert not index_path(home).exists()


async def test_closing_again_does_nothing(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "hello")
        await harness.index.close()
        await harness.index.close()


@pytest.mark.req("search.kill")
async def test_an_index_in_doubt_after_a_crash_stays_so_until_all_logs_were_checked(
    home: Path,
) -> None:
    """Killed before the manifest recorded a commit, and again after catching up with one log."""
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.wait_until_committed()
    shutil.copytree(index_path(home), home / "before")
    async with open_harness(home) as harness:
        harness.metas = {meta.pair: meta for _, meta in await harness.storage.list_conversations()}
        for number in range(30):
            await harness.append_messages(Pair("crab", f"user{number}"), f"again{number}")
        await harness.wait_until_committed()
        await harness.index.close()
        for file in index_path(home).glob("manifest*"):
            file.unlink()
        for file in (home / "before").glob("manifest*"):
            shutil.copy(file, index_path(home))
        store = IndexStore(index_path(home))
        handle = make_log_name(Pair("crab", "user5"))
        log = handle, store.find_positions([handle])[handle]
        (record_slice,) = await harness.storage.read_new_records([log], 1 << 20)
        assert isinstance(record_slice, RecordSlice)
        store.ingest(handle, record_slice, tool_results=False)
        store.commit()
        store.close()
    async with open_harness(home) as harness:
        await harness.wait_until_committed()
        assert harness.index.statistics().rebuilds == 0
        opened = harness.index._indexer.store
        assert opened is not None
        assert opened.view().messages.documents == 3 * 30
        assert not opened.is_suspect
        assert await harness.find_senders("again7") == ["crab/user7"]
        await harness.restart()
        await harness.wait_until_committed()
        opened = harness.index._indexer.store
        assert opened is not None
        assert not opened.is_suspect


@pytest.mark.req("search.catch_up")
async def test_messages_appended_while_the_index_was_closed_are_found(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.index.close()
        records = [MessageRecord(2, "2026-02-01T00:00:00Z", make_message("meanwhile"))]
        await harness.storage.append(Pair("crab", "user3"), records)
        await harness.storage.append(
            OWL, [ConversationMeta(*OWL, created_at="x").make_snapshot()], create=True
        )
        await harness.storage.append(
            OWL, [MessageRecord(0, "2026-02-01T00:00:00Z", make_message("elsewhere"))]
        )
        await harness.storage.delete_conversation(Pair("crab", "user4"))
        await harness.restart()
        await wait_until_found(harness, "meanwhile", ["crab/user3"])
        await wait_until_found(harness, "elsewhere", ["owl/user"])
        assert await harness.find_senders("word4") == []


@pytest.mark.req("search.rebuild")
async def test_without_its_directory_the_index_is_rebuilt_from_the_logs(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        await harness.restart()
        await harness.wait_until_committed()
        await check_everything_found(harness)


async def test_messages_appended_during_a_rebuild_are_found_at_once(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness, 200)
        await harness.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        await harness.restart()
        harness.index.start()
        number = 0
        while not harness.index.statistics().is_current and number < 1_000:
            await harness.append_messages(OWL, f"live{number}")
            assert await harness.find_senders(f"live{number}") == ["owl/user"]
            number += 1
        await harness.wait_until_committed()
        assert await harness.find_senders("live0") == ["owl/user"]
        assert harness.index.statistics().messages == 400 + number


# ── Damage ──────────────────────────────────────────────────────────────────────────────────────


def list_index_files(home: Path) -> list[Path]:
    return sorted(p for p in index_path(home).rglob("*") if p.is_file() and p.suffix != ".lock")


DAMAGES = ["flip", "cut", "empty", "remove"]


@pytest.mark.req("search.damage")
@pytest.mark.slow
async def test_whichever_file_is_damaged_everything_is_found_in_the_end(home: Path) -> None:
    """Each file is damaged in one of the ways, in turn."""
    await check_damage_repaired(home, DAMAGES)


@pytest.mark.slow
@pytest.mark.req("search.damage")
@pytest.mark.parametrize("damage", DAMAGES)
async def test_in_whichever_way_files_are_damaged_everything_is_found_in_the_end(
    home: Path, damage: str
) -> None:
    await check_damage_repaired(home, [damage])


async def check_damage_repaired(home: Path, damages: list[str]) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness, 10)
        await harness.wait_until_committed()
        await harness.index.close()
        intact = home / "intact"
        shutil.copytree(index_path(home), intact)
        for path, damage in zip(list_index_files(home), cycle(damages), strict=False):
            shutil.rmtree(index_path(home), ignore_errors=True)
            shutil.copytree(intact, index_path(home))
            damage_file(path, damage)
            await harness.restart()
            await harness.find_senders("common")  # must not fail, whatever it finds
            await harness.wait_until_verified()
            await check_everything_found(harness, 10)
            await harness.index.close()


def damage_file(path: Path, damage: str) -> None:
    data = path.read_bytes()
    match damage:
        case "flip":
            middle = len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :])
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.unlink()


@pytest.mark.req("search.damage")
async def test_a_changed_byte_inside_a_segment_is_noticed(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.wait_until_committed()
        await harness.index.close()
        for part in ("idx", "term", "pos", "fast", "fieldnorm", "store"):
            (path,) = list((index_path(home) / "titles").glob(f"*.{part}"))
            damage_file(path, "flip")
            await harness.restart()
            await harness.wait_until_verified()
            assert harness.index.statistics().rebuilds == 1
            await check_everything_found(harness)
            await harness.index.close()


@pytest.mark.req("search.version")
async def test_an_index_of_another_version_is_rebuilt(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.wait_until_committed()
        await harness.index.close()
        with sqlite3.connect(index_path(home) / "manifest") as manifest:
            manifest.execute("UPDATE facts SET value = '0' WHERE name = 'version'")
        manifest.close()
        await harness.restart()
        await harness.wait_until_committed()
        assert harness.index.statistics().rebuilds == 1
        await check_everything_found(harness)


async def test_files_that_belong_to_no_segment_are_removed(home: Path) -> None:
    async with open_harness(home) as harness:
        await fill_index(harness)
        await harness.wait_until_committed()
        await harness.index.close()
        messages_index = index_path(home) / "messages"
        managed = json.loads((messages_index / ".managed.json").read_text())
        orphan = f"{'ab' * 16}.idx"
        (messages_index / orphan).write_bytes(b"left by a crash")
        (messages_index / ".managed.json").write_text(json.dumps([*managed, orphan]))
        await harness.restart()
        await harness.append_messages(CRAB, "on we go")
        await harness.wait_until_committed()
        assert not (messages_index / orphan).exists()


async def test_many_commits_do_not_make_many_files(home: Path) -> None:
    async with open_harness(home) as harness:
        for number in range(60):
            await harness.append_messages(CRAB, f"number{number}")
            await harness.wait_until_committed()
        segments = list((index_path(home) / "messages").glob("*.idx"))
        assert len(segments) < 30
        assert (await harness.search_one("number7")).message_id == 7


# ── Logs that change ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_truncated_is_read_again(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "first granite")
        length = log_path(home).stat().st_size
        await harness.append_messages(CRAB, "second basalt")
        await harness.wait_until_committed()
        await harness.index.close()
        with log_path(home).open("r+b") as log:
            log.truncate(length)
        await harness.restart()
        assert await harness.find_senders("basalt") == []  # at once, since the log lacks it
        await wait_until_found(harness, "granite", ["crab/user"])
        await harness.wait_until_committed()
        assert harness.index.statistics().messages == 1


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_replaced_is_read_again(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "first granite", "second")
        await harness.wait_until_committed()
        await harness.index.close()
        meta = ConversationMeta(*CRAB, created_at="2026-03-01T00:00:00Z").make_snapshot()
        texts = [make_message(f"another marble {number}") for number in range(20)]
        records = [MessageRecord(n, "2026-03-01T00:00:00Z", m) for n, m in enumerate(texts)]
        log_path(home).write_bytes(encode_records([meta, *records]))
        await harness.restart()
        assert await harness.find_senders("granite") == []
        await wait_until_found(harness, "marble", ["crab/user"])
        await harness.wait_until_committed()
        assert harness.index.statistics().messages == 20


REDACTION = (b"swordfish", b"xxxxxxxxx")


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_word_that_was_removed_from_a_log_is_not_found(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "the password is swordfish", "and more")
        await harness.wait_until_committed()
        path = log_path(home)
        # A person who edits a line also removes its checksum.
        lines = [remove_seal(line) for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(b"%b\n" % line.replace(*REDACTION) for line in lines))
        assert await harness.find_senders("swordfish") == []
        await wait_until_found(harness, "xxxxxxxxx", ["crab/user"])
        await harness.wait_until_committed()
        store = harness.index._indexer.store
        assert store is not None
        # The count includes removed documents until they are merged away.
        assert store.view().messages.document_frequency("swordfish") in (0, 1)
        assert store.view().messages.documents == 2


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_removed_by_hand_is_not_found(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "granite")
        await harness.append_messages(OWL, "granite")
        await harness.wait_until_committed()
        await harness.append_messages(CRAB, "basalt")
        log_path(home).unlink()
        assert await harness.find_senders("granite basalt") == ["owl/user"]
        await harness.wait_until_committed()
        assert harness.index.statistics().messages == 1
        assert await harness.find_senders("granite basalt") == ["owl/user"]


async def test_a_log_under_another_name_is_found(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "granite")
        await harness.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        log_path(home).rename(log_path(home).with_stem(f"{make_log_name(CRAB)}-2"))
        await harness.restart()
        await harness.wait_until_committed()
        hit = await harness.search_one("granite")
        assert hit.handle == f"{make_log_name(CRAB)}-2"


async def test_a_copy_of_a_log_is_not_found_beside_the_original(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "granite")
        await harness.wait_until_committed()
        shutil.copy(log_path(home), log_path(home).with_stem("copy"))
        await harness.restart()
        await harness.wait_until_committed()
        assert (await harness.search_one("granite")).handle == make_log_name(CRAB)


async def test_a_damaged_line_does_not_hide_the_others(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "granite", "basalt", "marble")
        await harness.index.close()
        path = log_path(home)
        path.write_bytes(path.read_bytes().replace(b'"text":"basalt"', b'"text":basalt"'))
        shutil.rmtree(index_path(home), ignore_errors=True)
        await harness.restart()
        await harness.wait_until_committed()
        assert (await harness.search_one("marble")).message_id == 2
        assert (await harness.search_one("granite")).message_id == 0
        assert await harness.find_senders("basalt") == []


async def test_a_log_that_cannot_be_read_does_not_stop_the_others(home: Path) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "granite")
        await harness.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        (home / "sessions" / "broken.jsonl").mkdir()
        await harness.restart()
        await wait_until_found(harness, "granite", ["crab/user"])
        assert not harness.index.statistics().is_current  # one log is missing


# ── Disk errors ─────────────────────────────────────────────────────────────────────────────────


async def test_if_the_index_cannot_be_written_new_messages_are_still_found(
    home: Path,
) -> None:
    home.mkdir()
    (home / "index").write_text("not a directory")
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "granite")
        assert await harness.find_senders("granite") == ["crab/user"]
        async with asyncio.timeout(PATIENCE):
            while not harness.index.statistics().error:
                await asyncio.sleep(0.005)
        assert await harness.find_senders("granite") == ["crab/user"]
        (home / "index").unlink()
        await harness.wait_until_committed()
        assert harness.index.statistics().error == ""
        assert await harness.find_senders("granite", scope=SearchScope("crab", "user")) == [
            "crab/user"
        ]


@contextmanager
def limit_file_size() -> Iterator[None]:
    """Limits the size of this process's files, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.req("search.disk_full")
async def test_on_a_full_disk_everything_is_found_and_committed_once_there_is_room(
    home: Path,
) -> None:
    async with open_harness(home) as harness:
        await harness.append_messages(CRAB, "granite")
        await harness.wait_until_committed()
        with limit_file_size():
            for number in range(40):
                words = " ".join(f"word{number}x{n}" for n in range(2_500))
                await harness.append_messages(Pair("crab", f"user{number}"), words)
            harness.index.rescan()
            async with asyncio.timeout(PATIENCE):
                while not harness.index.statistics().error:
                    await asyncio.sleep(0.005)
            assert "cannot be written" in harness.index.statistics().error
            assert await harness.find_senders("word7x8") == ["crab/user7"]
            await wait_until_found(harness, "granite", ["crab/user"])
        await harness.wait_until_committed()
        assert harness.index.statistics().error == ""
        assert harness.index.statistics().rebuilds == 0
        assert harness.index.statistics().messages == 41
        assert await harness.find_senders("word39x2499") == ["crab/user39"]
