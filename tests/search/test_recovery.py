"""An index that ends, crashes, is damaged, or whose logs change behind its back."""

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

# What it tests is on the disk, and in threads: the loop makes no difference.
pytestmark = pytest.mark.one_loop

PATIENCE = 10.0


def make_message(text: str) -> Message:
    return Message("user", text)


def index_path(home: Path) -> Path:
    return home / "index" / "sessions"


def log_path(home: Path, pair: Pair = CRAB) -> Path:
    return home / "sessions" / f"{make_log_name(pair)}.jsonl"


async def fill_index(talk: SearchHarness, count: int = 30) -> None:
    for number in range(count):
        await talk.append_messages(
            Pair("crab", f"user{number}"), f"common word{number}", f"tide {number}"
        )
    await talk.set_title(Pair("crab", "user0"), "granite")
    await talk.append_summary(Pair("crab", "user1"), "basalt")


async def check_everything_found(talk: SearchHarness, count: int = 30) -> None:
    """Everything is found, once."""
    for number in range(count):
        hit = await talk.search_one(f"word{number}")
        assert hit.sender == f"user{number}"
    assert await talk.find_senders("granite") == ["crab/user0"]
    assert await talk.find_senders("basalt") == ["crab/user1"]
    assert talk.index.statistics().messages == 2 * count
    library = talk.index._indexer.store
    assert library is not None
    assert library.view().messages.documents == 2 * count  # none twice


async def wait_until_found(talk: SearchHarness, query: str, expected: list[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await talk.find_senders(query) != expected:
            await asyncio.sleep(0.005)


# ── Ends and beginnings ─────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.restart")
async def test_everything_is_found_again_after_a_restart(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.restart()
        for number in range(30):  # from the first search on
            assert await talk.find_senders(f"word{number}") == [f"crab/user{number}"]
        await talk.wait_until_committed()
        await check_everything_found(talk)
        assert talk.index.statistics().rebuilds == 0


@pytest.mark.req("search.restart")
async def test_what_was_said_after_the_last_commit_is_found_by_the_first_search(
    home: Path,
) -> None:
    """As after a crash: the logs have it, the index has never heard of it."""
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.wait_until_committed()
        await talk.index.close()
        record = MessageRecord(99, format_minute(99), Message("user", "periwinkle"))
        await talk.storage.append(Pair("crab", "user3"), [record])
        for mark in index_path(home).glob("complete"):
            mark.unlink()
        talk.index = SessionIndex(talk.storage, talk.directory)
        assert await talk.find_senders("periwinkle") == ["crab/user3"]


async def test_a_restart_reads_no_log_that_was_read_before(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.wait_until_committed()
        await talk.restart()
        await talk.wait_until_committed()
        assert talk.index.statistics().commits == 0
        await check_everything_found(talk)


@pytest.mark.req("search.close.bounded")
async def test_closing_keeps_what_was_said_last(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.append_messages(CRAB, "famous last words")
        begun = time.monotonic()
        await talk.restart()
        assert time.monotonic() - begun < PATIENCE
        await wait_until_found(talk, "famous", ["crab/user"])
        assert talk.index.statistics().uncommitted == 0


async def test_one_that_was_never_used_leaves_nothing(home: Path) -> None:
    async with open_harness(home) as talk:
        assert not talk.index.statistics().is_open
        await talk.restart()
    assert not index_path(home).exists()


async def test_closing_twice_is_closing_once(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "hello")
        await talk.index.close()
        await talk.index.close()


@pytest.mark.req("search.kill")
async def test_what_a_crash_left_in_doubt_stays_so_until_all_of_it_was_looked_at(
    home: Path,
) -> None:
    """Killed before the manifest heard of a commit, and again when it had caught up with some."""
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.wait_until_committed()
    shutil.copytree(index_path(home), home / "before")
    async with open_harness(home) as talk:
        talk.metas = {meta.pair: meta for _, meta in await talk.storage.list_conversations()}
        for number in range(30):
            await talk.append_messages(Pair("crab", f"user{number}"), f"again{number}")
        await talk.wait_until_committed()
        await talk.index.close()
        for file in index_path(home).glob("manifest*"):
            file.unlink()
        for file in (home / "before").glob("manifest*"):
            shutil.copy(file, index_path(home))
        library = IndexStore(index_path(home))
        handle = make_log_name(Pair("crab", "user5"))
        place = handle, library.find_positions([handle])[handle]
        (followed,) = await talk.storage.read_new_records([place], 1 << 20)
        assert isinstance(followed, RecordSlice)
        library.ingest(handle, followed, tool_results=False)
        library.commit()
        library.close()
    async with open_harness(home) as talk:
        await talk.wait_until_committed()
        assert talk.index.statistics().rebuilds == 0
        opened = talk.index._indexer.store
        assert opened is not None
        assert opened.view().messages.documents == 3 * 30
        assert not opened.is_suspect
        assert await talk.find_senders("again7") == ["crab/user7"]
        await talk.restart()
        await talk.wait_until_committed()
        opened = talk.index._indexer.store
        assert opened is not None
        assert not opened.is_suspect


@pytest.mark.req("search.catch_up")
async def test_what_was_said_while_it_was_not_there_is_found(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.index.close()
        records = [MessageRecord(2, "2026-02-01T00:00:00Z", make_message("meanwhile"))]
        await talk.storage.append(Pair("crab", "user3"), records)
        await talk.storage.append(
            OWL, [ConversationMeta(*OWL, created_at="x").make_snapshot()], create=True
        )
        await talk.storage.append(
            OWL, [MessageRecord(0, "2026-02-01T00:00:00Z", make_message("elsewhere"))]
        )
        await talk.storage.delete_conversation(Pair("crab", "user4"))
        await talk.restart()
        await wait_until_found(talk, "meanwhile", ["crab/user3"])
        await wait_until_found(talk, "elsewhere", ["owl/user"])
        assert await talk.find_senders("word4") == []


@pytest.mark.req("search.rebuild")
async def test_without_its_directory_it_is_made_anew_from_the_logs(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        await talk.restart()
        await talk.wait_until_committed()
        await check_everything_found(talk)


async def test_what_is_said_during_a_rebuild_is_found_at_once(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk, 200)
        await talk.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        await talk.restart()
        talk.index.start()
        number = 0
        while not talk.index.statistics().is_current and number < 1_000:
            await talk.append_messages(OWL, f"live{number}")
            assert await talk.find_senders(f"live{number}") == ["owl/user"]
            number += 1
        await talk.wait_until_committed()
        assert await talk.find_senders("live0") == ["owl/user"]
        assert talk.index.statistics().messages == 400 + number


# ── Damage ──────────────────────────────────────────────────────────────────────────────────────


def list_index_files(home: Path) -> list[Path]:
    return sorted(p for p in index_path(home).rglob("*") if p.is_file() and p.suffix != ".lock")


DAMAGES = ["flip", "cut", "empty", "remove"]


@pytest.mark.req("search.damage")
@pytest.mark.slow
async def test_whatever_file_is_damaged_everything_is_found_in_the_end(home: Path) -> None:
    """Each in one of the ways, in turn."""
    await check_damage_repaired(home, DAMAGES)


@pytest.mark.slow
@pytest.mark.req("search.damage")
@pytest.mark.parametrize("harm", DAMAGES)
async def test_however_any_file_is_damaged_everything_is_found_in_the_end(
    home: Path, harm: str
) -> None:
    await check_damage_repaired(home, [harm])


async def check_damage_repaired(home: Path, harms: list[str]) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk, 10)
        await talk.wait_until_committed()
        await talk.index.close()
        intact = home / "intact"
        shutil.copytree(index_path(home), intact)
        for path, harm in zip(list_index_files(home), cycle(harms), strict=False):
            shutil.rmtree(index_path(home), ignore_errors=True)
            shutil.copytree(intact, index_path(home))
            damage_file(path, harm)
            await talk.restart()
            await talk.find_senders("common")  # must not fail, whatever it finds
            await talk.wait_until_verified()
            await check_everything_found(talk, 10)
            await talk.index.close()


def damage_file(path: Path, harm: str) -> None:
    data = path.read_bytes()
    match harm:
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
async def test_a_byte_that_changed_inside_a_segment_is_noticed(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.wait_until_committed()
        await talk.index.close()
        for part in ("idx", "term", "pos", "fast", "fieldnorm", "store"):
            (path,) = list((index_path(home) / "titles").glob(f"*.{part}"))
            damage_file(path, "flip")
            await talk.restart()
            await talk.wait_until_verified()
            assert talk.index.statistics().rebuilds == 1
            await check_everything_found(talk)
            await talk.index.close()


@pytest.mark.req("search.version")
async def test_an_index_of_another_version_is_made_anew(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.wait_until_committed()
        await talk.index.close()
        with sqlite3.connect(index_path(home) / "manifest") as manifest:
            manifest.execute("UPDATE facts SET value = '0' WHERE name = 'version'")
        manifest.close()
        await talk.restart()
        await talk.wait_until_committed()
        assert talk.index.statistics().rebuilds == 1
        await check_everything_found(talk)


async def test_files_that_belong_to_nothing_are_removed(home: Path) -> None:
    async with open_harness(home) as talk:
        await fill_index(talk)
        await talk.wait_until_committed()
        await talk.index.close()
        shelf = index_path(home) / "messages"
        managed = json.loads((shelf / ".managed.json").read_text())
        orphan = f"{'ab' * 16}.idx"
        (shelf / orphan).write_bytes(b"left by a crash")
        (shelf / ".managed.json").write_text(json.dumps([*managed, orphan]))
        await talk.restart()
        await talk.append_messages(CRAB, "on we go")
        await talk.wait_until_committed()
        assert not (shelf / orphan).exists()


async def test_many_commits_do_not_make_many_files(home: Path) -> None:
    async with open_harness(home) as talk:
        for number in range(60):
            await talk.append_messages(CRAB, f"number{number}")
            await talk.wait_until_committed()
        segments = list((index_path(home) / "messages").glob("*.idx"))
        assert len(segments) < 30
        assert (await talk.search_one("number7")).message_id == 7


# ── Logs that change ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_shortened_is_read_anew(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "first granite")
        length = log_path(home).stat().st_size
        await talk.append_messages(CRAB, "second basalt")
        await talk.wait_until_committed()
        await talk.index.close()
        with log_path(home).open("r+b") as log:
            log.truncate(length)
        await talk.restart()
        assert await talk.find_senders("basalt") == []  # at once: it is not in the log
        await wait_until_found(talk, "granite", ["crab/user"])
        await talk.wait_until_committed()
        assert talk.index.statistics().messages == 1


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_replaced_is_read_anew(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "first granite", "second")
        await talk.wait_until_committed()
        await talk.index.close()
        meta = ConversationMeta(*CRAB, created_at="2026-03-01T00:00:00Z").make_snapshot()
        texts = [make_message(f"another marble {number}") for number in range(20)]
        records = [MessageRecord(n, "2026-03-01T00:00:00Z", m) for n, m in enumerate(texts)]
        log_path(home).write_bytes(encode_records([meta, *records]))
        await talk.restart()
        assert await talk.find_senders("granite") == []
        await wait_until_found(talk, "marble", ["crab/user"])
        await talk.wait_until_committed()
        assert talk.index.statistics().messages == 20


REDACTION = (b"swordfish", b"xxxxxxxxx")


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_word_that_was_taken_out_of_a_log_is_not_found(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "the password is swordfish", "and more")
        await talk.wait_until_committed()
        path = log_path(home)
        # Whoever edits a line takes its checksums out of it.
        lines = [remove_seal(line) for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(b"%b\n" % line.replace(*REDACTION) for line in lines))
        assert await talk.find_senders("swordfish") == []
        await wait_until_found(talk, "xxxxxxxxx", ["crab/user"])
        await talk.wait_until_committed()
        library = talk.index._indexer.store
        assert library is not None
        assert library.view().messages.document_frequency("swordfish") in (
            0,
            1,
        )  # until it is merged
        assert library.view().messages.documents == 2


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_removed_by_hand_is_not_found(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "granite")
        await talk.append_messages(OWL, "granite")
        await talk.wait_until_committed()
        await talk.append_messages(CRAB, "basalt")
        log_path(home).unlink()
        assert await talk.find_senders("granite basalt") == ["owl/user"]
        await talk.wait_until_committed()
        assert talk.index.statistics().messages == 1
        assert await talk.find_senders("granite basalt") == ["owl/user"]


async def test_a_log_under_another_name_is_found(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "granite")
        await talk.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        log_path(home).rename(log_path(home).with_stem(f"{make_log_name(CRAB)}-2"))
        await talk.restart()
        await talk.wait_until_committed()
        hit = await talk.search_one("granite")
        assert hit.handle == f"{make_log_name(CRAB)}-2"


async def test_a_copy_of_a_log_is_not_found_beside_it(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "granite")
        await talk.wait_until_committed()
        shutil.copy(log_path(home), log_path(home).with_stem("copy"))
        await talk.restart()
        await talk.wait_until_committed()
        assert (await talk.search_one("granite")).handle == make_log_name(CRAB)


async def test_a_damaged_line_does_not_hide_the_others(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "granite", "basalt", "marble")
        await talk.index.close()
        path = log_path(home)
        path.write_bytes(path.read_bytes().replace(b'"text":"basalt"', b'"text":basalt"'))
        shutil.rmtree(index_path(home), ignore_errors=True)
        await talk.restart()
        await talk.wait_until_committed()
        assert (await talk.search_one("marble")).message_id == 2
        assert (await talk.search_one("granite")).message_id == 0
        assert await talk.find_senders("basalt") == []


async def test_a_log_that_cannot_be_read_does_not_stop_the_others(home: Path) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "granite")
        await talk.index.close()
        shutil.rmtree(index_path(home), ignore_errors=True)
        (home / "sessions" / "broken.jsonl").mkdir()
        await talk.restart()
        await wait_until_found(talk, "granite", ["crab/user"])
        assert not talk.index.statistics().is_current  # not all there is


# ── What cannot be helped ───────────────────────────────────────────────────────────────────────


async def test_where_nothing_can_be_written_what_is_said_is_found_all_the_same(
    home: Path,
) -> None:
    home.mkdir()
    (home / "index").write_text("not a directory")
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "granite")
        assert await talk.find_senders("granite") == ["crab/user"]
        async with asyncio.timeout(PATIENCE):
            while not talk.index.statistics().error:
                await asyncio.sleep(0.005)
        assert await talk.find_senders("granite") == ["crab/user"]
        (home / "index").unlink()
        await talk.wait_until_committed()
        assert talk.index.statistics().error == ""
        assert await talk.find_senders("granite", scope=SearchScope("crab", "user")) == [
            "crab/user"
        ]


@contextmanager
def limit_file_size() -> Iterator[None]:
    """No file of this process may grow past a few pages, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.req("search.disk_full")
async def test_on_a_full_disk_everything_is_found_and_committed_when_there_is_room(
    home: Path,
) -> None:
    async with open_harness(home) as talk:
        await talk.append_messages(CRAB, "granite")
        await talk.wait_until_committed()
        with limit_file_size():
            for number in range(40):
                words = " ".join(f"word{number}x{n}" for n in range(2_500))
                await talk.append_messages(Pair("crab", f"user{number}"), words)
            talk.index.rescan()
            async with asyncio.timeout(PATIENCE):
                while not talk.index.statistics().error:
                    await asyncio.sleep(0.005)
            assert "cannot be written" in talk.index.statistics().error
            assert await talk.find_senders("word7x8") == ["crab/user7"]
            await wait_until_found(talk, "granite", ["crab/user"])
        await talk.wait_until_committed()
        assert talk.index.statistics().error == ""
        assert talk.index.statistics().rebuilds == 0
        assert talk.index.statistics().messages == 41
        assert await talk.find_senders("word39x2499") == ["crab/user39"]
