"""The catalogue: up to date whatever happens meanwhile, saved for the next start, never trusted."""

import asyncio
import threading
from pathlib import Path

import pytest

from crabtalk.storage import FileStorage, Meta, MetaRecord, Pair, Record, log_name
from crabtalk.storage.catalogue import Catalogue
from crabtalk.storage.records import encode
from tests.storage.samples import PAIR, opening, said

OTHER = Pair("crab", "other")
NEW = Pair("crab", "new")


def shown(rows: list[tuple[str, Meta]]) -> dict[Pair, tuple[str, int]]:
    return {meta.pair: (meta.title, meta.message_count) for _, meta in rows}


class Held(Catalogue):
    """One whose thread comes back with what it read only when told to."""

    def __init__(self, directory: Path, file: Path) -> None:
        super().__init__(directory, file)
        self.has_read = threading.Event()
        self.go_on = threading.Event()

    def _survey(self, known: set[str]) -> tuple[set[str], dict[str, Meta]]:
        found = super()._survey(known)
        self.has_read.set()
        assert self.go_on.wait(10)
        return found


def write(directory: Path, pair: Pair, records: list[Record]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{log_name(pair)}.jsonl").open("ab") as file:
        file.write(encode(records))


async def test_what_is_appended_while_a_listing_is_made_is_in_it(tmp_path: Path) -> None:
    logs = tmp_path / "sessions"
    for pair in (PAIR, OTHER):
        write(logs, pair, [opening(pair, title="old"), said(0)])
    catalogue = Held(logs, tmp_path / "index" / "conversations")
    listing = asyncio.ensure_future(catalogue.rows())
    assert await asyncio.to_thread(catalogue.has_read.wait, 10)
    catalogue.note(log_name(PAIR), PAIR, [said(1), MetaRecord(title="newer")], created=False)
    catalogue.note(log_name(NEW), NEW, [opening(NEW, title="first")], created=True)
    catalogue.note(log_name(NEW), NEW, [said(0)], created=False)
    catalogue.go_on.set()
    expected = {PAIR: ("newer", 2), OTHER: ("old", 1), NEW: ("first", 1)}
    assert shown(await listing) == expected


async def opened_twice(home: Path) -> tuple[FileStorage, Path]:
    """A home with two conversations and the catalogue a first daemon saved."""
    storage = FileStorage(home)
    for pair in (PAIR, OTHER):
        await storage.append(pair, [opening(pair, title="old"), said(0)], create=True)
    await storage.conversations()
    await storage.close()
    return FileStorage(home), home / "index" / "conversations"


async def test_the_next_start_shows_the_same_and_reads_only_what_changed(home: Path) -> None:
    storage, saved = await opened_twice(home)
    assert saved.exists()
    await storage.append(PAIR, [said(1), MetaRecord(title="new")])
    expected = {PAIR: ("new", 2), OTHER: ("old", 1)}
    assert shown(await storage.conversations()) == expected
    await storage.close()


async def test_logs_that_changed_or_went_without_us_are_shown_as_they_are(home: Path) -> None:
    storage, _ = await opened_twice(home)
    write(home / "sessions", PAIR, [said(1)])
    (home / "sessions" / f"{log_name(OTHER)}.jsonl").unlink()
    write(home / "sessions", NEW, [opening(NEW, title="by hand")])
    assert shown(await storage.conversations()) == {PAIR: ("old", 2), NEW: ("by hand", 0)}
    await storage.close()


@pytest.mark.parametrize("content", [None, b"", b"\xc1nonsense", b"\x91\x01", b"\x90"])
async def test_a_catalogue_that_is_gone_or_damaged_is_made_anew(
    home: Path, content: bytes | None
) -> None:
    storage, saved = await opened_twice(home)
    saved.unlink()
    if content is not None:
        saved.write_bytes(content)
    assert shown(await storage.conversations()) == {PAIR: ("old", 1), OTHER: ("old", 1)}
    await storage.close()
    assert saved.stat().st_mode & 0o077 == 0


async def test_a_catalogue_that_cannot_be_saved_keeps_nothing_from_closing(home: Path) -> None:
    storage, saved = await opened_twice(home)
    await storage.conversations()
    saved.unlink()
    saved.mkdir()
    await storage.close()
    assert saved.is_dir()
