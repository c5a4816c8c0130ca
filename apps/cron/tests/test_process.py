"""`crabtalk-cron run` as a process: real files, a real clock, real signals, a real daemon."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from apps.cron.tests.cron_command import run_cron, start_cron
from apps.cron.tests.fake_daemon import (
    PATIENCE,
    FakeCronDaemon,
    make_entry_text,
    serve_daemon,
    write_crons,
)
from tests.daemon.in_process_daemon import run_daemon
from tests.model_server import model_server

EVERY_SECOND = "* * * * * *"


@pytest.mark.req("cron.program")
async def test_an_agent_of_a_real_daemon_answers_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon:
            home = daemon.home
        write_crons(home, make_entry_text(1, EVERY_SECOND, message="!say ahoy"))
        async with start_cron(home) as program:
            for _ in range(2):
                await program.wait_for_line("no daemon answers in")
                async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
                    await program.wait_for_line("cron 1 (a message to crab): done")
                    (conversation,) = (await client.list_conversations()).conversations
                    assert (conversation.agent, conversation.sender) == ("crab", "cron")
                    message, answer = daemon.read_messages()[:2]
                    assert (message["role"], message["text"]) == ("user", "!say ahoy")
                    assert (answer["role"], answer["text"]) == ("assistant", "ahoy")
            assert await program.stop_with(signal.SIGTERM) == 0


@pytest.mark.req("cron.fire.message")
async def test_a_skill_is_sent_to_the_agent(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        skill = daemon.home / "skills" / "tides" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text("---\nname: tides\ndescription: Tides.\n---\nIt is low water.\n")
        await client.reload()
        write_crons(daemon.home, make_entry_text(1, EVERY_SECOND, skill="tides"))
        async with start_cron(daemon.home) as program:
            await program.wait_for_line("cron 1 (/tides to crab): done")
        assert "It is low water." in daemon.read_messages()[0]["text"]


@pytest.mark.req("cron.reload.changes")
async def test_an_edited_or_replaced_file_is_loaded(home: Path) -> None:
    peer = FakeCronDaemon()
    path = write_crons(home, make_entry_text(1, "@yearly"))
    async with serve_daemon(peer, home), start_cron(home) as program:
        # In place, without a change of size.
        with path.open("r+") as file:
            file.write(make_entry_text(1, "@yearly").replace("@yearly", "@hourly"))
        await program.wait_for_line("has changed: 1 entries")
        new = path.with_name("new.toml")
        new.write_text(make_entry_text(2, EVERY_SECOND))
        new.replace(path)
        await program.wait_for_line("has changed: 1 entries")
        await peer.wait_until(lambda: "/s2" in peer.contents)
        path.unlink()
        await program.wait_for_line("has changed: 0 entries")
        write_crons(home, make_entry_text(3, EVERY_SECOND))
        await program.wait_for_line("has changed: 1 entries")
        await peer.wait_until(lambda: "/s3" in peer.contents)
    assert "/s1" not in peer.contents


@pytest.mark.req("cron.reload.changes")
@pytest.mark.clock
async def test_a_change_takes_effect_within_two_seconds_and_a_tick(home: Path) -> None:
    peer = FakeCronDaemon()
    write_crons(home, "")
    async with serve_daemon(peer, home), start_cron(home):
        before = time.monotonic()
        write_crons(home, make_entry_text(1, EVERY_SECOND))
        await peer.wait_until(lambda: bool(peer.requests))
        assert time.monotonic() - before < 3


@pytest.mark.req("cron.reload.mistake")
async def test_a_mistake_is_logged_with_its_line_and_the_old_entries_stay(home: Path) -> None:
    peer = FakeCronDaemon()
    path = write_crons(home, make_entry_text(1, EVERY_SECOND))
    async with serve_daemon(peer, home), start_cron(home) as program:
        write_crons(home, "[[cron]]\nid = 1\nschedule = ")
        line = await program.wait_for_line("what ran before goes on")
        assert f"{path}, line 3: " in line
        count = len(peer.requests)
        await peer.wait_until(lambda: len(peer.requests) > count)


@pytest.mark.req("cron.once.comments")
async def test_a_once_entry_is_fired_once_and_comments_stay(home: Path) -> None:
    peer = FakeCronDaemon()
    rest = f"# Mine.\n\n# Daily.\n{make_entry_text(1, '@yearly')}"
    path = write_crons(
        home, f"{rest}# Soon.\n{make_entry_text(2, EVERY_SECOND, once=True)}# The end.\n"
    )
    async with serve_daemon(peer, home), start_cron(home) as program:
        await program.wait_for_line("cron 2 (/s2 to crab): done")
        assert path.read_text() == f"{rest}# Soon.\n# The end.\n"
        write_crons(home, path.read_text() + make_entry_text(3, EVERY_SECOND))
        await peer.wait_until(lambda: peer.contents.count("/s3") == 2)
        assert await program.stop_with(signal.SIGTERM) == 0
    assert peer.contents.count("/s2") == 1
    assert [item.name for item in path.parent.iterdir()] == ["crons.toml"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.req("cron.stop.clean")
@pytest.mark.clock
async def test_a_signal_ends_it_at_once_without_an_error(
    home: Path, number: signal.Signals
) -> None:
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    write_crons(home, make_entry_text(1, EVERY_SECOND))
    async with serve_daemon(peer, home), start_cron(home) as program:
        await program.wait_for_line("fired")
        before = time.monotonic()
        assert await program.stop_with(number) == 0
        assert time.monotonic() - before < 2
        assert not any("Traceback" in line or "ERROR" in line for line in program.lines)
        await peer.wait_until(lambda: peer.running_turns == 0)
        async with start_cron(home) as restarted:
            await restarted.wait_for_line("fired")


@pytest.mark.req("cron.stop.detached")
async def test_a_turn_that_was_begun_goes_on_when_it_is_stopped(tmp_path: Path) -> None:
    going = asyncio.Event()
    may_end = asyncio.Event()

    async def slow(call: object) -> str:
        going.set()
        await may_end.wait()
        return "slept well"

    async with run_daemon(tmp_path, tools={"slow": slow}) as daemon:
        write_crons(daemon.home, make_entry_text(1, EVERY_SECOND, message="!tool slow {}"))
        async with start_cron(daemon.home) as program, asyncio.timeout(PATIENCE):
            await going.wait()
            assert await program.stop_with(signal.SIGTERM) == 0
            may_end.set()
            while not any("slept well" in str(message) for message in daemon.read_messages()):
                await asyncio.sleep(0.01)


@pytest.mark.req("cron.program")
async def test_a_second_process_in_the_same_home_exits_with_an_error(home: Path) -> None:
    async with start_cron(home) as program:
        outcome = await run_cron("run", "--home", home)
        assert outcome.code == 1
        pid = program.process.pid
        assert outcome.err == (
            f"crabtalk-cron: cron already runs in {home} (pid {pid}); stop it first\n"
        )
        assert await program.stop_with(signal.SIGTERM) == 0


@pytest.mark.req("cron.program")
async def test_a_killed_process_blocks_no_restart_and_its_leftovers_are_removed(home: Path) -> None:
    write_crons(home, make_entry_text(1, EVERY_SECOND))
    async with start_cron(home) as program:
        leftover = home / "config" / f".crons.toml.{program.process.pid}.new"
        leftover.write_text("half")
        await program.stop_with(signal.SIGKILL)
    async with start_cron(home):
        assert not leftover.exists()


@pytest.mark.req("cron.log")
async def test_the_log_file_has_events_but_no_message_texts(home: Path) -> None:
    peer = FakeCronDaemon()
    write_crons(home, make_entry_text(1, EVERY_SECOND, message="the word is periwinkle"))
    async with serve_daemon(peer, home), start_cron(home) as program:
        await program.wait_for_line("done")
        await program.stop_with(signal.SIGTERM)
    text = (home / "logs" / "cron.log").read_text()
    assert "cron 1 (a message to crab): fired" in text
    assert "periwinkle" not in text
