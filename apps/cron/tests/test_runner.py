"""The runner with a real socket and a manual clock: what is fired, and when."""

import asyncio
import time
from pathlib import Path

import pytest

from apps.cron.tests.fake_daemon import (
    PATIENCE,
    FakeCronDaemon,
    make_entry_text,
    serve_daemon,
    write_crons,
)
from apps.cron.tests.manual_clock import CronManualClock
from apps.cron.tests.runner_setup import NOON, UTC_ALL, LogRecorder, log_recorder, start_runner
from crabtalk.protocol import wire
from crabtalk_cron import runner as module
from crabtalk_cron.runner import CronRunner

__all__ = ["log_recorder"]


@pytest.mark.req("cron.fire.message")
async def test_an_entry_is_fired_as_its_skill_to_its_agent_from_its_sender(home: Path) -> None:
    text = make_entry_text(1) + make_entry_text(
        2, message="Good morning", agent="twin", sender="alarm"
    )
    peer = FakeCronDaemon()
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 59)
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.ended_contents) == 2)
    assert peer.request_kinds == {"hello", "stream"}  # the version check, and the turn
    first, second = sorted(peer.requests, key=lambda request: request.agent)
    assert first == wire.StreamMsg(
        agent="crab", content="/s1", sender="cron", origin="user", detach=True, unattended=True
    )
    assert second == wire.StreamMsg(
        agent="twin",
        content="Good morning",
        sender="alarm",
        origin="alarm",
        detach=True,
        unattended=True,
    )


@pytest.mark.req("trust.cron.origin")
async def test_a_turn_has_the_rights_and_the_mode_that_its_entry_names(home: Path) -> None:
    text = (
        make_entry_text(1, created_by="tg:7", mode="plan")
        + make_entry_text(2, sender="tg:8")
        + make_entry_text(3, sender="tg:8", created_by="user")
        + make_entry_text(4, sender="user~work")
    )
    peer = FakeCronDaemon()
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.ended_contents) == 4)
    requests = sorted(peer.requests, key=lambda request: request.content)
    assert [(request.sender, request.origin, request.mode) for request in requests] == [
        ("cron", "tg:7", "plan"),
        ("tg:8", "tg:8", ""),
        ("tg:8", "user", ""),
        ("user~work", "user", ""),
    ]
    assert all(request.unattended for request in requests)


@pytest.mark.req("cron.fire.drained")
async def test_the_answer_is_read_to_its_end(home: Path, log_recorder: LogRecorder) -> None:
    peer = FakeCronDaemon()
    async with serve_daemon(peer, home), start_runner(home, make_entry_text(1)) as clock:
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): done")
    assert peer.ended_contents == ["/s1"]


@pytest.mark.req("cron.fire.no_overlap")
async def test_an_entry_is_not_fired_while_its_last_turn_goes_on(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    async with (
        serve_daemon(peer, home),
        start_runner(home, make_entry_text(1) + make_entry_text(2, "@hourly")) as clock,
    ):
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.requests) == 1)
        await clock.set_time(NOON + 120)
        assert "cron 1 (/s1 to crab): its last turn is not over, passed over" in log_recorder.lines
        peer.may_finish.set()
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): done")
        await clock.set_time(NOON + 180)
        await peer.wait_until(lambda: len(peer.requests) == 2)
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): done", times=2)
    assert peer.max_running_turns == 1


@pytest.mark.req("cron.fire.at_once")
async def test_only_at_once_many_turns_run_and_the_others_wait(home: Path) -> None:
    text = "at_once = 3\n\n" + "".join(make_entry_text(number) for number in range(10))
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.requests) == 3)
        peer.may_finish.set()
        await peer.wait_until(lambda: len(peer.ended_contents) == 10)
    assert peer.max_running_turns == 3
    assert sorted(peer.contents) == [f"/s{number}" for number in range(10)]


@pytest.mark.req("cron.bounds.entries")
async def test_a_thousand_entries_of_one_minute_are_all_fired(home: Path) -> None:
    text = "".join(make_entry_text(number) for number in range(1000))
    peer = FakeCronDaemon()
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.ended_contents) == 1000)
    assert peer.max_running_turns <= 8
    assert len(set(peer.contents)) == 1000


@pytest.mark.req("cron.daemon.away")
async def test_a_missing_daemon_is_retried_until_it_is_back(
    home: Path, log_recorder: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRY_EVERY", 0.01)
    peer = FakeCronDaemon()
    async with start_runner(home, make_entry_text(1)) as clock:
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): no daemon answers")
        async with serve_daemon(peer, home):
            await peer.wait_until(lambda: len(peer.ended_contents) == 1)
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): done")
        # Once more, after the daemon went away again.
        await clock.set_time(NOON + 120)
        await log_recorder.wait_for_line("cron 1 (/s1 to crab): no daemon answers", times=2)
        async with serve_daemon(peer, home):
            await peer.wait_until(lambda: len(peer.ended_contents) == 2)


@pytest.mark.req("cron.daemon.away")
async def test_a_daemon_that_stays_away_is_retried_at_the_next_time(
    home: Path, log_recorder: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRY_EVERY", 0.01)
    peer = FakeCronDaemon()
    async with start_runner(home, make_entry_text(1, "0 0 * * * *")) as clock:
        await clock.set_time(NOON + 3600)
        await log_recorder.wait_for_line("tried again for a minute")
        assert len([line for line in log_recorder.lines if "no daemon" in line]) == 1
        await clock.set_time(NOON + 3600 + 61)
        await log_recorder.wait_for_line("tried again at its next time")
        async with serve_daemon(peer, home):
            await clock.set_time(NOON + 7200)
            await peer.wait_until(lambda: len(peer.ended_contents) == 1)


@pytest.mark.req("cron.fire.failures")
async def test_a_refusal_of_the_daemon_is_logged_and_the_schedule_goes_on(
    home: Path, log_recorder: LogRecorder
) -> None:
    text = make_entry_text(1, agent="ghost", once=True) + make_entry_text(2, message="break")
    peer = FakeCronDaemon()
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line(
            "no agent is called 'ghost'; make one; tried again at its next time"
        )
        await log_recorder.wait_for_line(
            "cron 2 (a message to crab): ended with an error: it broke"
        )
        await clock.set_time(NOON + 120)
        await peer.wait_until(lambda: len(peer.requests) == 4)
        await log_recorder.wait_for_line("ended with an error", times=2)
        await log_recorder.wait_for_line("no agent is called", times=2)


@pytest.mark.req("cron.fire.failures")
async def test_a_connection_that_is_lost_in_a_turn_is_logged_and_the_schedule_goes_on(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    async with start_runner(home, make_entry_text(1)) as clock:
        async with serve_daemon(peer, home):
            await clock.set_time(NOON + 60)
            await log_recorder.wait_for_line("cron 1 (/s1 to crab): fired")
        await log_recorder.wait_for_line("tried again at its next time")
        peer.may_finish.set()
        async with serve_daemon(peer, home):
            await clock.set_time(NOON + 120)
            await peer.wait_until(lambda: len(peer.ended_contents) == 1)


@pytest.mark.req("cron.quiet.skipped")
async def test_a_tick_in_quiet_hours_is_skipped_and_not_caught_up_with(
    home: Path, log_recorder: LogRecorder
) -> None:
    text = make_entry_text(1, quiet_start="12:00", quiet_end="12:02", once=True)
    peer = FakeCronDaemon()
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        assert log_recorder.lines[-1] == "cron 1 (/s1 to crab): these are quiet hours"
        await clock.set_time(NOON + 120)
        await peer.wait_until(lambda: len(peer.ended_contents) == 1)
    assert len(peer.requests) == 1


@pytest.mark.req("cron.quiet.held_up")
async def test_an_entry_that_is_delayed_into_quiet_hours_is_not_fired(
    home: Path, log_recorder: LogRecorder
) -> None:
    text = (
        "at_once = 1\n\n"
        + make_entry_text(1)
        + make_entry_text(2, quiet_start="12:02", quiet_end="13:00")
    )
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    async with serve_daemon(peer, home), start_runner(home, text) as clock:
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.requests) == 1)
        await clock.set_time(NOON + 130)
        peer.may_finish.set()
        await log_recorder.wait_for_line(
            "cron 2 (/s2 to crab): quiet hours began before it was fired"
        )
    assert peer.contents == ["/s1"]


@pytest.mark.req("cron.fire.no_catch_up")
async def test_a_time_that_was_slept_through_is_skipped(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    async with (
        serve_daemon(peer, home),
        start_runner(home, make_entry_text(1, "0 0 * * * *")) as clock,
    ):
        await clock.set_time(NOON + 3600 + 61)
        assert log_recorder.lines[-1] == "cron 1 (/s1 to crab): its time was 61 s ago, passed over"
        await clock.set_time(NOON + 7200 + 59)
        await peer.wait_until(lambda: len(peer.ended_contents) == 1)


@pytest.mark.req("cron.schedule.local")
async def test_a_changed_zone_of_the_machine_is_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = FakeCronDaemon()
    clock = CronManualClock(NOON)
    write_crons(home, make_entry_text(1, "0 1 13 * * *"))
    with monkeypatch.context() as machine:
        machine.setenv("TZ", "UTC")
        time.tzset()
        async with serve_daemon(peer, home):
            task = asyncio.ensure_future(CronRunner(home, clock).run())
            await clock.set_time(NOON)
            machine.setenv("TZ", "Europe/Berlin")
            time.tzset()
            await clock.set_time(NOON + 1, zone_name="Berlin")
            await clock.set_time(NOON + 60)
            await peer.wait_until(lambda: len(peer.ended_contents) == 1)
            task.cancel()
            await asyncio.wait([task])
    time.tzset()


@pytest.mark.req("cron.stop.clean")
async def test_a_requested_turn_may_still_begin_at_the_end(
    home: Path, log_recorder: LogRecorder
) -> None:
    """Otherwise a `once` entry would be fired again."""
    peer = FakeCronDaemon()
    peer.may_begin.clear()
    peer.may_finish.clear()
    write_crons(home, UTC_ALL + make_entry_text(1, once=True))
    clock = CronManualClock(NOON)
    async with serve_daemon(peer, home):
        task = asyncio.ensure_future(CronRunner(home, clock).run())
        await clock.set_time(NOON + 60)
        await peer.wait_until(lambda: len(peer.requests) == 1)
        task.cancel()
        await log_recorder.wait_for_line("stopping")
        peer.may_begin.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task])
    assert task.cancelled()
    assert (home / "config" / "crons.toml").read_text() == UTC_ALL


@pytest.mark.req("cron.stop.clean")
async def test_a_silent_daemon_does_not_delay_the_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.05)
    peer = FakeCronDaemon()
    peer.may_begin.clear()
    async with serve_daemon(peer, home):
        async with start_runner(home, make_entry_text(1)) as clock:
            await clock.set_time(NOON + 60)
            await peer.wait_until(lambda: len(peer.requests) == 1)
        await peer.wait_until(lambda: peer.running_turns == 0)


@pytest.mark.req("cron.bounds.turn")
async def test_an_endless_turn_makes_room_for_others_after_a_while(
    home: Path, log_recorder: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_TURN", 0.05)
    peer = FakeCronDaemon()
    peer.may_finish.clear()
    async with serve_daemon(peer, home), start_runner(home, make_entry_text(1)) as clock:
        await clock.set_time(NOON + 60)
        await log_recorder.wait_for_line("left alone")
        # On a slow machine that may be before the turn began.
        fired = sum("fired" in line for line in log_recorder.lines)
        monkeypatch.setattr(module, "LONGEST_TURN", PATIENCE)
        await clock.set_time(NOON + 120)
        await log_recorder.wait_for_line("fired", fired + 1)


@pytest.mark.req("cron.daemon.away")
async def test_an_entry_that_waits_for_a_daemon_is_not_logged_at_every_tick(
    home: Path, log_recorder: LogRecorder
) -> None:
    peer = FakeCronDaemon()
    async with start_runner(home, make_entry_text(1, "* * * * * *")) as clock:
        await clock.set_time(NOON + 1)
        await log_recorder.wait_for_line("tried again for a minute")
        for second in range(2, 30):
            await clock.set_time(NOON + second)
        assert len([line for line in log_recorder.lines if line.startswith("cron 1")]) == 1
        async with serve_daemon(peer, home):
            await log_recorder.wait_for_line("cron 1 (/s1 to crab): done")
    assert peer.contents == ["/s1"]
