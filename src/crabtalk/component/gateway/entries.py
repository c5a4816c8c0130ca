"""Entries: what is written in the journal, a record a line. Each says what is about to happen, or
what has happened; none says what it means.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from .service import Update

Kind: TypeAlias = Literal["turn", "steer", "answer", "compact"]


class Ask(Struct, frozen=True, kw_only=True):
    """What the daemon is told because of an update."""

    kind: Kind
    agent: str
    sender: str
    text: str
    guest: str = ""
    # Of a turn or a steering message: what the daemon knows it by when it is said again. Earlier
    # releases gave none.
    key: str = ""
    offset: int = 0  # of a compaction: the archives the conversation had before it
    ask: str = ""  # the question it answers


class Filled(Struct, frozen=True):
    """A form, and how far it is. Without a message it is being sent."""

    message: str = ""
    answers: dict[int, list[str]] = field(default_factory=dict)
    settled: list[int] = field(default_factory=list)
    is_open: bool = True  # the agent waits for it
    asked: int = -1  # of approvals, which have a message each: the question `message` shows


class Record(Struct, frozen=True, tag=True):
    pass


class Came(Record, frozen=True):
    """Somebody did something. In the journal, it is ours to answer."""

    update: Update


class LeftOut(Record, frozen=True):
    """Something came that could not be read. It stays here until the journal is written anew."""

    id: str
    raw: str


class Asking(Record, frozen=True):
    """The daemon is about to be told. Whether it was is not known until the next record."""

    id: str
    ask: Ask


class Unasked(Record, frozen=True):
    """It was surely not told."""

    id: str


class Answering(Record, frozen=True):
    """What is to be answered, where no conversation has it."""

    id: str
    text: str


class Sending(Record, frozen=True):
    """A message is about to be sent. Whether it arrived is not known until the next record."""

    id: str


class Sent(Record, frozen=True):
    id: str
    message: str
    is_marked: bool = False  # as one that may have arrived before


class Unsent(Record, frozen=True):
    """It surely did not arrive."""

    id: str


class Closed(Record, frozen=True):
    """So much of the answer, in characters that are no space, is in messages that are finished."""

    id: str
    count: int


class Formed(Record, frozen=True):
    id: str
    ask: str
    filled: Filled


class Filed(Record, frozen=True):
    """A file of the agent's, by the call that sends it: is being sent, or has been."""

    id: str
    call: str
    is_sent: bool = False


class Done(Record, frozen=True):
    """Nothing is left to do."""

    id: str


class Chose(Record, frozen=True):
    chat: str
    agent: str


class Noticed(Record, frozen=True):
    """A chat knows that the daemon is away, or that it is back."""

    chat: str
    is_away: bool


class Item(Struct, kw_only=True):
    """An update, and what came of it so far."""

    update: Update
    ask: Ask | None = None
    text: str | None = None
    is_sending: bool = False
    message: str = ""  # the one that still grows
    is_marked: bool = False
    closed: int = 0
    forms: dict[str, Filled] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.update.id


class ChatNote(Struct):
    """What is remembered of a chat."""

    agent: str = ""  # empty: that of the settings
    is_told_away: bool = False


class Whole(Record, frozen=True):
    """All that the records before it come to."""

    items: list[Item]
    seen: list[str]
    chats: dict[str, ChatNote]


AnyRecord: TypeAlias = (
    Came
    | LeftOut
    | Asking
    | Unasked
    | Answering
    | Sending
    | Sent
    | Unsent
    | Closed
    | Formed
    | Filed
    | Done
    | Chose
    | Noticed
    | Whole
)
