"""crabtalk memory dump and load: a memory as pages that people edit, at a daemon or in a file."""

import json
from pathlib import Path

import pytest

from crabtalk.memory import Memory
from crabtalk.protocol import TooLargeError, wire
from tests.cli.canned_daemon import CannedDaemon, make_entry, serve_daemon
from tests.cli.cli_process import run_at_terminal, run_crabtalk
from tests.cli.stored_memory import ENTRIES, in_daemon_and_file, open_stored_memory, write_pages


@in_daemon_and_file
@pytest.mark.req("cli.memory.round_trip")
async def test_a_dump_that_is_loaded_changes_nothing(tmp_path: Path, where: str) -> None:
    book = tmp_path / "brain"
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        before = memory.read_entries()
        outcome = await run_crabtalk("memory", "dump", *memory.words, book)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", f"5 entries are in {book}\n")
        assert (book / "notes" / "deploy.md").is_file()
        assert (book / "archives" / "crab-user-1.md").is_file()
        assert {"book.toml", "SUMMARY.md"} <= {path.name for path in book.iterdir()}
        outcome = await run_crabtalk("memory", "load", *memory.words, book)
        assert outcome.output == "0 added, 0 removed, 0 changed\n"
        assert memory.read_entries() == before


@in_daemon_and_file
@pytest.mark.req("cli.memory.load")
async def test_load_prints_the_changes_and_makes_them(tmp_path: Path, where: str) -> None:
    book = tmp_path / "brain"
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        before = memory.read_entries()
        await run_crabtalk("memory", "dump", *memory.words, book)
        page = book / "notes" / "tides.md"
        page.write_text(page.read_text().replace("noon", "midnight"))
        (book / "notes" / "deploy.md").unlink()
        (book / "notes" / "lighthouse.md").write_text("Two flashes, ten seconds.\n")
        outcome = await run_crabtalk("memory", "load", *memory.words, book, "--yes")
        assert outcome.output == (
            "1 added, 1 removed, 1 changed\n"
            "  added: lighthouse\n  removed: deploy\n  changed: tides\n"
        )
        contents = {name: content for name, _, content, _, _ in memory.read_entries()}
        assert contents["tides"] == "High water at midnight."
        assert contents["lighthouse"] == "Two flashes, ten seconds."
        touched = ("tides", "lighthouse", "deploy")
        rest = [entry for entry in before if entry[0] not in touched]
        assert [entry for entry in memory.read_entries() if entry[0] not in touched] == rest


@in_daemon_and_file
@pytest.mark.req("cli.memory.load")
async def test_load_in_json_is_one_document(tmp_path: Path, where: str) -> None:
    book = write_pages(tmp_path / "brain", tides="Low.", moon="Full.")
    async with open_stored_memory(where, tmp_path, *ENTRIES[:2]) as memory:
        outcome = await run_crabtalk("memory", "load", *memory.words, book, "--yes", "--json")
        assert json.loads(outcome.output) == {
            "added": ["moon"],
            "removed": ["deploy"],
            "changed": ["tides"],
        }


@pytest.mark.req("cli.memory.load")
async def test_load_in_json_still_prints_the_changes_before_asking(tmp_path: Path) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    async with open_stored_memory("file", tmp_path, *ENTRIES[:2]) as memory:
        words = ("memory", "load", *memory.words, book, "--json")
        code, screen = await run_at_terminal(*words, typed="y\n", when="[y/N]")
        assert code == 0
        assert screen.startswith("1 added, 2 removed, 0 changed\n")
        assert json.loads(screen.splitlines()[-1])["added"] == ["moon"]


@in_daemon_and_file
@pytest.mark.req("cli.memory.load")
async def test_a_page_that_cannot_be_read_changes_nothing(tmp_path: Path, where: str) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    (book / "notes" / "sun.md").write_bytes(b"\xff\xfe")
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        before = memory.read_entries()
        outcome = await run_crabtalk("memory", "load", *memory.words, book, "--yes")
        assert "sun.md is not UTF-8" in outcome.error
        assert outcome.out == ""
        assert memory.read_entries() == before


@in_daemon_and_file
@pytest.mark.req("cli.no_prompt")
async def test_without_a_terminal_load_needs_the_yes_option(tmp_path: Path, where: str) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        before = memory.read_entries()
        outcome = await run_crabtalk("memory", "load", *memory.words, book, typed=b"y\n")
        assert outcome.error.endswith("say --yes")
        assert outcome.out.startswith("1 added, 5 removed, 0 changed\n")
        assert memory.read_entries() == before


@in_daemon_and_file
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("\x03", 130)])
@pytest.mark.req("cli.memory.load")
async def test_at_a_terminal_load_asks_for_confirmation(
    tmp_path: Path, where: str, answer: str, code: int
) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        before = memory.read_entries()
        words = ("memory", "load", *memory.words, book)
        found, screen = await run_at_terminal(*words, typed=answer, when="[y/N]")
        assert found == code, screen
        assert screen.startswith("1 added, 5 removed, 0 changed\n")
        if code == 0:
            assert [name for name, *_ in memory.read_entries()] == ["moon"]
        else:
            assert memory.read_entries() == before


class GrowingMemoryDaemon(CannedDaemon):
    """Gets another entry each time its last page is requested."""

    async def list_memory(self, request: wire.ListMemoryMsg) -> wire.MemoryPage:
        page = await super().list_memory(request)
        if not page.HasField("next_after"):
            self.entries.append(make_entry(len(self.entries) + 1, f"later {len(self.entries)}", ""))
        return page


@pytest.mark.req("cli.memory.load")
async def test_entries_added_while_load_asks_are_not_lost(tmp_path: Path, home: Path) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    async with serve_daemon(peer := GrowingMemoryDaemon(*ENTRIES), home):
        words = ("memory", "load", "--home", home, "crab", book)
        code, screen = await run_at_terminal(*words, typed="y\n", when="[y/N]")
        assert code == 1
        assert "it has changed since, and is left as it is; load again" in screen
        assert "later 5" in [each.name for each in peer.entries]


@pytest.mark.req("cli.memory.load")
async def test_a_long_list_of_changes_is_cut(tmp_path: Path) -> None:
    book = write_pages(tmp_path / "brain", **{f"n{number}": "" for number in range(12)})
    async with open_stored_memory("file", tmp_path) as memory:
        outcome = await run_crabtalk("memory", "load", *memory.words, book, "--yes")
        assert outcome.output.splitlines()[0] == "12 added, 0 removed, 0 changed"
        assert outcome.output.endswith("n4, n5 and 4 more\n")


@in_daemon_and_file
@pytest.mark.req("cli.memory.dump")
async def test_dump_does_not_overwrite_a_page_that_was_not_loaded(
    tmp_path: Path, where: str
) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    page = book / "notes" / "moon.md"
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        outcome = await run_crabtalk("memory", "dump", *memory.words, book)
        assert str(page) in outcome.error
        assert "load it first" in outcome.error
        assert page.read_text() == "Full."
        assert [path.name for path in book.iterdir()] == ["notes"]
        await run_crabtalk("memory", "load", *memory.words, book, "--yes")
        outcome = await run_crabtalk("memory", "dump", *memory.words, book, "--json")
        assert json.loads(outcome.output) == {"directory": str(book), "entries": 1}
        assert page.read_text().endswith("Full.\n")


@in_daemon_and_file
@pytest.mark.req("cli.memory.dump")
async def test_a_second_dump_replaces_only_its_own_pages(tmp_path: Path, where: str) -> None:
    book = tmp_path / "brain"
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        await run_crabtalk("memory", "dump", *memory.words, book)
        (book / "book.toml").write_text("[book]\ntitle = 'Mine'\n")
        (book / "theme").mkdir()
        page = book / "notes" / "tides.md"
        whole = page.read_text()
        page.rename(page.with_name("renamed.md"))
        assert (await run_crabtalk("memory", "dump", *memory.words, book)).code == 0
        assert page.read_text() == whole
        assert not page.with_name("renamed.md").exists()
        assert (book / "book.toml").read_text() == "[book]\ntitle = 'Mine'\n"
        assert (book / "theme").is_dir()


@in_daemon_and_file
@pytest.mark.parametrize("verb", ["dump", "load"])
async def test_an_unusable_directory_gives_one_error(tmp_path: Path, where: str, verb: str) -> None:
    (tmp_path / "file").write_text("")
    async with open_stored_memory(where, tmp_path, *ENTRIES) as memory:
        outcome = await run_crabtalk("memory", verb, *memory.words, tmp_path / "file")
        assert str(tmp_path / "file") in outcome.error


@pytest.mark.req("cli.memory.load")
async def test_pages_too_large_for_the_daemon_give_an_error_with_a_way_out(
    tmp_path: Path, home: Path
) -> None:
    pages = {f"n{number}": "x" * 1_000_000 for number in range(17)}
    book = write_pages(tmp_path / "brain", **pages)
    async with serve_daemon(peer := CannedDaemon(), home):
        outcome = await run_crabtalk("memory", "load", "--home", home, "crab", book, "--yes")
        assert outcome.error.endswith("stop it, and load them with --file")
        assert peer.entries == []
    file = tmp_path / "crab.crmem"
    outcome = await run_crabtalk("memory", "load", "--file", file, book, "--yes")
    assert outcome.output.startswith("17 added")
    assert len(Memory.open_read_only(file).entries()) == 17


class OverloadedMemoryDaemon(CannedDaemon):
    """Refuses every memory as too large."""

    async def replace_memory(self, request: wire.ReplaceMemoryMsg) -> None:
        raise TooLargeError("the request has too many parts")


@pytest.mark.req("cli.memory.load")
async def test_too_many_names_for_the_daemon_give_an_error_with_a_way_out(
    tmp_path: Path, home: Path
) -> None:
    book = write_pages(tmp_path / "brain", moon="Full.")
    async with serve_daemon(OverloadedMemoryDaemon(), home):
        outcome = await run_crabtalk("memory", "load", "--home", home, "crab", book, "--yes")
        assert "more names and aliases than a daemon takes" in outcome.error
        assert outcome.error.endswith("stop it, and load them with --file")
