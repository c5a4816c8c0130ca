"""The records of a conversation's log: one JSON object per line, with its kind.

Records are only ever appended. A meta record is a patch: applied in order, the patches of a log
make the conversation's meta. Unknown keys survive, because lines are never rewritten.
"""

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from crabtalk.model.messages import Message, Value

from .checksums import check_sum

T = TypeVar("T")
# The largest integer that every JSON reader and the wire protocol can represent.
MAX_MESSAGES = 2**53
# A message id or a number of messages.
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_MESSAGES)]


class Pair(NamedTuple):
    """The one name of a conversation."""

    agent: str
    sender: str


class MessageRecord(Value, frozen=True, tag_field="kind", tag="message"):
    """One message of the history. `id` is its position, counted from 0 over the whole log."""

    id: Count
    at: str
    message: Message
    run: str = ""  # id of its run; empty in logs of earlier versions
    steer: Count = 0  # which steering message of its run it is; 0 for any other message
    key: str = ""  # the client's idempotency key
    content_hash: str = ""  # with a key: tells another message with the same key apart
    said: str = ""  # the text as the person typed it, when a skill replaced it
    is_keyed: bool = False  # its run was started with a key


class EventRecord(Value, frozen=True, tag_field="kind", tag="event"):
    """Something that happened in a run, for people and tools; the model never sees it."""

    event: str
    at: str
    run: str = ""
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class MarkerRecord(Value, frozen=True, tag_field="kind", tag="compact"):
    """All messages before it are archived and replaced by `summary`; history is read from here.

    The summary is in the log too, so that a conversation goes on even if its memory file is lost.
    It is empty when the conversation started over without a summary.
    """

    archive_name: str
    archived_at: str
    title: str
    summary: str
    end_id: Count  # of the first message after those archived
    keys: str = ""  # fingerprints of the keys used before it, see `message_keys`
    dropped_keys: Count = 0  # keys used before it that have no fingerprint here


class MetaRecord(Value, frozen=True, tag_field="kind", tag="meta"):
    """A patch of the meta: None leaves a key as it is."""

    agent: str | None = None
    created_by: str | None = None
    created_at: str | None = None
    title: str | None = None
    updated_at: str | None = None
    message_count: Count | None = None
    summary: str | None = None
    approved: tuple[str, ...] | None = None
    mode: str | None = None


Record = MessageRecord | EventRecord | MarkerRecord | MetaRecord


class ConversationMeta(Value, frozen=True):
    """What a listing shows of a conversation."""

    agent: str
    created_by: str  # the sender
    created_at: str = ""
    title: str = ""
    updated_at: str = ""
    message_count: int = 0
    summary: str = ""
    approved: tuple[str, ...] = ()  # rules for calls that a person has approved here for good
    mode: str = ""  # the permission mode that was set here; empty: the agent's

    @property
    def pair(self) -> Pair:
        return Pair(self.agent, self.created_by)

    def apply_record(self, record: Record) -> "ConversationMeta":
        """This meta after `record` was appended."""
        match record:
            case MessageRecord(id=number, at=at):
                return msgspec.structs.replace(self, message_count=number + 1, updated_at=at)
            case MarkerRecord(summary=summary, archived_at=at):
                return msgspec.structs.replace(self, summary=summary, updated_at=at)
            case MetaRecord():
                return ConversationMeta(
                    first_not_none(record.agent, self.agent),
                    first_not_none(record.created_by, self.created_by),
                    first_not_none(record.created_at, self.created_at),
                    first_not_none(record.title, self.title),
                    first_not_none(record.updated_at, self.updated_at),
                    first_not_none(record.message_count, self.message_count),
                    first_not_none(record.summary, self.summary),
                    first_not_none(record.approved, self.approved),
                    first_not_none(record.mode, self.mode),
                )
        return self

    def make_snapshot(self) -> MetaRecord:
        """A patch with everything a listing needs; the summary is in the last marker already."""
        return MetaRecord(
            agent=self.agent,
            created_by=self.created_by,
            created_at=self.created_at,
            title=self.title,
            updated_at=self.updated_at,
            message_count=self.message_count,
            approved=self.approved or None,
            mode=self.mode or None,
        )


def first_not_none(new: T | None, old: T) -> T:
    return old if new is None else new


class StoredConversation(Value, frozen=True):
    """A loaded conversation: its meta, the last marker and the messages after it."""

    meta: ConversationMeta
    marker: MarkerRecord | None = None
    messages: tuple[MessageRecord, ...] = ()
    size: int = 0  # bytes that were read
    damaged: tuple[int, ...] = ()  # ids of messages that are damaged and therefore left out


class MessagePage(Value, frozen=True):
    """Consecutive messages. `next_offset` is None on the last page."""

    messages: tuple[MessageRecord, ...]
    total: int
    next_offset: int | None = None
    damaged: tuple[int, ...] = ()  # ids of messages that are damaged and therefore left out


class Archive(Value, frozen=True):
    """The content of a marker, and the ids of the archived messages: first_id up to, but not
    including, end_id."""

    name: str
    title: str
    archived_at: str
    summary: str
    first_id: int
    end_id: int


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_records(records: Iterable[Record]) -> bytes:
    """One line per record, each ending in a line feed."""
    return b"".join([encode_line(record) for record in records])


def encode_line(record: Record) -> bytes:
    try:
        return _encoder.encode(record) + b"\n"
    except UnicodeEncodeError:
        # A model may send a lone surrogate, which UTF-8 cannot encode.
        return _encoder.encode(replace_surrogates(msgspec.to_builtins(record))) + b"\n"


def replace_surrogates(value: Any) -> Any:
    """Replaces each lone surrogate in strings by a question mark."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case dict():
            return {
                replace_surrogates(key): replace_surrogates(item) for key, item in value.items()
            }
        case list() | tuple():
            return [replace_surrogates(item) for item in value]
    return value


def decode_record(line: bytes) -> Record:
    """Raises ValueError for a line that is no record, or was changed after it was written."""
    check_sum(line)
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no record: {error}") from None


def replay_records(
    records: Iterable[Record], meta: ConversationMeta, size: int = 0
) -> StoredConversation:
    """The conversation that these records, in order, describe."""
    marker: MarkerRecord | None = None
    messages: list[MessageRecord] = []
    # Of consecutive messages only the last one matters for the meta.
    last: MessageRecord | None = None
    for record in records:
        if isinstance(record, MessageRecord):
            messages.append(record)
            last = record
            continue
        if last is not None:
            meta, last = meta.apply_record(last), None
        meta = meta.apply_record(record)
        if isinstance(record, MarkerRecord):
            marker = record
            messages.clear()
    if last is not None:
        meta = meta.apply_record(last)
    if marker is not None and meta.message_count < marker.end_id:
        meta = msgspec.structs.replace(meta, message_count=marker.end_id)
    return StoredConversation(meta, marker, tuple(messages), size)


def make_archives(markers: Iterable[MarkerRecord]) -> list[Archive]:
    archives: list[Archive] = []
    first = 0
    for marker in markers:
        archives.append(
            Archive(
                name=marker.archive_name,
                title=marker.title,
                archived_at=marker.archived_at,
                summary=marker.summary,
                first_id=first,
                end_id=marker.end_id,
            )
        )
        first = marker.end_id
    return archives
