"""Events that cannot be handled yet, in the order they came, within bounds."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from .run_events import QuestionsAsked, ReceivedEvent, TextPiece, ToolReturned, ToolsCalled

# For all keys together.
MAX_EVENTS = 4096
MAX_CHARACTERS = 4_194_304

Key = TypeVar("Key", bound=Hashable)


class PendingEvents(Generic[Key]):
    __slots__ = ("_characters", "_count", "_events", "dropped")

    def __init__(self) -> None:
        self._events: dict[Key, list[ReceivedEvent]] = {}
        self._count = 0
        self._characters = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys, the one that has waited longest first."""
        return iter(self._events)

    def __contains__(self, key: Key) -> bool:
        return key in self._events

    def add(self, key: Key, received: ReceivedEvent) -> bool:
        """Return False if there is no room for it."""
        characters = self._characters + count_characters(received)
        if self._count >= MAX_EVENTS or characters > MAX_CHARACTERS:
            return False
        self._events.setdefault(key, []).append(received)
        self._count += 1
        self._characters = characters
        return True

    def add_evicting_oldest(self, key: Key, received: ReceivedEvent) -> None:
        """Add an event, and drop those that have waited longest to make room."""
        while not self.add(key, received):
            if not self._events:
                self.dropped += 1  # this event alone is too large
                return
            self.dropped += len(self.take(next(iter(self._events))))

    def get(self, key: Key) -> Sequence[ReceivedEvent]:
        return self._events.get(key, ())

    def take(self, key: Key) -> list[ReceivedEvent]:
        taken = self._events.pop(key, [])
        self._count -= len(taken)
        self._characters -= sum(map(count_characters, taken))
        return taken


def count_characters(received: ReceivedEvent) -> int:
    match received.event:
        case TextPiece(text=text):
            return len(text)
        case ToolReturned(output=output):
            return len(output)
        case ToolsCalled(calls=calls):
            return sum(len(call.arguments) for call in calls)
        case QuestionsAsked(questions=questions):
            calls_shown = [q.approval.call for q in questions if q.approval is not None]
            return sum(len(q.question) for q in questions) + sum(map(len, calls_shown))
        case _:
            return 0
