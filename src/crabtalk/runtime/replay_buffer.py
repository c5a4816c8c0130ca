"""ReplayBuffer: the events of a run so far, for readers that join later or reconnect.

Any number of readers, each at its own pace; none slows the run down. The deltas of one text are
stored as one text with their end positions, so a run takes little more memory than its text. When
the buffer exceeds its bound, steps that are in the log are dropped: readers find them there.
"""

import asyncio
from array import array
from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from .events import Event, TextDelta, ThinkingDelta, ToolResult, ToolStart, UserSteered

# A text is stored in blocks of about so many characters, because appending copies the block.
BLOCK = 4096
MAX_UNJOINED = 64
# Approximate bytes of an event beside its text.
EVENT_OVERHEAD = 100


class DeltaBlock:
    """Consecutive deltas of one text or of one thinking segment."""

    __slots__ = ("_ends", "_text", "_unjoined", "kind")

    def __init__(self, kind: type[TextDelta] | type[ThinkingDelta]) -> None:
        self.kind = kind
        self._text = ""
        self._unjoined: list[str] = []
        self._ends = array("L")  # of each piece, in characters

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def is_full(self) -> bool:
        return bool(self._ends) and self._ends[-1] >= BLOCK

    def add(self, piece: str) -> None:
        self._ends.append(len(piece) + (self._ends[-1] if self._ends else 0))
        self._unjoined.append(piece)
        if len(self._unjoined) >= MAX_UNJOINED:
            self._join()

    def join_after(self, count: int) -> TextDelta | ThinkingDelta:
        """All but the first `count` deltas, as one delta."""
        if count == len(self._ends) - 1 and self._unjoined:
            return self.kind(self._unjoined[-1])
        self._join()
        return self.kind(self._text[self._ends[count - 1] if count else 0 :])

    def _join(self) -> None:
        if self._unjoined:
            self._text += "".join(self._unjoined)
            self._unjoined.clear()


class BufferEntry(NamedTuple):
    """Consecutive deltas, or one event of another kind."""

    first: int  # number of the first event
    content: DeltaBlock | Event


GET_FIRST = attrgetter("first")


class StepEnd(NamedTuple):
    """The end of a step that is in the log."""

    entries: int  # entries up to here, including those that were dropped
    number: int  # number of the step's last event
    messages: int  # messages of the run in the log by then
    size: int


class NumberedEvent(NamedTuple):
    """An event and its number; 0 for one that was read from the log."""

    number: int
    event: Event


class ReplayBuffer:
    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._entries: list[BufferEntry] = []
        self._steps: list[StepEnd] = []
        self._dropped_entries = 0
        self._waiters: list[asyncio.Future[None]] = []
        self.count = 0  # events so far
        self.size = 0  # approximate bytes of the events in the buffer
        self._total = 0  # the same with all dropped events
        self.last_dropped = 0  # number of the last event that is only in the log
        self.dropped_messages = 0  # how many messages of the run the dropped events were
        self.is_stored = False  # all events were read from the log

    def add(self, event: Event) -> None:
        self.count += 1
        kind = type(event)
        if kind is TextDelta or kind is ThinkingDelta:
            self._add_piece(event)  # type: ignore[arg-type]
        else:
            self._add_size(EVENT_OVERHEAD + estimate_text_size(event))
            self._entries.append(BufferEntry(self.count, event))
        if self._waiters:
            self._wake_readers()

    def _add_piece(self, event: TextDelta | ThinkingDelta) -> None:
        last = self._entries[-1].content if self._entries else None
        if type(last) is not DeltaBlock or last.kind is not type(event) or last.is_full:
            last = DeltaBlock(type(event))
            self._entries.append(BufferEntry(self.count, last))
            self._add_size(EVENT_OVERHEAD)
        last.add(event.text)
        self._add_size(len(event.text) + 8)

    def _add_size(self, size: int) -> None:
        self.size += size
        self._total += size

    def _wake_readers(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def load_stored(self, events: list[Event]) -> None:
        """Fills the buffer with the events of a finished run from the log. Readers begin anew."""
        self.is_stored = True
        self._entries.clear()
        self.count = 0
        for event in events:
            self.add(event)

    def end_step(self, messages: int) -> None:
        """Marks that all events so far are in the log, as that many messages of the run."""
        self._steps.append(
            StepEnd(self._dropped_entries + len(self._entries), self.count, messages, self._total)
        )
        if self.size > self._bound:
            self._drop_until(self._steps[-1])

    def _drop_until(self, step: StepEnd) -> None:
        del self._entries[: step.entries - self._dropped_entries]
        self._dropped_entries = step.entries
        self._steps.clear()
        self.size = self._total - step.size
        self.last_dropped = step.number
        self.dropped_messages = step.messages

    def read_next(self, after: int) -> NumberedEvent | None:
        """The first event in the buffer with a number above `after`; consecutive deltas are joined
        into one event. A reader has no state here, so a slow reader costs no memory."""
        at = bisect_right(self._entries, after, key=GET_FIRST)
        if at:
            first, content = self._entries[at - 1]
            if isinstance(content, DeltaBlock) and (last := first + len(content) - 1) > after:
                return NumberedEvent(last, content.join_after(after - first + 1))
        if at == len(self._entries):
            return None
        first, content = self._entries[at]
        if isinstance(content, DeltaBlock):
            return NumberedEvent(first + len(content) - 1, content.join_after(0))
        return NumberedEvent(first, content)

    async def wait_for_events(self, after: int) -> None:
        """Waits until there are events with a number above `after`, or stored ones instead."""
        was_stored = self.is_stored
        while self.count <= after and self.is_stored == was_stored:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)


def estimate_text_size(event: Event) -> int:
    """Approximate bytes of the texts in an event."""
    match event:
        case ToolResult():
            return len(event.output) + sum(len(i.data) + len(i.url) for i in event.images)
        case ToolStart():
            return sum(len(call.arguments) for call in event.calls)
        case UserSteered():
            return len(event.text)
    return 0
