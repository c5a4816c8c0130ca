"""Following: what somebody sees who reads along with the logs, and how they find back to a message.

Positions are opaque numbers: how far into a log. Only the storage that gave one out can say more.
"""

from crabtalk.model.messages import Value

from .records import Pair, Record


class RecordSlice(Value, frozen=True):
    """Records in a row, each with its position."""

    pair: Pair
    origin: str  # when the conversation began: another under the same handle has another
    start: int  # where these begin; not where was asked for, if the log is not what it was
    records: tuple[tuple[int, Record], ...]
    position: int  # where to go on
    version: int  # of the whole log, when it was read
    has_more: bool  # whether there is more already


class LogChanges(Value, frozen=True):
    """What is other than it was, for somebody who looks again and again."""

    cursor: str  # to ask with next time
    versions: dict[str, int] | None  # of the logs that changed; None: nobody knows, look at all
    deleted: tuple[str, ...]


class WindowRequest(Value, frozen=True):
    """A message, and how many around it are wanted. The position is a hint."""

    handle: str
    id: int
    position: int
    before: int
    after: int
