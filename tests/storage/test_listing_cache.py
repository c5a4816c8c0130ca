"""The catalogue: up to date whatever happens meanwhile, saved for the next start, never trusted."""

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
    """One whose thread comes back with what it read only when told to."""

    def __init__(self, directory: Path, file: Path) -> None:
        super().__init__(directory, file)
        self.has_read = threading.Event()
        self.may_return = threading.Event()

    def _scan_logs(self, known: set[str]) -> tuple[set[str], dict[str, ConversationMeta]]:
        found = super()._scan_logs(known)
        self.has_read.set()
        assert self.may_return.wait(10)
        return found


def write_log(directory: Path, pair: Pair, records: list[Record]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{make_log_name(pair)}.jsonl").open("ab") as file:
        file.write(encode_records(records))


async def test_what_is_appended_while_a_listing_is_made_is_in_it(tmp_path: Path) -> None:
    logs = tmp_path / "sessions"
    for pair in (PAIR, OTHER):
        write_log(logs, pair, [make_opening(pair, title="old"), make_message(0)])
    catalogue = PausedListingCache(logs, tmp_path / "index" / "conversations")
    listing = asyncio.ensure_future(catalogue.list_rows())
    assert await asyncio.to_thread(catalogue.has_read.wait, 10)
    catalogue.record_append(
        make_log_name(PAIR), PAIR, [make_message(1), MetaRecord(title="newer")], created=False
    )
    catalogue.record_append(
        make_log_name(NEW), NEW, [make_opening(NEW, title="first")], created=True
    )
    catalogue.record_append(make_log_name(NEW), NEW, [make_message(0)], created=False)
    catalogue.may_return.set()
    expected = {PAIR: ("newer", 2), OTHER: ("old", 1), NEW: ("first", 1)}
    assert list_titles(await listing) == expected


async def open_saved_home(home: Path) -> tuple[FileStorage, Path]:
    """A home with two conversations and the catalogue a first daemon saved."""
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


async def test_logs_that_changed_or_went_without_us_are_shown_as_they_are(home: Path) -> None:
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
async def test_a_catalogue_that_is_gone_or_damaged_is_made_anew(
    home: Path, content: bytes | None
) -> None:
    storage, saved = await open_saved_home(home)
    saved.unlink()
    if content is not None:
        saved.write_bytes(content)
    assert list_titles(await storage.list_conversations()) == {PAIR: ("old", 1), OTHER: ("old", 1)}
    await storage.close()
    assert saved.stat().st_mode & 0o077 == 0


async def test_a_catalogue_that_cannot_be_saved_keeps_nothing_from_closing(home: Path) -> None:
    storage, saved = await open_saved_home(home)
    await storage.list_conversations()
    saved.unlink()
    saved.mkdir()
    await storage.close()
    assert saved.is_dir()
