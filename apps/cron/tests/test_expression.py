"""Expressions: the dialect, compared with another library and with a check of every day."""

import random
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from croniter import CroniterBadDateError, croniter  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from apps.cron.tests.random_expressions import RandomExpression, draw_expression
from crabtalk_cron.expression import NICKNAMES, CronExpression, ExpressionError

MONDAY = datetime(2026, 11, 16, 12, 0, 0)


def list_times(text: str, count: int, start: datetime = MONDAY) -> list[datetime]:
    times: list[datetime] = []
    expression = CronExpression.parse(text)
    for _ in range(count):
        moment = expression.next_after(times[-1] if times else start)
        assert moment is not None
        times.append(moment)
    return times


def list_days(text: str, count: int, start: datetime = MONDAY) -> list[str]:
    return [f"{moment:%a %Y-%m-%d}" for moment in list_times(text, count, start)]


# ── Comparison with croniter ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", range(10))
@pytest.mark.req("cron.expression.witness")
def test_random_expressions_agree_with_croniter(part: int, count: int) -> None:
    """Three times for each expression, in ten parts."""
    chance = random.Random(part)
    agreed = 0
    while agreed < count:
        expression = draw_expression(chance)
        start = datetime(2024, 1, 1) + timedelta(seconds=chance.randrange(6 * 365 * 86400))
        try:
            expected = list_croniter_times(expression, start, 3)
        except CroniterBadDateError:
            with pytest.raises(ExpressionError):
                CronExpression.parse(expression.to_our_dialect())
            continue
        assert list_times(expression.to_our_dialect(), 3, start) == expected, (
            expression.to_our_dialect()
        )
        agreed += 1


def list_croniter_times(
    expression: RandomExpression, start: datetime, count: int
) -> list[datetime]:
    # croniter needs an option to require both days.
    times = croniter(
        expression.to_croniter(),
        start,
        day_or=False,
        second_at_beginning=True,
        max_years_between_matches=50,
    )
    return [times.get_next(datetime) for _ in range(count)]


@pytest.mark.req("cron.expression.witness")
def test_random_expressions_agree_with_a_check_of_every_day() -> None:
    chance = random.Random(7)
    for _ in range(300):
        expression = draw_expression(chance)
        start = datetime(2024, 1, 1) + timedelta(seconds=chance.randrange(6 * 365 * 86400))
        expected = expression.find_next(start, days=800)
        if expected is not None:
            assert list_times(expression.to_our_dialect(), 1, start) == [expected], (
                expression.to_our_dialect()
            )


@pytest.mark.req("cron.expression.witness")
def test_expressions_for_days_that_no_month_has_are_refused() -> None:
    chance = random.Random(3)
    refused = 0
    while refused < 20:
        expression = draw_expression(chance)
        if not expression.is_possible():
            refused += 1
            with pytest.raises(ExpressionError, match="none of its months has such a day"):
                CronExpression.parse(expression.to_our_dialect())


# ── The dialect ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cron.expression.fields")
def test_six_fields_begin_with_seconds() -> None:
    assert list_times("30 15 9 * * *", 1) == [datetime(2026, 11, 17, 9, 15, 30)]


@pytest.mark.req("cron.expression.five")
def test_five_fields_are_a_crontab_line_at_second_zero() -> None:
    assert list_times("15 9 * * *", 1) == [datetime(2026, 11, 17, 9, 15, 0)]
    assert CronExpression.parse("15 9 * * *") == CronExpression.parse("0 15 9 * * *")


@pytest.mark.req("cron.expression.year")
def test_a_seventh_field_is_the_year() -> None:
    times = list_times("0 0 0 1 1 ? 2030,2032-2036/2", 4)
    assert [moment.year for moment in times] == [2030, 2032, 2034, 2036]
    assert CronExpression.parse("0 0 0 1 1 ? 2030").next_after(datetime(2030, 1, 1)) is None
    assert CronExpression.parse("* * * * * * 2020").next_after(MONDAY) is None
    assert CronExpression.parse("0 0 0 * * * *") == CronExpression.parse("0 0 0 * * *")


@pytest.mark.req("cron.expression.year")
def test_a_year_far_ahead_is_found_at_once() -> None:
    assert list_times("* * * * * * 2099", 1) == [datetime(2099, 1, 1)]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.req("cron.expression.weekdays")
def test_days_of_the_week_are_counted_from_sunday_as_one_and_in_five_fields_from_zero(
    number: int,
) -> None:
    name = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")[number]
    assert list_days(f"0 0 0 * * {number + 1}", 1)[0].startswith(name)
    assert list_days(f"0 0 * * {number}", 1)[0].startswith(name)
    assert list_days(f"0 0 0 * * {name}", 1)[0].startswith(name)
    assert list_days(f"0 0 * * {name}", 1)[0].startswith(name)


@pytest.mark.req("cron.expression.weekdays")
def test_seven_is_saturday_in_six_fields_and_sunday_in_five() -> None:
    assert list_days("0 0 0 * * 7", 1)[0].startswith("Sat")
    assert list_days("0 0 * * 7", 1)[0].startswith("Sun")
    with pytest.raises(ExpressionError, match=r"day of the week 0 is not within 1-7 \(SUN is 1\)"):
        CronExpression.parse("0 0 0 * * 0")


@pytest.mark.parametrize("text", ["0 0 0 * * FRI-SUN", "0 0 * * 5-7", "0 0 * * fri-sun"])
@pytest.mark.req("cron.expression.weekdays")
def test_a_range_of_days_may_go_over_the_end_of_the_week(text: str) -> None:
    assert [day[:3] for day in list_days(text, 4)] == ["Fri", "Sat", "Sun", "Fri"]


@pytest.mark.req("cron.expression.and")
def test_a_day_must_match_the_month_and_the_week() -> None:
    assert list_days("0 0 0 13 * FRI", 3) == ["Fri 2027-08-13", "Fri 2028-10-13", "Fri 2029-04-13"]
    assert list_days("0 0 13 * 5", 3) == list_days("0 0 0 13 * FRI", 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 0 ? * MON", "0 0 0 * * 2"),
        ("0 0 0 1 * ?", "0 0 0 1 * *"),
        ("0 0 0 1 january,mar-MAY *", "0 0 0 1 1,3-5 *"),
        ("0 0 0 ? * tuesday,Thurs", "0 0 0 * * 3,5"),
        ("5/20 * * * * *", "5,25,45 * * * * *"),
        ("10-30/10 * * * * *", "10,20,30 * * * * *"),
        ("5-5/10 * * * * *", "5 * * * * *"),
        ("0 0,0,0 0 * * *", "0 0 0 * * *"),
        ("0 0 0-23 * * *", "0 0 * * * *"),
        ("  0\t0  0 * * * ", "0 0 0 * * *"),
    ],
)
@pytest.mark.req("cron.expression.items")
def test_names_lists_ranges_steps_and_question_marks_mean_numbers(text: str, expected: str) -> None:
    assert CronExpression.parse(text) == CronExpression.parse(expected)


@pytest.mark.req("cron.expression.month_ends")
def test_the_last_day_of_the_month_is_l_and_its_last_weekday_lw() -> None:
    start = datetime(2028, 1, 30)
    assert list_days("0 0 0 L * *", 4, start) == [
        "Mon 2028-01-31",
        "Tue 2028-02-29",
        "Fri 2028-03-31",
        "Sun 2028-04-30",
    ]
    assert list_days("0 0 0 LW * *", 4, start)[-1] == "Fri 2028-04-28"
    assert list_days("0 0 0 31 * *", 3, datetime(2027, 1, 31, 1)) == [
        "Wed 2027-03-31",
        "Mon 2027-05-31",
        "Sat 2027-07-31",
    ]


@pytest.mark.req("cron.expression.month_ends")
def test_the_second_monday_and_the_last_friday_can_be_said() -> None:
    assert list_days("0 0 0 * * MON#2", 2) == ["Mon 2026-12-14", "Mon 2027-01-11"]
    assert (
        list_days("0 0 0 * * 2#2", 2)
        == list_days("0 0 * * 1#2", 2)
        == list_days("0 0 0 * * MON#2", 2)
    )
    assert list_days("0 0 0 * * FRIL", 2) == ["Fri 2026-11-27", "Fri 2026-12-25"]
    assert (
        list_days("0 0 0 * * 6L", 2) == list_days("0 0 * * 5L", 2) == list_days("0 0 0 * * FRIL", 2)
    )


@pytest.mark.req("cron.expression.leap_day")
def test_the_leap_day_is_found_in_leap_years() -> None:
    assert [m.year for m in list_times("0 0 0 29 2 *", 3, datetime(2095, 1, 1))] == [
        2096,
        2104,
        2108,
    ]
    assert list_days("0 0 0 29 2 MON", 1, datetime(2025, 1, 1)) == ["Mon 2044-02-29"]


@pytest.mark.parametrize("name", NICKNAMES)
@pytest.mark.req("cron.expression.nicknames")
def test_nicknames_are_expressions(name: str) -> None:
    expected = {
        "@yearly": datetime(2027, 1, 1),
        "@annually": datetime(2027, 1, 1),
        "@monthly": datetime(2026, 12, 1),
        "@weekly": datetime(2026, 11, 22),
        "@daily": datetime(2026, 11, 17),
        "@midnight": datetime(2026, 11, 17),
        "@hourly": datetime(2026, 11, 16, 13),
    }
    assert list_times(f" {name.upper()} ", 1) == [expected[name]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it has 0 fields; write second, minute, hour"),
        ("* * * *", "it has 4 fields"),
        ("* * * * * * * *", "it has 8 fields"),
        ("@reboot", "@reboot means nothing here; there are @yearly"),
        ("60 * * * * *", "second 60 is not within 0-59"),
        ("0 0 24 * * *", "hour 24 is not within 0-23"),
        ("0 0 0 0 * *", "day of the month 0 is not within 1-31"),
        ("0 0 0 * 13 *", "month 13 is not within 1-12"),
        ("0 0 0 * * 8", "day of the week 8 is not within 1-7"),
        ("0 0 0 * * * 1969", "year 1969 is not within 1970-2099"),
        ("0 0 22-6 * * *", "hour 22-6: 22 is after 6; write 22-23,0-6"),
        ("*/0 * * * * *", r"second \*/0: a step is 1 or more"),
        ("0 0 0 * * XYZ", "day of the week XYZ is not understood; .* or SUN to SAT"),
        ("0 0 0 * JU *", "month JU is not understood"),
        ("0 0 ? * * *", r"hour \? is not understood"),
        ("0 0 0 15W * *", "day of the month 15W is not understood"),
        ("0 0 0 * * MON#6", "day of the week MON#6: after # goes 1 to 5"),
        ("0 0 0 * * L", "day of the week L is not understood"),
        ("0 1, * * * *", "minute 1, is not understood|minute  is not understood"),
        ("0 -1 * * * *", "minute -1 is not understood"),
        ("0 1/2/3 * * * *", "minute 1/2/3 is not understood"),
        ("0 ١ * * * *", "minute ١ is not understood"),
        ("0 0 0 31 4,6 *", "none of its months has such a day"),
        ("0 0 0 30 2 MON", "none of its months has such a day"),
    ],
)
@pytest.mark.req("cron.expression.complaints")
def test_a_mistake_is_reported_with_its_field(text: str, complaint: str) -> None:
    with pytest.raises(ExpressionError, match=complaint):
        CronExpression.parse(text)


@given(st.text(alphabet="0123456789*/,-?#@LWMONSUNJAN ", max_size=40) | st.text(max_size=40))
@pytest.mark.req("cron.expression.complaints")
def test_any_text_is_an_expression_or_is_refused_with_a_sentence(text: str) -> None:
    try:
        expression = CronExpression.parse(text)
    except ExpressionError as error:
        sentence = str(error)
    else:
        sentence = "it is one"
        if expression.next_after(MONDAY) is not None and not expression.years:
            assert all(one < following for one, following in pairwise(list_times(text, 3)))
    assert sentence
