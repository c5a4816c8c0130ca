"""Transcript: what a run has emitted so far, for readers that come later or come back.

Any number of readers, each at its own pace; none slows the run down. Pieces of one text are kept as
one text with the places where they end, so a run costs little more than its words. Steps that are
in the log are dropped when the transcript is larger than its bound: readers find them there.
"""

import asyncio
from array import array
from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from .events import Event, TextDelta, ThinkingDelta, ToolResult, ToolStart, UserSteered

# A text is kept in blocks of about so many characters: adding to one copies it.
BLOCK = 4096
MAX_UNJOINED = 64
# What an event takes beside its text, roughly.
EVENT_OVERHEAD = 100


class DeltaBlock:
    """Pieces of one text or of one thought, in a row."""

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
        """All but the first `count` pieces, as one."""
        if count == len(self._ends) - 1 and self._unjoined:
            return self.kind(self._unjoined[-1])
        self._join()
        return self.kind(self._text[self._ends[count - 1] if count else 0 :])

    def _join(self) -> None:
        if self._unjoined:
            self._text += "".join(self._unjoined)
            self._unjoined.clear()


class BufferEntry(NamedTuple):
    """Events in a row: pieces, or one event of another kind."""

    first: int  # number of the first one
    content: DeltaBlock | Event


GET_FIRST = attrgetter("first")


class StepEnd(NamedTuple):
    """Where a step ended that is in the log."""

    entries: int  # up to here, counted from the first one ever
    number: int  # of its last event
    messages: int  # the run had in the log by then
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
        self._dropped_entries = 0  # entries dropped
        self._waiters: list[asyncio.Future[None]] = []
        self.count = 0  # events so far
        self.size = 0  # about how many bytes those take that are here
        self._total = 0  # and all there ever were
        self.last_dropped = 0  # number of the last event that is only in the log
        self.dropped_messages = 0  # how many messages of the run those were
        self.is_stored = False  # all of it was read from the log

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
        """Becomes that of a run that is over, as the log has it."""
        self.is_stored = True
        for event in events:
            self.add(event)

    def end_step(self, messages: int) -> None:
        """All events so far are in the log, in that many messages of the run."""
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
        """The first event that is here with a number above `after`; pieces of one text that came
        since are one event. Reading this way holds nothing: a slow reader costs no memory."""
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
        """Until there are events with a number above `after`."""
        while self.count <= after:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)


def estimate_text_size(event: Event) -> int:
    """About how many bytes an event holds beside its fixed part."""
    match event:
        case ToolResult():
            return len(event.output) + sum(len(i.data) + len(i.url) for i in event.images)
        case ToolStart():
            return sum(len(call.arguments) for call in event.calls)
        case UserSteered():
            return len(event.text)
    return 0
