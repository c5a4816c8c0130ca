"""The runner with a real socket, by a clock the test moves: what is fired, and when."""

import asyncio
import time
from pathlib import Path

import pytest

from apps.cron.tests.moved import MovedClock
from apps.cron.tests.peer import PATIENCE, Peer, cron, serving, write
from apps.cron.tests.told import NOON, UTC_ALL, Told, running, told
from crabtalk.protocol import wire
from crabtalk_cron import runner as module
from crabtalk_cron.runner import Runner

__all__ = ["told"]


@pytest.mark.req("cron.fire.message")
async def test_an_entry_is_fired_as_its_skill_to_its_agent_from_its_sender(home: Path) -> None:
    text = cron(1) + cron(2, message="Good morning", agent="twin", sender="alarm")
    peer = Peer()
    async with serving(peer, home), running(home, text) as clock:
        await clock.move(NOON + 59)
        await clock.move(NOON + 60)
        await peer.until(lambda: len(peer.ended) == 2)
    assert peer.kinds == {"hello", "stream"}  # whether it knows keys, and the turn
    first, second = sorted(peer.asked, key=lambda request: request.agent)
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
        cron(1, created_by="tg:7", mode="plan")
        + cron(2, sender="tg:8")
        + cron(3, sender="tg:8", created_by="user")
        + cron(4, sender="user~work")
    )
    peer = Peer()
    async with serving(peer, home), running(home, text) as clock:
        await clock.move(NOON + 60)
        await peer.until(lambda: len(peer.ended) == 4)
    sent = sorted(peer.asked, key=lambda request: request.content)
    assert [(one.sender, one.origin, one.mode) for one in sent] == [
        ("cron", "tg:7", "plan"),
        ("tg:8", "tg:8", ""),
        ("tg:8", "user", ""),
        ("user~work", "user", ""),
    ]
    assert all(one.unattended for one in sent)


@pytest.mark.req("cron.fire.drained")
async def test_the_answer_is_read_to_its_end(home: Path, told: Told) -> None:
    peer = Peer()
    async with serving(peer, home), running(home, cron(1)) as clock:
        await clock.move(NOON + 60)
        await told.until("cron 1 (/s1 to crab): done")
    assert peer.ended == ["/s1"]


@pytest.mark.req("cron.fire.no_overlap")
async def test_an_entry_is_not_fired_while_its_last_turn_goes_on(home: Path, told: Told) -> None:
    peer = Peer()
    peer.finish.clear()
    async with serving(peer, home), running(home, cron(1) + cron(2, "@hourly")) as clock:
        await clock.move(NOON + 60)
        await peer.until(lambda: len(peer.asked) == 1)
        await clock.move(NOON + 120)
        assert "cron 1 (/s1 to crab): its last turn is not over, passed over" in told.lines
        peer.finish.set()
        await told.until("cron 1 (/s1 to crab): done")
        await clock.move(NOON + 180)
        await peer.until(lambda: len(peer.asked) == 2)
        await told.until("cron 1 (/s1 to crab): done", times=2)
    assert peer.most_at_once == 1


@pytest.mark.req("cron.fire.at_once")
async def test_so_many_are_fired_at_once_and_the_others_wait_their_turn(home: Path) -> None:
    text = "at_once = 3\n\n" + "".join(cron(number) for number in range(10))
    peer = Peer()
    peer.finish.clear()
    async with serving(peer, home), running(home, text) as clock:
        await clock.move(NOON + 60)
        await peer.until(lambda: len(peer.asked) == 3)
        peer.finish.set()
        await peer.until(lambda: len(peer.ended) == 10)
    assert peer.most_at_once == 3
    assert sorted(peer.contents) == [f"/s{number}" for number in range(10)]


@pytest.mark.req("cron.bounds.entries")
async def test_a_thousand_entries_of_one_minute_are_all_fired(home: Path) -> None:
    text = "".join(cron(number) for number in range(1000))
    peer = Peer()
    async with serving(peer, home), running(home, text) as clock:
        await clock.move(NOON + 60)
        await peer.until(lambda: len(peer.ended) == 1000)
    assert peer.most_at_once <= 8
    assert len(set(peer.contents)) == 1000


@pytest.mark.req("cron.daemon.away")
async def test_a_daemon_that_is_away_is_tried_again_and_found_when_it_is_back(
    home: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRY_EVERY", 0.01)
    peer = Peer()
    async with running(home, cron(1)) as clock:
        await clock.move(NOON + 60)
        await told.until("cron 1 (/s1 to crab): no daemon answers")
        async with serving(peer, home):
            await peer.until(lambda: len(peer.ended) == 1)
        await told.until("cron 1 (/s1 to crab): done")
        # And again, after it went and came back.
        await clock.move(NOON + 120)
        await told.until("cron 1 (/s1 to crab): no daemon answers", times=2)
        async with serving(peer, home):
            await peer.until(lambda: len(peer.ended) == 2)


@pytest.mark.req("cron.daemon.away")
async def test_a_daemon_that_stays_away_is_tried_again_at_the_next_time(
    home: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRY_EVERY", 0.01)
    peer = Peer()
    async with running(home, cron(1, "0 0 * * * *")) as clock:
        await clock.move(NOON + 3600)
        await told.until("tried again for a minute")
        assert len([line for line in told.lines if "no daemon" in line]) == 1
        await clock.move(NOON + 3600 + 61)
        await told.until("tried again at its next time")
        async with serving(peer, home):
            await clock.move(NOON + 7200)
            await peer.until(lambda: len(peer.ended) == 1)


@pytest.mark.req("cron.fire.failures")
async def test_what_the_daemon_refuses_is_logged_and_the_schedule_goes_on(
    home: Path, told: Told
) -> None:
    text = cron(1, agent="nobody", once=True) + cron(2, message="break")
    peer = Peer()
    async with serving(peer, home), running(home, text) as clock:
        await clock.move(NOON + 60)
        await told.until("no agent is called 'nobody'; make one; tried again at its next time")
        await told.until("cron 2 (a message to crab): ended with an error: it broke")
        await clock.move(NOON + 120)
        await peer.until(lambda: len(peer.asked) == 4)
        await told.until("ended with an error", times=2)
        await told.until("no agent is called", times=2)


@pytest.mark.req("cron.fire.failures")
async def test_a_connection_that_is_lost_in_a_turn_is_logged_and_the_schedule_goes_on(
    home: Path, told: Told
) -> None:
    peer = Peer()
    peer.finish.clear()
    async with running(home, cron(1)) as clock:
        async with serving(peer, home):
            await clock.move(NOON + 60)
            await told.until("cron 1 (/s1 to crab): fired")
        await told.until("tried again at its next time")
        peer.finish.set()
        async with serving(peer, home):
            await clock.move(NOON + 120)
            await peer.until(lambda: len(peer.ended) == 1)


@pytest.mark.req("cron.quiet.skipped")
async def test_a_tick_in_quiet_hours_is_skipped_and_not_caught_up_with(
    home: Path, told: Told
) -> None:
    text = cron(1, quiet_start="12:00", quiet_end="12:02", once=True)
    peer = Peer()
    async with serving(peer, home), running(home, text) as clock:
        await clock.move(NOON + 60)
        assert told.lines[-1] == "cron 1 (/s1 to crab): these are quiet hours"
        await clock.move(NOON + 120)
        await peer.until(lambda: len(peer.ended) == 1)
    assert len(peer.asked) == 1


@pytest.mark.req("cron.quiet.held_up")
async def test_what_was_held_up_into_quiet_hours_is_not_fired(home: Path, told: Told) -> None:
    text = "at_once = 1\n\n" + cron(1) + cron(2, quiet_start="12:02", quiet_end="13:00")
    peer = Peer()
    peer.finish.clear()
    async with serving(peer, home), running(home, text) as clock:
        await clock.move(NOON + 60)
        await peer.until(lambda: len(peer.asked) == 1)
        await clock.move(NOON + 130)
        peer.finish.set()
        await told.until("cron 2 (/s2 to crab): quiet hours began before it was fired")
    assert peer.contents == ["/s1"]


@pytest.mark.req("cron.fire.no_catch_up")
async def test_a_time_that_was_slept_through_is_passed_over(home: Path, told: Told) -> None:
    peer = Peer()
    async with serving(peer, home), running(home, cron(1, "0 0 * * * *")) as clock:
        await clock.move(NOON + 3600 + 61)
        assert told.lines[-1] == "cron 1 (/s1 to crab): its time was 61 s ago, passed over"
        await clock.move(NOON + 7200 + 59)
        await peer.until(lambda: len(peer.ended) == 1)


@pytest.mark.req("cron.schedule.local")
async def test_a_machine_that_is_given_another_zone_goes_by_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer()
    clock = MovedClock(NOON)
    write(home, cron(1, "0 1 13 * * *"))
    with monkeypatch.context() as machine:
        machine.setenv("TZ", "UTC")
        time.tzset()
        async with serving(peer, home):
            task = asyncio.ensure_future(Runner(home, clock).run())
            await clock.move(NOON)
            machine.setenv("TZ", "Europe/Berlin")
            time.tzset()
            await clock.move(NOON + 1, place="Berlin")
            await clock.move(NOON + 60)
            await peer.until(lambda: len(peer.ended) == 1)
            task.cancel()
            await asyncio.wait([task])
    time.tzset()


@pytest.mark.req("cron.stop.clean")
async def test_at_the_end_a_turn_that_was_asked_for_is_let_begin(home: Path, told: Told) -> None:
    """What is for once would be fired again otherwise."""
    peer = Peer()
    peer.begin.clear()
    peer.finish.clear()
    write(home, UTC_ALL + cron(1, once=True))
    clock = MovedClock(NOON)
    async with serving(peer, home):
        task = asyncio.ensure_future(Runner(home, clock).run())
        await clock.move(NOON + 60)
        await peer.until(lambda: len(peer.asked) == 1)
        task.cancel()
        await told.until("stopping")
        peer.begin.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task])
    assert task.cancelled()
    assert (home / "config" / "crons.toml").read_text() == UTC_ALL


@pytest.mark.req("cron.stop.clean")
async def test_at_the_end_a_daemon_that_says_nothing_is_not_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.05)
    peer = Peer()
    peer.begin.clear()
    async with serving(peer, home):
        async with running(home, cron(1)) as clock:
            await clock.move(NOON + 60)
            await peer.until(lambda: len(peer.asked) == 1)
        await peer.until(lambda: peer.at_once == 0)


@pytest.mark.req("cron.bounds.turn")
async def test_a_turn_without_end_makes_room_for_others_after_a_while(
    home: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_TURN", 0.05)
    peer = Peer()
    peer.finish.clear()
    async with serving(peer, home), running(home, cron(1)) as clock:
        await clock.move(NOON + 60)
        await told.until("left alone")
        # On a slow machine that may have been before it was taken on.
        fired = sum("fired" in line for line in told.lines)
        monkeypatch.setattr(module, "LONGEST_TURN", PATIENCE)
        await clock.move(NOON + 120)
        await told.until("fired", fired + 1)


@pytest.mark.req("cron.daemon.away")
async def test_an_entry_that_still_looks_for_a_daemon_is_not_told_of_at_every_tick(
    home: Path, told: Told
) -> None:
    peer = Peer()
    async with running(home, cron(1, "* * * * * *")) as clock:
        await clock.move(NOON + 1)
        await told.until("tried again for a minute")
        for second in range(2, 30):
            await clock.move(NOON + second)
        assert len([line for line in told.lines if line.startswith("cron 1")]) == 1
        async with serving(peer, home):
            await told.until("cron 1 (/s1 to crab): done")
    assert peer.contents == ["/s1"]
