"""Schedules: an expression on the clocks of one place, and the hours that are quiet there.

Moments are seconds since 1970: only those tell the two hours apart that a clock shows twice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from .expression import Expression

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
# Quiet ticks in a row after which there are only such.
MOST_QUIET = 5000


@dataclass(frozen=True, slots=True)
class Tick:
    """A time that a schedule is for: the moment, and what it says on the schedule.

    The two differ by a turn of the clock when the schedule says an hour that is left out.
    """

    moment: float
    wall: datetime


@dataclass(frozen=True, slots=True)
class Quiet:
    """From `start` until just before `end`, over midnight if need be."""

    start: time
    end: time

    def covers(self, moment: datetime) -> bool:
        shown = moment.time()
        if self.start <= self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end

    def end_after(self, moment: datetime) -> datetime:
        """When clocks show its end next."""
        end = datetime.combine(moment.date(), self.end)
        return end if end > moment else end + timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Schedule:
    expression: Expression
    zone: tzinfo
    quiet: Quiet | None = None

    def after(self, moment: float) -> Tick | None:
        """The first tick later than `moment`, quiet or not.

        A schedule for every hour counts time as it passes. Any other goes by what clocks show, and
        has each time once: that of two hours in the first, that of none when the clock is turned.
        """
        return self._passing(moment) if self.expression.is_hourly else self._shown_once(moment)

    def ticks(self, moment: float) -> Iterator[Tick]:
        """All that are not quiet, later than `moment`."""
        quiet = 0
        while quiet < MOST_QUIET and (tick := self.after(moment)) is not None:
            moment = tick.moment
            if not self.is_quiet(tick):
                quiet = 0
                yield tick
            elif self.quiet is not None:
                quiet += 1
                end = self._reached(self.quiet.end_after(self._wall(moment)))
                moment = max(moment, min(end, self._turn(moment) or end) - 1)

    def is_quiet(self, tick: Tick) -> bool:
        """Also if it is only the schedule that says a quiet time, not the clock."""
        return self.quiet is not None and (
            self.quiet.covers(tick.wall) or self.is_quiet_at(tick.moment)
        )

    def is_quiet_at(self, moment: float) -> bool:
        return self.quiet is not None and self.quiet.covers(self._shown(moment))

    def _passing(self, moment: float) -> Tick | None:
        wall = self._wall(moment)
        if (turn := self._turn(moment)) is not None:
            # Clocks go on as they do until then, and from then on may show what they have shown.
            found = self.expression.after(wall)
            if found is not None:
                reached = math.floor(moment) + (found - wall).total_seconds()
                if reached < turn:
                    return Tick(reached, found)
            moment, wall = turn - 1, self._wall(turn) - SECOND
        later: datetime | None = wall
        while later is not None and (later := self.expression.after(later)) is not None:
            for fold in (0, 1):
                reached = later.replace(tzinfo=self.zone, fold=fold).timestamp()
                if reached > moment and self._wall(reached) == later:
                    return Tick(reached, later)
        return None

    def _shown_once(self, moment: float) -> Tick | None:
        wall: datetime | None = self._wall(moment)
        while wall is not None and (wall := self.expression.after(wall)) is not None:
            if (reached := self._reached(wall)) > moment:
                return Tick(reached, wall)
        return None

    def _turn(self, moment: float) -> int | None:
        """When clocks are turned, if that is within a day."""
        start = math.floor(moment)
        end = start + 86400
        offset = self._shown(start).utcoffset()
        if self._shown(end).utcoffset() == offset:
            return None
        while end - start > 1:
            middle = (start + end) // 2
            if self._shown(middle).utcoffset() == offset:
                start = middle
            else:
                end = middle
        return end

    def _wall(self, moment: float) -> datetime:
        return self._shown(moment).replace(tzinfo=None, fold=0)

    def _shown(self, moment: float) -> datetime:
        return datetime.fromtimestamp(math.floor(moment), self.zone)

    def _reached(self, wall: datetime) -> float:
        """When clocks first show that time, or one that is later."""
        while True:
            moment = wall.replace(tzinfo=self.zone).timestamp()
            if self._wall(moment) == wall:
                return moment
            # Clocks are turned at full minutes.
            wall = wall.replace(second=0) + MINUTE
