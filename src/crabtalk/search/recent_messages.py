"""RecentMessages: appended messages that are not in the index yet, kept in memory for searches.

Adding a message costs almost nothing; its terms are computed at the first search. Memory is
bounded: past the limit it only records which conversations have more, and searches wait.
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
# Memory that a document takes besides its text, roughly.
DOCUMENT_OVERHEAD = 512


class RecentDocument:
    """A searchable text. Its terms are computed when they are first needed."""

    __slots__ = ("_counts", "_message", "_terms", "at", "id", "size", "tool_results", "weight")

    def __init__(self, number: int, at: str, message: Message, *, tool_results: bool) -> None:
        self.id = number
        self.at = at
        self.tool_results = tool_results
        # Without images: they may be large, and contain no words.
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
        """How often each term occurs."""
        if self._counts is None:
            self._counts = Counter(self.terms.words)
            self._counts.update(self.terms.bigrams)
        return self._counts


class RecentConversation(msgspec.Struct):
    """The part of a conversation that is not in the index."""

    entries: list[RecentDocument] = msgspec.field(default_factory=list)
    title: RecentDocument | None = None  # the current title, if it was set
    summary: RecentDocument | None = None
    marker: MarkerRecord | None = None
    new_title: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    message_count: int | None = None
    is_being_committed: bool = False  # nothing was added since the last commit began

    def apply_record(self, record: Record) -> None:
        """Apply a record's changes to the conversation's data; messages are added separately."""
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
        """Return the indexed data of the conversation, brought up to date."""
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
        self.overflowed: set[Pair] = set()  # conversations with more messages than are here
        # Deleted conversations that the index may still have, with the number of their deletion.
        self._deleted: dict[Pair, int] = {}
        self._deletions = 0

    def __bool__(self) -> bool:
        """Whether there is anything that the index does not know."""
        return bool(self._conversations or self._deleted)

    def snapshot(self) -> tuple[dict[Pair, RecentConversation], frozenset[Pair]]:
        """Copy the conversations and deleted pairs for another thread."""
        return dict(self._conversations), frozenset(self._deleted)

    def pairs(self) -> list[Pair]:
        return list(self._conversations)

    def add(self, pair: Pair, records: Sequence[Record], *, tool_results: bool) -> None:
        conversation = self._conversations.get(pair)
        if conversation is None:
            conversation = self._conversations[pair] = RecentConversation()
        for record in records:
            conversation.apply_record(record)
            if isinstance(record, MessageRecord):
                self._add(pair, conversation, record, tool_results)

    def _add(
        self,
        pair: Pair,
        conversation: RecentConversation,
        record: MessageRecord,
        tool_results: bool,
    ) -> None:
        message = record.message
        if message.role == "system" or (message.role == "tool" and not tool_results):
            return
        entry = RecentDocument(record.id, record.at, message, tool_results=tool_results)
        if self.messages >= MAX_MESSAGES or self.bytes + entry.size > MAX_BYTES:
            self.overflowed.add(pair)
            return
        conversation.entries.append(entry)
        self.messages += 1
        self.bytes += entry.size

    def delete(self, pair: Pair) -> None:
        """The conversation was deleted; what is added from now on belongs to a new one."""
        self.discard(pair)
        self._deletions += 1
        self._deleted[pair] = self._deletions

    def discard(self, pair: Pair) -> None:
        conversation = self._conversations.pop(pair, None)
        self.overflowed.discard(pair)
        if conversation is not None:
            self._subtract_sizes(conversation.entries)

    # ── Committing ──────────────────────────────────────────────────────────────────────────

    def begin_commit(self) -> tuple[dict[Pair, int], list[Pair]]:
        """Return the deletions and the conversations here, before their logs are read."""
        for conversation in self._conversations.values():
            conversation.is_being_committed = True
        return dict(self._deleted), list(self._conversations)

    def finish_commit(self, deleted: dict[Pair, int], rows: Iterable[IndexedConversation]) -> None:
        """The index has applied these deletions, and has the logs as far as the rows say."""
        for pair, number in deleted.items():
            if self._deleted.get(pair) == number:
                del self._deleted[pair]
        for row in rows:
            if row.pair not in self._deleted:
                self._discard_committed(row)

    def find_uncovered(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs that still have something here, and nothing added since the commit began."""
        table = self._conversations
        return [pair for pair in pairs if pair in table and table[pair].is_being_committed]

    def _discard_committed(self, row: IndexedConversation) -> None:
        conversation = self._conversations.get(row.pair)
        if conversation is None:
            return
        remaining = [entry for entry in conversation.entries if entry.id >= row.next_id]
        self._subtract_sizes(entry for entry in conversation.entries if entry.id < row.next_id)
        # Replaced, not changed, because running searches use the old one.
        conversation = self._conversations[row.pair] = msgspec.structs.replace(
            conversation, entries=remaining
        )
        marker = conversation.marker
        folded = row.folded, row.archived_at
        if marker is not None and (marker.end_id, marker.archived_at) == folded:
            conversation.marker = conversation.summary = None
        if conversation.new_title == row.title:
            conversation.title = None
        is_behind = (conversation.message_count or 0) > row.message_count
        if not (remaining or is_behind or conversation.title or conversation.marker):
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
