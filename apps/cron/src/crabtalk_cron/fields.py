"""Parses the fields of an expression into sets of values.

The dialects number the days of the week differently; the parsed values always have Sunday as 0, as
cronsim does.
"""

from dataclasses import dataclass

# fmt: off
MONTHS = (
    "JANUARY", "FEBRUARY", "MARCH", "APRIL", "MAY", "JUNE",
    "JULY", "AUGUST", "SEPTEMBER", "OCTOBER", "NOVEMBER", "DECEMBER",
)
DAYS = ("SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY")
# fmt: on


class ExpressionError(ValueError):
    """Not a valid expression. Says which field is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True)
class FieldValues:
    """The values of one field."""

    values: tuple[int, ...]
    is_all: bool  # every value; `values` is empty then
    month_days: tuple[str, ...] = ()  # days that depend on the month, as cronsim reads them

    @property
    def to_cronsim(self) -> str:
        return "*" if self.is_all else ",".join([*map(str, self.values), *self.month_days])


@dataclass(frozen=True, slots=True)
class CronField:
    """A kind of field: its name for people, its range, and how its items are parsed."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    first_name: int = 0
    sunday: int = 0
    last: int | None = None  # the end of an item without an end, if not `high`

    def parse(self, word: str) -> FieldValues:
        if word == "*" or (word == "?" and (self is MONTH_DAY or self.is_weekday)):
            return FieldValues((), is_all=True)
        values: set[int] = set()
        special: set[str] = set()
        for item in word.split(","):
            if special_day := self._parse_special(item):
                special.add(special_day)
            else:
                values.update(self._parse_item(item))
        if self.is_weekday:
            values = {self._to_crontab_day(value) for value in values}
        if len(values) == self.size:
            return FieldValues((), is_all=True)
        return FieldValues(tuple(sorted(values)), False, tuple(sorted(special)))

    @property
    def is_weekday(self) -> bool:
        return self in (DAY, CRONTAB_DAY)

    @property
    def size(self) -> int:
        """The number of different values it can have."""
        return self._end - self.low + 1

    @property
    def _end(self) -> int:
        return self.high if self.last is None else self.last

    def _parse_item(self, item: str) -> range | list[int]:
        """Parse `*`, a value or a range, each with an optional step."""
        base, slash, step_text = item.partition("/")
        step = self._parse_number(step_text, item) if slash else 1
        if step < 1:
            raise ExpressionError(f"{self.name} {item}: a step is 1 or more")
        if base == "*":
            return range(self.low, self._end + 1, step)
        start_text, dash, end_text = base.partition("-")
        start = self._parse_value(start_text, item)
        if not dash:
            return range(start, max(start, self._end) + 1, step) if slash else [start]
        end = self._parse_value(end_text, item)
        if start <= end:
            return range(start, end + 1, step)
        if self.is_weekday:  # a range may wrap around the end of the week
            return [(day - self.low) % 7 + self.low for day in range(start, end + 8, step)]
        raise ExpressionError(
            f"{self.name} {item}: {start_text} is after {end_text}; "
            f"write {start_text}-{self.high},{self.low}-{end_text}"
        )

    def _parse_special(self, item: str) -> str | None:
        """Parse days that depend on the month: the last, the second Monday, the last Friday."""
        if self is MONTH_DAY and item in ("L", "LW"):
            return item
        if not self.is_weekday:
            return None
        day, mark, nth = item.partition("#")
        if mark:
            if nth not in ("1", "2", "3", "4", "5"):
                raise ExpressionError(f"{self.name} {item}: after # goes 1 to 5")
            return f"{self._to_crontab_day(self._parse_value(day, item))}#{nth}"
        if item.endswith("L"):
            return f"{self._to_crontab_day(self._parse_value(item[:-1], item))}L"
        return None

    def _to_crontab_day(self, value: int) -> int:
        """The number of a day, with Sunday as 0."""
        return (value - self.sunday) % 7

    def _parse_value(self, text: str, item: str) -> int:
        named = [n for n, name in enumerate(self.names) if len(text) > 2 and name.startswith(text)]
        if named:
            return named[0] + self.first_name
        value = self._parse_number(text, item)
        if not self.low <= value <= self.high:
            hint = " (SUN is 1)" if self is DAY else ""
            raise ExpressionError(f"{self.name} {value} is not within {self.low}-{self.high}{hint}")
        return value

    def _parse_number(self, text: str, item: str) -> int:
        if not (text.isascii() and text.isdigit()):
            names = f", or {self.names[0][:3]} to {self.names[-1][:3]}" if self.names else ""
            raise ExpressionError(
                f"{self.name} {item} is not understood; write numbers, ranges and steps like "
                f"{self.low}-{self.low + 4} or */2{names}"
            )
        return int(text[:9])


SECOND = CronField("second", 0, 59)
MINUTE = CronField("minute", 0, 59)
HOUR = CronField("hour", 0, 23)
MONTH_DAY = CronField("day of the month", 1, 31)
MONTH = CronField("month", 1, 12, MONTHS, first_name=1)
# Expressions of six or seven fields number Sunday as 1, crontab's five fields as 0 or 7.
DAY = CronField("day of the week", 1, 7, DAYS, first_name=1, sunday=1)
CRONTAB_DAY = CronField("day of the week", 0, 7, DAYS, last=6)
YEAR = CronField("year", 1970, 2099)
