"""Book: what the gateway knows of one conversation and must not forget. Records in, state out.

Envelopes are in it until the relay has them, those of a run until the run is over, what devices
said until the daemon has it, and how far each side was read.
"""

from collections import deque

import msgspec

from crabtalk_web.stream import Envelope, Service, Text, ToolCallEnd, ToolCallStart, TurnEnd

# Turns of which it is remembered that they are over.
TURNS = 64
# What an envelope takes beside its text.
OVERHEAD = 250


class Inbound(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person said on a device, and the files that came with it."""

    seq: int
    text: str
    files: tuple[Envelope, ...] = ()
    guest: str = ""


class Record(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """One line of the journal: one of those below."""


class Opened(Record, frozen=True):
    """Whose session it is, and its id at the relay. Another id is another session: it begins empty,
    but for what was told and read of it before there was this journal."""

    session: str
    agent: str
    sender: str
    generation: int = 0
    cursor: int = 0
    through: int = 0


class Said(Record, frozen=True):
    """Envelopes, and all that is true once they are said."""

    envelopes: tuple[Envelope, ...] = ()
    run: str = ""  # the one that goes on
    position: int = 0  # messages of the conversation with smaller numbers are told
    through: int = 0  # and so are those that are not later than this, in milliseconds
    seen: str = ""  # a person's text that the daemon has taken up


class Sent(Record, frozen=True):
    """So many of the envelopes that waited are at the relay."""

    count: int


class Read(Record, frozen=True):
    """Messages of the relay up to `cursor` were looked at."""

    cursor: int
    files: tuple[Envelope, ...] = ()  # that wait for the text they belong to
    inbound: Inbound | None = None


class Trying(Record, frozen=True):
    """What waits longest is about to be handed to the daemon, in these words."""

    text: str
    ask: str = ""  # the question it answers


class Handed(Record, frozen=True):
    """What waited longest is with the daemon, or was refused; what is kept is tried again."""

    is_refused: bool = False
    is_kept: bool = False


class Whole(Record, frozen=True, kw_only=True):
    """All of a book: where a journal that was shortened begins."""

    session: str
    agent: str
    sender: str
    generation: int
    position: int
    through: int
    run: str
    recent: tuple[Envelope, ...]
    of_run: tuple[Envelope, ...]
    unsent: tuple[Envelope, ...]
    cursor: int
    files: tuple[Envelope, ...]
    waiting: tuple[Inbound, ...]
    trying: Trying | None
    unseen: tuple[str, ...]


AnyRecord = Opened | Said | Sent | Read | Trying | Handed | Whole


class Book:
    def __init__(self) -> None:
        self._begin("", "", "", 0)

    def _begin(self, session: str, agent: str, sender: str, generation: int) -> None:
        self.session = session
        self.agent = agent
        self.sender = sender
        self.generation = generation
        self.position = 0
        self.through = 0
        self.run = ""
        self.recent: list[Envelope] = []
        self.of_run: list[Envelope] = []
        self.unsent: deque[Envelope] = deque()
        self.unsent_bytes = 0  # roughly
        self.cursor = 0
        self.files: tuple[Envelope, ...] = ()
        self.waiting: deque[Inbound] = deque()
        self.trying: Trying | None = None
        self.unseen: list[str] = []

    def apply(self, record: AnyRecord) -> None:
        match record:
            case Opened():
                if record.session != self.session:
                    self._begin(record.session, record.agent, record.sender, record.generation)
                    self.cursor, self.through = record.cursor, record.through
            case Said():
                self._say(record)
            case Sent(count=count):
                for _ in range(min(count, len(self.unsent))):
                    self.unsent_bytes -= weight(self.unsent.popleft())
            case Read():
                self.cursor = max(self.cursor, record.cursor)
                self.files = record.files
                if record.inbound is not None:
                    self.waiting.append(record.inbound)
            case Trying():
                if self.trying != record:
                    self.trying = record
                    if not record.ask:
                        self.unseen.append(record.text)
            case Handed():
                self._hand(record)
            case Whole():
                self._restore(record)

    def _say(self, said: Said) -> None:
        if said.run != self.run:
            self.run, self.of_run = said.run, []
        if said.run:
            self.of_run += said.envelopes
        self.position = max(self.position, said.position)
        self.through = max(self.through, said.through)
        self.unsent += said.envelopes
        self.unsent_bytes += sum(map(weight, said.envelopes))
        if said.seen in self.unseen:
            self.unseen.remove(said.seen)
        for envelope in said.envelopes:
            self.recent.append(envelope)
            if isinstance(envelope.ev, TurnEnd):
                over = [e for e in self.recent if isinstance(e.ev, TurnEnd)]
                self.recent = over[-TURNS:]

    def _hand(self, handed: Handed) -> None:
        if self.waiting and not handed.is_kept:
            self.waiting.popleft()
        if handed.is_refused and self.trying is not None and self.trying.text in self.unseen:
            self.unseen.remove(self.trying.text)
        self.trying = None

    def _restore(self, whole: Whole) -> None:
        self._begin(whole.session, whole.agent, whole.sender, whole.generation)
        self.position, self.through, self.run = whole.position, whole.through, whole.run
        self.recent, self.of_run = list(whole.recent), list(whole.of_run)
        self.unsent, self.waiting = deque(whole.unsent), deque(whole.waiting)
        self.unsent_bytes = sum(map(weight, self.unsent))
        self.cursor, self.files, self.trying = whole.cursor, whole.files, whole.trying
        self.unseen = list(whole.unseen)

    @property
    def weight(self) -> int:
        """About how many bytes all of it takes."""
        return self.unsent_bytes + sum(map(weight, (*self.recent, *self.of_run)))

    def whole(self) -> Whole:
        return Whole(
            session=self.session,
            agent=self.agent,
            sender=self.sender,
            generation=self.generation,
            position=self.position,
            through=self.through,
            run=self.run,
            recent=tuple(self.recent),
            of_run=tuple(self.of_run),
            unsent=tuple(self.unsent),
            cursor=self.cursor,
            files=self.files,
            waiting=tuple(self.waiting),
            trying=self.trying,
            unseen=tuple(self.unseen),
        )


def weight(envelope: Envelope) -> int:
    """About how many bytes it takes."""
    match envelope.ev:
        case Text(text=text) | Service(text=text) | ToolCallEnd(result=text):
            return OVERHEAD + len(text)
        case ToolCallStart(args=args):
            return OVERHEAD + sum(len(str(value)) for value in args.values())
        case _:
            return OVERHEAD
