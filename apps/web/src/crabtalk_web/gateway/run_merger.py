"""Merges the records of a conversation's log with live events into one sequence.

No I/O: `LogFollower` reads the log and receives the events. Records are written in the order of the
log, each once. Events add what the log does not have, or does not have yet.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from crabtalk.protocol import wire
from crabtalk_web.adapter import ReceivedEvent
from crabtalk_web.adapter.event_parsing import parse_timestamp
from crabtalk_web.adapter.run_events import (
    AnyRunEvent,
    ConversationCompacted,
    EndReason,
    QuestionsAsked,
    RunBegan,
    RunEnded,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    TokensUsed,
    ToolReturned,
    ToolsCalled,
)

from .conversation_state import ConversationState
from .envelope_writer import EnvelopeWriter, now_ms
from .inbox import build_key_prefix
from .journal_entries import RunProgress
from .live_run import LiveRun
from .record_events import (
    advance_progress,
    build_assistant_events,
    build_tool_events,
    message_run_id,
    parse_run_end,
    person_text,
)
from .record_log import LogEntry, RecordLog, WrittenRecords, measure_open_turn, skip_characters
from .session_identity import SessionIdentity

LEGACY_RUN_PREFIX = "message:"


class RunMerger:
    """`written_records` are the records to skip; None: skip none. `must_read` says that the log has
    more records than were read. `live_run` is the run whose events are received."""

    def __init__(
        self,
        identity: SessionIdentity,
        writer: EnvelopeWriter,
        log: RecordLog,
        has_room: Callable[[], bool],
    ) -> None:
        self._identity = identity
        self._writer = writer
        self._log = log
        self._has_room = has_room
        self.written_records: WrittenRecords | None = None
        self.must_read = True
        self.live_run: LiveRun | None = None
        self.next_message = 0  # the number of the next message
        self.on_title_changed: Callable[[str], None] = lambda title: None
        self._speaker = ("", "")  # a run and its guest, if any
        self._returned_calls: set[str] = set()  # finished calls of the current step
        self._is_step_open = False
        self._is_answered = False  # the last message of the log is an answer

    @property
    def _state(self) -> ConversationState:
        return self._writer.state

    def reset(self) -> None:
        """Read the log again from the position in the state."""
        self.written_records, self.live_run = None, None
        self.must_read = True

    # ── Records ─────────────────────────────────────────────────────────────────────────────

    @property
    def unresolved_run(self) -> str:
        """The run that the next record begins, if it is not known yet which agent answers in it."""
        record = self._log.entries[0].record if self._log.entries else None
        if record is None or not begins_turn(record) or self._find_guest(record) is not None:
            return ""
        return message_run_id(record.message)

    def write_entries(self) -> None:
        while self._log.entries and self._has_room() and self._may_write(self._log.entries[0]):
            self._write_log_entry(self._log.entries.popleft())

    def _may_write(self, entry: LogEntry) -> bool:
        record = entry.record
        if begins_turn(record):
            return self._find_guest(record) is not None
        live_run = self.live_run
        if live_run is None or live_run.run not in (record.message.run_id, record.run_end.run_id):
            return True
        return live_run.allows_record(record, self._writer.progress)

    def _find_guest(self, record: wire.ConversationRecord) -> str | None:
        """Return the guest that answers a person's message; empty for the conversation's own agent,
        None if it is not known yet."""
        run = message_run_id(record.message)
        if self._speaker[0] == run:
            return self._speaker[1]
        for later, _ in self._log.entries:
            end, message = later.run_end, later.message
            if end.run_id and end.run_id == run:
                return pick_guest(end.agent, self._identity.agent)
            is_answer = message.role in ("assistant", "tool")
            if is_answer and message.run_id == record.message.run_id:
                return pick_guest(message.agent, self._identity.agent)
            if begins_turn(later) and message_run_id(message) != run:
                return ""  # the daemon died before an agent answered
        return "" if run.startswith(LEGACY_RUN_PREFIX) else None

    def _write_log_entry(self, entry: LogEntry) -> None:
        record, after = entry
        is_written = self.written_records is not None and self.written_records.contains(record)
        if (
            self.written_records is not None
            and not is_written
            and record.WhichOneof("record") != "run_end"
        ):
            self.written_records = None
        if record.WhichOneof("record") == "message":
            self.next_message = record.message.id + 1
        match record.WhichOneof("record"):
            case "message" if is_written:
                self._skip_message(record.message)
            case "message":
                self._write_message(record.message, after)
            case "run_end" if not is_written:
                self._write_end(record.run_end, after)
            case "compaction" if not is_written:
                self._write_compaction(record.compaction.archive, after)
            case "change":
                self.on_title_changed(record.change.title)

    def _skip_message(self, message: wire.ConversationMessage) -> None:
        """Skip a message that is written, but count it if it belongs to the open run."""
        begins = is_from_person(message) and not message.steer
        if message.run_id and message.run_id == self._state.open_run and not begins:
            self._writer.progress = advance_progress(message, self._writer.progress)
        self._is_answered = message.role == "assistant" and not message.tool_calls

    def _write_message(self, message: wire.ConversationMessage, after: int) -> None:
        at = parse_timestamp(message.timestamp)
        begins = is_from_person(message) and not self._is_steer(message)
        run = (
            message_run_id(message)
            if begins
            else message.run_id or self._state.open_run or message_run_id(message)
        )
        if run != self._state.open_run and self._state.open_run:
            self._end_legacy_run(at)
        if run != self._state.open_run:
            self._writer.progress = RunProgress()
            self._is_step_open = False
        progress = self._writer.progress
        if message.role == "assistant":
            progress = self._restore_progress(message, progress)
        seen, events = self._build_events(message, progress, begins=begins)
        self._is_answered = message.role == "assistant" and not message.tool_calls
        self._writer.write_record(
            self._to_received(events, run, at, self._resolve_guest(run, message)),
            run=run,
            progress=progress if begins else advance_progress(message, progress),
            record=after,
            position=message.id + 1,
            seen=seen,
        )

    def _build_events(
        self, message: wire.ConversationMessage, progress: RunProgress, *, begins: bool
    ) -> tuple[str, list[AnyRunEvent]]:
        """Return the events of a message, and its key if a device wrote it. The device's session
        has its text already."""
        events: list[AnyRunEvent] = []
        if message.role != "tool" and self._is_step_open:
            self._is_step_open = False
            events.append(StepEnded())
        match message.role:
            case "user":
                seen = self._find_seen_key(message)
                is_known = bool(seen) or self._is_from_this_session(message.key)
                text = "" if is_known else person_text(message)
                if begins:
                    events.append(RunBegan(text))
                elif text:
                    events.append(RunSteered(text))
                return seen, events
            case "assistant":
                events += build_assistant_events(message, progress)
                self._returned_calls.clear()
                self._is_step_open = bool(message.tool_calls)
            case "tool":
                events += build_tool_events(message, self._returned_calls)
        return "", events

    def _restore_progress(
        self, message: wire.ConversationMessage, progress: RunProgress
    ) -> RunProgress:
        """A journal of an earlier version has no progress, so it is counted from the envelopes."""
        if self._state.log_position or self._state.progress != RunProgress() or progress.text:
            return progress
        open_turn = (
            measure_open_turn(self._state.recent_envelopes) if self._state.open_run else None
        )
        if open_turn is None:
            return progress
        return msgspec.structs.replace(
            progress,
            reasoning=skip_characters(message.reasoning, open_turn.reasoning),
            text=skip_characters(message.content, open_turn.text),
        )

    def _find_seen_key(self, message: wire.ConversationMessage) -> str:
        """Return the key with which the daemon got the message; in a journal of an earlier version,
        the text."""
        if message.key in self._state.pending_keys:
            return message.key
        text = person_text(message)
        return text if not message.key and text in self._state.unseen_texts else ""

    def _is_from_this_session(self, key: str) -> bool:
        return key.startswith(build_key_prefix(self._state.session))

    def _is_steer(self, message: wire.ConversationMessage) -> bool:
        """Logs of earlier versions name no runs: in them a person's message after a tool result
        steers the turn."""
        return bool(message.steer) or (not message.run_id and self._is_step_open)

    def _resolve_guest(self, run: str, message: wire.ConversationMessage) -> str:
        if self._speaker[0] != run:
            record = wire.ConversationRecord(message=message)
            guest = self._find_guest(record) if message.role == "user" else None
            self._speaker = (run, guest or pick_guest(message.agent, self._identity.agent))
        return self._speaker[1]

    def _write_end(self, end: wire.RunEndRecord, after: int) -> None:
        at = parse_timestamp(end.timestamp)
        continues = any(later.message.run_id == end.run_id for later, _ in self._log.entries)
        if continues and end.run_id:
            return  # a person wrote while the last text was being stored
        is_ours = self._state.open_run == end.run_id or self._state.open_run.startswith(
            LEGACY_RUN_PREFIX
        )
        events: list[AnyRunEvent] = []
        if is_ours and self._writer.is_busy:
            events.append(parse_run_end(end))
        run = "" if is_ours else self._state.open_run
        self._writer.write_record(
            self._to_received(events, self._state.open_run, at, ""),
            run=run,
            progress=RunProgress() if is_ours else self._writer.progress,
            record=after,
            through=at,
        )
        if self.live_run is not None and self.live_run.run == end.run_id:
            self.live_run = None

    def _write_compaction(self, archive: wire.ArchiveInfo, after: int) -> None:
        at = parse_timestamp(archive.archived_at)
        self._writer.write_record(
            self._to_received([ConversationCompacted(archive.title)], f"archive:{at}", at, ""),
            run=self._state.open_run,
            progress=self._writer.progress,
            record=after,
            through=0 if self._state.open_run else at,
        )

    def _to_received(
        self, events: Iterable[AnyRunEvent], run: str, at: int, guest: str
    ) -> Iterator[ReceivedEvent]:
        agent, sender = self._identity.agent, self._identity.sender
        for what in events:
            yield ReceivedEvent(run=run, event=what, at=at, guest=guest, agent=agent, sender=sender)

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def handle_event(self, received: ReceivedEvent | None) -> None:
        if received is None:
            if self.live_run is not None and self.live_run.is_paced:
                self.live_run = None
            self.must_read = True
        elif received.parent is not None:
            self._writer.write_event(received)
        elif isinstance(received.event, ConversationCompacted):
            self.must_read = True
        else:
            self._handle_run_event(received)

    def _handle_run_event(self, received: ReceivedEvent) -> None:
        """Handle an event of one of this conversation's own runs."""
        live_run = self.live_run
        is_other = live_run is None or live_run.run != received.run
        if isinstance(received.event, RunBegan):
            if not received.is_streamed:
                self.live_run = LiveRun(received.run, received.guest, is_paced=True)
            elif is_other or (live_run is not None and not live_run.is_paced):
                self.live_run = LiveRun(received.run, received.guest, is_paced=False)
            self.must_read = True
        elif live_run is None or live_run.run != received.run:
            # The beginning was not received. It is in the log, unless the run was refused at once.
            if isinstance(received.event, RunEnded):
                self.live_run = LiveRun(received.run, received.guest, is_paced=False)
                self.live_run.handle_event(received)
            self.must_read = (
                self.must_read or received.run != self._state.open_run or advances_log(received)
            )
        elif live_run.is_paced != received.is_streamed:
            live_run.handle_event(received)
            self._write_live_event(live_run, received)
            self.must_read = self.must_read or advances_log(received)
        if self._speaker[0] != received.run:
            self._speaker = (received.run, received.guest)
            self.write_entries()
        if isinstance(received.event, QuestionsAsked) and not received.is_streamed:
            self._writer.write_event(received)

    def _write_live_event(self, live_run: LiveRun, received: ReceivedEvent) -> None:
        """Write an event before the log has it."""
        progress = self._writer.progress
        is_written = self._state.open_run == live_run.run  # what came before it is written
        received = msgspec.structs.replace(received, is_streamed=False)
        match received.event:
            case TextPiece():
                text = live_run.take_new_text(received.event, progress)
                if text and is_written:
                    what = msgspec.structs.replace(received.event, text=text)
                    self._writer.write_event(msgspec.structs.replace(received, event=what))
            case _ if not is_written:
                pass
            case SegmentEnded() if live_run.is_at_same_message(progress) and not progress.is_told:
                self._writer.write_event(received)
            case ToolReturned(call=call) if (
                live_run.is_at_same_message(progress) and call not in self._returned_calls
            ):
                self._returned_calls.add(call)
                self._writer.write_event(received)
            case StepEnded() if live_run.is_at_same_message(progress) and self._is_step_open:
                self._is_step_open = False
                self._writer.write_event(received)
            case TokensUsed() if live_run.is_paced:
                self._writer.write_event(received)
            case _:
                pass

    def end_unrecorded_run(self) -> None:
        """End a run that has no end record, because the daemon or its storage died."""
        run = self._state.open_run
        if run.startswith(LEGACY_RUN_PREFIX):
            self._end_legacy_run(now_ms())
        elif self.live_run is not None and self.live_run.end_event is not None:
            if self.live_run.run == run or not self._writer.is_busy:
                self._writer.write_end(
                    msgspec.structs.replace(self.live_run.end_event, is_streamed=False)
                )
            self.live_run = None

    def _end_legacy_run(self, when: int) -> None:
        """End a run in a log that does not record how runs ended."""
        if self._is_answered:
            self._writer.write_end(
                ReceivedEvent(
                    run=self._state.open_run, event=RunEnded(EndReason.COMPLETED), at=when
                )
            )
        else:
            self._writer.close_unseen_turn(when)


def is_from_person(message: wire.ConversationMessage) -> bool:
    return message.role == "user"


def begins_turn(record: wire.ConversationRecord) -> bool:
    """Return whether it is a person's message that begins a turn."""
    message = record.message
    return record.WhichOneof("record") == "message" and message.role == "user" and not message.steer


def advances_log(received: ReceivedEvent) -> bool:
    """Return whether the log has more records after this event."""
    return isinstance(received.event, ToolsCalled | RunSteered | RunEnded)


def pick_guest(speaker: str, agent: str) -> str:
    return speaker if speaker != agent else ""
