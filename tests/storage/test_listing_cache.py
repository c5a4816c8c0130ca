"""The listing cache: up to date despite concurrent appends, saved for the next start, and checked
against the logs."""

import asyncio
import threading
from pathlib import Path

import pytest

from crabtalk.storage import ConversationMeta, FileStorage, MetaRecord, Pair, Record, make_log_name
from crabtalk.storage.listing_cache import ListingCache
from crabtalk.storage.records import encode_records
from tests.storage.sample_records import PAIR, make_message, make_opening

OTHER = Pair("crab", "other")
NEW = Pair("crab", "new")


def list_titles(rows: list[tuple[str, ConversationMeta]]) -> dict[Pair, tuple[str, int]]:
    return {meta.pair: (meta.title, meta.message_count) for _, meta in rows}


class PausedListingCache(ListingCache):
    """A cache whose scan returns only when the test allows it."""

    def __init__(self, directory: Path, file: Path) -> None:
        super().__init__(directory, file)
        self.has_read = threading.Event()
        self.may_return = threading.Event()

    def _scan_logs(self, known: set[str]) -> tuple[set[str], dict[str, ConversationMeta]]:
        result = super()._scan_logs(known)
        self.has_read.set()
        assert self.may_return.wait(10)
        return result


def write_log(directory: Path, pair: Pair, records: list[Record]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{make_log_name(pair)}.jsonl").open("ab") as file:
        file.write(encode_records(records))


async def test_records_appended_during_a_listing_are_in_it(tmp_path: Path) -> None:
    logs = tmp_path / "sessions"
    for pair in (PAIR, OTHER):
        write_log(logs, pair, [make_opening(pair, title="old"), make_message(0)])
    cache = PausedListingCache(logs, tmp_path / "index" / "conversations")
    listing = asyncio.ensure_future(cache.list_rows())
    assert await asyncio.to_thread(cache.has_read.wait, 10)
    cache.record_append(
        make_log_name(PAIR), PAIR, [make_message(1), MetaRecord(title="newer")], created=False
    )
    cache.record_append(make_log_name(NEW), NEW, [make_opening(NEW, title="first")], created=True)
    cache.record_append(make_log_name(NEW), NEW, [make_message(0)], created=False)
    cache.may_return.set()
    expected = {PAIR: ("newer", 2), OTHER: ("old", 1), NEW: ("first", 1)}
    assert list_titles(await listing) == expected


async def open_saved_home(home: Path) -> tuple[FileStorage, Path]:
    """Opens a home with two conversations and the listing cache that a first daemon saved."""
    storage = FileStorage(home)
    for pair in (PAIR, OTHER):
        await storage.append(pair, [make_opening(pair, title="old"), make_message(0)], create=True)
    await storage.list_conversations()
    await storage.close()
    return FileStorage(home), home / "index" / "conversations"


async def test_the_next_start_shows_the_same_and_reads_only_what_changed(home: Path) -> None:
    storage, saved = await open_saved_home(home)
    assert saved.exists()
    await storage.append(PAIR, [make_message(1), MetaRecord(title="new")])
    expected = {PAIR: ("new", 2), OTHER: ("old", 1)}
    assert list_titles(await storage.list_conversations()) == expected
    await storage.close()


async def test_logs_that_other_programs_changed_or_removed_are_listed_correctly(home: Path) -> None:
    storage, _ = await open_saved_home(home)
    write_log(home / "sessions", PAIR, [make_message(1)])
    (home / "sessions" / f"{make_log_name(OTHER)}.jsonl").unlink()
    write_log(home / "sessions", NEW, [make_opening(NEW, title="by hand")])
    assert list_titles(await storage.list_conversations()) == {
        PAIR: ("old", 2),
        NEW: ("by hand", 0),
    }
    await storage.close()


@pytest.mark.parametrize("content", [None, b"", b"\xc1nonsense", b"\x91\x01", b"\x90"])
async def test_a_missing_or_damaged_listing_cache_is_built_again(
    home: Path, content: bytes | None
) -> None:
    storage, saved = await open_saved_home(home)
    saved.unlink()
    if content is not None:
        saved.write_bytes(content)
    assert list_titles(await storage.list_conversations()) == {PAIR: ("old", 1), OTHER: ("old", 1)}
    await storage.close()
    assert saved.stat().st_mode & 0o077 == 0


async def test_a_listing_cache_that_cannot_be_saved_does_not_prevent_closing(home: Path) -> None:
    storage, saved = await open_saved_home(home)
    await storage.list_conversations()
    saved.unlink()
    saved.mkdir()
    await storage.close()
    assert saved.is_dir()
