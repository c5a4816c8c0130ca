"""Book: what the gateway knows of one conversation and must not forget. Entries in, state out.

Envelopes are in it until the relay has them, those of a turn until it is over, what devices said
until the daemon has it, files that agents send until these are at the relay, and how far each side
was read.
"""

from collections import deque

from crabtalk_web.stream import Envelope, Service, Text, ToolCallEnd, ToolCallStart, TurnEnd

from .entries import (
    AnyRecord,
    Handed,
    Inbound,
    Opened,
    Outgoing,
    Progress,
    Read,
    Renewed,
    Said,
    Sent,
    Trying,
    Whole,
)
from .replay import Memory

# Turns of which it is remembered that they are over.
TURNS = 64
# Calls that send a file and have not returned; of the oldest nothing is sent then.
MOST_CALLED = 64
# What an envelope takes beside its text.
OVERHEAD = 250


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
        self.unsent: deque[Envelope] = deque()
        self.unsent_bytes = 0  # roughly
        self.cursor = 0
        self.files: tuple[Envelope, ...] = ()
        self.waiting: deque[Inbound] = deque()
        self.trying: Trying | None = None
        self.unseen: list[str] = []
        self.pending: list[str] = []  # keys that the daemon was given and the log does not have yet
        self.sending: dict[tuple[str, str], Outgoing] = {}
        self.born = 0
        self.record = 0
        self.log_id = ""
        self.progress = Progress()
        # Which messages of devices were acted on; None until somebody has looked.
        self.memory: Memory | None = None

    def apply(self, record: AnyRecord) -> None:
        match record:
            case Opened():
                self._open(record)
            case Renewed():
                self._renew(record)
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
                if record.mark is not None:
                    self.memory = self.memory or Memory()
                    self.memory.apply(record.mark, self.session)
                if record.learned is not None:
                    self.memory = Memory(record.learned)
            case Trying():
                if self.trying != record:
                    self.trying = record
                    if record.key and record.key not in self.pending:
                        self.pending.append(record.key)
                    elif not record.ask and not record.key:
                        self.unseen.append(record.text)
            case Handed():
                self._hand(record)
            case Whole():
                self._restore(record)

    def _open(self, opened: Opened) -> None:
        if opened.session == self.session:
            return
        # Another session of the same key: what was said in the old one could be shown here.
        memory = self.memory
        if self.session:
            self._begin("", "", "", 0)
        self.memory = memory
        self.session, self.agent, self.sender = opened.session, opened.agent, opened.sender
        self.generation, self.cursor = opened.generation, opened.cursor
        self.through = max(self.through, opened.through)

    def _renew(self, renewed: Renewed) -> None:
        old = self.whole()
        self._begin("", renewed.agent, renewed.sender, renewed.generation)
        self.waiting, self.trying = deque(old.waiting), old.trying
        self.unseen, self.pending = list(old.unseen), list(old.pending)
        if not renewed.is_cleared:
            self.position, self.through, self.born = old.position, old.through, old.born
            self.record, self.log_id = old.record, old.log_id

    def _say(self, said: Said) -> None:
        if said.run != self.run:
            self.run, self.progress = said.run, Progress()
        if said.progress is not None:
            self.progress = said.progress
        self.record = said.record or self.record
        self.log_id = said.log_id or self.log_id
        self.position = max(self.position, said.position)
        self.through = max(self.through, said.through)
        self.unsent += said.envelopes
        self.unsent_bytes += sum(map(weight, said.envelopes))
        self.born = said.born or self.born
        for handed in (self.pending, self.unseen):
            if said.seen in handed:
                handed.remove(said.seen)
                break
        for file in said.files:
            self._follow(file)
        for envelope in said.envelopes:
            self.recent.append(envelope)
            if isinstance(envelope.ev, TurnEnd):
                over = [e for e in self.recent if isinstance(e.ev, TurnEnd)]
                self.recent = over[-TURNS:]

    def _follow(self, file: Outgoing) -> None:
        if file.stage == "over":
            self.sending.pop(file.key, None)
            return
        self.sending[file.key] = file
        called = [one.key for one in self.sending.values() if one.stage == "called"]
        for key in called[:-MOST_CALLED]:
            del self.sending[key]

    @property
    def due(self) -> Outgoing | None:
        """The file that has waited longest."""
        return next((file for file in self.sending.values() if file.stage == "due"), None)

    def _hand(self, handed: Handed) -> None:
        if self.waiting and not handed.is_kept:
            self.waiting.popleft()
        if handed.is_refused and self.trying is not None:
            if self.trying.key in self.pending:
                self.pending.remove(self.trying.key)
            elif self.trying.text in self.unseen:
                self.unseen.remove(self.trying.text)
        self.trying = None

    def _restore(self, whole: Whole) -> None:
        self._begin(whole.session, whole.agent, whole.sender, whole.generation)
        self.position, self.through, self.run = whole.position, whole.through, whole.run
        self.recent = list(whole.recent)
        self.unsent, self.waiting = deque(whole.unsent), deque(whole.waiting)
        self.unsent_bytes = sum(map(weight, self.unsent))
        self.cursor, self.files, self.trying = whole.cursor, whole.files, whole.trying
        self.unseen, self.pending = list(whole.unseen), list(whole.pending)
        self.record, self.log_id, self.progress = whole.record, whole.log_id, whole.progress
        self.sending = {file.key: file for file in whole.sending}
        self.born = whole.born
        self.memory = None if whole.memory is None else Memory(whole.memory)

    @property
    def weight(self) -> int:
        """About how many bytes all of it takes."""
        remembered = 0 if self.memory is None else self.memory.weight
        return remembered + self.unsent_bytes + sum(map(weight, self.recent))

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
            unsent=tuple(self.unsent),
            cursor=self.cursor,
            files=self.files,
            waiting=tuple(self.waiting),
            trying=self.trying,
            unseen=tuple(self.unseen),
            sending=tuple(self.sending.values()),
            born=self.born,
            memory=None if self.memory is None else self.memory.state(),
            record=self.record,
            log_id=self.log_id,
            progress=self.progress,
            pending=tuple(self.pending),
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
