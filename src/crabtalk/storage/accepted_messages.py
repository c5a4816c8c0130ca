"""Accepted messages: acknowledged to the client and not in the conversation's log yet.

A turn that waits in the queue and a steering message are stored by `Storage.accept_message` before
they are acknowledged. The append that puts the message into the log settles the entry. Entries that
a dead process left are closed with the records made here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec

from crabtalk.model.messages import Message, Value

from .records import ConversationMeta, Count, EventRecord, MessageRecord, Pair, Record

INTERRUPTED = "interrupted"
# The `error` of a closed run, for people who read the log.
NEVER_RUN = "the daemon ended before the agent came to this message; say it again"
CUT_OFF = (
    "the daemon ended while the agent was answering; what it had said by then is kept: "
    "ask it to go on, or say it again as a new message"
)


class RunFinder(Protocol):
    """The part of Storage that is needed here."""

    async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]: ...


class AcceptedKey(NamedTuple):
    """Identifies one entry."""

    run: str
    steer: int  # 0: the turn's own message


class AcceptedMessage(Value, frozen=True):
    """One accepted message, with all that is needed to close its run."""

    agent: str
    sender: str
    run: str
    text: str
    at: str  # when it was accepted
    number: int = 0  # order of acceptance within one process
    steer: Count = 0  # which steering message of its run; 0 is the turn's own message
    speaker: str = ""  # the agent that should answer: the conversation's own, or a guest
    cwd: str = ""
    after: Count = 0  # how many messages the conversation had by then, at least
    message_key: str = ""  # the client's idempotency key
    content_hash: str = ""  # this and `said` are as in MessageRecord
    said: str = ""

    @property
    def pair(self) -> Pair:
        return Pair(self.agent, self.sender)

    @property
    def key(self) -> AcceptedKey:
        return AcceptedKey(self.run, self.steer)


def find_settled_keys(records: Iterable[Record]) -> list[AcceptedKey]:
    """The keys of the entries that these records settle."""
    return [
        AcceptedKey(record.run, record.steer)
        for record in records
        if isinstance(record, MessageRecord) and record.run and record.message.role == "user"
    ]


def make_closing_records(
    pair: Pair,
    meta: ConversationMeta | None,
    entries: Iterable[AcceptedMessage],
    *,
    written: Collection[AcceptedKey] = (),
    used_keys: Mapping[str, str] | None = None,
    closed: Collection[str] = (),
    end: EventRecord | None = None,
) -> list[Record]:
    """The records that put `entries` into a log and close their runs as interrupted.

    `meta` is None for a conversation that does not exist yet. `written` are entries whose message
    is in the log already, `closed` the runs whose end is. `used_keys` has the content hash for each
    key of these entries that is in the log. `end` closes the run that was in flight; it follows
    that run's entries, and precedes those of turns that waited.
    """
    now = current_time()
    records: list[Record] = []
    if meta is None:
        meta = ConversationMeta(*pair, created_at=now)
        records.append(meta.make_snapshot())
    first = len(records)
    ordered = sort_for_log(entries, in_flight=end.run if end is not None else "")
    ordered = list(drop_repeated_keys(ordered, written, used_keys or {}))
    if end is not None and (not ordered or ordered[0].run != end.run):
        records.append(end)
    reopened: set[str] = set()  # runs that get a message after what looked like their end
    for position, entry in enumerate(ordered):
        if entry.key not in written:
            reopened.add(entry.run)
            message = Message("user", entry.text)
            record = MessageRecord(
                meta.message_count,
                entry.at,
                message,
                run=entry.run,
                steer=entry.steer,
                key=entry.message_key,
                content_hash=entry.content_hash,
                said=entry.said,
                is_keyed=bool(entry.message_key),
            )
            records.append(record)
            meta = meta.apply_record(record)
        is_last = position + 1 == len(ordered) or ordered[position + 1].run != entry.run
        if is_last and end is not None and entry.run == end.run:
            records.append(end)
        elif is_last and (entry.run not in closed or entry.run in reopened):
            records.append(make_interrupted_event(entry.run, entry.speaker, now))
    if len(records) > first:
        records.append(meta.make_snapshot())
        return records
    return []


def drop_repeated_keys(
    entries: Iterable[AcceptedMessage],
    written: Collection[AcceptedKey],
    used_keys: Mapping[str, str],
) -> Iterator[AcceptedMessage]:
    """Ensures that a key is in a log only once. An entry that repeats a message is left out; one
    with another text under the same key loses the key, since its text was acknowledged."""
    known = dict(used_keys)
    for entry in entries:
        key = entry.message_key
        if not key or entry.key in written or key not in known:
            known |= {key: entry.content_hash} if key else {}
            yield entry
        elif entry.content_hash != known[key]:
            yield msgspec.structs.replace(entry, message_key="", content_hash="")


def sort_for_log(entries: Iterable[AcceptedMessage], in_flight: str = "") -> list[AcceptedMessage]:
    """Entries in the order of the log: those of one run together, and first the run in flight,
    which is the one with steering messages."""
    ordered = sorted(entries, key=lambda entry: (entry.at, entry.number))
    first = {entry.run: index for index, entry in reversed(list(enumerate(ordered)))}
    steered = {entry.run for entry in ordered if entry.steer} | {in_flight}
    return sorted(ordered, key=lambda e: (e.run not in steered, first[e.run], e.steer))


def make_interrupted_event(run: str, speaker: str, at: str, error: str = NEVER_RUN) -> EventRecord:
    data = {"agent": speaker, "stop_reason": INTERRUPTED, "error": error}
    return EventRecord("done", at, run, data)


async def find_used_keys(
    storage: RunFinder, pair: Pair, entries: Iterable[AcceptedMessage]
) -> dict[str, str]:
    """The keys of these entries that are in the log, each with its content hash."""
    used: dict[str, str] = {}
    for key in {entry.message_key for entry in entries if entry.message_key}:
        for record in await storage.find_run(pair, key=key):
            if isinstance(record, MessageRecord) and record.key == key:
                used[key] = record.content_hash
    return used


def list_pairs(entries: Iterable[AcceptedMessage]) -> list[Pair]:
    """The conversations of these entries, each once, in order."""
    return list(dict.fromkeys(entry.pair for entry in entries))


def find_run_end(records: Sequence[Record]) -> EventRecord | None:
    """The record of how the run of these records ended. An end record with a message after it does
    not count: a steering message came at that moment, and the run went on."""
    for record in reversed(records):
        if isinstance(record, MessageRecord):
            return None
        if isinstance(record, EventRecord) and record.event == "done":
            return record
    return None


def find_closed_runs(records: Sequence[Record]) -> set[str]:
    """The runs whose end is among these records."""
    return {r.run for r in records if isinstance(r, EventRecord) and r.event == "done"}


def current_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
