"""Tail: what was appended and is not in the shelves yet, kept in memory so that it can be found.

Taking note of a message costs nothing to speak of; its terms are made when somebody first
searches. It is bounded: past that it knows only that there is more, and whoever searches waits.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from crabtalk.model.messages import Message
from crabtalk.storage import ConversationMeta, MarkerRecord, MessageRecord, MetaRecord, Pair, Record

from .manifest import IndexedConversation
from .searchable_text import extract_text
from .terms import TextTerms, extract_terms

MAX_MESSAGES = 20_000
MAX_BYTES = 32 * 1024 * 1024
T = TypeVar("T")
# What an entry takes beside its text, roughly.
DOCUMENT_OVERHEAD = 512


class RecentDocument:
    """Something that can be found; what it is made of is looked at once, by who first needs it."""

    __slots__ = ("_counts", "_message", "_terms", "at", "id", "size", "tool_results", "weight")

    def __init__(self, number: int, at: str, message: Message, *, tool_results: bool) -> None:
        self.id = number
        self.at = at
        self.tool_results = tool_results
        # Not the images: they may be large, and nobody finds a word in them.
        self._message = Message(
            message.role, message.text, tool_calls=message.tool_calls, name=message.name
        )
        self.size = DOCUMENT_OVERHEAD + len(message.text)
        self.size += sum(len(call.arguments) for call in message.tool_calls)
        self.weight = 0.0
        self._terms: TextTerms | None = None
        self._counts: Counter[str] | None = None

    @property
    def terms(self) -> TextTerms:
        if self._terms is None:
            text, self.weight = extract_text(self._message, tool_results=self.tool_results)
            self._terms = extract_terms(text)
        return self._terms

    @property
    def counts(self) -> Counter[str]:
        """How often it has each term."""
        if self._counts is None:
            self._counts = Counter(self.terms.words)
            self._counts.update(self.terms.bigrams)
        return self._counts


class RecentConversation(msgspec.Struct):
    """What the shelves do not have of one conversation."""

    entries: list[RecentDocument] = msgspec.field(default_factory=list)
    title: RecentDocument | None = None  # as it is now, if it was set
    summary: RecentDocument | None = None
    marker: MarkerRecord | None = None
    new_title: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    message_count: int | None = None
    is_being_committed: bool = False  # nothing came since the logs were last read

    def apply_record(self, record: Record) -> None:
        """What it says of the conversation as a whole."""
        self.is_being_committed = False
        match record:
            case MessageRecord(id=number, at=at):
                self.updated_at, self.message_count = at, number + 1
            case MetaRecord():
                self.created_at = prefer_new(record.created_at, self.created_at)
                self.updated_at = prefer_new(record.updated_at, self.updated_at)
                self.message_count = prefer_new(record.message_count, self.message_count)
                if record.title is not None:
                    self.new_title = record.title
                    self.title = make_text_document(0, self.created_at or "", record.title)
            case MarkerRecord(end_id=end, archived_at=at):
                self.marker, self.updated_at = record, at
                self.summary = make_text_document(max(0, end - 1), at, record.summary)

    def update_meta(self, known: ConversationMeta) -> ConversationMeta:
        """What is known of the conversation, brought up to date."""
        return ConversationMeta(
            known.agent,
            known.created_by,
            created_at=self.created_at or known.created_at,
            title=known.title if self.new_title is None else self.new_title,
            updated_at=self.updated_at or known.updated_at,
            message_count=known.message_count if self.message_count is None else self.message_count,
        )


class RecentMessages:
    def __init__(self) -> None:
        self._conversations: dict[Pair, RecentConversation] = {}
        self.messages = 0
        self.bytes = 0
        self.overflowed: set[Pair] = set()  # these have more than is here
        # Deleted, while the shelves may still have them: which deletion it was, for each.
        self._deleted: dict[Pair, int] = {}
        self._deletions = 0

    def __bool__(self) -> bool:
        """Whether there is anything the shelves do not know."""
        return bool(self._conversations or self._deleted)

    def snapshot(self) -> tuple[dict[Pair, RecentConversation], frozenset[Pair]]:
        """What there is and what is gone, for another thread: nothing goes from it any more."""
        return dict(self._conversations), frozenset(self._deleted)

    def pairs(self) -> list[Pair]:
        return list(self._conversations)

    def add(self, pair: Pair, records: Sequence[Record], *, tool_results: bool) -> None:
        unkept = self._conversations.get(pair)
        if unkept is None:
            unkept = self._conversations[pair] = RecentConversation()
        for record in records:
            unkept.apply_record(record)
            if isinstance(record, MessageRecord):
                self._add(pair, unkept, record, tool_results)

    def _add(
        self, pair: Pair, unkept: RecentConversation, record: MessageRecord, tool_results: bool
    ) -> None:
        message = record.message
        if message.role == "system" or (message.role == "tool" and not tool_results):
            return
        entry = RecentDocument(record.id, record.at, message, tool_results=tool_results)
        if self.messages >= MAX_MESSAGES or self.bytes + entry.size > MAX_BYTES:
            self.overflowed.add(pair)
            return
        unkept.entries.append(entry)
        self.messages += 1
        self.bytes += entry.size

    def delete(self, pair: Pair) -> None:
        """The conversation is gone; what is added from now on is of another."""
        self.discard(pair)
        self._deletions += 1
        self._deleted[pair] = self._deletions

    def discard(self, pair: Pair) -> None:
        unkept = self._conversations.pop(pair, None)
        self.overflowed.discard(pair)
        if unkept is not None:
            self._subtract_sizes(unkept.entries)

    # ── What becomes of it ──────────────────────────────────────────────────────────────────

    def begin_commit(self) -> tuple[dict[Pair, int], list[Pair]]:
        """What was deleted and who has something here, now that the logs are to be read."""
        for unkept in self._conversations.values():
            unkept.is_being_committed = True
        return dict(self._deleted), list(self._conversations)

    def finish_commit(self, gone: dict[Pair, int], rows: Iterable[IndexedConversation]) -> None:
        """The shelves know of these deletions, and have the logs as far as the rows say."""
        for pair, number in gone.items():
            if self._deleted.get(pair) == number:
                del self._deleted[pair]
        for row in rows:
            if row.pair not in self._deleted:
                self._discard_committed(row)

    def find_uncovered(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Those that still have something here, and nothing new."""
        table = self._conversations
        return [pair for pair in pairs if pair in table and table[pair].is_being_committed]

    def _discard_committed(self, row: IndexedConversation) -> None:
        unkept = self._conversations.get(row.pair)
        if unkept is None:
            return
        rest = [entry for entry in unkept.entries if entry.id >= row.next_id]
        self._subtract_sizes(entry for entry in unkept.entries if entry.id < row.next_id)
        # In its place, since searches under way still look at the other.
        unkept = self._conversations[row.pair] = msgspec.structs.replace(unkept, entries=rest)
        marker = unkept.marker
        folded = row.folded, row.archived_at
        if marker is not None and (marker.end_id, marker.archived_at) == folded:
            unkept.marker = unkept.summary = None
        if unkept.new_title == row.title:
            unkept.title = None
        is_behind = (unkept.message_count or 0) > row.message_count
        if not (rest or is_behind or unkept.title or unkept.marker):
            del self._conversations[row.pair]
        if not is_behind:
            self.overflowed.discard(row.pair)

    def _subtract_sizes(self, entries: Iterable[RecentDocument]) -> None:
        for entry in entries:
            self.messages -= 1
            self.bytes -= entry.size


def make_text_document(number: int, at: str, text: str) -> RecentDocument:
    return RecentDocument(number, at, Message("user", text), tool_results=False)


def prefer_new(new: T | None, old: T | None) -> T | None:
    return old if new is None else new
