"""The runner and its file, with a real socket: `once` entries, and edits."""

import asyncio
from pathlib import Path

import pytest

from apps.cron.tests.fake_daemon import (
    PATIENCE,
    FakeCronDaemon,
    make_entry_text,
    serve_daemon,
    write_crons,
)
from apps.cron.tests.runner_setup import NOON, UTC_ALL, LogRecorder, log_recorder, start_runner
from crabtalk_cron import runner as module

__all__ = ["log_recorder"]


@pytest.mark.req("cron.once.removed")
async def test_a_once_entry_is_removed_from_the_file_when_its_turn_has_begun(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    text = (
        f"# One.\n{make_entry_text(1)}# Two.\n{make_entry_text(2, once=True)}"
        f"# Three.\n{make_entry_text(3, '@yearly')}"
    )
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        path = home / "config" / "crons.toml"
        path.chmod(0o640)
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line("cron 2 (/s2 to crab): fired")
        async with asyncio.timeout(PATIENCE):
            while "id = 2" in path.read_text():
                await asyncio.sleep(0.01)
        assert path.read_text() == (
            f"{UTC_ALL}# One.\n{make_entry_text(1)}# Two.\n"
            f"# Three.\n{make_entry_text(3, '@yearly')}"
        )
        assert path.stat().st_mode & 0o777 == 0o640
        peer.may_finish.set()
        await log_recorder.wait_for_line("cron 2 (/s2 to crab): done")
        await clock.set_time(NOON + 120)
        await peer.wait_until(lambda: peer.contents.count("/s1") == 2)
    assert peer.contents.count("/s2") == 1


@pytest.mark.req("cron.once.removed")
async def test_a_once_entry_waits_for_a_daemon_and_for_an_agent(
    home: Path, log_recorder: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOO_LATE", 0.0)
    path = home / "config" / "crons.toml"
    text = make_entry_text(1, once=True, agent="ghost")
    peer = FakeCronDaemon()
    async with start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line("no daemon answers")
        async with serve_daemon(peer, home):
            await clock.set_time(NOON + 120)
            await log_recorder.wait_for_line("no agent is called")
        assert path.read_text() == UTC_ALL + text


@pytest.mark.req("cron.once.removed")
async def test_a_once_entry_that_cannot_be_removed_is_still_fired_once(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    text = 'cron = [{id = 1, schedule = "0 * * * * *", agent = "crab", skill = "s1", once = true}]'
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line(
            "take it out yourself, or it is fired again after a restart"
        )
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): done")
        # The file is read again, and the runner knows that the entry was fired.
        write_crons(
            home, f"{UTC_ALL}# Still here.\n{text}\n{make_entry_text(2)}".replace("[[cron]]", "[x]")
        )
        await log_recorder.wait_for_line("x means nothing here")
        await clock.set_time(NOON + 120)
        await clock.set_time(NOON + 180)
    assert peer.contents == ["/s1"]


@pytest.mark.req("cron.once.removed")
async def test_an_entry_that_was_changed_meanwhile_is_not_removed(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    peer.may_begin.clear()
    async with serve_daemon(peer, home), start_runner(home, make_entry_text(1, once=True)) as clock:
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.requests) == 1)
        changed = UTC_ALL + make_entry_text(1, "@yearly", once=True)
        path = write_crons(home, changed)
        peer.may_begin.set()
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): done")
        assert path.read_text() == changed


@pytest.mark.req("cron.once.removed")
async def test_a_link_to_the_file_stays_a_link(
    home: Path, tmp_path: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    real = tmp_path / "dotfiles.toml"
    link = write_crons(home, "")
    link.unlink()
    link.symlink_to(real)
    async with serve_daemon(peer, home), start_runner(home, make_entry_text(1, once=True)) as clock:
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): done")
    assert link.is_symlink()
    assert real.read_text() == UTC_ALL


@pytest.mark.req("cron.reload.changes")
@pytest.mark.clock
async def test_an_entry_that_is_changed_in_place_is_loaded_within_two_seconds(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    loop = asyncio.get_running_loop()
    async with (
        serve_daemon(peer, home),
        start_runner(home, make_entry_text(1, "0 0 * * * *")) as clock,
    ):
        before = loop.time()
        write_crons(home, UTC_ALL + make_entry_text(1, "0 1 * * * *"))
        await log_recorder.wait_for_line("has changed: 1 entries")
        assert loop.time() - before < 2
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.ended_contents) == 1)


@pytest.mark.req("cron.reload.mistake")
async def test_a_mistake_in_the_file_keeps_the_old_entries_and_names_the_line(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    async with serve_daemon(peer, home), start_runner(home, make_entry_text(1)) as clock:
        write_crons(
            home, UTC_ALL + make_entry_text(1, "0 0 * * * *") + make_entry_text(2, "0 99 * * * *")
        )
        await log_recorder.wait_for_line(
            "line 11: schedule '0 99 * * * *': minute 99 is not within 0-59"
        )
        write_crons(home, UTC_ALL + make_entry_text(1, "0 0 * * * *") + "[[cron\n")
        await log_recorder.wait_for_line("line 9: ")
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.ended_contents) == 1)
        write_crons(home, UTC_ALL + make_entry_text(3))
        await log_recorder.wait_for_line("has changed: 1 entries")
        await clock.set_time(NOON + 120)
        await peer.wait_until(lambda: len(peer.ended_contents) == 2)
    assert peer.contents == ["/s1", "/s3"]


@pytest.mark.req("cron.reload.mistake")
async def test_at_the_start_correct_entries_run_beside_a_wrong_one(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    async with (
        serve_daemon(peer, home),
        start_runner(home, make_entry_text(1, "never") + make_entry_text(2)) as clock,
    ):
        assert any("line 5: schedule 'never'" in line for line in log_recorder.lines)
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.ended_contents) == 1)
    assert peer.contents == ["/s2"]


@pytest.mark.req("cron.reload.mistake")
async def test_a_file_without_any_usable_entry_is_reported(
    home: Path, log_recorder: LogRecorder
) -> None:
    async with start_runner(home, "[[cron]\n"):
        assert any(
            "line 3: " in line and "nothing runs until" in line for line in log_recorder.lines
        )


@pytest.mark.req("cron.reload.changes")
async def test_an_entry_that_was_removed_while_it_waited_is_not_fired(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    text = "at_once = 1\n\n" + make_entry_text(1)
    async with serve_daemon(peer, home), start_runner(home, text + make_entry_text(2)) as clock:
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.requests) == 1)
        write_crons(home, UTC_ALL + text)
        await log_recorder.wait_for_line("has changed: 1 entries")
        peer.may_finish.set()
        await log_recorder.wait_for_line(
            "cron 2 (/s2 to crab): changed or removed before it was fired"
        )
    assert peer.contents == ["/s1"]
