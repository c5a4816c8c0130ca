"""crabtalk kill, compact and archives: with a real daemon, for people and in JSON."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.cli.cli_process import WARM, run_at_terminal, run_crabtalk
from tests.daemon.in_process_daemon import PATIENCE, read_conversation, run_daemon
from tests.forked_programs import PIPE

SUMMARY = "We spoke of tides. And of the moon."


@pytest.mark.req("cli.kill")
async def test_kill_stops_a_turn_and_keeps_complete_messages(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        await client.send("crab", "!say hi", sender="bo")
        stream = client.stream("crab", "!hang", sender="bo")
        await anext(stream)
        await daemon.model.until_asked(2)
        outcome = await run_crabtalk("kill", "crab", "--sender", "bo", *where)
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err == "crab does nothing for bo any more\n"
        await daemon.model.until_hung_up()
        await stream.aclose()
        outcome = await run_crabtalk("kill", "crab", "--sender", "bo", "--json", *where)
        assert json.loads(outcome.output) == {"agent": "crab", "sender": "bo"}
        assert ("assistant", "hi") in await read_conversation(client, "crab", "bo")


@pytest.mark.req("cli.kill")
async def test_a_missing_conversation_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        outcome = await run_crabtalk("kill", "crab", "--sender", "bo", "--home", daemon.home)
        assert outcome.error.startswith("there is no conversation of bo with crab; ")


@pytest.mark.req("cli.compact")
async def test_a_compacted_history_becomes_a_readable_archive(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary=SUMMARY) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        await client.send("crab", "!say high")
        outcome = await run_crabtalk("archives", "crab", *where)
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "nothing was compacted yet\n")
        assert (await run_crabtalk("compact", "crab", *where)).output == f"{SUMMARY}\n"
        await client.send("crab", "!say low")
        outcome = await run_crabtalk("compact", "crab", *where, "--json")
        assert json.loads(outcome.output) == {"agent": "crab", "sender": "user", "summary": SUMMARY}

        first, second = (await run_crabtalk("archives", "crab", *where)).output.splitlines()
        assert first.endswith("2 messages  We spoke of tides.")
        known = json.loads((await run_crabtalk("archives", "crab", *where, "--json")).output)
        names = [archive["name"] for archive in known["archives"]]
        assert (
            f"crabtalk archives crab {names[0]}\n" in (await run_crabtalk("archives", "-h")).output
        )
        assert (names[0] in first, names[1] in second) == (True, True)
        assert known["archives"][0]["first_id"] == 0
        assert known["archives"][0]["summary"] == SUMMARY
        assert (await run_crabtalk("archives", "crab", names[1], *where)).output == f"{SUMMARY}\n"
        outcome = await run_crabtalk("archives", "crab", names[1], *where, "--json")
        assert json.loads(outcome.output) == {"archives": known["archives"][1:]}
        outcome = await run_crabtalk("archives", "crab", "none", *where)
        assert outcome.error.startswith("no archive is called 'none'; ")


@pytest.mark.req("cli.compact.cancel")
async def test_ctrl_c_stops_a_compaction_and_the_conversation_goes_on(tmp_path: Path) -> None:
    """A summary request contains the agent's prompt, and this prompt makes the model hang."""
    agents = {"crab": 'prompt = """\n!hang\n"""\n'}
    async with run_daemon(tmp_path, agents=agents) as daemon, daemon.client() as client:
        await client.send("crab", "!say high")
        process = WARM.start("compact", "crab", "--home", daemon.home, stdout=PIPE, stderr=PIPE)
        async with asyncio.timeout(PATIENCE):
            await daemon.model.until_asked(2)
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
            await daemon.model.until_hung_up()
            assert (process.returncode, out) == (130, b"")
            assert err == b"crabtalk: the compaction was killed; nothing changed\n"
            await client.send("crab", "!say low")
        assert not (await client.list_archives("crab")).archives


@pytest.mark.req("cli.compact")
async def test_an_impossible_compaction_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        for words in (("compact", "crab"), ("compact", "owl"), ("archives", "owl")):
            assert (await run_crabtalk(*words, "--home", daemon.home)).error
        outcome = await run_crabtalk("compact", "owl", "--home", daemon.home)
        assert outcome.error == "no agent is called 'owl'; there are: crab, twin"


@pytest.mark.req("cli.terminal.safe")
async def test_control_characters_of_a_summary_are_escaped(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary="a\x1b[2J\nb") as daemon, daemon.client() as client:
        await client.send("crab", "!say high")
        code, screen = await run_at_terminal("compact", "crab", "--home", daemon.home)
        assert (code, screen) == (0, "a\\x1b[2J\nb\n")
