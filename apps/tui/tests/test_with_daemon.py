"""The commands and a real daemon: what an agent kept is found, edited, and recalled again."""

import json
from pathlib import Path

import pytest

from apps.tui.tests.command import crabtalk
from crabtalk.memory import Memory
from tests.daemon.served import AGENTS, called, served

TIDES = {"name": "tides", "content": "High water at noon.", "aliases": ["sea"]}
PRIVATE = {**AGENTS, "owl": 'prompt = "You are owl."\n[hooks.memory]\nscope = "sender"\n'}


@pytest.mark.req("cli.memory.round_trip")
async def test_what_an_agent_remembers_is_edited_by_hand_and_recalled(tmp_path: Path) -> None:
    book = tmp_path / "brain"
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        where = ("--home", daemon.home, "crab")
        await called(client, "crab", [("remember", TIDES)])
        assert (await crabtalk("memory", "list", *where)).answer.endswith("  note  tides\n")
        assert (await crabtalk("memory", "show", *where, "sea")).answer == "High water at noon."
        found = (await crabtalk("memory", "search", *where, "high")).answer
        assert found == "tides · note, a moment old\n  High water at noon.\n"

        await crabtalk("memory", "dump", *where, book)
        page = book / "notes" / "tides.md"
        page.write_text(page.read_text().replace("noon", "midnight"))
        said = await crabtalk("memory", "load", *where, book, "--yes")
        assert said.answer.startswith("0 added, 0 removed, 1 changed\n")
        (result,) = await called(client, "crab", [("recall", {"query": "water"})])
        assert result.output == "## tides\nHigh water at midnight."


@pytest.mark.req("cli.memory.round_trip")
async def test_an_archive_survives_the_round_trip_and_stays_one(tmp_path: Path) -> None:
    book = tmp_path / "brain"
    async with (
        served(tmp_path, hooks={}, summary="We spoke of tides.") as daemon,
        daemon.client() as client,
    ):
        where = ("--home", daemon.home, "crab")
        await client.send("crab", "!say high")
        await client.compact("crab")
        before = (await crabtalk("memory", "list", *where, "--json")).answer
        (archive,) = json.loads(before)["entries"]
        assert archive["kind"] == "archive"
        await crabtalk("memory", "dump", *where, book)
        (book / "notes" / "moon.md").write_text("Full.")
        await crabtalk("memory", "load", *where, book, "--yes")
        after = json.loads((await crabtalk("memory", "list", *where, "--json")).answer)["entries"]
        assert [each["name"] for each in after] == ["moon", archive["name"]]
        assert archive in after


@pytest.mark.req("cli.memory.sender")
async def test_a_memory_for_each_sender_is_reached_by_the_sender(tmp_path: Path) -> None:
    async with served(tmp_path, hooks={}, agents=PRIVATE) as daemon, daemon.client() as client:
        await called(client, "owl", [("remember", TIDES)], sender="tg:1")
        where = ("--home", daemon.home, "owl")
        assert (await crabtalk("memory", "list", *where, "--sender", "tg:1")).answer
        assert (await crabtalk("memory", "list", *where)).err == "it remembers nothing yet\n"


@pytest.mark.req("cli.memory.file")
async def test_a_memory_the_daemon_has_is_read_beside_it_and_written_only_after_it(
    tmp_path: Path,
) -> None:
    book = tmp_path / "brain"
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await called(client, "crab", [("remember", TIDES)])
        file = daemon.home / "memory" / "crab.crmem"
        assert (await crabtalk("memory", "show", "--file", file, "sea")).answer == TIDES["content"]
        await crabtalk("memory", "dump", "--file", file, book)
        (book / "notes" / "moon.md").write_text("Full.")
        said = await crabtalk("memory", "load", "--file", file, book, "--yes")
        assert said.complaint.startswith(f"{file} is in use; ")
    said = await crabtalk("memory", "load", "--file", file, book, "--yes")
    assert said.answer.startswith("1 added, 0 removed, 0 changed\n")
    assert {entry.name for entry in Memory.read(file).entries()} == {"tides", "moon"}


@pytest.mark.req("cli.search")
async def test_what_was_said_is_found_with_what_was_said_around_it(tmp_path: Path) -> None:
    async with served(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "!say the lighthouse blinks twice", sender="bo")
        await client.send("twin", "!say no such thing")
        where = ("--home", daemon.home)
        head, asked, answer = (await crabtalk("search", *where, "blinks")).answer.splitlines()
        assert head.startswith("(untitled) · crab with bo · 20")
        # The word is in both; which of them matched is the daemon's to say.
        assert {asked[0], answer[0]} == {">", " "}
        assert answer[2:] == "#1 assistant: the lighthouse blinks twice"
        for narrow in (("--agent", "twin"), ("--sender", "user"), ("--until", "1d")):
            said = await crabtalk("search", *where, "blinks", *narrow)
            assert (said.code, said.out, said.err) == (0, "", "nothing found\n")
        assert (await crabtalk("search", *where, "blinks", "--since", "1d")).answer


async def test_an_agent_the_daemon_does_not_know_is_a_sentence(tmp_path: Path) -> None:
    async with served(tmp_path, hooks={}) as daemon:
        where = ("--home", daemon.home, "owl")
        for words in (("list",), ("search", "x"), ("show", "x")):
            said = await crabtalk("memory", words[0], *where, *words[1:])
            assert said.complaint.startswith("no agent is called 'owl'; ")
