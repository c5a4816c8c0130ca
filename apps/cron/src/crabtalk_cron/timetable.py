"""Timetable: which entry is next, and when. Told the time, it says what is due; it does nothing.

Costs what is due, not what there is: entries wait in a heap.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from .clock import CronClock
from .entry import CronEntry
from .schedule import ScheduleTick

# A clock that goes back by less is set right, and nothing is fired twice for it.
MAX_CLOCK_CORRECTION = 60.0


@dataclass(frozen=True, slots=True)
class DueEntry:
    """An entry's next time: the tick, and the moment chance has put it off to."""

    entry: CronEntry
    tick: ScheduleTick
    moment: float


class Timetable:
    def __init__(self, clock: CronClock) -> None:
        self._clock = clock
        self._plans: dict[int, DueEntry] = {}  # by id
        self._entries: dict[int, CronEntry] = {}
        self._heap: list[tuple[float, int, DueEntry]] = []
        self._count = 0  # orders what is due at the same moment, as entries cannot be
        self._seen = float("-inf")

    @property
    def entries(self) -> list[CronEntry]:
        return list(self._entries.values())

    def holds(self, entry: CronEntry) -> bool:
        return self._entries.get(entry.id) == entry

    def replace(self, entries: Iterable[CronEntry], now: float) -> None:
        """An entry that is there already, and the same, keeps the time it waits for."""
        old, self._entries = self._entries, {entry.id: entry for entry in entries}
        for number in old.keys() - self._entries.keys():
            self._plans.pop(number, None)
        for number, entry in self._entries.items():
            if old.get(number) != entry:
                self._plan(entry, now)

    def remove(self, entry: CronEntry) -> None:
        if self.holds(entry):
            del self._entries[entry.id]
            self._plans.pop(entry.id, None)

    def replan(self, now: float) -> None:
        """After time or place have changed."""
        for entry in self._entries.values():
            self._plan(entry, now)

    def next_moment(self) -> float | None:
        """The moment of what is due next."""
        while self._heap and self._plans.get(self._heap[0][2].entry.id) is not self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[DueEntry]:
        """What is due by now, each entry once; their next times are later than now."""
        if now < self._seen - MAX_CLOCK_CORRECTION:
            self.replan(now)
        self._seen = now
        found: list[DueEntry] = []
        while (moment := self.next_moment()) is not None and moment <= now:
            due = heapq.heappop(self._heap)[2]
            found.append(due)
            # Chance may have put it off beyond its next tick, which is then passed over.
            self._plan(due.entry, max(now, due.tick.moment))
        return found

    def _plan(self, entry: CronEntry, after: float) -> None:
        self._plans.pop(entry.id, None)
        tick = entry.schedule.next_after(after)
        if tick is None:
            return
        due = DueEntry(entry, tick, tick.moment + self._clock.random_fraction() * entry.jitter)
        self._plans[entry.id] = due
        self._count += 1
        heapq.heappush(self._heap, (due.moment, self._count, due))
