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
from crabtalk.runtime.search import Scope, SessionIndex
from crabtalk.runtime.search.library import Library
from crabtalk.storage import Followed, Meta, Pair, log_name
from crabtalk.storage.checksums import remove_seal
from crabtalk.storage.records import MessageRecord, encode
from tests.runtime.search.talk import CRAB, OWL, Talk, at, talking

# What it tests is on the disk, and in threads: the loop makes no difference.
pytestmark = pytest.mark.one_loop

PATIENCE = 10.0


def message(text: str) -> Message:
    return Message("user", text)


def index_of(home: Path) -> Path:
    return home / "index" / "sessions"


def log_of(home: Path, pair: Pair = CRAB) -> Path:
    return home / "sessions" / f"{log_name(pair)}.jsonl"


async def filled(talk: Talk, count: int = 30) -> None:
    for number in range(count):
        await talk.say(Pair("crab", f"user{number}"), f"common word{number}", f"tide {number}")
    await talk.title(Pair("crab", "user0"), "granite")
    await talk.fold(Pair("crab", "user1"), "basalt")


async def is_whole(talk: Talk, count: int = 30) -> None:
    """Everything is found, once."""
    for number in range(count):
        hit = await talk.one(f"word{number}")
        assert hit.sender == f"user{number}"
    assert await talk.found("granite") == ["crab/user0"]
    assert await talk.found("basalt") == ["crab/user1"]
    assert talk.index.statistics().messages == 2 * count
    library = talk.index._follower.library
    assert library is not None
    assert library.view().messages.documents == 2 * count  # none twice


async def found_soon(talk: Talk, query: str, expected: list[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await talk.found(query) != expected:
            await asyncio.sleep(0.005)


# ── Ends and beginnings ─────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.restart")
async def test_everything_is_found_again_after_a_restart(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk)
        await talk.restart()
        for number in range(30):  # from the first search on
            assert await talk.found(f"word{number}") == [f"crab/user{number}"]
        await talk.committed()
        await is_whole(talk)
        assert talk.index.statistics().rebuilds == 0


@pytest.mark.req("search.restart")
async def test_what_was_said_after_the_last_commit_is_found_by_the_first_search(
    home: Path,
) -> None:
    """As after a crash: the logs have it, the index has never heard of it."""
    async with talking(home) as talk:
        await filled(talk)
        await talk.committed()
        await talk.index.close()
        record = MessageRecord(99, at(99), Message("user", "periwinkle"))
        await talk.storage.append(Pair("crab", "user3"), [record])
        for mark in index_of(home).glob("complete"):
            mark.unlink()
        talk.index = SessionIndex(talk.storage, talk.directory)
        assert await talk.found("periwinkle") == ["crab/user3"]


async def test_a_restart_reads_no_log_that_was_read_before(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk)
        await talk.committed()
        await talk.restart()
        await talk.committed()
        assert talk.index.statistics().commits == 0
        await is_whole(talk)


@pytest.mark.req("search.close.bounded")
async def test_closing_keeps_what_was_said_last(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk)
        await talk.say(CRAB, "famous last words")
        begun = time.monotonic()
        await talk.restart()
        assert time.monotonic() - begun < PATIENCE
        await found_soon(talk, "famous", ["crab/user"])
        assert talk.index.statistics().in_tail == 0


async def test_one_that_was_never_used_leaves_nothing(home: Path) -> None:
    async with talking(home) as talk:
        assert not talk.index.statistics().is_open
        await talk.restart()
    assert not index_of(home).exists()


async def test_closing_twice_is_closing_once(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "hello")
        await talk.index.close()
        await talk.index.close()


@pytest.mark.req("search.kill")
async def test_what_a_crash_left_in_doubt_stays_so_until_all_of_it_was_looked_at(
    home: Path,
) -> None:
    """Killed before the manifest heard of a commit, and again when it had caught up with some."""
    async with talking(home) as talk:
        await filled(talk)
        await talk.committed()
    shutil.copytree(index_of(home), home / "before")
    async with talking(home) as talk:
        talk.metas = {meta.pair: meta for _, meta in await talk.storage.conversations()}
        for number in range(30):
            await talk.say(Pair("crab", f"user{number}"), f"again{number}")
        await talk.committed()
        await talk.index.close()
        for file in index_of(home).glob("manifest*"):
            file.unlink()
        for file in (home / "before").glob("manifest*"):
            shutil.copy(file, index_of(home))
        library = Library(index_of(home))
        handle = log_name(Pair("crab", "user5"))
        place = handle, library.positions([handle])[handle]
        (followed,) = await talk.storage.follow([place], 1 << 20)
        assert isinstance(followed, Followed)
        library.take(handle, followed, tool_results=False)
        library.commit()
        library.close()
    async with talking(home) as talk:
        await talk.committed()
        assert talk.index.statistics().rebuilds == 0
        opened = talk.index._follower.library
        assert opened is not None
        assert opened.view().messages.documents == 3 * 30
        assert not opened.is_suspect
        assert await talk.found("again7") == ["crab/user7"]
        await talk.restart()
        await talk.committed()
        opened = talk.index._follower.library
        assert opened is not None
        assert not opened.is_suspect


@pytest.mark.req("search.catch_up")
async def test_what_was_said_while_it_was_not_there_is_found(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk)
        await talk.index.close()
        records = [MessageRecord(2, "2026-02-01T00:00:00Z", message("meanwhile"))]
        await talk.storage.append(Pair("crab", "user3"), records)
        await talk.storage.append(OWL, [Meta(*OWL, created_at="x").snapshot()], create=True)
        await talk.storage.append(
            OWL, [MessageRecord(0, "2026-02-01T00:00:00Z", message("elsewhere"))]
        )
        await talk.storage.delete(Pair("crab", "user4"))
        await talk.restart()
        await found_soon(talk, "meanwhile", ["crab/user3"])
        await found_soon(talk, "elsewhere", ["owl/user"])
        assert await talk.found("word4") == []


@pytest.mark.req("search.rebuild")
async def test_without_its_directory_it_is_made_anew_from_the_logs(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk)
        await talk.index.close()
        shutil.rmtree(index_of(home), ignore_errors=True)
        await talk.restart()
        await talk.committed()
        await is_whole(talk)


async def test_what_is_said_during_a_rebuild_is_found_at_once(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk, 200)
        await talk.index.close()
        shutil.rmtree(index_of(home), ignore_errors=True)
        await talk.restart()
        talk.index.start()
        number = 0
        while not talk.index.statistics().is_current and number < 1_000:
            await talk.say(OWL, f"live{number}")
            assert await talk.found(f"live{number}") == ["owl/user"]
            number += 1
        await talk.committed()
        assert await talk.found("live0") == ["owl/user"]
        assert talk.index.statistics().messages == 400 + number


# ── Damage ──────────────────────────────────────────────────────────────────────────────────────


def files_of(home: Path) -> list[Path]:
    return sorted(p for p in index_of(home).rglob("*") if p.is_file() and p.suffix != ".lock")


HARMS = ["flip", "cut", "empty", "remove"]


@pytest.mark.req("search.damage")
@pytest.mark.slow
async def test_whatever_file_is_damaged_everything_is_found_in_the_end(home: Path) -> None:
    """Each in one of the ways, in turn."""
    await found_though_damaged(home, HARMS)


@pytest.mark.slow
@pytest.mark.req("search.damage")
@pytest.mark.parametrize("harm", HARMS)
async def test_however_any_file_is_damaged_everything_is_found_in_the_end(
    home: Path, harm: str
) -> None:
    await found_though_damaged(home, [harm])


async def found_though_damaged(home: Path, harms: list[str]) -> None:
    async with talking(home) as talk:
        await filled(talk, 10)
        await talk.committed()
        await talk.index.close()
        intact = home / "intact"
        shutil.copytree(index_of(home), intact)
        for path, harm in zip(files_of(home), cycle(harms), strict=False):
            shutil.rmtree(index_of(home), ignore_errors=True)
            shutil.copytree(intact, index_of(home))
            damage(path, harm)
            await talk.restart()
            await talk.found("common")  # must not fail, whatever it finds
            await talk.verified()
            await is_whole(talk, 10)
            await talk.index.close()


def damage(path: Path, harm: str) -> None:
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
    async with talking(home) as talk:
        await filled(talk)
        await talk.committed()
        await talk.index.close()
        for part in ("idx", "term", "pos", "fast", "fieldnorm", "store"):
            (path,) = list((index_of(home) / "titles").glob(f"*.{part}"))
            damage(path, "flip")
            await talk.restart()
            await talk.verified()
            assert talk.index.statistics().rebuilds == 1
            await is_whole(talk)
            await talk.index.close()


@pytest.mark.req("search.version")
async def test_an_index_of_another_version_is_made_anew(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk)
        await talk.committed()
        await talk.index.close()
        with sqlite3.connect(index_of(home) / "manifest") as manifest:
            manifest.execute("UPDATE facts SET value = '0' WHERE name = 'version'")
        manifest.close()
        await talk.restart()
        await talk.committed()
        assert talk.index.statistics().rebuilds == 1
        await is_whole(talk)


async def test_files_that_belong_to_nothing_are_removed(home: Path) -> None:
    async with talking(home) as talk:
        await filled(talk)
        await talk.committed()
        await talk.index.close()
        shelf = index_of(home) / "messages"
        managed = json.loads((shelf / ".managed.json").read_text())
        orphan = f"{'ab' * 16}.idx"
        (shelf / orphan).write_bytes(b"left by a crash")
        (shelf / ".managed.json").write_text(json.dumps([*managed, orphan]))
        await talk.restart()
        await talk.say(CRAB, "on we go")
        await talk.committed()
        assert not (shelf / orphan).exists()


async def test_many_commits_do_not_make_many_files(home: Path) -> None:
    async with talking(home) as talk:
        for number in range(60):
            await talk.say(CRAB, f"number{number}")
            await talk.committed()
        segments = list((index_of(home) / "messages").glob("*.idx"))
        assert len(segments) < 30
        assert (await talk.one("number7")).message_id == 7


# ── Logs that change ────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_shortened_is_read_anew(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "first granite")
        length = log_of(home).stat().st_size
        await talk.say(CRAB, "second basalt")
        await talk.committed()
        await talk.index.close()
        with log_of(home).open("r+b") as log:
            log.truncate(length)
        await talk.restart()
        assert await talk.found("basalt") == []  # at once: it is not in the log
        await found_soon(talk, "granite", ["crab/user"])
        await talk.committed()
        assert talk.index.statistics().messages == 1


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_replaced_is_read_anew(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "first granite", "second")
        await talk.committed()
        await talk.index.close()
        meta = Meta(*CRAB, created_at="2026-03-01T00:00:00Z").snapshot()
        texts = [message(f"another marble {number}") for number in range(20)]
        records = [MessageRecord(n, "2026-03-01T00:00:00Z", m) for n, m in enumerate(texts)]
        log_of(home).write_bytes(encode([meta, *records]))
        await talk.restart()
        assert await talk.found("granite") == []
        await found_soon(talk, "marble", ["crab/user"])
        await talk.committed()
        assert talk.index.statistics().messages == 20


HIDE = (b"swordfish", b"xxxxxxxxx")


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_word_that_was_taken_out_of_a_log_is_not_found(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "the password is swordfish", "and more")
        await talk.committed()
        path = log_of(home)
        # Whoever edits a line takes its checksums out of it.
        lines = [remove_seal(line) for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(b"%b\n" % line.replace(*HIDE) for line in lines))
        assert await talk.found("swordfish") == []
        await found_soon(talk, "xxxxxxxxx", ["crab/user"])
        await talk.committed()
        library = talk.index._follower.library
        assert library is not None
        assert library.view().messages.frequency("swordfish") in (0, 1)  # until it is merged
        assert library.view().messages.documents == 2


@pytest.mark.req("search.logs.are_the_truth")
async def test_a_log_that_was_removed_by_hand_is_not_found(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "granite")
        await talk.say(OWL, "granite")
        await talk.committed()
        await talk.say(CRAB, "basalt")
        log_of(home).unlink()
        assert await talk.found("granite basalt") == ["owl/user"]
        await talk.committed()
        assert talk.index.statistics().messages == 1
        assert await talk.found("granite basalt") == ["owl/user"]


async def test_a_log_under_another_name_is_found(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "granite")
        await talk.index.close()
        shutil.rmtree(index_of(home), ignore_errors=True)
        log_of(home).rename(log_of(home).with_stem(f"{log_name(CRAB)}-2"))
        await talk.restart()
        await talk.committed()
        hit = await talk.one("granite")
        assert hit.handle == f"{log_name(CRAB)}-2"


async def test_a_copy_of_a_log_is_not_found_beside_it(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "granite")
        await talk.committed()
        shutil.copy(log_of(home), log_of(home).with_stem("copy"))
        await talk.restart()
        await talk.committed()
        assert (await talk.one("granite")).handle == log_name(CRAB)


async def test_a_damaged_line_does_not_hide_the_others(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "granite", "basalt", "marble")
        await talk.index.close()
        path = log_of(home)
        path.write_bytes(path.read_bytes().replace(b'"text":"basalt"', b'"text":basalt"'))
        shutil.rmtree(index_of(home), ignore_errors=True)
        await talk.restart()
        await talk.committed()
        assert (await talk.one("marble")).message_id == 2
        assert (await talk.one("granite")).message_id == 0
        assert await talk.found("basalt") == []


async def test_a_log_that_cannot_be_read_does_not_stop_the_others(home: Path) -> None:
    async with talking(home) as talk:
        await talk.say(CRAB, "granite")
        await talk.index.close()
        shutil.rmtree(index_of(home), ignore_errors=True)
        (home / "sessions" / "broken.jsonl").mkdir()
        await talk.restart()
        await found_soon(talk, "granite", ["crab/user"])
        assert not talk.index.statistics().is_current  # not all there is


# ── What cannot be helped ───────────────────────────────────────────────────────────────────────


async def test_where_nothing_can_be_written_what_is_said_is_found_all_the_same(
    home: Path,
) -> None:
    home.mkdir()
    (home / "index").write_text("not a directory")
    async with talking(home) as talk:
        await talk.say(CRAB, "granite")
        assert await talk.found("granite") == ["crab/user"]
        async with asyncio.timeout(PATIENCE):
            while not talk.index.statistics().error:
                await asyncio.sleep(0.005)
        assert await talk.found("granite") == ["crab/user"]
        (home / "index").unlink()
        await talk.committed()
        assert talk.index.statistics().error == ""
        assert await talk.found("granite", scope=Scope("crab", "user")) == ["crab/user"]


@contextmanager
def no_room() -> Iterator[None]:
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
    async with talking(home) as talk:
        await talk.say(CRAB, "granite")
        await talk.committed()
        with no_room():
            for number in range(40):
                words = " ".join(f"word{number}x{n}" for n in range(2_500))
                await talk.say(Pair("crab", f"user{number}"), words)
            talk.index.refresh()
            async with asyncio.timeout(PATIENCE):
                while not talk.index.statistics().error:
                    await asyncio.sleep(0.005)
            assert "cannot be written" in talk.index.statistics().error
            assert await talk.found("word7x8") == ["crab/user7"]
            await found_soon(talk, "granite", ["crab/user"])
        await talk.committed()
        assert talk.index.statistics().error == ""
        assert talk.index.statistics().rebuilds == 0
        assert talk.index.statistics().messages == 41
        assert await talk.found("word39x2499") == ["crab/user39"]
