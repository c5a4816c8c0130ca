"""Entries: what is written in the journal, a record a line. Each says what is about to happen, or
what has happened; none says what it means.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from .chat_service import Update

RequestKind: TypeAlias = Literal["turn", "steer", "answer", "compact"]


class DaemonRequest(Struct, frozen=True, kw_only=True):
    """What the daemon is told because of an update."""

    kind: RequestKind
    agent: str
    sender: str
    text: str
    guest: str = ""
    # Of a turn or a steering message: what the daemon knows it by when it is said again. Earlier
    # releases gave none.
    key: str = ""
    offset: int = 0  # of a compaction: the archives the conversation had before it
    ask: str = ""  # the question it answers


class FormProgress(Struct, frozen=True):
    """A form, and how far it is. Without a message it is being sent."""

    message: str = ""
    answers: dict[int, list[str]] = field(default_factory=dict)
    settled: list[int] = field(default_factory=list)
    is_open: bool = True  # the agent waits for it
    asked: int = -1  # of approvals, which have a message each: the question `message` shows


class GatewayRecord(Struct, frozen=True, tag=True):
    pass


class UpdateReceived(GatewayRecord, frozen=True, tag="Came"):
    """Somebody did something. In the journal, it is ours to answer."""

    update: Update


class UpdateSkipped(GatewayRecord, frozen=True, tag="LeftOut"):
    """Something came that could not be read. It stays here until the journal is written anew."""

    id: str
    raw: str


class RequestStarted(GatewayRecord, frozen=True, tag="Asking"):
    """The daemon is about to be told. Whether it was is not known until the next record."""

    id: str
    ask: DaemonRequest


class RequestNotSent(GatewayRecord, frozen=True, tag="Unasked"):
    """It was surely not told."""

    id: str


class AnswerPrepared(GatewayRecord, frozen=True, tag="Answering"):
    """What is to be answered, where no conversation has it."""

    id: str
    text: str


class SendStarted(GatewayRecord, frozen=True, tag="Sending"):
    """A message is about to be sent. Whether it arrived is not known until the next record."""

    id: str


class SendCompleted(GatewayRecord, frozen=True, tag="Sent"):
    id: str
    message: str
    is_marked: bool = False  # as one that may have arrived before


class SendFailed(GatewayRecord, frozen=True, tag="Unsent"):
    """It surely did not arrive."""

    id: str


class TextDelivered(GatewayRecord, frozen=True, tag="Closed"):
    """So much of the answer, in characters that are no space, is in messages that are finished."""

    id: str
    count: int


class FormUpdated(GatewayRecord, frozen=True, tag="Formed"):
    id: str
    ask: str
    filled: FormProgress


class FileSendUpdated(GatewayRecord, frozen=True, tag="Filed"):
    """A file of the agent's, by the call that sends it: is being sent, or has been."""

    id: str
    call: str
    is_sent: bool = False


class UpdateHandled(GatewayRecord, frozen=True, tag="Done"):
    """Nothing is left to do."""

    id: str


class AgentChosen(GatewayRecord, frozen=True, tag="Chose"):
    chat: str
    agent: str


class AvailabilityNotified(GatewayRecord, frozen=True, tag="Noticed"):
    """A chat knows that the daemon is away, or that it is back."""

    chat: str
    is_away: bool


class PendingUpdate(Struct, kw_only=True):
    """An update, and what came of it so far."""

    update: Update
    ask: DaemonRequest | None = None
    text: str | None = None
    is_sending: bool = False
    message: str = ""  # the one that still grows
    is_marked: bool = False
    closed: int = 0
    forms: dict[str, FormProgress] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.update.id


class ChatState(Struct):
    """What is remembered of a chat."""

    agent: str = ""  # empty: that of the settings
    is_told_away: bool = False


class GatewaySnapshot(GatewayRecord, frozen=True, tag="Whole"):
    """All that the records before it come to."""

    items: list[PendingUpdate]
    seen: list[str]
    chats: dict[str, ChatState]


AnyGatewayRecord: TypeAlias = (
    UpdateReceived
    | UpdateSkipped
    | RequestStarted
    | RequestNotSent
    | AnswerPrepared
    | SendStarted
    | SendCompleted
    | SendFailed
    | TextDelivered
    | FormUpdated
    | FileSendUpdated
    | UpdateHandled
    | AgentChosen
    | AvailabilityNotified
    | GatewaySnapshot
)
