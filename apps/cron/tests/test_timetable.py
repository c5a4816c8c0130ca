"""The timetable, by a clock the test moves."""

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from apps.cron.tests.manual_clock import CronManualClock, make_entry
from crabtalk_cron.timetable import Timetable

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()


def make_timetable(
    *entries: str, clock: CronManualClock | None = None, **rest: object
) -> Timetable:
    found = Timetable(clock or CronManualClock(NOON))
    found.replace([make_entry(number, text, **rest) for number, text in enumerate(entries)], NOON)
    return found


def walk_clock(found: Timetable, start: datetime, end: datetime, step: int = 60) -> list[str]:
    """What is due when a clock goes on in steps of seconds, in the zone of `start`."""
    said = []
    for moment in range(int(start.timestamp()), int(end.timestamp()), step):
        said += [
            f"{one.entry.id} {datetime.fromtimestamp(moment, start.tzinfo):%d %H:%M %z}"
            for one in found.pop_due(moment)
        ]
    return said


@pytest.mark.parametrize(
    ("zone", "day", "expected"),
    [
        ("Europe/Berlin", datetime(2027, 3, 28), "28 03:00 +0200"),
        ("Europe/Berlin", datetime(2026, 10, 25), "25 02:30 +0200"),
        ("America/New_York", datetime(2027, 3, 14), "14 03:00 -0400"),
        ("America/New_York", datetime(2027, 11, 7), "07 02:30 -0500"),
        ("Australia/Lord_Howe", datetime(2026, 10, 4), "04 02:30 +1100"),
        ("Australia/Lord_Howe", datetime(2027, 4, 4), "04 02:30 +1030"),
    ],
)
@pytest.mark.req("cron.schedule.dst")
def test_what_is_for_half_past_two_is_due_once_on_the_day_clocks_are_turned(
    zone: str, day: datetime, expected: str
) -> None:
    start = day.replace(tzinfo=ZoneInfo(zone))
    found = Timetable(CronManualClock(start.timestamp()))
    found.replace([make_entry(1, "0 30 2 * * *", tz=zone)], start.timestamp())
    assert walk_clock(found, start, start + timedelta(days=1)) == [f"1 {expected}"]


@pytest.mark.req("cron.expression.leap_day")
def test_a_clock_that_goes_through_two_februaries_finds_one_leap_day() -> None:
    start = datetime(2027, 2, 1, tzinfo=UTC)
    found = Timetable(CronManualClock(start.timestamp()))
    found.replace(
        [
            make_entry(1, "0 0 12 29 2 *"),
            make_entry(2, "0 0 12 L 2 *"),
            make_entry(3, "0 0 12 31 * *"),
        ],
        start.timestamp(),
    )
    said = walk_clock(found, start, datetime(2028, 4, 1, tzinfo=UTC), step=3600)
    assert [one for one in said if one[0] == "1"] == ["1 29 12:00 +0000"]
    assert [one[:4] for one in said if one[0] == "2"] == ["2 28", "2 29"]
    assert len([one for one in said if one[0] == "3"]) == 8


@pytest.mark.req("cron.fire.no_catch_up")
def test_times_that_were_slept_through_are_due_once_together() -> None:
    found = make_timetable("* * * * * *", "0 0 * * * *")
    due = found.pop_due(NOON + 2 * 3600 + 10)
    assert sorted((one.entry.id, one.moment - NOON) for one in due) == [(0, 1), (1, 3600)]
    assert found.next_moment() == NOON + 2 * 3600 + 11


@pytest.mark.req("cron.clock.set")
def test_a_clock_that_is_set_back_a_little_fires_nothing_twice() -> None:
    found = make_timetable("*/10 * * * * *")
    assert len(found.pop_due(NOON + 10)) == 1
    assert found.pop_due(NOON + 5) == found.pop_due(NOON + 10) == []
    assert len(found.pop_due(NOON + 20)) == 1


@pytest.mark.req("cron.clock.set")
def test_a_clock_that_was_far_ahead_and_is_set_right_does_not_leave_entries_waiting() -> None:
    year = 365 * 86400
    found = make_timetable("0 0 * * * *")
    found.pop_due(NOON + year)
    assert found.pop_due(NOON) == []
    assert found.next_moment() == NOON + 3600


@pytest.mark.req("cron.reload.unchanged")
def test_an_entry_that_is_still_there_keeps_the_time_it_waits_for() -> None:
    clock = CronManualClock(NOON, chances=[0.5, 0.9, 0.1])
    found = Timetable(clock)
    found.replace([make_entry(1, "@hourly", jitter=100), make_entry(2, "@hourly")], NOON)
    assert found.next_moment() == NOON + 3600
    found.replace([make_entry(1, "@hourly", jitter=100)], NOON + 60)
    assert found.next_moment() == NOON + 3650
    found.replace([make_entry(1, "@hourly", jitter=200)], NOON + 60)
    assert found.next_moment() == NOON + 3600 + 20


@pytest.mark.req("cron.jitter")
def test_jitter_puts_an_entry_off_by_chance_and_its_next_time_is_after_that() -> None:
    clock = CronManualClock(NOON, chances=[0.75, 0.25])
    found = Timetable(clock)
    found.replace([make_entry(1, "0 * * * * *", jitter=100)], NOON)
    assert found.pop_due(NOON + 60) == []
    (due,) = found.pop_due(NOON + 60 + 75)
    assert (due.tick.moment, due.moment) == (NOON + 60, NOON + 135)
    # The tick of the second minute was passed over: chance had put the first beyond it.
    assert found.next_moment() == NOON + 180 + 25


@pytest.mark.req("cron.reload.changes")
def test_an_entry_that_is_gone_is_not_due() -> None:
    found = make_timetable("0 * * * * *", "0 * * * * *")
    (first, second) = found.entries
    found.replace([second], NOON)
    assert not found.holds(first)
    assert [one.entry for one in found.pop_due(NOON + 60)] == [second]
    found.remove(second)
    assert found.next_moment() is None


@pytest.mark.req("cron.bounds.entries")
@pytest.mark.clock
def test_a_thousand_entries_cost_what_is_due_and_not_what_there_is() -> None:
    entries = [make_entry(number, f"{number % 60} {number % 59} * * * *") for number in range(1000)]
    found = Timetable(CronManualClock(NOON))
    found.replace(entries, NOON)
    before = time.process_time()
    for moment in range(10_000):
        found.pop_due(NOON + moment / 10_000)
    idle = (time.process_time() - before) / 10_000
    # Measured: 1 µs on a quiet machine, and so for ten entries.
    assert idle < 0.000_1

    found.replace([make_entry(number, "0 * * * * *") for number in range(1000)], NOON)
    before = time.process_time()
    assert len(found.pop_due(NOON + 60)) == 1000
    # Measured: 30 ms for all of them.
    assert time.process_time() - before < 1


@pytest.mark.req("cron.bounds.entries")
def test_a_thousand_entries_are_all_due_at_their_times() -> None:
    found = make_timetable(*[f"{n % 60} {n // 60} 13 * * *" for n in range(1000)])
    said = []
    for moment in range(int(NOON), int(NOON) + 7200):
        said += [(one.entry.id, moment) for one in found.pop_due(moment)]
    assert said == [(n, NOON + 3600 + n) for n in range(1000)]
