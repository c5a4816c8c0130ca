"""The adapter: takes the events of one conversation and returns the envelopes of its session.

Pure: no clock, no randomness, no I/O. The same events give the same envelopes with the same ids.
Runs of one conversation follow one another, but their events may arrive in another order: events
that come too early are held back, within bounds, until their turn opens.
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

# Ended runs and closed turns that are remembered.
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
    """The adapter of one session. `session` is any text that is unique to the session and never
    changes.

    `is_compat` is for readers that know certain tools by their names. `shows_output` is for readers
    that do not show the output of tools: they get it as reasoning. `history` is the end of the
    journal, from the start of a turn that may still be open.
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
        self._ended_runs: dict[str, None] = {}
        self._closed_turns: dict[str, None] = {}
        self._queued_turns: PendingEvents[str] = PendingEvents()  # by run
        self._orphans: PendingEvents[tuple[str, str]] = PendingEvents()  # by parent run and call
        self._background = BackgroundRuns()
        self._envelopes: list[Envelope] = []
        self._turn: OpenTurn | None = recover_turn(
            history, self._new_turn, self._times, partial(remember_key, self._closed_turns)
        )

    @property
    def is_busy(self) -> bool:
        return self._turn is not None

    @property
    def pending_asks(self) -> tuple[OpenAsk, ...]:
        """The questions that are waiting for a person's answer."""
        return tuple(self._turn.calls.pending_asks.values()) if self._turn is not None else ()

    @property
    def growing_text(self) -> GrowingText | None:
        """The text that the turn's own agent or its guest is writing and that is in no envelope
        yet."""
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

    def handle_event(self, received: ReceivedEvent) -> list[Envelope]:
        self._dispatch_event(received)
        self._handle_queued_turns()
        return self._take_envelopes()

    def reopen_run(self, run: str) -> None:
        """Continue a run that had ended: a person wrote a message while its last text was being
        stored."""
        self._ended_runs.pop(run, None)

    def flush_idle_text(self, at: int) -> list[Envelope]:
        """Write the pending text when no event has come for a while."""
        if self._turn is not None:
            self._turn.flush_ready_text(at)
        return self._take_envelopes()

    def mark_killed(self) -> None:
        """A person stopped the turn: however it ends now, its status is cancelled."""
        if self._turn is not None:
            self._turn.is_killed = True

    def close_lost_turn(self, at: int, why: str = CONNECTION_LOST_TEXT) -> list[Envelope]:
        """Close the open turn because no more events of it are expected. If events come after all,
        they open another turn."""
        self._close_lost_turn(at, why)
        self._handle_queued_turns()
        return self._take_envelopes()

    def close_ask(self, ask_id: str, at: int, receipt: str = "") -> list[Envelope]:
        """A question was answered or dropped. `receipt` describes the decision about a call."""
        if self._turn is not None:
            self._turn.calls.close_ask(self._turn.root, ask_id, at, receipt)
        return self._take_envelopes()

    def record_approval(self, ask: OpenAsk, receipt: str, at: int) -> list[Envelope]:
        """Record a decision about a run of another sender. It goes into the open turn or into one
        of its own, because that run is not shown in this session."""
        if self._turn is not None:
            self._turn.calls.record_approval(self._turn.root, ask, receipt, at)
        elif (side_turn := self._open_side_turn(at, "approval", ask.id)) is not None:
            side_turn.calls.record_approval(side_turn.root, ask, receipt, at)
            self._end_turn(side_turn, "completed", at)
        return self._take_envelopes()

    def write_notice(self, text: str, at: int) -> list[Envelope]:
        """Write a service line, in the open turn or in a turn of its own."""
        self._write_notice(text, at, "note", str(at), text)
        return self._take_envelopes()

    def write_file(self, file: FileEvent, at: int, *, run: str = "") -> list[Envelope]:
        """Write a file for the person: from `run` if that is active, else from the conversation's
        own run."""
        if self._turn is not None:
            self._turn.write_file(file, run, at)
        elif (side_turn := self._open_side_turn(at, "file", file.ref)) is not None:
            side_turn.write_file(file, "", at)
            self._end_turn(side_turn, "completed", at)
        return self._take_envelopes()

    def statistics(self) -> dict[str, int]:
        return {
            "turns_waiting": len(self._queued_turns),
            "orphans": len(self._orphans),
            "background": len(self._background),
            "dropped": self._orphans.dropped,
        }

    # ── Which turn it belongs to ────────────────────────────────────────────────────────────────

    def _dispatch_event(self, received: ReceivedEvent) -> None:
        if isinstance(received.event, ConversationCompacted):
            text = (
                f"**Compacted:** {received.event.title}"
                if received.event.title
                else "**Compacted**"
            )
            self._write_notice(text, received.at, "compacted", received.run, received.at, text)
        elif received.run in self._ended_runs:
            pass
        elif received.parent is not None:
            self._handle_task_event(received, received.parent)
        else:
            self._handle_turn_event(received)

    def _handle_turn_event(self, received: ReceivedEvent) -> None:
        if self._turn is not None and not self._turn.run:
            self._turn.is_streamed = received.is_streamed
            if not self._resume_turn(received.run):
                self._close_lost_turn(received.at, END_UNSEEN_TEXT)
        if self._turn is None:
            self._open_turn(received)
        elif self._turn.run != received.run:
            self._queue_event(self._turn, received)
        elif self._turn.is_streamed == received.is_streamed:
            self._write_event(self._turn, self._turn.root, received)

    def _resume_turn(self, run: str) -> bool:
        """Return whether the turn that was open in the journal belongs to this run."""
        if self._turn is None or self._next_turn_id(run) != self._turn.id:
            return False
        self._turn.set_run(run)
        return True

    def _open_turn(self, received: ReceivedEvent) -> None:
        what = received.event
        if not isinstance(what, OPENING_EVENTS) and not (isinstance(what, RunEnded) and what.error):
            if isinstance(what, RunEnded):
                remember_key(self._ended_runs, received.run)
            return
        self._turn = self._new_turn(
            self._next_turn_id(received.run),
            run=received.run,
            guest=received.guest,
            is_streamed=received.is_streamed,
        )
        text = what.text if isinstance(what, RunBegan) else ""
        self._turn.begin(text, received.at)
        self._write_event(self._turn, self._turn.root, received)

    def _queue_event(self, turn: OpenTurn, received: ReceivedEvent) -> None:
        """Hold back an event of another run until the open turn ends."""
        queued = self._queued_turns.get(received.run)
        if queued and queued[0].is_streamed != received.is_streamed:
            return
        has_room = self._queued_turns.add(received.run, received)
        # The feed is in order: if a run begins before another one has ended, that end was lost.
        is_late = not received.is_streamed and isinstance(received.event, OPENING_EVENTS)
        if not has_room or (is_late and not turn.is_streamed):
            remember_key(self._ended_runs, turn.run)
            self._close_lost_turn(received.at, END_UNSEEN_TEXT)
            self._handle_queued_turns()
        if not has_room:
            self._dispatch_event(received)

    def _handle_task_event(self, received: ReceivedEvent, parent: ParentCall) -> None:
        if self._turn is not None and not self._turn.run:
            self._resume_turn(parent.run)
        if self._turn is not None and (run_state := self._turn.find_run(received)) is not None:
            # If the turn was recovered, events may have waited for the first event of this run.
            self._replay_orphans(received.run, (task.key[0] for task in run_state.tasks))
            self._write_event(self._turn, run_state, received)
            return
        if not self._background.is_tracking(received):
            if parent.run in self._ended_runs:
                return
            if derive_id(self._session, "turn", parent.run, 0) not in self._closed_turns:
                self._orphans.add_evicting_oldest((parent.run, parent.call), received)
                return
            self._background.add_run(received)
        if report := self._background.handle_event(received):
            remember_key(self._ended_runs, received.run)
            self._write_notice(report, received.at, "report", received.run)

    def _replay_orphans(self, run: str, calls: Iterable[str]) -> None:
        """Handle the events that came before the calls that started their runs."""
        for call in list(calls) if self._orphans else ():
            for orphan in self._orphans.take((run, call)):
                self._dispatch_event(orphan)

    def _write_event(self, turn: OpenTurn, run_state: RunState, received: ReceivedEvent) -> None:
        if received.missed:
            turn.write_notice(
                f"**Note:** up to {received.missed} events may be missing here.", received.at
            )
        if isinstance(received.event, RunEnded) and run_state is turn.root:
            self._finish_turn(turn, received.event, received.at)
            return
        turn.handle_event(run_state, received)
        self._move_outlived_tasks(turn)
        if isinstance(received.event, RunEnded):
            remember_key(self._ended_runs, received.run)
        elif isinstance(received.event, ToolsCalled):
            self._replay_orphans(received.run, (call.id for call in received.event.calls))

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
        """Handle the events that waited for the end of a turn."""
        while self._turn is None and self._queued_turns:
            for received in self._queued_turns.take(next(iter(self._queued_turns))):
                self._dispatch_event(received)

    def _write_notice(self, text: str, at: int, *key: str | int) -> None:
        if self._turn is not None:
            self._turn.write_notice(text, at)
        elif (side_turn := self._open_side_turn(at, *key)) is not None:
            side_turn.write_notice(text, at)
            self._end_turn(side_turn, "completed", at)

    def _open_side_turn(self, at: int, *key: str | int) -> OpenTurn | None:
        """Open a turn for a line outside of any turn. None if that line was written before."""
        turn = derive_id(self._session, "aside", *key)
        if turn in self._closed_turns:
            return None
        side_turn = self._new_turn(turn)
        side_turn.begin("", at)
        return side_turn

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
        """A run that continues after its turn was closed gets a new turn."""
        part = 0
        while (turn := derive_id(self._session, "turn", run, part)) in self._closed_turns:
            part += 1
        return turn

    def _take_envelopes(self) -> list[Envelope]:
        out, self._envelopes = self._envelopes, []
        return out + (self._turn.take_envelopes() if self._turn is not None else [])


def turn_outcome(ended: RunEnded, *, is_killed: bool) -> tuple[TurnStatus, str]:
    """Return the status of an ended turn, and the service line about it."""
    if is_killed or ended.reason is EndReason.CANCELLED:
        return "cancelled", ""
    if ended.error or ended.reason is EndReason.ERROR:
        return "failed", f"**Error:** {ended.error or 'no reason was given'}"
    if ended.reason in END_SENTENCES:
        return "failed", END_SENTENCES[ended.reason]
    return "completed", ""


def remember_key(known: dict[str, None], key: str) -> None:
    known[key] = None
    while len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]
