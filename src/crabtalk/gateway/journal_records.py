"""The records of the journal, one a line. Each says what is about to happen, or what has happened.

The wire names (`tag`) are those of earlier releases. `gateway_state` applies the records.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from .chat_service import Update

RequestKind: TypeAlias = Literal["turn", "steer", "answer", "compact"]


class DaemonRequest(Struct, frozen=True, kw_only=True):
    """A request to the daemon that answers an update."""

    kind: RequestKind
    agent: str
    sender: str
    text: str
    guest: str = ""
    # Of a turn or a steering message: the daemon recognises a repeated request by it. Earlier
    # releases gave none.
    key: str = ""
    offset: int = 0  # of a compaction: the archives the conversation had before it
    ask: str = ""  # of an answer: the question it answers


class FormProgress(Struct, frozen=True):
    """A form and the answers so far. While it is being sent, it has no message."""

    message: str = ""
    answers: dict[int, list[str]] = field(default_factory=dict)
    settled: list[int] = field(default_factory=list)
    is_open: bool = True  # the agent waits for it
    asked: int = -1  # of approvals, which have a message each: the question in `message`


class GatewayRecord(Struct, frozen=True, tag=True):
    pass


class UpdateReceived(GatewayRecord, frozen=True, tag="Came"):
    """An update came in, and this gateway is to answer it."""

    update: Update


class UpdateSkipped(GatewayRecord, frozen=True, tag="LeftOut"):
    """An update could not be parsed. Its raw text stays here until the journal is compacted."""

    id: str
    raw: str


class RequestStarted(GatewayRecord, frozen=True, tag="Asking"):
    """A request is about to be sent. Until the next record it is unknown whether it was."""

    id: str
    ask: DaemonRequest


class RequestNotSent(GatewayRecord, frozen=True, tag="Unasked"):
    """The request certainly did not reach the daemon."""

    id: str


class AnswerPrepared(GatewayRecord, frozen=True, tag="Answering"):
    """The text of an answer that is in no conversation of the daemon's."""

    id: str
    text: str


class SendStarted(GatewayRecord, frozen=True, tag="Sending"):
    """A message is about to be sent. Until the next record it is unknown whether it arrived."""

    id: str


class SendCompleted(GatewayRecord, frozen=True, tag="Sent"):
    id: str
    message: str
    is_marked: bool = False  # the message says that it may have arrived before


class SendFailed(GatewayRecord, frozen=True, tag="Unsent"):
    """The message certainly did not arrive."""

    id: str


class TextDelivered(GatewayRecord, frozen=True, tag="Closed"):
    """`count` characters of the answer, spaces not counted, are in finished messages."""

    id: str
    count: int


class FormUpdated(GatewayRecord, frozen=True, tag="Formed"):
    id: str
    ask: str
    filled: FormProgress


class FileSendUpdated(GatewayRecord, frozen=True, tag="Filed"):
    """A file of the agent is being sent, or was sent. `call` is the tool call that sends it."""

    id: str
    call: str
    is_sent: bool = False


class UpdateHandled(GatewayRecord, frozen=True, tag="Done"):
    """The update needs no more work."""

    id: str


class AgentChosen(GatewayRecord, frozen=True, tag="Chose"):
    chat: str
    agent: str


class AvailabilityNotified(GatewayRecord, frozen=True, tag="Noticed"):
    """A chat was told that the daemon is away, or that it is back."""

    chat: str
    is_away: bool


class PendingUpdate(Struct, kw_only=True):
    """An update, and how far its answer is."""

    update: Update
    ask: DaemonRequest | None = None
    text: str | None = None
    is_sending: bool = False
    message: str = ""  # the id of the message that still grows
    is_marked: bool = False
    closed: int = 0
    forms: dict[str, FormProgress] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.update.id


class ChatState(Struct):
    """The stored state of a chat."""

    agent: str = ""  # empty: the agent of the settings
    is_told_away: bool = False


class GatewaySnapshot(GatewayRecord, frozen=True, tag="Whole"):
    """The whole state. It replaces all records before it."""

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
