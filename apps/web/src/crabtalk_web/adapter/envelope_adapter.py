"""Adapter: what happens in one conversation in, the envelopes of its session out.

Pure: no clock, no chance, no I/O. The same happenings give the same envelopes, with the same ids.
Runs of one conversation follow one another, but what is heard of them may not: whatever comes too
early is kept, within bounds, until its turn has come.
"""

from collections.abc import Iterable
from functools import partial

from crabtalk_web.stream import Envelope, FileEvent, IncreasingClock, TurnStatus, derive_id

from .background_runs import BackgroundRuns
from .envelope_builder import EnvelopeBuilder
from .open_turn import OpenTurn
from .pending_events import PendingEvents
from .questions import OpenAsk
from .run_events import (
    ConversationCompacted,
    EndReason,
    ParentCall,
    QuestionsAsked,
    ReceivedEvent,
    RunBegan,
    RunEnded,
    RunSteered,
    TextPiece,
    ToolsCalled,
)
from .run_state import RunState
from .text_output import GrowingText
from .turn_recovery import recover_turn

# Runs and turns remembered once they are over.
MAX_REMEMBERED = 1024
OPENING_EVENTS = (RunBegan, TextPiece, ToolsCalled, QuestionsAsked, RunSteered)

CONNECTION_LOST_TEXT = (
    "The connection to the daemon was lost; what became of this turn is in the conversation."
)
END_UNSEEN_TEXT = "The end of this turn was not seen; what became of it is in the conversation."
END_SENTENCES = {
    EndReason.MAX_ITERATIONS: "The agent used up the steps it may take.",
    EndReason.NO_ACTION: "The model returned neither text nor a call.",
}


class EnvelopeAdapter:
    """Of one session. `session` is any text that is the session's own, and stays so.

    `is_compat` is for readers that know certain tools by their names, and `shows_output` for those
    that show nothing of what tools gave back: they get it as reasoning.
    `history` is what was journalled last, from the start of a turn that may still be open.
    """

    def __init__(
        self,
        session: str,
        *,
        is_compat: bool = False,
        shows_output: bool = False,
        context_window: int = 0,
        history: Iterable[Envelope] = (),
    ) -> None:
        self._session = session
        self._is_compat = is_compat
        self._shows_output = shows_output
        self._context_window = context_window
        self._times = IncreasingClock()
        self._ended_runs: dict[str, None] = {}  # runs that ended
        self._closed_turns: dict[str, None] = {}  # turns that did
        self._queued_turns: PendingEvents[str] = PendingEvents()  # by run
        self._orphans: PendingEvents[tuple[str, str]] = (
            PendingEvents()
        )  # by run and call of the parent
        self._background = BackgroundRuns()
        self._envelopes: list[Envelope] = []
        self._turn: OpenTurn | None = recover_turn(
            history, self._new_turn, self._times, partial(remember_key, self._closed_turns)
        )

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open."""
        return self._turn is not None

    @property
    def pending_asks(self) -> tuple[OpenAsk, ...]:
        """What waits for a person's answer now."""
        return tuple(self._turn.calls.pending_asks.values()) if self._turn is not None else ()

    @property
    def growing_text(self) -> GrowingText | None:
        """What the turn's own agent, or its guest, is saying and no envelope has yet."""
        turn = self._turn
        if turn is None or turn.root.segment is None:
            return None
        return GrowingText(turn.root.segment, turn.id, turn.guest, turn.root.subagent)

    @property
    def pending_text(self) -> tuple[int, bool]:
        """How many characters of the turn's own agent are in no envelope yet, and whether they are
        reasoning."""
        segment = self._turn.root.segment if self._turn is not None else None
        return (segment.pending_size, segment.thinking) if segment is not None else (0, False)

    def handle_event(self, heard: ReceivedEvent) -> list[Envelope]:
        self._dispatch_event(heard)
        self._handle_queued_turns()
        return self._take_envelopes()

    def reopen_run(self, run: str) -> None:
        """A run that has ended goes on: somebody spoke while its last words were being stored."""
        self._ended_runs.pop(run, None)

    def flush_idle_text(self, at: int) -> list[Envelope]:
        """For a time in which nothing was heard; makes what was said so far visible."""
        if self._turn is not None:
            self._turn.flush_ready_text(at)
        return self._take_envelopes()

    def mark_killed(self) -> None:
        """Somebody asked for the turn to be stopped: however it ends now, it is cancelled."""
        if self._turn is not None:
            self._turn.is_killed = True

    def close_lost_turn(self, at: int, why: str = CONNECTION_LOST_TEXT) -> list[Envelope]:
        """Nothing more will be heard of the open turn; if that is wrong, it goes on as another."""
        self._close_lost_turn(at, why)
        self._handle_queued_turns()
        return self._take_envelopes()

    def close_ask(self, ask_id: str, at: int, receipt: str = "") -> list[Envelope]:
        """A question was answered, or given up. `receipt` says what was decided about a call."""
        if self._turn is not None:
            self._turn.calls.close_ask(self._turn.root, ask_id, at, receipt)
        return self._take_envelopes()

    def record_approval(self, ask: OpenAsk, receipt: str, at: int) -> list[Envelope]:
        """An approval of somebody else's run was answered here: in the open turn or in one of its
        own, since that run is not told in this session."""
        if self._turn is not None:
            self._turn.calls.record_approval(self._turn.root, ask, receipt, at)
        elif (aside := self._open_side_turn(at, "approval", ask.id)) is not None:
            aside.calls.record_approval(aside.root, ask, receipt, at)
            self._end_turn(aside, "completed", at)
        return self._take_envelopes()

    def write_notice(self, text: str, at: int) -> list[Envelope]:
        """A line of service, in the open turn or in a turn of its own."""
        self._write_notice(text, at, "note", str(at), text)
        return self._take_envelopes()

    def write_file(self, file: FileEvent, at: int, *, run: str = "") -> list[Envelope]:
        """A file for people: from `run` if that is at work, else from the conversation's own."""
        if self._turn is not None:
            self._turn.write_file(file, run, at)
        elif (aside := self._open_side_turn(at, "file", file.ref)) is not None:
            aside.write_file(file, "", at)
            self._end_turn(aside, "completed", at)
        return self._take_envelopes()

    def statistics(self) -> dict[str, int]:
        return {
            "turns_waiting": len(self._queued_turns),
            "orphans": len(self._orphans),
            "background": len(self._background),
            "dropped": self._orphans.dropped,
        }

    # ── Which turn it belongs to ────────────────────────────────────────────────────────────────

    def _dispatch_event(self, heard: ReceivedEvent) -> None:
        if isinstance(heard.event, ConversationCompacted):
            text = f"**Compacted:** {heard.event.title}" if heard.event.title else "**Compacted**"
            self._write_notice(text, heard.at, "compacted", heard.run, heard.at, text)
        elif heard.run in self._ended_runs:
            pass
        elif heard.parent is not None:
            self._handle_task_event(heard, heard.parent)
        else:
            self._handle_turn_event(heard)

    def _handle_turn_event(self, heard: ReceivedEvent) -> None:
        if self._turn is not None and not self._turn.run:
            self._turn.is_streamed = heard.is_streamed
            if not self._resume_turn(heard.run):
                self._close_lost_turn(heard.at, END_UNSEEN_TEXT)
        if self._turn is None:
            self._open_turn(heard)
        elif self._turn.run != heard.run:
            self._queue_event(self._turn, heard)
        elif self._turn.is_streamed == heard.is_streamed:
            self._write_event(self._turn, self._turn.root, heard)

    def _resume_turn(self, run: str) -> bool:
        """Whether the turn that was open in the journal is this run's."""
        if self._turn is None or self._next_turn_id(run) != self._turn.id:
            return False
        self._turn.set_run(run)
        return True

    def _open_turn(self, heard: ReceivedEvent) -> None:
        what = heard.event
        if not isinstance(what, OPENING_EVENTS) and not (isinstance(what, RunEnded) and what.error):
            if isinstance(what, RunEnded):
                remember_key(self._ended_runs, heard.run)
            return
        self._turn = self._new_turn(
            self._next_turn_id(heard.run),
            run=heard.run,
            guest=heard.guest,
            is_streamed=heard.is_streamed,
        )
        said = what.text if isinstance(what, RunBegan) else ""
        self._turn.begin(said, heard.at)
        self._write_event(self._turn, self._turn.root, heard)

    def _queue_event(self, turn: OpenTurn, heard: ReceivedEvent) -> None:
        """Another run's turn is open: this one follows it."""
        waiting = self._queued_turns.get(heard.run)
        if waiting and waiting[0].is_streamed != heard.is_streamed:
            return
        has_room = self._queued_turns.add(heard.run, heard)
        # The feed has all in order: what begins in it before another has ended missed that end.
        is_late = not heard.is_streamed and isinstance(heard.event, OPENING_EVENTS)
        if not has_room or (is_late and not turn.is_streamed):
            remember_key(self._ended_runs, turn.run)
            self._close_lost_turn(heard.at, END_UNSEEN_TEXT)
            self._handle_queued_turns()
        if not has_room:
            self._dispatch_event(heard)

    def _handle_task_event(self, heard: ReceivedEvent, parent: ParentCall) -> None:
        if self._turn is not None and not self._turn.run:
            self._resume_turn(parent.run)
        if self._turn is not None and (lane := self._turn.find_run(heard)) is not None:
            # Where the turn was recovered, some may have waited for this one to be heard of.
            self._replay_orphans(heard.run, (task.key[0] for task in lane.tasks))
            self._write_event(self._turn, lane, heard)
            return
        if not self._background.is_tracking(heard):
            if parent.run in self._ended_runs:
                return
            if derive_id(self._session, "turn", parent.run, 0) not in self._closed_turns:
                self._orphans.add_evicting_oldest((parent.run, parent.call), heard)
                return
            self._background.add_run(heard)
        if report := self._background.handle_event(heard):
            remember_key(self._ended_runs, heard.run)
            self._write_notice(report, heard.at, "report", heard.run)

    def _replay_orphans(self, run: str, calls: Iterable[str]) -> None:
        """Those who came before the calls that set them off."""
        for call in list(calls) if self._orphans else ():
            for orphan in self._orphans.take((run, call)):
                self._dispatch_event(orphan)

    def _write_event(self, turn: OpenTurn, lane: RunState, heard: ReceivedEvent) -> None:
        if heard.missed:
            turn.write_notice(
                f"**Note:** up to {heard.missed} events may be missing here.", heard.at
            )
        if isinstance(heard.event, RunEnded) and lane is turn.root:
            self._finish_turn(turn, heard.event, heard.at)
            return
        turn.handle_event(lane, heard)
        self._move_outlived_tasks(turn)
        if isinstance(heard.event, RunEnded):
            remember_key(self._ended_runs, heard.run)
        elif isinstance(heard.event, ToolsCalled):
            self._replay_orphans(heard.run, (call.id for call in heard.event.calls))

    def _move_outlived_tasks(self, turn: OpenTurn) -> None:
        for task in turn.calls.outlived_tasks:
            self._background.add_task(task)
        turn.calls.outlived_tasks.clear()

    # ── Beginnings and ends ─────────────────────────────────────────────────────────────────────

    def _finish_turn(self, turn: OpenTurn, ended: RunEnded, at: int) -> None:
        remember_key(self._ended_runs, turn.run)
        status, service = turn_outcome(ended, is_killed=turn.is_killed)
        self._end_turn(turn, status, at, service=service)

    def _close_lost_turn(self, at: int, why: str) -> None:
        if self._turn is not None:
            is_killed = self._turn.is_killed
            status: TurnStatus = "cancelled" if is_killed else "failed"
            self._end_turn(self._turn, status, at, service="" if is_killed else why)

    def _end_turn(self, turn: OpenTurn, status: TurnStatus, at: int, *, service: str = "") -> None:
        turn.end(status, at, service=service)
        self._move_outlived_tasks(turn)
        self._envelopes += turn.take_envelopes()
        remember_key(self._closed_turns, turn.id)
        for run in turn.runs:
            if run != turn.run:
                remember_key(self._ended_runs, run)
        if turn is self._turn:
            self._turn = None
            for run, call in [key for key in self._orphans if key[0] in self._ended_runs]:
                self._orphans.take((run, call))

    def _handle_queued_turns(self) -> None:
        """What had to wait for the end of a turn."""
        while self._turn is None and self._queued_turns:
            for heard in self._queued_turns.take(next(iter(self._queued_turns))):
                self._dispatch_event(heard)

    def _write_notice(self, text: str, at: int, *key: str | int) -> None:
        if self._turn is not None:
            self._turn.write_notice(text, at)
        elif (aside := self._open_side_turn(at, *key)) is not None:
            aside.write_notice(text, at)
            self._end_turn(aside, "completed", at)

    def _open_side_turn(self, at: int, *key: str | int) -> OpenTurn | None:
        """A turn for something said outside of any. None if it was said already."""
        turn = derive_id(self._session, "aside", *key)
        if turn in self._closed_turns:
            return None
        aside = self._new_turn(turn)
        aside.begin("", at)
        return aside

    def _new_turn(
        self, turn: str, *, run: str = "", guest: str = "", is_streamed: bool = False
    ) -> OpenTurn:
        return OpenTurn(
            EnvelopeBuilder(self._session, turn, self._times),
            run=run,
            guest=guest,
            is_streamed=is_streamed,
            is_compat=self._is_compat,
            shows_output=self._shows_output,
            context_window=self._context_window,
        )

    def _next_turn_id(self, run: str) -> str:
        """A run that goes on after its turn was given up has another."""
        part = 0
        while (turn := derive_id(self._session, "turn", run, part)) in self._closed_turns:
            part += 1
        return turn

    def _take_envelopes(self) -> list[Envelope]:
        out, self._envelopes = self._envelopes, []
        return out + (self._turn.take_envelopes() if self._turn is not None else [])


def turn_outcome(ended: RunEnded, *, is_killed: bool) -> tuple[TurnStatus, str]:
    """How a turn ended, and what is to be said of it."""
    if is_killed or ended.reason is EndReason.CANCELLED:
        return "cancelled", ""
    if ended.error or ended.reason is EndReason.ERROR:
        return "failed", f"**Error:** {ended.error or 'nobody said which'}"
    if ended.reason in END_SENTENCES:
        return "failed", END_SENTENCES[ended.reason]
    return "completed", ""


def remember_key(known: dict[str, None], key: str) -> None:
    known[key] = None
    while len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]
