"""Waiting: happenings that cannot be told yet, in the order they came, and no more than so many."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from .happenings import Asked, Called, Heard, Piece, Returned

# Together.
MOST_HAPPENINGS = 4096
MOST_CHARACTERS = 4_194_304

Key = TypeVar("Key", bound=Hashable)


class Waiting(Generic[Key]):
    __slots__ = ("_characters", "_count", "_kept", "dropped")

    def __init__(self) -> None:
        self._kept: dict[Key, list[Heard]] = {}
        self._count = 0
        self._characters = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Key]:
        """The one that has waited longest first."""
        return iter(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def keep(self, key: Key, heard: Heard) -> bool:
        """False where there is no room for it."""
        characters = self._characters + weight(heard)
        if self._count >= MOST_HAPPENINGS or characters > MOST_CHARACTERS:
            return False
        self._kept.setdefault(key, []).append(heard)
        self._count += 1
        self._characters = characters
        return True

    def keep_newest(self, key: Key, heard: Heard) -> None:
        """Those that have waited longest make room."""
        while not self.keep(key, heard):
            if not self._kept:
                self.dropped += 1  # it alone is too much
                return
            self.dropped += len(self.take(next(iter(self._kept))))

    def of(self, key: Key) -> Sequence[Heard]:
        return self._kept.get(key, ())

    def take(self, key: Key) -> list[Heard]:
        taken = self._kept.pop(key, [])
        self._count -= len(taken)
        self._characters -= sum(map(weight, taken))
        return taken


def weight(heard: Heard) -> int:
    match heard.what:
        case Piece(text=text):
            return len(text)
        case Returned(output=output):
            return len(output)
        case Called(calls=calls):
            return sum(len(call.arguments) for call in calls)
        case Asked(questions=questions):
            calls_shown = [q.approval.call for q in questions if q.approval is not None]
            return sum(len(q.question) for q in questions) + sum(map(len, calls_shown))
        case _:
            return 0
