"""Schedules: an expression on the clocks of one place, and the hours that are quiet there.

Moments are seconds since 1970: only those tell the two hours apart that a clock shows twice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from .expression import CronExpression

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
# Quiet ticks in a row after which there are only such.
MAX_QUIET_TICKS = 5000


@dataclass(frozen=True, slots=True)
class ScheduleTick:
    """A time that a schedule is for: the moment, and what it says on the schedule.

    The two differ by a turn of the clock when the schedule says an hour that is left out.
    """

    moment: float
    wall_time: datetime


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From `start` until just before `end`, over midnight if need be."""

    start: time
    end: time

    def covers(self, moment: datetime) -> bool:
        shown = moment.time()
        if self.start <= self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end

    def next_end(self, moment: datetime) -> datetime:
        """When clocks show its end next."""
        end = datetime.combine(moment.date(), self.end)
        return end if end > moment else end + timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    expression: CronExpression
    zone: tzinfo
    quiet: QuietHours | None = None

    def next_after(self, moment: float) -> ScheduleTick | None:
        """The first tick later than `moment`, quiet or not.

        A schedule for every hour counts time as it passes. Any other goes by what clocks show, and
        has each time once: that of two hours in the first, that of none when the clock is turned.
        """
        return self._next_elapsed(moment) if self.expression.is_hourly else self._next_shown(moment)

    def iterate_ticks(self, moment: float) -> Iterator[ScheduleTick]:
        """All that are not quiet, later than `moment`."""
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
        """Also if it is only the schedule that says a quiet time, not the clock."""
        return self.quiet is not None and (
            self.quiet.covers(tick.wall_time) or self.is_quiet_at(tick.moment)
        )

    def is_quiet_at(self, moment: float) -> bool:
        return self.quiet is not None and self.quiet.covers(self._to_local(moment))

    def _next_elapsed(self, moment: float) -> ScheduleTick | None:
        wall = self._to_wall_time(moment)
        if (turn := self._find_clock_change(moment)) is not None:
            # Clocks go on as they do until then, and from then on may show what they have shown.
            found = self.expression.next_after(wall)
            if found is not None:
                reached = math.floor(moment) + (found - wall).total_seconds()
                if reached < turn:
                    return ScheduleTick(reached, found)
            moment, wall = turn - 1, self._to_wall_time(turn) - SECOND
        later: datetime | None = wall
        while later is not None and (later := self.expression.next_after(later)) is not None:
            for fold in (0, 1):
                reached = later.replace(tzinfo=self.zone, fold=fold).timestamp()
                if reached > moment and self._to_wall_time(reached) == later:
                    return ScheduleTick(reached, later)
        return None

    def _next_shown(self, moment: float) -> ScheduleTick | None:
        wall: datetime | None = self._to_wall_time(moment)
        while wall is not None and (wall := self.expression.next_after(wall)) is not None:
            if (reached := self._first_moment(wall)) > moment:
                return ScheduleTick(reached, wall)
        return None

    def _find_clock_change(self, moment: float) -> int | None:
        """When clocks are turned, if that is within a day."""
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
        """When clocks first show that time, or one that is later."""
        while True:
            moment = wall.replace(tzinfo=self.zone).timestamp()
            if self._to_wall_time(moment) == wall:
                return moment
            # Clocks are turned at full minutes.
            wall = wall.replace(second=0) + MINUTE
