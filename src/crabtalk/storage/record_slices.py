"""Values for reading logs incrementally, and for finding a message again.

A position is an opaque number for a place in a log. Only the storage that returned it knows its
meaning.
"""

from crabtalk.model.messages import Value

from .records import Pair, Record


class RecordSlice(Value, frozen=True):
    """Consecutive records, each with its position."""

    pair: Pair
    origin: str  # creation time: differs when a deleted conversation was created again
    start: int  # position of the first record; not the requested one if that no longer fits the log
    records: tuple[tuple[int, Record], ...]
    position: int  # where to continue
    version: int  # of the whole log, when it was read
    has_more: bool  # whether there are more records already


class LogChanges(Value, frozen=True):
    """The changes since a cursor, for polling."""

    cursor: str  # for the next call
    versions: dict[str, int] | None  # of the logs that changed; None: unknown, so check all logs
    deleted: tuple[str, ...]


class WindowRequest(Value, frozen=True):
    """A message, and how many messages before and after it to read. The position is a hint."""

    handle: str
    id: int
    position: int
    before: int
    after: int
