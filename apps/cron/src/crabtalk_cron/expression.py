"""Cron expressions: five to seven fields, or a word like @daily.

An expression is normalised into the form that cronsim reads, which then computes the times. It
knows nothing of time zones and quiet hours. docs/cron.md describes the dialect.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from cronsim import CronSim, CronSimError

from .fields import (
    CRONTAB_DAY,
    DAY,
    HOUR,
    MINUTE,
    MONTH,
    MONTH_DAY,
    SECOND,
    YEAR,
    ExpressionError,
)

__all__ = ["NICKNAMES", "CronExpression", "ExpressionError"]

NICKNAMES = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * SUN",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A set of times. Expressions with the same meaning are equal, however they were written."""

    fields: str  # six, as cronsim reads them
    years: tuple[int, ...]  # empty: every year
    is_hourly: bool  # it has times in every hour of its days

    @classmethod
    def parse(cls, text: str) -> "CronExpression":
        """Raises ExpressionError."""
        words = NICKNAMES.get(text.strip().lower(), text).upper().split()
        if words[:1] and words[0].startswith("@"):
            raise ExpressionError(
                f"{text.strip()} means nothing here; there are {', '.join(NICKNAMES)}"
            )
        if not 5 <= len(words) <= 7:
            raise ExpressionError(
                f"it has {len(words)} fields; write second, minute, hour, day of the month, "
                "month, day of the week and, if you like, year"
            )
        day = CRONTAB_DAY if len(words) == 5 else DAY
        second, *words = ["0", *words] if len(words) == 5 else words
        minute, hour, month_day, month, week_day = words[:5]
        parts = [SECOND.parse(second), MINUTE.parse(minute), HOUR.parse(hour)]
        parts += [MONTH_DAY.parse(month_day), MONTH.parse(month), day.parse(week_day)]
        years = YEAR.parse(words[5]).values if len(words) == 6 else ()
        expression = cls(" ".join(part.to_cronsim for part in parts), years, parts[2].is_all)
        if not expression.is_possible():
            raise ExpressionError("none of its months has such a day; choose another day")
        return expression

    def is_possible(self) -> bool:
        """Whether any year has such a day."""
        try:
            return next(self._search(datetime(2000, 1, 1)), None) is not None
        except CronSimError:
            return False

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time after `moment`, both as wall time; None after the last."""
        while True:
            start = self._skip_to_matching_year(moment)
            if start is None:
                return None
            time = next(self._search(start), None)
            if time is None or not self.years or time.year in self.years:
                return time
            moment = time

    def _skip_to_matching_year(self, moment: datetime) -> datetime | None:
        """`moment`, or the last second before the next matching year; None after the last."""
        if not self.years or moment.year in self.years:
            return moment
        ahead = (year for year in self.years if year > moment.year)
        year = next(ahead, None)
        if year is None:
            return None
        return datetime(year, 1, 1) - timedelta(seconds=1)

    def _search(self, start: datetime) -> Iterator[datetime]:
        search = CronSim(self.fields, start)
        # If both kinds of days are given, cronsim would match either of them by default.
        search.day_and = True
        return search
