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
FRESH = 64
# What an event takes beside its text, roughly.
OVERHEAD = 100


class Pieces:
    """Pieces of one text or of one thought, in a row."""

    __slots__ = ("_ends", "_fresh", "_text", "kind")

    def __init__(self, kind: type[TextDelta] | type[ThinkingDelta]) -> None:
        self.kind = kind
        self._text = ""
        self._fresh: list[str] = []
        self._ends = array("L")  # of each piece, in characters

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def is_full(self) -> bool:
        return bool(self._ends) and self._ends[-1] >= BLOCK

    def add(self, piece: str) -> None:
        self._ends.append(len(piece) + (self._ends[-1] if self._ends else 0))
        self._fresh.append(piece)
        if len(self._fresh) >= FRESH:
            self._join()

    def after(self, count: int) -> TextDelta | ThinkingDelta:
        """All but the first `count` pieces, as one."""
        if count == len(self._ends) - 1 and self._fresh:
            return self.kind(self._fresh[-1])
        self._join()
        return self.kind(self._text[self._ends[count - 1] if count else 0 :])

    def _join(self) -> None:
        if self._fresh:
            self._text += "".join(self._fresh)
            self._fresh.clear()


class Entry(NamedTuple):
    """Events in a row: pieces, or one event of another kind."""

    first: int  # number of the first one
    content: Pieces | Event


FIRST = attrgetter("first")


class Step(NamedTuple):
    """Where a step ended that is in the log."""

    entries: int  # up to here, counted from the first one ever
    number: int  # of its last event
    messages: int  # the run had in the log by then
    size: int


class Numbered(NamedTuple):
    """An event and its number; 0 for one that was read from the log."""

    number: int
    event: Event


class Transcript:
    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._entries: list[Entry] = []
        self._steps: list[Step] = []
        self._gone = 0  # entries dropped
        self._waiting: list[asyncio.Future[None]] = []
        self.count = 0  # events so far
        self.size = 0  # about how many bytes those take that are here
        self._total = 0  # and all there ever were
        self.dropped = 0  # number of the last event that is only in the log
        self.dropped_messages = 0  # how many messages of the run those were
        self.is_stored = False  # all of it was read from the log

    def add(self, event: Event) -> None:
        self.count += 1
        kind = type(event)
        if kind is TextDelta or kind is ThinkingDelta:
            self._add_piece(event)  # type: ignore[arg-type]
        else:
            self._grow(OVERHEAD + text_size(event))
            self._entries.append(Entry(self.count, event))
        if self._waiting:
            self._wake()

    def _add_piece(self, event: TextDelta | ThinkingDelta) -> None:
        last = self._entries[-1].content if self._entries else None
        if type(last) is not Pieces or last.kind is not type(event) or last.is_full:
            last = Pieces(type(event))
            self._entries.append(Entry(self.count, last))
            self._grow(OVERHEAD)
        last.add(event.text)
        self._grow(len(event.text) + 8)

    def _grow(self, size: int) -> None:
        self.size += size
        self._total += size

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def fill(self, events: list[Event]) -> None:
        """Becomes that of a run that is over, as the log has it."""
        self.is_stored = True
        for event in events:
            self.add(event)

    def end_step(self, messages: int) -> None:
        """All events so far are in the log, in that many messages of the run."""
        self._steps.append(Step(self._gone + len(self._entries), self.count, messages, self._total))
        if self.size > self._bound:
            self._drop(self._steps[-1])

    def _drop(self, step: Step) -> None:
        del self._entries[: step.entries - self._gone]
        self._gone = step.entries
        self._steps.clear()
        self.size = self._total - step.size
        self.dropped = step.number
        self.dropped_messages = step.messages

    def next(self, after: int) -> Numbered | None:
        """The first event that is here with a number above `after`; pieces of one text that came
        since are one event. Reading this way holds nothing: a slow reader costs no memory."""
        at = bisect_right(self._entries, after, key=FIRST)
        if at:
            first, content = self._entries[at - 1]
            if isinstance(content, Pieces) and (last := first + len(content) - 1) > after:
                return Numbered(last, content.after(after - first + 1))
        if at == len(self._entries):
            return None
        first, content = self._entries[at]
        if isinstance(content, Pieces):
            return Numbered(first + len(content) - 1, content.after(0))
        return Numbered(first, content)

    async def grown(self, after: int) -> None:
        """Until there are events with a number above `after`."""
        while self.count <= after:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)


def text_size(event: Event) -> int:
    """About how many bytes an event holds beside its fixed part."""
    match event:
        case ToolResult():
            return len(event.output) + sum(len(i.data) + len(i.url) for i in event.images)
        case ToolStart():
            return sum(len(call.arguments) for call in event.calls)
        case UserSteered():
            return len(event.text)
    return 0
