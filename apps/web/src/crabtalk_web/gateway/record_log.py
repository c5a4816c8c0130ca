"""Reads the records of a conversation from the daemon, page by page."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire
from crabtalk_web.adapter.event_parsing import parse_timestamp
from crabtalk_web.stream import Envelope, TextEvent, ToolCallEnd, ToolCallStart, TurnEnd

from .session_identity import SessionIdentity

PAGE_SIZE = 200
# Records in memory; the rest waits at the daemon.
MAX_RECORDS = 1000
NOT_FOUND = 404


class LogEntry(NamedTuple):
    """A record, and the position after it."""

    record: wire.ConversationRecord
    next_position: int


class RecordLog:
    """Records that were read and not yet taken, and the position of the next page."""

    def __init__(self, identity: SessionIdentity) -> None:
        self._agent = identity.agent
        self._sender = identity.sender
        self.entries: deque[LogEntry] = deque()
        self.position = 0
        self.log_id = ""

    @property
    def has_room(self) -> bool:
        return len(self.entries) < MAX_RECORDS

    def start_at(self, position: int, log_id: str) -> None:
        self.entries.clear()
        self.position, self.log_id = position, log_id

    async def fetch_page(self, client: Client) -> wire.RecordPage | None:
        """Return the next page; None if the conversation does not exist. Raises what the client
        raises."""
        try:
            return await client.list_records(
                self._agent,
                sender=self._sender,
                position=self.position or None,
                log_id=self.log_id or None,
                limit=PAGE_SIZE,
            )
        except ServerError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    async def count_messages(self, client: Client) -> int:
        try:
            page = await client.list_messages(self._agent, sender=self._sender, limit=1)
        except ServerError as error:
            if error.code == NOT_FOUND:
                return 0
            raise
        return page.total

    def add_page(self, page: wire.RecordPage) -> None:
        positions = [record.position for record in page.records[1:]] + [page.next_position]
        self.entries += map(LogEntry, page.records, positions)
        self.position, self.log_id = page.next_position, page.log_id


class WrittenRecords:
    """Determines which records are written already, for a journal without a position in the log:
    from an earlier version, or of a log that is shorter than it was.

    A message is written if its number is below `position` or its time is not after `through`, in
    milliseconds. Nothing after the first unwritten message is written.
    """

    def __init__(self, position: int, through: int, open_run: str = "") -> None:
        self._position = position
        self._through = through
        self._open_run = open_run  # its end is not written
        self._has_found_new = False

    def contains(self, record: wire.ConversationRecord) -> bool:
        if self._has_found_new:
            return False
        match record.WhichOneof("record"):
            case "message":
                self._has_found_new = self._is_new_message(record.message)
            case "compaction":
                archive = record.compaction.archive
                is_later = parse_timestamp(archive.archived_at) > self._through
                self._has_found_new = archive.end_id >= self._position and is_later
            case "run_end":
                return not self._open_run or record.run_end.run_id != self._open_run
        return not self._has_found_new

    def _is_new_message(self, message: wire.ConversationMessage) -> bool:
        if message.id < self._position:
            return False
        at = parse_timestamp(message.timestamp)
        # Times have millisecond precision, and a turn may begin in the millisecond in which another
        # ends.
        return at > self._through or (at == self._through and message.role == "user")


class OpenTurnText(NamedTuple):
    """State of an open turn, for a journal without a position: the time of its last envelope, and
    how many characters of the message in progress are written, not counting spaces."""

    time: int
    reasoning: int
    text: int


def measure_open_turn(recent: Iterable[Envelope]) -> OpenTurnText | None:
    """Return None if no turn is open."""
    state: OpenTurnText | None = None
    tasks: set[str] = set()
    for envelope in recent:
        time = int(envelope.time)
        counted = (state.reasoning, state.text) if state is not None else (0, 0)
        match envelope.ev:
            case TurnEnd():
                state, tasks = None, set()
                continue
            case ToolCallStart(args=args):
                tasks.add(str(args.get("sessionSubagent", "")))
                counted = counted if envelope.subagent in tasks - {""} else (0, 0)
            case ToolCallEnd():
                counted = counted if envelope.subagent in tasks - {""} else (0, 0)
            case TextEvent(text=text, thinking=thinking) if envelope.role == "agent":
                size = 0 if envelope.subagent in tasks - {""} else len("".join(text.split()))
                counted = (counted[0] + size * thinking, counted[1] + size * (not thinking))
        state = OpenTurnText(time, *counted)
    return state


def skip_characters(text: str, count: int) -> int:
    """Return the index after `count` characters that are not spaces."""
    for place, character in enumerate(text):
        if count == 0:
            return place
        count -= not character.isspace()
    return len(text)
