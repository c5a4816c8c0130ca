"""Book: what the gateway knows of one conversation and must not forget. Entries in, state out.

Envelopes are in it until the relay has them, those of a turn until it is over, what devices said
until the daemon has it, files that agents send until these are at the relay, and how far each side
was read.
"""

from collections import deque

from crabtalk_web.stream import (
    Envelope,
    ServiceEvent,
    TextEvent,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
)

from .journal_entries import (
    AnyJournalEntry,
    ConversationSnapshot,
    DeliveryAttempt,
    DeliveryFinished,
    EnvelopesSent,
    EnvelopesWritten,
    InboundMessage,
    MessagesRead,
    OutgoingFile,
    RunProgress,
    SessionOpened,
    SessionRenewed,
)
from .replay_guard import ReplayGuard

# Turns of which it is remembered that they are over.
MAX_ENDED_TURNS = 64
# Calls that send a file and have not returned; of the oldest nothing is sent then.
MAX_CALLED_FILES = 64
# What an envelope takes beside its text.
ENVELOPE_OVERHEAD = 250


class ConversationState:
    def __init__(self) -> None:
        self._reset("", "", "", 0)

    def _reset(self, session: str, agent: str, sender: str, generation: int) -> None:
        self.session = session
        self.agent = agent
        self.sender = sender
        self.generation = generation
        self.message_position = 0
        self.written_until = 0
        self.open_run = ""
        self.recent_envelopes: list[Envelope] = []
        self.unsent_envelopes: deque[Envelope] = deque()
        self.unsent_bytes = 0  # roughly
        self.relay_cursor = 0
        self.held_files: tuple[Envelope, ...] = ()
        self.inbound: deque[InboundMessage] = deque()
        self.attempt: DeliveryAttempt | None = None
        self.unseen_texts: list[str] = []
        self.pending_keys: list[
            str
        ] = []  # keys that the daemon was given and the log does not have yet
        self.outgoing_files: dict[tuple[str, str], OutgoingFile] = {}
        self.first_message_at = 0
        self.log_position = 0
        self.log_id = ""
        self.progress = RunProgress()
        # Which messages of devices were acted on; None until somebody has looked.
        self.replay_guard: ReplayGuard | None = None

    def apply(self, record: AnyJournalEntry) -> None:
        match record:
            case SessionOpened():
                self._apply_opened(record)
            case SessionRenewed():
                self._apply_renewed(record)
            case EnvelopesWritten():
                self._apply_written(record)
            case EnvelopesSent(count=count):
                for _ in range(min(count, len(self.unsent_envelopes))):
                    self.unsent_bytes -= envelope_size(self.unsent_envelopes.popleft())
            case MessagesRead():
                self.relay_cursor = max(self.relay_cursor, record.cursor)
                self.held_files = record.files
                if record.inbound is not None:
                    self.inbound.append(record.inbound)
                if record.mark is not None:
                    self.replay_guard = self.replay_guard or ReplayGuard()
                    self.replay_guard.apply(record.mark, self.session)
                if record.learned is not None:
                    self.replay_guard = ReplayGuard(record.learned)
            case DeliveryAttempt():
                if self.attempt != record:
                    self.attempt = record
                    if record.key and record.key not in self.pending_keys:
                        self.pending_keys.append(record.key)
                    elif not record.ask and not record.key:
                        self.unseen_texts.append(record.text)
            case DeliveryFinished():
                self._apply_delivered(record)
            case ConversationSnapshot():
                self._apply_snapshot(record)

    def _apply_opened(self, opened: SessionOpened) -> None:
        if opened.session == self.session:
            return
        # Another session of the same key: what was said in the old one could be shown here.
        memory = self.replay_guard
        if self.session:
            self._reset("", "", "", 0)
        self.replay_guard = memory
        self.session, self.agent, self.sender = opened.session, opened.agent, opened.sender
        self.generation, self.relay_cursor = opened.generation, opened.cursor
        self.written_until = max(self.written_until, opened.through)

    def _apply_renewed(self, renewed: SessionRenewed) -> None:
        old = self.snapshot()
        self._reset("", renewed.agent, renewed.sender, renewed.generation)
        self.inbound, self.attempt = deque(old.waiting), old.trying
        self.unseen_texts, self.pending_keys = list(old.unseen), list(old.pending)
        if not renewed.is_cleared:
            self.message_position, self.written_until, self.first_message_at = (
                old.position,
                old.through,
                old.born,
            )
            self.log_position, self.log_id = old.record, old.log_id

    def _apply_written(self, said: EnvelopesWritten) -> None:
        if said.run != self.open_run:
            self.open_run, self.progress = said.run, RunProgress()
        if said.progress is not None:
            self.progress = said.progress
        self.log_position = said.record or self.log_position
        self.log_id = said.log_id or self.log_id
        self.message_position = max(self.message_position, said.position)
        self.written_until = max(self.written_until, said.through)
        self.unsent_envelopes += said.envelopes
        self.unsent_bytes += sum(map(envelope_size, said.envelopes))
        self.first_message_at = said.born or self.first_message_at
        for handed in (self.pending_keys, self.unseen_texts):
            if said.seen in handed:
                handed.remove(said.seen)
                break
        for file in said.files:
            self._track_file(file)
        for envelope in said.envelopes:
            self.recent_envelopes.append(envelope)
            if isinstance(envelope.ev, TurnEnd):
                over = [e for e in self.recent_envelopes if isinstance(e.ev, TurnEnd)]
                self.recent_envelopes = over[-MAX_ENDED_TURNS:]

    def _track_file(self, file: OutgoingFile) -> None:
        if file.stage == "over":
            self.outgoing_files.pop(file.key, None)
            return
        self.outgoing_files[file.key] = file
        called = [one.key for one in self.outgoing_files.values() if one.stage == "called"]
        for key in called[:-MAX_CALLED_FILES]:
            del self.outgoing_files[key]

    @property
    def due_file(self) -> OutgoingFile | None:
        """The file that has waited longest."""
        return next((file for file in self.outgoing_files.values() if file.stage == "due"), None)

    def _apply_delivered(self, handed: DeliveryFinished) -> None:
        if self.inbound and not handed.is_kept:
            self.inbound.popleft()
        if handed.is_refused and self.attempt is not None:
            if self.attempt.key in self.pending_keys:
                self.pending_keys.remove(self.attempt.key)
            elif self.attempt.text in self.unseen_texts:
                self.unseen_texts.remove(self.attempt.text)
        self.attempt = None

    def _apply_snapshot(self, whole: ConversationSnapshot) -> None:
        self._reset(whole.session, whole.agent, whole.sender, whole.generation)
        self.message_position, self.written_until, self.open_run = (
            whole.position,
            whole.through,
            whole.run,
        )
        self.recent_envelopes = list(whole.recent)
        self.unsent_envelopes, self.inbound = deque(whole.unsent), deque(whole.waiting)
        self.unsent_bytes = sum(map(envelope_size, self.unsent_envelopes))
        self.relay_cursor, self.held_files, self.attempt = whole.cursor, whole.files, whole.trying
        self.unseen_texts, self.pending_keys = list(whole.unseen), list(whole.pending)
        self.log_position, self.log_id, self.progress = whole.record, whole.log_id, whole.progress
        self.outgoing_files = {file.key: file for file in whole.sending}
        self.first_message_at = whole.born
        self.replay_guard = None if whole.memory is None else ReplayGuard(whole.memory)

    @property
    def size(self) -> int:
        """About how many bytes all of it takes."""
        remembered = 0 if self.replay_guard is None else self.replay_guard.size
        return remembered + self.unsent_bytes + sum(map(envelope_size, self.recent_envelopes))

    def snapshot(self) -> ConversationSnapshot:
        return ConversationSnapshot(
            session=self.session,
            agent=self.agent,
            sender=self.sender,
            generation=self.generation,
            position=self.message_position,
            through=self.written_until,
            run=self.open_run,
            recent=tuple(self.recent_envelopes),
            unsent=tuple(self.unsent_envelopes),
            cursor=self.relay_cursor,
            files=self.held_files,
            waiting=tuple(self.inbound),
            trying=self.attempt,
            unseen=tuple(self.unseen_texts),
            sending=tuple(self.outgoing_files.values()),
            born=self.first_message_at,
            memory=None if self.replay_guard is None else self.replay_guard.to_state(),
            record=self.log_position,
            log_id=self.log_id,
            progress=self.progress,
            pending=tuple(self.pending_keys),
        )


def envelope_size(envelope: Envelope) -> int:
    """About how many bytes it takes."""
    match envelope.ev:
        case TextEvent(text=text) | ServiceEvent(text=text) | ToolCallEnd(result=text):
            return ENVELOPE_OVERHEAD + len(text)
        case ToolCallStart(args=args):
            return ENVELOPE_OVERHEAD + sum(len(str(value)) for value in args.values())
        case _:
            return ENVELOPE_OVERHEAD
