"""The memory commands with a real daemon: entries are found, edited and recalled."""

import json
from pathlib import Path

import pytest

from crabtalk.memory import Memory
from tests.cli.cli_process import run_crabtalk
from tests.daemon.in_process_daemon import AGENTS, run_daemon, run_tool_calls

TIDES = {"name": "tides", "content": "High water at noon.", "aliases": ["sea"]}
PRIVATE = {**AGENTS, "owl": 'prompt = "You are owl."\n[hooks.memory]\nscope = "sender"\n'}


@pytest.mark.req("cli.memory.round_trip")
async def test_an_entry_edited_by_hand_is_recalled(tmp_path: Path) -> None:
    book = tmp_path / "brain"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        where = ("--home", daemon.home, "crab")
        await run_tool_calls(client, "crab", [("remember", TIDES)])
        assert (await run_crabtalk("memory", "list", *where)).output.endswith("  note  tides\n")
        assert (await run_crabtalk("memory", "show", *where, "sea")).output == "High water at noon."
        found = (await run_crabtalk("memory", "search", *where, "high")).output
        assert found == "tides · note, a moment old\n  High water at noon.\n"

        await run_crabtalk("memory", "dump", *where, book)
        page = book / "notes" / "tides.md"
        page.write_text(page.read_text().replace("noon", "midnight"))
        outcome = await run_crabtalk("memory", "load", *where, book, "--yes")
        assert outcome.output.startswith("0 added, 0 removed, 1 changed\n")
        (result,) = await run_tool_calls(client, "crab", [("recall", {"query": "water"})])
        assert result.output == "## tides\nHigh water at midnight."


@pytest.mark.req("cli.memory.round_trip")
async def test_an_archive_survives_dump_and_load(tmp_path: Path) -> None:
    book = tmp_path / "brain"
    async with (
        run_daemon(tmp_path, hooks={}, summary="We spoke of tides.") as daemon,
        daemon.client() as client,
    ):
        where = ("--home", daemon.home, "crab")
        await client.send("crab", "!say high")
        await client.compact("crab")
        before = (await run_crabtalk("memory", "list", *where, "--json")).output
        (archive,) = json.loads(before)["entries"]
        assert archive["kind"] == "archive"
        await run_crabtalk("memory", "dump", *where, book)
        (book / "notes" / "moon.md").write_text("Full.")
        await run_crabtalk("memory", "load", *where, book, "--yes")
        after = json.loads((await run_crabtalk("memory", "list", *where, "--json")).output)[
            "entries"
        ]
        assert [each["name"] for each in after] == ["moon", archive["name"]]
        assert archive in after


@pytest.mark.req("cli.memory.sender")
async def test_memory_of_one_sender_is_reached_with_the_sender_option(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}, agents=PRIVATE) as daemon, daemon.client() as client:
        await run_tool_calls(client, "owl", [("remember", TIDES)], sender="tg:1")
        where = ("--home", daemon.home, "owl")
        assert (await run_crabtalk("memory", "list", *where, "--sender", "tg:1")).output
        assert (await run_crabtalk("memory", "list", *where)).err == "it remembers nothing yet\n"


@pytest.mark.req("cli.memory.file")
async def test_a_daemons_memory_file_can_be_read_but_written_only_after_it_ends(
    tmp_path: Path,
) -> None:
    book = tmp_path / "brain"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await run_tool_calls(client, "crab", [("remember", TIDES)])
        file = daemon.home / "memory" / "crab.crmem"
        assert (await run_crabtalk("memory", "show", "--file", file, "sea")).output == TIDES[
            "content"
        ]
        await run_crabtalk("memory", "dump", "--file", file, book)
        (book / "notes" / "moon.md").write_text("Full.")
        outcome = await run_crabtalk("memory", "load", "--file", file, book, "--yes")
        assert outcome.error.startswith(f"{file} is in use; ")
    outcome = await run_crabtalk("memory", "load", "--file", file, book, "--yes")
    assert outcome.output.startswith("1 added, 0 removed, 0 changed\n")
    assert {entry.name for entry in Memory.open_read_only(file).entries()} == {"tides", "moon"}


@pytest.mark.req("cli.search")
async def test_messages_are_found_with_their_context(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "!say the lighthouse blinks twice", sender="bo")
        await client.send("twin", "!say no such thing")
        where = ("--home", daemon.home)
        head, asked, answer = (await run_crabtalk("search", *where, "blinks")).output.splitlines()
        assert head.startswith("(untitled) · crab with bo · 20")
        # Both messages contain the word; the daemon decides which of them is the match.
        assert {asked[0], answer[0]} == {">", " "}
        assert answer[2:] == "#1 assistant: the lighthouse blinks twice"
        for narrow in (("--agent", "twin"), ("--sender", "user"), ("--until", "1d")):
            outcome = await run_crabtalk("search", *where, "blinks", *narrow)
            assert (outcome.code, outcome.out, outcome.err) == (0, "", "nothing found\n")
        assert (await run_crabtalk("search", *where, "blinks", "--since", "1d")).output


async def test_an_unknown_agent_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        where = ("--home", daemon.home, "owl")
        for words in (("list",), ("search", "x"), ("show", "x")):
            outcome = await run_crabtalk("memory", words[0], *where, *words[1:])
            assert outcome.error.startswith("no agent is called 'owl'; ")
