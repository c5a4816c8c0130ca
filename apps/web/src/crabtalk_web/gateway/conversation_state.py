"""The state of one conversation that must survive a restart: journal entries in, state out.

It contains envelopes until the relay has them, those of a turn until it is over, messages of
devices until the daemon has them, files that agents send until the relay has them, and how far both
sides were read.
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

# Ended turns that are remembered.
MAX_ENDED_TURNS = 64
# Unfinished calls that send a file. Beyond this the file of the oldest call is not sent.
MAX_CALLED_FILES = 64
# Size of an envelope without its text.
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
        self.unsent_bytes = 0  # approximate
        self.relay_cursor = 0
        self.held_files: tuple[Envelope, ...] = ()
        self.inbound: deque[InboundMessage] = deque()
        self.attempt: DeliveryAttempt | None = None
        self.unseen_texts: list[str] = []
        self.pending_keys: list[
            str
        ] = []  # keys that the daemon was given and that are not in the log yet
        self.outgoing_files: dict[tuple[str, str], OutgoingFile] = {}
        self.first_message_at = 0
        self.log_position = 0
        self.log_id = ""
        self.progress = RunProgress()
        # The device messages that were acted on; None until they are known.
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

    def _apply_opened(self, entry: SessionOpened) -> None:
        if entry.session == self.session:
            return
        # Another session with the same key: messages of the old one could be replayed in it.
        replay_guard = self.replay_guard
        if self.session:
            self._reset("", "", "", 0)
        self.replay_guard = replay_guard
        self.session, self.agent, self.sender = entry.session, entry.agent, entry.sender
        self.generation, self.relay_cursor = entry.generation, entry.cursor
        self.written_until = max(self.written_until, entry.through)

    def _apply_renewed(self, entry: SessionRenewed) -> None:
        old = self.snapshot()
        self._reset("", entry.agent, entry.sender, entry.generation)
        self.inbound, self.attempt = deque(old.waiting), old.trying
        self.unseen_texts, self.pending_keys = list(old.unseen), list(old.pending)
        if not entry.is_cleared:
            self.message_position, self.written_until, self.first_message_at = (
                old.position,
                old.through,
                old.born,
            )
            self.log_position, self.log_id = old.record, old.log_id

    def _apply_written(self, entry: EnvelopesWritten) -> None:
        if entry.run != self.open_run:
            self.open_run, self.progress = entry.run, RunProgress()
        if entry.progress is not None:
            self.progress = entry.progress
        self.log_position = entry.record or self.log_position
        self.log_id = entry.log_id or self.log_id
        self.message_position = max(self.message_position, entry.position)
        self.written_until = max(self.written_until, entry.through)
        self.unsent_envelopes += entry.envelopes
        self.unsent_bytes += sum(map(envelope_size, entry.envelopes))
        self.first_message_at = entry.born or self.first_message_at
        for undelivered in (self.pending_keys, self.unseen_texts):
            if entry.seen in undelivered:
                undelivered.remove(entry.seen)
                break
        for file in entry.files:
            self._track_file(file)
        for envelope in entry.envelopes:
            self.recent_envelopes.append(envelope)
            if isinstance(envelope.ev, TurnEnd):
                turn_ends = [e for e in self.recent_envelopes if isinstance(e.ev, TurnEnd)]
                self.recent_envelopes = turn_ends[-MAX_ENDED_TURNS:]

    def _track_file(self, file: OutgoingFile) -> None:
        if file.stage == "over":
            self.outgoing_files.pop(file.key, None)
            return
        self.outgoing_files[file.key] = file
        called_keys = [file.key for file in self.outgoing_files.values() if file.stage == "called"]
        for key in called_keys[:-MAX_CALLED_FILES]:
            del self.outgoing_files[key]

    @property
    def due_file(self) -> OutgoingFile | None:
        """The file that has waited longest."""
        return next((file for file in self.outgoing_files.values() if file.stage == "due"), None)

    def _apply_delivered(self, entry: DeliveryFinished) -> None:
        if self.inbound and not entry.is_kept:
            self.inbound.popleft()
        if entry.is_refused and self.attempt is not None:
            if self.attempt.key in self.pending_keys:
                self.pending_keys.remove(self.attempt.key)
            elif self.attempt.text in self.unseen_texts:
                self.unseen_texts.remove(self.attempt.text)
        self.attempt = None

    def _apply_snapshot(self, snapshot: ConversationSnapshot) -> None:
        self._reset(snapshot.session, snapshot.agent, snapshot.sender, snapshot.generation)
        self.message_position, self.written_until, self.open_run = (
            snapshot.position,
            snapshot.through,
            snapshot.run,
        )
        self.recent_envelopes = list(snapshot.recent)
        self.unsent_envelopes, self.inbound = deque(snapshot.unsent), deque(snapshot.waiting)
        self.unsent_bytes = sum(map(envelope_size, self.unsent_envelopes))
        self.relay_cursor, self.held_files, self.attempt = (
            snapshot.cursor,
            snapshot.files,
            snapshot.trying,
        )
        self.unseen_texts, self.pending_keys = list(snapshot.unseen), list(snapshot.pending)
        self.log_position, self.log_id, self.progress = (
            snapshot.record,
            snapshot.log_id,
            snapshot.progress,
        )
        self.outgoing_files = {file.key: file for file in snapshot.sending}
        self.first_message_at = snapshot.born
        self.replay_guard = None if snapshot.memory is None else ReplayGuard(snapshot.memory)

    @property
    def size(self) -> int:
        """The approximate size of the whole state in bytes."""
        guard_size = 0 if self.replay_guard is None else self.replay_guard.size
        return guard_size + self.unsent_bytes + sum(map(envelope_size, self.recent_envelopes))

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
    """Return the approximate size in bytes."""
    match envelope.ev:
        case TextEvent(text=text) | ServiceEvent(text=text) | ToolCallEnd(result=text):
            return ENVELOPE_OVERHEAD + len(text)
        case ToolCallStart(args=args):
            return ENVELOPE_OVERHEAD + sum(len(str(value)) for value in args.values())
        case _:
            return ENVELOPE_OVERHEAD
