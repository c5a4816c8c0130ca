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
async def test_a_turn_is_stopped_and_what_was_complete_stays(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        await client.send("crab", "!say hi", sender="bo")
        stream = client.stream("crab", "!hang", sender="bo")
        await anext(stream)
        await daemon.model.until_asked(2)
        said = await run_crabtalk("kill", "crab", "--sender", "bo", *where)
        assert (said.code, said.out) == (0, "")
        assert said.err == "crab does nothing for bo any more\n"
        await daemon.model.until_hung_up()
        await stream.aclose()
        said = await run_crabtalk("kill", "crab", "--sender", "bo", "--json", *where)
        assert json.loads(said.output) == {"agent": "crab", "sender": "bo"}
        assert ("assistant", "hi") in await read_conversation(client, "crab", "bo")


@pytest.mark.req("cli.kill")
async def test_a_conversation_there_never_was_is_a_sentence(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        said = await run_crabtalk("kill", "crab", "--sender", "nobody", "--home", daemon.home)
        assert said.error.startswith("there is no conversation of nobody with crab; ")


@pytest.mark.req("cli.compact")
async def test_a_history_becomes_an_archive_that_can_be_read(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary=SUMMARY) as daemon, daemon.client() as client:
        where = ("--home", daemon.home)
        await client.send("crab", "!say high")
        said = await run_crabtalk("archives", "crab", *where)
        assert (said.code, said.out, said.err) == (0, "", "nothing was compacted yet\n")
        assert (await run_crabtalk("compact", "crab", *where)).output == f"{SUMMARY}\n"
        await client.send("crab", "!say low")
        said = await run_crabtalk("compact", "crab", *where, "--json")
        assert json.loads(said.output) == {"agent": "crab", "sender": "user", "summary": SUMMARY}

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
        said = await run_crabtalk("archives", "crab", names[1], *where, "--json")
        assert json.loads(said.output) == {"archives": known["archives"][1:]}
        said = await run_crabtalk("archives", "crab", "none", *where)
        assert said.error.startswith("no archive is called 'none'; ")


@pytest.mark.req("cli.compact.cancel")
async def test_ctrl_c_stops_a_compaction_and_the_conversation_goes_on(tmp_path: Path) -> None:
    """Whoever summarises is told who the agent is, and this one's prompt makes a model hang."""
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
async def test_what_cannot_be_compacted_is_a_sentence(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        for words in (("compact", "crab"), ("compact", "owl"), ("archives", "owl")):
            assert (await run_crabtalk(*words, "--home", daemon.home)).error
        said = await run_crabtalk("compact", "owl", "--home", daemon.home)
        assert said.error == "no agent is called 'owl'; there are: crab, twin"


@pytest.mark.req("cli.terminal.safe")
async def test_a_summary_cannot_steer_the_terminal(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, summary="a\x1b[2J\nb") as daemon, daemon.client() as client:
        await client.send("crab", "!say high")
        code, screen = await run_at_terminal("compact", "crab", "--home", daemon.home)
        assert (code, screen) == (0, "a\\x1b[2J\nb\n")
