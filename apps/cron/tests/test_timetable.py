"""The timetable with a manual clock."""

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
    timetable = Timetable(clock or CronManualClock(NOON))
    timetable.replace(
        [make_entry(number, text, **rest) for number, text in enumerate(entries)], NOON
    )
    return timetable


def walk_clock(timetable: Timetable, start: datetime, end: datetime, step: int = 60) -> list[str]:
    """The entries that are due while a clock moves in steps of seconds, in the zone of `start`."""
    lines = []
    for moment in range(int(start.timestamp()), int(end.timestamp()), step):
        lines += [
            f"{due_entry.entry.id} {datetime.fromtimestamp(moment, start.tzinfo):%d %H:%M %z}"
            for due_entry in timetable.pop_due(moment)
        ]
    return lines


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
def test_half_past_two_is_due_once_on_the_day_of_a_clock_change(
    zone: str, day: datetime, expected: str
) -> None:
    start = day.replace(tzinfo=ZoneInfo(zone))
    timetable = Timetable(CronManualClock(start.timestamp()))
    timetable.replace([make_entry(1, "0 30 2 * * *", tz=zone)], start.timestamp())
    assert walk_clock(timetable, start, start + timedelta(days=1)) == [f"1 {expected}"]


@pytest.mark.req("cron.expression.leap_day")
def test_two_februaries_have_one_leap_day() -> None:
    start = datetime(2027, 2, 1, tzinfo=UTC)
    timetable = Timetable(CronManualClock(start.timestamp()))
    timetable.replace(
        [
            make_entry(1, "0 0 12 29 2 *"),
            make_entry(2, "0 0 12 L 2 *"),
            make_entry(3, "0 0 12 31 * *"),
        ],
        start.timestamp(),
    )
    lines = walk_clock(timetable, start, datetime(2028, 4, 1, tzinfo=UTC), step=3600)
    assert [line for line in lines if line[0] == "1"] == ["1 29 12:00 +0000"]
    assert [line[:4] for line in lines if line[0] == "2"] == ["2 28", "2 29"]
    assert len([line for line in lines if line[0] == "3"]) == 8


@pytest.mark.req("cron.fire.no_catch_up")
def test_all_times_that_were_slept_through_are_due_once() -> None:
    timetable = make_timetable("* * * * * *", "0 0 * * * *")
    due = timetable.pop_due(NOON + 2 * 3600 + 10)
    assert sorted((entry.entry.id, entry.moment - NOON) for entry in due) == [(0, 1), (1, 3600)]
    assert timetable.next_moment() == NOON + 2 * 3600 + 11


@pytest.mark.req("cron.clock.set")
def test_a_small_clock_correction_fires_nothing_twice() -> None:
    timetable = make_timetable("*/10 * * * * *")
    assert len(timetable.pop_due(NOON + 10)) == 1
    assert timetable.pop_due(NOON + 5) == timetable.pop_due(NOON + 10) == []
    assert len(timetable.pop_due(NOON + 20)) == 1


@pytest.mark.req("cron.clock.set")
def test_entries_do_not_wait_after_a_large_clock_correction() -> None:
    year = 365 * 86400
    timetable = make_timetable("0 0 * * * *")
    timetable.pop_due(NOON + year)
    assert timetable.pop_due(NOON) == []
    assert timetable.next_moment() == NOON + 3600


@pytest.mark.req("cron.reload.unchanged")
def test_an_unchanged_entry_keeps_its_next_time() -> None:
    clock = CronManualClock(NOON, chances=[0.5, 0.9, 0.1])
    timetable = Timetable(clock)
    timetable.replace([make_entry(1, "@hourly", jitter=100), make_entry(2, "@hourly")], NOON)
    assert timetable.next_moment() == NOON + 3600
    timetable.replace([make_entry(1, "@hourly", jitter=100)], NOON + 60)
    assert timetable.next_moment() == NOON + 3650
    timetable.replace([make_entry(1, "@hourly", jitter=200)], NOON + 60)
    assert timetable.next_moment() == NOON + 3600 + 20


@pytest.mark.req("cron.jitter")
def test_jitter_delays_an_entry_and_its_next_time_is_later() -> None:
    clock = CronManualClock(NOON, chances=[0.75, 0.25])
    timetable = Timetable(clock)
    timetable.replace([make_entry(1, "0 * * * * *", jitter=100)], NOON)
    assert timetable.pop_due(NOON + 60) == []
    (due,) = timetable.pop_due(NOON + 60 + 75)
    assert (due.tick.moment, due.moment) == (NOON + 60, NOON + 135)
    # The tick of the second minute was skipped: the delay had moved the first beyond it.
    assert timetable.next_moment() == NOON + 180 + 25


@pytest.mark.req("cron.reload.changes")
def test_a_removed_entry_is_not_due() -> None:
    timetable = make_timetable("0 * * * * *", "0 * * * * *")
    (first, second) = timetable.entries
    timetable.replace([second], NOON)
    assert not timetable.holds(first)
    assert [due_entry.entry for due_entry in timetable.pop_due(NOON + 60)] == [second]
    timetable.remove(second)
    assert timetable.next_moment() is None


@pytest.mark.req("cron.bounds.entries")
@pytest.mark.clock
def test_the_cost_depends_on_due_entries_and_not_on_all() -> None:
    entries = [make_entry(number, f"{number % 60} {number % 59} * * * *") for number in range(1000)]
    timetable = Timetable(CronManualClock(NOON))
    timetable.replace(entries, NOON)
    before = time.process_time()
    for moment in range(10_000):
        timetable.pop_due(NOON + moment / 10_000)
    idle = (time.process_time() - before) / 10_000
    # Measured: 1 µs on a quiet machine; ten entries take as long.
    assert idle < 0.000_1

    timetable.replace([make_entry(number, "0 * * * * *") for number in range(1000)], NOON)
    before = time.process_time()
    assert len(timetable.pop_due(NOON + 60)) == 1000
    # Measured: 30 ms for all of them.
    assert time.process_time() - before < 1


@pytest.mark.req("cron.bounds.entries")
def test_a_thousand_entries_are_all_due_at_their_times() -> None:
    timetable = make_timetable(*[f"{n % 60} {n // 60} 13 * * *" for n in range(1000)])
    fired = []
    for moment in range(int(NOON), int(NOON) + 7200):
        fired += [(due_entry.entry.id, moment) for due_entry in timetable.pop_due(moment)]
    assert fired == [(n, NOON + 3600 + n) for n in range(1000)]
