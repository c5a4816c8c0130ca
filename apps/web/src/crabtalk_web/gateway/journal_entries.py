"""The entries of a conversation's journal, one a line."""

from typing import Literal

import msgspec

from crabtalk_web.stream import Envelope

from .replay_guard import MessageMark, ReplayGuardState


class InboundMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that a person wrote on a device, with its files."""

    seq: int
    text: str
    files: tuple[Envelope, ...] = ()
    guest: str = ""
    key: str = ""  # for the daemon; empty in journals of earlier versions


class OutgoingFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that an agent sends: "called", then "due" once the call has returned, then "over"."""

    run: str
    call: str
    path: str
    stage: Literal["called", "due", "over"] = "called"

    @property
    def key(self) -> tuple[str, str]:
        return self.run, self.call


class RunProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much of the open run is written. `reasoning` and `text` count the characters of the
    message in progress; `is_told` says that the whole message is written and no other has begun."""

    steps: int = 0  # agent messages with tool calls
    steers: int = 0
    reasoning: int = 0
    text: int = 0
    is_told: bool = False


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """One line of the journal; base class of those below."""


class SessionOpened(JournalEntry, frozen=True, tag="Opened"):
    """The session's owner and its id at the relay. Another id means another, empty session, except
    for what was written and read before this journal existed."""

    session: str
    agent: str
    sender: str
    generation: int = 0
    cursor: int = 0
    through: int = 0


class EnvelopesWritten(JournalEntry, frozen=True, tag="Said"):
    """Envelopes, and the state after they are written."""

    envelopes: tuple[Envelope, ...] = ()
    run: str = ""  # the open run
    position: int = 0  # messages of the conversation with smaller numbers are written
    through: int = 0  # and so are messages that are not later than this, in milliseconds
    seen: str = ""  # the key of a person's message that is in the conversation's log
    files: tuple[OutgoingFile, ...] = ()  # in their current stage
    # Written by earlier versions: the time of the conversation's first message, in milliseconds.
    born: int = 0
    # position of the next record in the conversation's log; all before it are written
    record: int = 0
    log_id: str = ""
    progress: RunProgress | None = None  # None: unchanged


class SessionRenewed(JournalEntry, frozen=True, tag="Renewed"):
    """Another session follows, with its own key. Written messages stay written, unless the
    conversation was cleared: then a new conversation begins, of which nothing is written."""

    agent: str
    sender: str
    generation: int
    is_cleared: bool = False


class EnvelopesSent(JournalEntry, frozen=True, tag="Sent"):
    """The first `count` unsent envelopes are at the relay."""

    count: int


class MessagesRead(JournalEntry, frozen=True, tag="Read"):
    """Messages of the relay up to `cursor` were handled."""

    cursor: int
    files: tuple[Envelope, ...] = ()  # waiting for the text they belong to
    inbound: InboundMessage | None = None
    mark: MessageMark | None = None  # of a device's message
    learned: ReplayGuardState | None = None  # messages acted on before this journal remembered them


class DeliveryAttempt(JournalEntry, frozen=True, tag="Trying"):
    """The first waiting message is about to be given to the daemon with this text."""

    text: str
    ask: str = ""  # the question it answers
    key: str = ""  # empty for an answer, and in journals of earlier versions


class DeliveryFinished(JournalEntry, frozen=True, tag="Handed"):
    """The daemon took the first waiting message or refused it; with `is_kept` it is tried again."""

    is_refused: bool = False
    is_kept: bool = False


class ConversationSnapshot(JournalEntry, frozen=True, kw_only=True, tag="Whole"):
    """The whole state: the first entry of a compacted journal."""

    session: str
    agent: str
    sender: str
    generation: int
    position: int
    through: int
    run: str
    recent: tuple[Envelope, ...]
    unsent: tuple[Envelope, ...]
    cursor: int
    files: tuple[Envelope, ...]
    waiting: tuple[InboundMessage, ...]
    trying: DeliveryAttempt | None
    unseen: tuple[str, ...] = ()  # from earlier versions: texts that were delivered without a key
    sending: tuple[OutgoingFile, ...] = ()
    born: int = 0
    memory: ReplayGuardState | None = None
    record: int = 0
    log_id: str = ""
    progress: RunProgress = RunProgress()
    pending: tuple[str, ...] = ()


AnyJournalEntry = (
    SessionOpened
    | SessionRenewed
    | EnvelopesWritten
    | EnvelopesSent
    | MessagesRead
    | DeliveryAttempt
    | DeliveryFinished
    | ConversationSnapshot
)
