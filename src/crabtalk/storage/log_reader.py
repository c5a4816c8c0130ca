"""LogReader: reads lines of a log in order and records what is wrong with them.

Damaged lines are left out of the records. The ids of the messages in them are counted, so that
later messages keep their ids and people can see that something is missing.
"""

from collections.abc import Iterable, Iterator

from .checksums import check_sum, is_link
from .records import MarkerRecord, MessageRecord, MetaRecord, Record, decode_record

# At most so many ids are listed: a damaged id in a log without checksums could be any number.
MAX_MISSING = 1000
MESSAGE = b'{"kind":"message"'
OTHER_KINDS = (b'{"kind":"event"', b'{"kind":"meta"', b'{"kind":"compact"')


class LogReader:
    """`next_id` is the id that the next message should have; None when it is not known."""

    def __init__(self, next_id: int | None = 0) -> None:
        self.damaged: list[bytes] = []
        self.missing: list[int] = []
        self.broken_links = 0
        self.next_id = next_id
        self._previous_line = b""  # empty when the next line has none to be compared with
        # Since the last known id: whether a line was damaged, and how many messages were lost.
        self._has_damage = False
        self._suspects = 0

    def read(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in lines:
            if line and (record := self.read_line(line)) is not None:
                yield record

    def read_line(self, line: bytes) -> Record | None:
        """The record of a line; None when the line is damaged or out of place."""
        try:
            record = decode_record(line)
        except ValueError:
            self.damaged.append(line)
            self._has_damage = True
            self._suspects += count_messages(line)
            self._previous_line = b""
            return None
        is_linked = not self._previous_line or is_link(self._previous_line, line)
        if isinstance(record, MessageRecord):
            number = record.id
            if number != self.next_id or self._has_damage:
                if not is_linked and self.next_id is not None and number < self.next_id:
                    # A copy of an earlier line, or a moved one. The next line links to the line
                    # before this one.
                    self.damaged.append(line)
                    return None
                self._advance_to(number, is_linked)
            self.next_id = number + 1
        elif isinstance(record, MarkerRecord):
            self._advance_to(record.end_id, is_linked)
        elif isinstance(record, MetaRecord) and record.message_count is not None:
            self._advance_to(record.message_count, is_linked)
        if not is_linked:
            self.broken_links += 1
        self._previous_line = line
        return record

    def finish(self) -> None:
        """Call at the end of the log: damaged lines at the end count as messages."""
        if self._suspects and self.next_id is not None:
            self._advance_to(self.next_id + self._suspects, True)

    def _advance_to(self, number: int, is_linked: bool) -> None:
        """Sets the id of the next message, unless it is higher already."""
        if self.next_id is None or number > self.next_id:
            if self.next_id is not None and (self._has_damage or not is_linked):
                gap = range(self.next_id, number)
                self.missing += gap[: MAX_MISSING - len(self.missing)]
            self.next_id = number
        self._has_damage = False
        self._suspects = 0


def count_messages(line: bytes) -> int:
    """How many messages a damaged line may have contained: several when the line feeds between them
    are damaged, and none when crabtalk did not write the line."""
    if line.startswith(MESSAGE):
        return line.count(MESSAGE)
    if line.startswith(OTHER_KINDS):
        return 0
    try:
        check_sum(line)
    except ValueError:
        return 1
    return 0
