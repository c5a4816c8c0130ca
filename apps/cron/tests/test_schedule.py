"""Schedules on days of clock changes, compared with a check of every minute."""

import random
import time as system_time
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from crabtalk_cron.expression import CronExpression
from crabtalk_cron.schedule import CronSchedule, QuietHours
from crabtalk_cron.time_zones import LOCAL_ZONE, find_zone

# The days before clocks go forward, and back. Lord Howe changes by half an hour, Santiago at
# midnight.
TURNS = [
    ("Europe/Berlin", datetime(2027, 3, 27), datetime(2026, 10, 24)),
    ("America/New_York", datetime(2027, 3, 13), datetime(2026, 10, 31)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3), datetime(2027, 4, 3)),
    ("America/Santiago", datetime(2026, 9, 5), datetime(2027, 4, 3)),
]
DAYS = [(zone, day) for zone, *days in TURNS for day in days]


def make_schedule(
    text: str, zone: str = "UTC", quiet: tuple[str, str] | None = None
) -> CronSchedule:
    hours = QuietHours(*map(time.fromisoformat, quiet)) if quiet else None
    return CronSchedule(CronExpression.parse(text), find_zone(zone), hours)


def to_moment(day: datetime, zone: str) -> float:
    return day.replace(tzinfo=ZoneInfo(zone)).timestamp()


def list_shown_times(schedule: CronSchedule, day: datetime, zone: str, days: int = 3) -> list[str]:
    """The wall times of all ticks that are not quiet."""
    start, end = to_moment(day, zone) - 1, to_moment(day + timedelta(days=days), zone)
    moments = []
    for tick in schedule.iterate_ticks(start):
        if tick.moment >= end:
            break
        moments.append(datetime.fromtimestamp(tick.moment, ZoneInfo(zone)))
    return [f"{moment:%d %H:%M %z}" for moment in moments]


def list_minutes(day: datetime, zone: str, days: int = 3) -> list[tuple[float, datetime]]:
    """Every minute as a moment, with its wall time."""
    start, end = to_moment(day, zone), to_moment(day + timedelta(days=days), zone)
    passing = range(int(start), int(end), 60)
    return [(m, datetime.fromtimestamp(m, ZoneInfo(zone)).replace(tzinfo=None)) for m in passing]


MINUTES = {(zone, day): list_minutes(day, zone) for zone, day in DAYS}


def find_expected_moments(text: str, day: datetime, zone: str) -> list[float]:
    """The rule of docs/cron.md, computed by checking every minute."""
    minute_of, hour_of = (set(map(int, word.split(","))) for word in text.split()[1:3])
    passing = MINUTES[zone, day]
    if hour_of == set(range(24)):
        return [moment for moment, wall in passing if wall.minute in minute_of]
    first: dict[datetime, float] = {}
    for moment, wall in passing:
        first.setdefault(wall, moment)
    wall_times = (day + timedelta(minutes=number) for number in range(3 * 1440))
    walls = [wall for wall in wall_times if wall.minute in minute_of and wall.hour in hour_of]
    moment_after = {
        wall: next(m for m, w in passing if w > wall) for wall in walls if wall not in first
    }
    return sorted({first.get(wall) or moment_after[wall] for wall in walls})


@pytest.mark.parametrize("count", [15, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("zone", "day"), DAYS)
@pytest.mark.req("cron.schedule.dst")
def test_every_minute_around_a_clock_change_follows_the_rule(
    zone: str, day: datetime, count: int
) -> None:
    chance = random.Random(zone)
    for _ in range(count):
        minute_of = sorted(chance.sample(range(60), chance.choice((1, 1, 2, 5))))
        hours = chance.choice((1, 2, 3, 12, 24))
        hour_of = sorted(chance.sample(range(4), min(hours, 4)) if hours < 24 else range(24))
        text = f"0 {','.join(map(str, minute_of))} {','.join(map(str, hour_of))} * * *"
        planned = make_schedule(text, zone)
        moments = []
        moment, end = to_moment(day, zone) - 1, to_moment(day + timedelta(days=3), zone)
        while (tick := planned.next_after(moment)) is not None and tick.moment < end:
            moment = tick.moment
            moments.append(moment)
        assert moments == find_expected_moments(text, day, zone), text


@pytest.mark.parametrize(("zone", "day"), DAYS)
@pytest.mark.req("cron.schedule.dst")
def test_fixed_times_agree_with_cronsim(zone: str, day: datetime) -> None:
    chance = random.Random(zone)
    for _ in range(100):
        text = f"{chance.randrange(60)} {chance.randrange(4)},{chance.randrange(24)} * * *"
        search = CronSim(text, day.replace(tzinfo=ZoneInfo(zone)))
        planned = make_schedule(text, zone)
        moment = to_moment(day, zone)
        for _ in range(6):
            tick = planned.next_after(moment)
            assert tick is not None
            moment = tick.moment
            assert moment == next(search).timestamp(), text


@pytest.mark.req("cron.schedule.dst")
def test_a_skipped_time_comes_at_the_clock_change() -> None:
    shown_times = list_shown_times(
        make_schedule("0 30 2 * * *", "Europe/Berlin"), datetime(2027, 3, 27), "Europe/Berlin"
    )
    assert shown_times == ["27 02:30 +0100", "28 03:00 +0200", "29 02:30 +0200"]
    frequent = make_schedule("0 */10 2 * * *", "Europe/Berlin")
    assert list_shown_times(frequent, datetime(2027, 3, 28), "Europe/Berlin", days=1) == [
        "28 03:00 +0200"
    ]
    midnight = make_schedule("@daily", "America/Santiago")
    assert list_shown_times(midnight, datetime(2026, 9, 5), "America/Santiago") == [
        "05 00:00 -0400",
        "06 01:00 -0300",
        "07 00:00 -0300",
    ]


@pytest.mark.req("cron.schedule.dst")
def test_a_repeated_time_comes_once() -> None:
    schedule = make_schedule("0 30 2 * * *", "Europe/Berlin")
    assert list_shown_times(schedule, datetime(2026, 10, 24), "Europe/Berlin") == [
        "24 02:30 +0200",
        "25 02:30 +0200",
        "26 02:30 +0100",
    ]
    # After the second of the two hours, the next one is tomorrow.
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC).timestamp()
    tick = schedule.next_after(second)
    assert tick is not None
    assert datetime.fromtimestamp(tick.moment, UTC) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.req("cron.schedule.dst")
def test_an_hourly_schedule_comes_every_elapsed_hour() -> None:
    hourly = make_schedule("0 15 * * * *", "Europe/Berlin")
    assert list_shown_times(hourly, datetime(2026, 10, 25), "Europe/Berlin", days=1)[1:5] == [
        "25 01:15 +0200",
        "25 02:15 +0200",
        "25 02:15 +0100",
        "25 03:15 +0100",
    ]
    assert list_shown_times(hourly, datetime(2027, 3, 28), "Europe/Berlin", days=1)[1:3] == [
        "28 01:15 +0100",
        "28 03:15 +0200",
    ]


@pytest.mark.req("cron.schedule.tz")
def test_an_hour_of_the_day_is_in_the_schedules_zone() -> None:
    start = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    for zone, hour in (("UTC", 9), ("Europe/Berlin", 7), ("Asia/Kolkata", 3)):
        tick = make_schedule("0 0 9 * * *", zone).next_after(start)
        assert tick is not None
        assert datetime.fromtimestamp(tick.moment, UTC).hour == hour


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    system_time.tzset()
    yield request.param
    monkeypatch.undo()
    system_time.tzset()


@pytest.mark.parametrize("local_zone", [zone for zone, *_ in TURNS], indirect=True)
@pytest.mark.req("cron.schedule.local")
def test_without_a_zone_the_machines_is_used_also_at_clock_changes(
    local_zone: str,
) -> None:
    for text in ("0 30 2 * * *", "@daily", "0 */20 * * * *", "0 45 1,2 * * *", "@hourly"):
        local = CronSchedule(CronExpression.parse(text), LOCAL_ZONE)
        named = make_schedule(text, local_zone)
        for zone, day in DAYS:
            if zone == local_zone:
                moment = to_moment(day, zone)
                for _ in range(90):
                    tick = local.next_after(moment)
                    assert tick == named.next_after(moment)
                    assert tick is not None
                    moment = tick.moment


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "America", "../etc/passwd", "/etc/passwd"])
@pytest.mark.req("cron.schedule.tz")
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no time zone; write one like Europe/Berlin"):
        find_zone(name)


# ── Quiet hours ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cron.quiet.window")
def test_quiet_hours_begin_with_their_start_and_end_before_their_end() -> None:
    schedule = make_schedule("0 */30 * * * *", quiet=("12:30", "14:00"))
    day = datetime(2026, 11, 16, 12)
    assert list_shown_times(schedule, day, "UTC", days=1)[:2] == [
        "16 12:00 +0000",
        "16 14:00 +0000",
    ]


@pytest.mark.req("cron.quiet.window")
def test_quiet_hours_may_go_over_midnight() -> None:
    schedule = make_schedule("0 0 */3 * * *", quiet=("23:00", "07:00"))
    assert [
        shown_time[3:8]
        for shown_time in list_shown_times(schedule, datetime(2026, 11, 16), "UTC", days=1)
    ] == [
        "09:00",
        "12:00",
        "15:00",
        "18:00",
        "21:00",
    ]


@pytest.mark.req("cron.quiet.window")
def test_quiet_hours_with_equal_ends_are_empty() -> None:
    schedule = make_schedule("@hourly", quiet=("09:00", "09:00"))
    assert len(list_shown_times(schedule, datetime(2026, 11, 16), "UTC", days=1)) == 24


@pytest.mark.parametrize(("zone", "day"), DAYS)
@pytest.mark.parametrize("quiet", [("23:00", "07:00"), ("02:00", "03:00"), ("01:45", "02:15")])
@pytest.mark.req("cron.quiet.dst")
def test_quiet_hours_are_wall_time_also_at_clock_changes(
    zone: str, day: datetime, quiet: tuple[str, str]
) -> None:
    schedule = make_schedule("0 */5 * * * *", zone, quiet)
    start, end = map(time.fromisoformat, quiet)

    def is_quiet(at: time) -> bool:
        return start <= at < end if start < end else at >= start or at < end

    loud = [m for m, wall in MINUTES[zone, day] if wall.minute % 5 == 0]
    loud = [m for m in loud if not is_quiet(datetime.fromtimestamp(m, ZoneInfo(zone)).time())]
    ticks = schedule.iterate_ticks(to_moment(day, zone) - 1)
    assert [next(ticks).moment for _ in loud] == loud


@pytest.mark.req("cron.quiet.dst")
def test_a_skipped_quiet_time_is_also_quiet_at_the_clock_change() -> None:
    schedule = make_schedule("0 30 2 * * *", "Europe/Berlin", quiet=("02:00", "03:00"))
    assert list_shown_times(schedule, datetime(2027, 3, 27), "Europe/Berlin") == []


@pytest.mark.req("cron.quiet.window")
def test_long_quiet_hours_are_passed_and_an_always_quiet_schedule_ends() -> None:
    start = datetime(2026, 11, 16, 23, tzinfo=UTC).timestamp()
    tick = next(make_schedule("* * * * * *", quiet=("23:00", "07:00")).iterate_ticks(start))
    assert datetime.fromtimestamp(tick.moment, UTC) == datetime(2026, 11, 17, 7, tzinfo=UTC)
    assert list(make_schedule("0 30 2 * * *", quiet=("23:00", "07:00")).iterate_ticks(start)) == []
