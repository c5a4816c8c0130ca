"""Random expressions: in our dialect, in croniter's, and as the sets of values they mean.

The values are drawn first and then written as text, so their meaning is known.
"""

import random
from calendar import monthrange
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
# Days of the week are numbered from Sunday as 0.
RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@dataclass(frozen=True)
class FieldItem:
    """One item of a field: its values, and how to write it with other numbers for days."""

    values: frozenset[int]
    start: int
    end: int | None = None
    step: int | None = None
    is_star: bool = False
    is_named: bool = False

    def to_text(self, field: int, sunday: int) -> str:
        def name(value: int) -> str:
            if self.is_named and field == 5:
                return (str.upper, str.lower, str.title)[value % 3](DAYS[value])
            if self.is_named and field == 4:
                return MONTHS[value - 1].title()
            return str(value + sunday) if field == 5 else str(value)

        text = "*" if self.is_star else name(self.start)
        text += f"-{name(self.end)}" if self.end is not None else ""
        return text + (f"/{self.step}" if self.step is not None else "")


@dataclass(frozen=True)
class RandomExpression:
    """A random expression with six fields of items."""

    fields: tuple[tuple[FieldItem, ...], ...]
    has_seconds: bool = True

    def to_our_dialect(self) -> str:
        """Sunday is 1 in six fields, and 0 in five."""
        return self._to_text(1 if self.has_seconds else 0)

    def to_croniter(self) -> str:
        return self._to_text(0)

    def _to_text(self, sunday: int) -> str:
        words = [
            ",".join(item.to_text(number, sunday) for item in items)
            for number, items in enumerate(self.fields)
        ]
        return " ".join(words if self.has_seconds else words[1:])

    def values(self, field: int) -> set[int]:
        return set().union(*(item.values for item in self.fields[field]))

    def matches_day(self, day: date) -> bool:
        return (
            day.day in self.values(3)
            and day.month in self.values(4)
            and day.isoweekday() % 7 in self.values(5)
        )

    def find_next(self, moment: datetime, days: int) -> datetime | None:
        """Check every day, for `days` days."""
        clock = sorted(
            time(hour, minute, second)
            for hour in self.values(2)
            for minute in self.values(1)
            for second in self.values(0)
        )
        for ahead in range(days):
            day = moment.date() + timedelta(days=ahead)
            if self.matches_day(day):
                times = (datetime.combine(day, wall_time) for wall_time in clock)
                next_time = next((candidate for candidate in times if candidate > moment), None)
                if next_time is not None:
                    return next_time
        return None

    def is_possible(self) -> bool:
        return any(min(self.values(3)) <= monthrange(2000, m)[1] for m in self.values(4))


def draw_expression(chance: random.Random) -> RandomExpression:
    has_seconds = chance.random() < 0.8
    fields = tuple(draw_field(chance, number) for number in range(6))
    if not has_seconds:
        fields = ((FieldItem(frozenset({0}), 0),), *fields[1:])
    return RandomExpression(fields, has_seconds)


def draw_field(chance: random.Random, number: int) -> tuple[FieldItem, ...]:
    low, high = RANGES[number]
    if chance.random() < 0.35:
        return (FieldItem(frozenset(range(low, high + 1)), low, is_star=True),)
    return tuple(draw_item(chance, number) for _ in range(chance.choice((1, 1, 1, 2, 3))))


def draw_item(chance: random.Random, number: int) -> FieldItem:
    low, high = RANGES[number]
    start = chance.randint(low, high)
    is_named = number > 3 and chance.random() < 0.5
    # croniter takes a range from a value to itself for all values.
    match chance.randrange(5) if start < high else 4:
        case 0:
            step = chance.randint(1, high)
            return FieldItem(frozenset(range(low, high + 1, step)), low, step=step, is_star=True)
        case 1:
            end = chance.randint(start + 1, high)
            return FieldItem(frozenset(range(start, end + 1)), start, end, is_named=is_named)
        case 2:
            end = chance.randint(start + 1, high)
            step = chance.randint(1, 10)
            values = frozenset(range(start, end + 1, step))
            return FieldItem(values, start, end, step, is_named=is_named)
        case 3:
            step = chance.randint(1, high)
            return FieldItem(frozenset(range(start, high + 1, step)), start, step=step)
        case _:
            return FieldItem(frozenset({start}), start, is_named=is_named)
