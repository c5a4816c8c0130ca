"""Entries: the lines of a journal, each of them something that happened to a conversation."""

from typing import Literal

import msgspec

from crabtalk_web.stream import Envelope

from .replay_guard import MessageMark, ReplayGuardState


class InboundMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person said on a device, and the files that came with it."""

    seq: int
    text: str
    files: tuple[Envelope, ...] = ()
    guest: str = ""
    key: str = ""  # that the daemon gets it with; empty in journals of earlier versions


class OutgoingFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that an agent sends: called for, due once the call has returned, then over."""

    run: str
    call: str
    path: str
    stage: Literal["called", "due", "over"] = "called"

    @property
    def key(self) -> tuple[str, str]:
        return self.run, self.call


class RunProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much of the run that goes on is told. `reasoning` and `text` count the characters of the
    message that the agent is writing; `is_told` says that all of it is told, and no other begun."""

    steps: int = 0  # messages of the agent with tool calls
    steers: int = 0
    reasoning: int = 0
    text: int = 0
    is_told: bool = False


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """One line of the journal: one of those below."""


class SessionOpened(JournalEntry, frozen=True, tag="Opened"):
    """Whose session it is, and its id at the relay. Another id is another session: it begins empty,
    but for what was told and read of it before there was this journal."""

    session: str
    agent: str
    sender: str
    generation: int = 0
    cursor: int = 0
    through: int = 0


class EnvelopesWritten(JournalEntry, frozen=True, tag="Said"):
    """Envelopes, and all that is true once they are said."""

    envelopes: tuple[Envelope, ...] = ()
    run: str = ""  # the one that goes on
    position: int = 0  # messages of the conversation with smaller numbers are told
    through: int = 0  # and so are those that are not later than this, in milliseconds
    seen: str = ""  # the key of a person's message that the conversation's log has
    files: tuple[OutgoingFile, ...] = ()  # as they are now
    # Of earlier versions: when the conversation's first message was said, in milliseconds.
    born: int = 0
    record: int = 0  # where the conversation's log goes on; all records before it are told
    log_id: str = ""  # of that log
    progress: RunProgress | None = None  # None: unchanged


class SessionRenewed(JournalEntry, frozen=True, tag="Renewed"):
    """Another session is to come, with a key of its own. What was told stays told, unless the
    conversation was cleared: then there is another one, of which nothing is."""

    agent: str
    sender: str
    generation: int
    is_cleared: bool = False


class EnvelopesSent(JournalEntry, frozen=True, tag="Sent"):
    """So many of the envelopes that waited are at the relay."""

    count: int


class MessagesRead(JournalEntry, frozen=True, tag="Read"):
    """Messages of the relay up to `cursor` were looked at."""

    cursor: int
    files: tuple[Envelope, ...] = ()  # that wait for the text they belong to
    inbound: InboundMessage | None = None
    mark: MessageMark | None = None  # of what a device said
    learned: ReplayGuardState | None = None  # what was acted on before this journal remembered it


class DeliveryAttempt(JournalEntry, frozen=True, tag="Trying"):
    """What waits longest is about to be handed to the daemon, in these words."""

    text: str
    ask: str = ""  # the question it answers
    key: str = ""  # empty for an answer, and in journals of earlier versions


class DeliveryFinished(JournalEntry, frozen=True, tag="Handed"):
    """What waited longest is with the daemon, or was refused; what is kept is tried again."""

    is_refused: bool = False
    is_kept: bool = False


class ConversationSnapshot(JournalEntry, frozen=True, kw_only=True, tag="Whole"):
    """All of a book: where a journal that was shortened begins."""

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
    unseen: tuple[str, ...] = ()  # of earlier versions: texts that were handed over without a key
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
