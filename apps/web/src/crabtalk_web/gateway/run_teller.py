"""RunTeller: the runs of a conversation, told from the records of its log and from live events.

No I/O: the mirror reads the log and hears the events. Records are told in the order of the log,
each once. Events add what the log does not have, or not yet.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from crabtalk.protocol import wire
from crabtalk_web.adapter import Heard
from crabtalk_web.adapter.happenings import (
    AnyHappening,
    Asked,
    Began,
    Called,
    Compacted,
    Ended,
    Piece,
    Reason,
    Returned,
    SegmentOver,
    Steered,
    StepOver,
    Used,
)
from crabtalk_web.adapter.sources import milliseconds

from .book import Book
from .entries import Progress
from .identity import Identity
from .inbox import key_prefix
from .live_run import LiveRun
from .record_events import (
    after_message,
    assistant_happenings,
    read_run_end,
    run_of,
    said_by_person,
    tool_happenings,
)
from .record_log import Entry, RecordLog, ToldRecords, read_open_turn, skip_characters
from .teller import Teller, now_ms

OLD_RUN = "message:"


class RunTeller:
    """`told` are the records that are not to be told; None: all are. `must_read` says that the log
    has more than was read. `live` is the run whose events are heard."""

    def __init__(
        self,
        identity: Identity,
        teller: Teller,
        log: RecordLog,
        has_room: Callable[[], bool],
    ) -> None:
        self._identity = identity
        self._teller = teller
        self._log = log
        self._has_room = has_room
        self.told: ToldRecords | None = None
        self.must_read = True
        self.live: LiveRun | None = None
        self.read_messages = 0  # the number of the message that comes next
        self.renamed: Callable[[str], None] = lambda title: None
        self._speaker = ("", "")  # a run, and its guest if it has one
        self._returned: set[str] = set()  # calls of the step in flight that have returned
        self._is_step_open = False
        self._is_answered = False  # the last message of the log is an answer

    @property
    def _book(self) -> Book:
        return self._teller.book

    def start_over(self) -> None:
        """The log is read from where the book says."""
        self.told, self.live = None, None
        self.must_read = True

    # ── Records ─────────────────────────────────────────────────────────────────────────────

    @property
    def unknown_run(self) -> str:
        """The run that the next record begins, if it is not known yet who answers in it."""
        record = self._log.entries[0].record if self._log.entries else None
        if record is None or not is_beginning(record) or self._guest_of(record) is not None:
            return ""
        return run_of(record.message)

    def tell_entries(self) -> None:
        while self._log.entries and self._has_room() and self._may_tell(self._log.entries[0]):
            self._tell_entry(self._log.entries.popleft())

    def _may_tell(self, entry: Entry) -> bool:
        record = entry.record
        if is_beginning(record):
            return self._guest_of(record) is not None
        live = self.live
        if live is None or live.run not in (record.message.run_id, record.run_end.run_id):
            return True
        return live.allows(record, self._teller.progress)

    def _guest_of(self, record: wire.ConversationRecord) -> str | None:
        """Who answers a person's message, if it is not the conversation's own agent. None when
        nobody knows yet."""
        run = run_of(record.message)
        if self._speaker[0] == run:
            return self._speaker[1]
        for later, _ in self._log.entries:
            end, message = later.run_end, later.message
            if end.run_id and end.run_id == run:
                return guest_name(end.agent, self._identity.agent)
            is_answer = message.role in ("assistant", "tool")
            if is_answer and message.run_id == record.message.run_id:
                return guest_name(message.agent, self._identity.agent)
            if is_beginning(later) and run_of(message) != run:
                return ""  # the daemon died before anybody answered
        return "" if run.startswith(OLD_RUN) else None

    def _tell_entry(self, entry: Entry) -> None:
        record, after = entry
        is_told = self.told is not None and self.told.has(record)
        if self.told is not None and not is_told and record.WhichOneof("record") != "run_end":
            self.told = None
        if record.WhichOneof("record") == "message":
            self.read_messages = record.message.id + 1
        match record.WhichOneof("record"):
            case "message" if is_told:
                self._skip_message(record.message)
            case "message":
                self._tell_message(record.message, after)
            case "run_end" if not is_told:
                self._tell_end(record.run_end, after)
            case "compaction" if not is_told:
                self._tell_compaction(record.compaction.archive, after)
            case "change":
                self.renamed(record.change.title)

    def _skip_message(self, message: wire.ConversationMessage) -> None:
        """One that is told. Of the run that goes on, it counts."""
        begins = is_of_a_person(message) and not message.steer
        if message.run_id and message.run_id == self._book.run and not begins:
            self._teller.progress = after_message(message, self._teller.progress)
        self._is_answered = message.role == "assistant" and not message.tool_calls

    def _tell_message(self, message: wire.ConversationMessage, after: int) -> None:
        at = milliseconds(message.timestamp)
        begins = is_of_a_person(message) and not self._is_steer(message)
        run = run_of(message) if begins else message.run_id or self._book.run or run_of(message)
        if run != self._book.run and self._book.run:
            self._end_old_run(at)
        if run != self._book.run:
            self._teller.progress = Progress()
            self._is_step_open = False
        progress = self._teller.progress
        if message.role == "assistant":
            progress = self._migrated(message, progress)
        seen, happened = self._happenings(message, progress, begins=begins)
        self._is_answered = message.role == "assistant" and not message.tool_calls
        self._teller.tell_record(
            self._as_heard(happened, run, at, self._guest_in(run, message)),
            run=run,
            progress=progress if begins else after_message(message, progress),
            record=after,
            position=message.id + 1,
            seen=seen,
        )

    def _happenings(
        self, message: wire.ConversationMessage, progress: Progress, *, begins: bool
    ) -> tuple[str, list[AnyHappening]]:
        """What a message says, and the key of what a device said there, which has it already."""
        happened: list[AnyHappening] = []
        if message.role != "tool" and self._is_step_open:
            self._is_step_open = False
            happened.append(StepOver())
        match message.role:
            case "user":
                seen = self._seen_in(message)
                is_known = bool(seen) or self._is_of_this_session(message.key)
                text = "" if is_known else said_by_person(message)
                if begins:
                    happened.append(Began(text))
                elif text:
                    happened.append(Steered(text))
                return seen, happened
            case "assistant":
                happened += assistant_happenings(message, progress)
                self._returned.clear()
                self._is_step_open = bool(message.tool_calls)
            case "tool":
                happened += tool_happenings(message, self._returned)
        return "", happened

    def _migrated(self, message: wire.ConversationMessage, progress: Progress) -> Progress:
        """A journal of an earlier version has no progress: it is counted in the envelopes."""
        if self._book.record or self._book.progress != Progress() or progress.text:
            return progress
        opened = read_open_turn(self._book.recent) if self._book.run else None
        if opened is None:
            return progress
        return msgspec.structs.replace(
            progress,
            reasoning=skip_characters(message.reasoning, opened.reasoning),
            text=skip_characters(message.content, opened.text),
        )

    def _seen_in(self, message: wire.ConversationMessage) -> str:
        """The key that the daemon was given it with; in a journal of an earlier version, the
        text."""
        if message.key in self._book.pending:
            return message.key
        text = said_by_person(message)
        return text if not message.key and text in self._book.unseen else ""

    def _is_of_this_session(self, key: str) -> bool:
        return key.startswith(key_prefix(self._book.session))

    def _is_steer(self, message: wire.ConversationMessage) -> bool:
        """Logs of earlier versions name no runs: there, a person speaks into a turn after a tool's
        result."""
        return bool(message.steer) or (not message.run_id and self._is_step_open)

    def _guest_in(self, run: str, message: wire.ConversationMessage) -> str:
        if self._speaker[0] != run:
            record = wire.ConversationRecord(message=message)
            guest = self._guest_of(record) if message.role == "user" else None
            self._speaker = (run, guest or guest_name(message.agent, self._identity.agent))
        return self._speaker[1]

    def _tell_end(self, end: wire.RunEndRecord, after: int) -> None:
        at = milliseconds(end.timestamp)
        goes_on = any(later.message.run_id == end.run_id for later, _ in self._log.entries)
        if goes_on and end.run_id:
            return  # somebody spoke while the last words were being stored
        is_ours = self._book.run == end.run_id or self._book.run.startswith(OLD_RUN)
        happened: list[AnyHappening] = []
        if is_ours and self._teller.is_busy:
            happened.append(read_run_end(end))
        run = "" if is_ours else self._book.run
        self._teller.tell_record(
            self._as_heard(happened, self._book.run, at, ""),
            run=run,
            progress=Progress() if is_ours else self._teller.progress,
            record=after,
            through=at,
        )
        if self.live is not None and self.live.run == end.run_id:
            self.live = None

    def _tell_compaction(self, archive: wire.ArchiveInfo, after: int) -> None:
        at = milliseconds(archive.archived_at)
        self._teller.tell_record(
            self._as_heard([Compacted(archive.title)], f"archive:{at}", at, ""),
            run=self._book.run,
            progress=self._teller.progress,
            record=after,
            through=0 if self._book.run else at,
        )

    def _as_heard(
        self, happened: Iterable[AnyHappening], run: str, at: int, guest: str
    ) -> Iterator[Heard]:
        agent, sender = self._identity.agent, self._identity.sender
        for what in happened:
            yield Heard(run=run, what=what, at=at, guest=guest, agent=agent, sender=sender)

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def take(self, heard: Heard | None) -> None:
        if heard is None:
            if self.live is not None and self.live.is_paced:
                self.live = None
            self.must_read = True
        elif heard.parent is not None:
            self._teller.tell(heard)
        elif isinstance(heard.what, Compacted):
            self.must_read = True
        else:
            self._take_event(heard)

    def _take_event(self, heard: Heard) -> None:
        """Of a run of this conversation."""
        live = self.live
        is_other = live is None or live.run != heard.run
        if isinstance(heard.what, Began):
            if not heard.is_streamed:
                self.live = LiveRun(heard.run, heard.guest, is_paced=True)
            elif is_other or (live is not None and not live.is_paced):
                self.live = LiveRun(heard.run, heard.guest, is_paced=False)
            self.must_read = True
        elif live is None or live.run != heard.run:
            # Its beginning was not heard. The log has it, unless it was refused at once.
            if isinstance(heard.what, Ended):
                self.live = LiveRun(heard.run, heard.guest, is_paced=False)
                self.live.hear(heard)
            self.must_read = self.must_read or heard.run != self._book.run or is_step(heard)
        elif live.is_paced != heard.is_streamed:
            live.hear(heard)
            self._tell_event(live, heard)
            self.must_read = self.must_read or is_step(heard)
        if self._speaker[0] != heard.run:
            self._speaker = (heard.run, heard.guest)
            self.tell_entries()
        if isinstance(heard.what, Asked) and not heard.is_streamed:
            self._teller.tell(heard)

    def _tell_event(self, live: LiveRun, heard: Heard) -> None:
        """What is told before the log has it."""
        progress = self._teller.progress
        is_told = self._book.run == live.run  # what it answers; before that comes what is older
        heard = msgspec.structs.replace(heard, is_streamed=False)
        match heard.what:
            case Piece():
                text = live.new_part(heard.what, progress)
                if text and is_told:
                    what = msgspec.structs.replace(heard.what, text=text)
                    self._teller.tell(msgspec.structs.replace(heard, what=what))
            case _ if not is_told:
                pass
            case SegmentOver() if live.is_at(progress) and not progress.is_told:
                self._teller.tell(heard)
            case Returned(call=call) if live.is_at(progress) and call not in self._returned:
                self._returned.add(call)
                self._teller.tell(heard)
            case StepOver() if live.is_at(progress) and self._is_step_open:
                self._is_step_open = False
                self._teller.tell(heard)
            case Used() if live.is_paced:
                self._teller.tell(heard)
            case _:
                pass

    def end_unrecorded(self) -> None:
        """A run that is over though the log does not say so: its daemon died, or its storage."""
        run = self._book.run
        if run.startswith(OLD_RUN):
            self._end_old_run(now_ms())
        elif self.live is not None and self.live.ended is not None:
            if self.live.run == run or not self._teller.is_busy:
                self._teller.end(msgspec.structs.replace(self.live.ended, is_streamed=False))
            self.live = None

    def _end_old_run(self, when: int) -> None:
        """One of a log that does not say how runs ended."""
        if self._is_answered:
            self._teller.end(Heard(run=self._book.run, what=Ended(Reason.COMPLETED), at=when))
        else:
            self._teller.end_unseen(when)


def is_of_a_person(message: wire.ConversationMessage) -> bool:
    return message.role == "user"


def is_beginning(record: wire.ConversationRecord) -> bool:
    """Whether it is what a person said to begin a turn."""
    message = record.message
    return record.WhichOneof("record") == "message" and message.role == "user" and not message.steer


def is_step(heard: Heard) -> bool:
    """Whether the log has more when this is heard."""
    return isinstance(heard.what, Called | Steered | Ended)


def guest_name(speaker: str, agent: str) -> str:
    return speaker if speaker != agent else ""
