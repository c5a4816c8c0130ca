"""Schedules: an expression with a time zone and quiet hours.

Moments are seconds since 1970, because wall time is ambiguous in the hour that clocks repeat.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from .expression import CronExpression

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
# After this many quiet ticks in a row, all later ones are taken to be quiet too.
MAX_QUIET_TICKS = 5000


@dataclass(frozen=True, slots=True)
class ScheduleTick:
    """A time of a schedule: the moment, and the wall time in the schedule.

    They differ by the size of the clock change if the schedule names a time that clocks skip.
    """

    moment: float
    wall_time: datetime


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` until just before `end`; it may cross midnight."""

    start: time
    end: time

    def covers(self, moment: datetime) -> bool:
        clock_time = moment.time()
        if self.start <= self.end:
            return self.start <= clock_time < self.end
        return clock_time >= self.start or clock_time < self.end

    def next_end(self, moment: datetime) -> datetime:
        """The next time that clocks show its end."""
        end = datetime.combine(moment.date(), self.end)
        return end if end > moment else end + timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    expression: CronExpression
    zone: tzinfo
    quiet: QuietHours | None = None

    def next_after(self, moment: float) -> ScheduleTick | None:
        """The first tick after `moment`, quiet or not.

        A schedule with every hour counts elapsed time. Any other goes by wall time and has each
        time once: a repeated time in the first of its two hours, a skipped one at the clock change.
        """
        return self._next_elapsed(moment) if self.expression.is_hourly else self._next_shown(moment)

    def iterate_ticks(self, moment: float) -> Iterator[ScheduleTick]:
        """All ticks after `moment` that are not quiet."""
        quiet = 0
        while quiet < MAX_QUIET_TICKS and (tick := self.next_after(moment)) is not None:
            moment = tick.moment
            if not self.is_quiet(tick):
                quiet = 0
                yield tick
            elif self.quiet is not None:
                quiet += 1
                end = self._first_moment(self.quiet.next_end(self._to_wall_time(moment)))
                moment = max(moment, min(end, self._find_clock_change(moment) or end) - 1)

    def is_quiet(self, tick: ScheduleTick) -> bool:
        """Whether the tick's wall time or its moment is quiet; they can differ."""
        return self.quiet is not None and (
            self.quiet.covers(tick.wall_time) or self.is_quiet_at(tick.moment)
        )

    def is_quiet_at(self, moment: float) -> bool:
        return self.quiet is not None and self.quiet.covers(self._to_local(moment))

    def _next_elapsed(self, moment: float) -> ScheduleTick | None:
        wall = self._to_wall_time(moment)
        if (change := self._find_clock_change(moment)) is not None:
            # Clocks run evenly until the change, and may repeat an hour after it.
            next_time = self.expression.next_after(wall)
            if next_time is not None:
                reached = math.floor(moment) + (next_time - wall).total_seconds()
                if reached < change:
                    return ScheduleTick(reached, next_time)
            moment, wall = change - 1, self._to_wall_time(change) - SECOND
        candidate: datetime | None = wall
        while (
            candidate is not None
            and (candidate := self.expression.next_after(candidate)) is not None
        ):
            for fold in (0, 1):
                reached = candidate.replace(tzinfo=self.zone, fold=fold).timestamp()
                if reached > moment and self._to_wall_time(reached) == candidate:
                    return ScheduleTick(reached, candidate)
        return None

    def _next_shown(self, moment: float) -> ScheduleTick | None:
        wall: datetime | None = self._to_wall_time(moment)
        while wall is not None and (wall := self.expression.next_after(wall)) is not None:
            if (reached := self._first_moment(wall)) > moment:
                return ScheduleTick(reached, wall)
        return None

    def _find_clock_change(self, moment: float) -> int | None:
        """The moment of the next clock change, if it is within a day."""
        start = math.floor(moment)
        end = start + 86400
        offset = self._to_local(start).utcoffset()
        if self._to_local(end).utcoffset() == offset:
            return None
        while end - start > 1:
            middle = (start + end) // 2
            if self._to_local(middle).utcoffset() == offset:
                start = middle
            else:
                end = middle
        return end

    def _to_wall_time(self, moment: float) -> datetime:
        return self._to_local(moment).replace(tzinfo=None, fold=0)

    def _to_local(self, moment: float) -> datetime:
        return datetime.fromtimestamp(math.floor(moment), self.zone)

    def _first_moment(self, wall: datetime) -> float:
        """The moment when clocks first show this wall time, or the next one that exists."""
        while True:
            moment = wall.replace(tzinfo=self.zone).timestamp()
            if self._to_wall_time(moment) == wall:
                return moment
            # Clocks change at full minutes.
            wall = wall.replace(second=0) + MINUTE
