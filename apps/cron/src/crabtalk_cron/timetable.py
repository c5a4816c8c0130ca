"""Timetable: which entry is due next, and when. It computes, and runs nothing.

Entries wait in a heap, so the cost depends on the entries that are due, not on all of them.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from .clock import CronClock
from .entry import CronEntry
from .schedule import ScheduleTick

# A clock that goes back by less was corrected; entries are not fired again for that.
MAX_CLOCK_CORRECTION = 60.0


@dataclass(frozen=True, slots=True)
class DueEntry:
    """An entry's next time: the tick, and the moment with the random delay."""

    entry: CronEntry
    tick: ScheduleTick
    moment: float


class Timetable:
    def __init__(self, clock: CronClock) -> None:
        self._clock = clock
        self._plans: dict[int, DueEntry] = {}  # by id
        self._entries: dict[int, CronEntry] = {}
        self._heap: list[tuple[float, int, DueEntry]] = []
        self._count = 0  # breaks ties in the heap, because entries cannot be compared
        self._seen = float("-inf")

    @property
    def entries(self) -> list[CronEntry]:
        return list(self._entries.values())

    def holds(self, entry: CronEntry) -> bool:
        return self._entries.get(entry.id) == entry

    def replace(self, entries: Iterable[CronEntry], now: float) -> None:
        """Replace all entries. An unchanged entry keeps the time it waits for."""
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
        """Plan all entries again, after the clock or the zone has changed."""
        for entry in self._entries.values():
            self._plan(entry, now)

    def next_moment(self) -> float | None:
        """The moment of the next due entry."""
        while self._heap and self._plans.get(self._heap[0][2].entry.id) is not self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[DueEntry]:
        """The entries that are due by now, each once; their next times are later than now."""
        if now < self._seen - MAX_CLOCK_CORRECTION:
            self.replan(now)
        self._seen = now
        due_entries: list[DueEntry] = []
        while (moment := self.next_moment()) is not None and moment <= now:
            due = heapq.heappop(self._heap)[2]
            due_entries.append(due)
            # The random delay may go beyond the entry's next tick, which is then skipped.
            self._plan(due.entry, max(now, due.tick.moment))
        return due_entries

    def _plan(self, entry: CronEntry, after: float) -> None:
        self._plans.pop(entry.id, None)
        tick = entry.schedule.next_after(after)
        if tick is None:
            return
        due = DueEntry(entry, tick, tick.moment + self._clock.random_fraction() * entry.jitter)
        self._plans[entry.id] = due
        self._count += 1
        heapq.heappush(self._heap, (due.moment, self._count, due))
