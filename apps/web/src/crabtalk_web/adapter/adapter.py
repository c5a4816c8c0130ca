"""Adapter: what happens in one conversation in, the envelopes of its session out.

Pure: no clock, no chance, no I/O. The same happenings give the same envelopes, with the same ids.
Runs of one conversation follow one another, but what is heard of them may not: whatever comes too
early is kept, within bounds, until its turn has come.
"""

from collections.abc import Iterable
from functools import partial

from crabtalk_web.stream import Envelope, File, Status, Times, derived_id

from .asks import Ask
from .background import Background
from .happenings import (
    Asked,
    Began,
    Called,
    Compacted,
    Ended,
    Heard,
    Parent,
    Piece,
    Reason,
    Steered,
)
from .lane import Lane
from .recovery import recover
from .sheet import Sheet
from .speech import Spoken
from .turn import Turn
from .waiting import Waiting

# Runs and turns remembered once they are over.
REMEMBERED = 1024
OPENING = (Began, Piece, Called, Asked, Steered)

LOST = "The connection to the daemon was lost; what became of this turn is in the conversation."
UNSEEN = "The end of this turn was not seen; what became of it is in the conversation."
SENTENCES = {
    Reason.MAX_ITERATIONS: "The agent used up the steps it may take.",
    Reason.NO_ACTION: "The model returned neither text nor a call.",
}


class Adapter:
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
        self._times = Times()
        self._over: dict[str, None] = {}  # runs that ended
        self._closed: dict[str, None] = {}  # turns that did
        self._turns: Waiting[str] = Waiting()  # by run
        self._orphans: Waiting[tuple[str, str]] = Waiting()  # by run and call of the parent
        self._background = Background()
        self._out: list[Envelope] = []
        self._turn: Turn | None = recover(
            history, self._new_turn, self._times, partial(remember, self._closed)
        )

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open."""
        return self._turn is not None

    @property
    def asks(self) -> tuple[Ask, ...]:
        """What waits for a person's answer now."""
        return tuple(self._turn.calls.asks.values()) if self._turn is not None else ()

    @property
    def spoken(self) -> Spoken | None:
        """What the turn's own agent, or its guest, is saying and no envelope has yet."""
        turn = self._turn
        if turn is None or turn.root.segment is None:
            return None
        return Spoken(turn.root.segment, turn.id, turn.guest, turn.root.subagent)

    @property
    def pending(self) -> tuple[int, bool]:
        """How many characters of the turn's own agent are in no envelope yet, and whether they are
        reasoning."""
        segment = self._turn.root.segment if self._turn is not None else None
        return (segment.pending, segment.thinking) if segment is not None else (0, False)

    def hear(self, heard: Heard) -> list[Envelope]:
        self._hear(heard)
        self._go_on()
        return self._taken()

    def reopen(self, run: str) -> None:
        """A run that has ended goes on: somebody spoke while its last words were being stored."""
        self._over.pop(run, None)

    def idle(self, at: int) -> list[Envelope]:
        """For a time in which nothing was heard; makes what was said so far visible."""
        if self._turn is not None:
            self._turn.idle(at)
        return self._taken()

    def kill(self) -> None:
        """Somebody asked for the turn to be stopped: however it ends now, it is cancelled."""
        if self._turn is not None:
            self._turn.is_killed = True

    def lose(self, at: int, why: str = LOST) -> list[Envelope]:
        """Nothing more will be heard of the open turn; if that is wrong, it goes on as another."""
        self._lose(at, why)
        self._go_on()
        return self._taken()

    def answer(self, ask_id: str, at: int, receipt: str = "") -> list[Envelope]:
        """A question was answered, or given up. `receipt` says what was decided about a call."""
        if self._turn is not None:
            self._turn.calls.settle(self._turn.root, ask_id, at, receipt)
        return self._taken()

    def record(self, ask: Ask, receipt: str, at: int) -> list[Envelope]:
        """An approval of somebody else's run was answered here: in the open turn or in one of its
        own, since that run is not told in this session."""
        if self._turn is not None:
            self._turn.calls.record(self._turn.root, ask, receipt, at)
        elif (aside := self._aside(at, "approval", ask.id)) is not None:
            aside.calls.record(aside.root, ask, receipt, at)
            self._end(aside, "completed", at)
        return self._taken()

    def note(self, text: str, at: int) -> list[Envelope]:
        """A line of service, in the open turn or in a turn of its own."""
        self._note(text, at, "note", str(at), text)
        return self._taken()

    def attach(self, file: File, at: int, *, run: str = "") -> list[Envelope]:
        """A file for people: from `run` if that is at work, else from the conversation's own."""
        if self._turn is not None:
            self._turn.attach(file, run, at)
        elif (aside := self._aside(at, "file", file.ref)) is not None:
            aside.attach(file, "", at)
            self._end(aside, "completed", at)
        return self._taken()

    def statistics(self) -> dict[str, int]:
        return {
            "turns_waiting": len(self._turns),
            "orphans": len(self._orphans),
            "background": len(self._background),
            "dropped": self._orphans.dropped,
        }

    # ── Which turn it belongs to ────────────────────────────────────────────────────────────────

    def _hear(self, heard: Heard) -> None:
        if isinstance(heard.what, Compacted):
            text = f"**Compacted:** {heard.what.title}" if heard.what.title else "**Compacted**"
            self._note(text, heard.at, "compacted", heard.run, heard.at, text)
        elif heard.run in self._over:
            pass
        elif heard.parent is not None:
            self._hear_task(heard, heard.parent)
        else:
            self._hear_turn(heard)

    def _hear_turn(self, heard: Heard) -> None:
        if self._turn is not None and not self._turn.run:
            self._turn.is_streamed = heard.is_streamed
            if not self._is_resumed(heard.run):
                self._lose(heard.at, UNSEEN)
        if self._turn is None:
            self._open(heard)
        elif self._turn.run != heard.run:
            self._wait(self._turn, heard)
        elif self._turn.is_streamed == heard.is_streamed:
            self._tell(self._turn, self._turn.root, heard)

    def _is_resumed(self, run: str) -> bool:
        """Whether the turn that was open in the journal is this run's."""
        if self._turn is None or self._turn_id(run) != self._turn.id:
            return False
        self._turn.bind(run)
        return True

    def _open(self, heard: Heard) -> None:
        what = heard.what
        if not isinstance(what, OPENING) and not (isinstance(what, Ended) and what.error):
            if isinstance(what, Ended):
                remember(self._over, heard.run)
            return
        self._turn = self._new_turn(
            self._turn_id(heard.run),
            run=heard.run,
            guest=heard.guest,
            is_streamed=heard.is_streamed,
        )
        said = what.said if isinstance(what, Began) else ""
        self._turn.begin(said, heard.at)
        self._tell(self._turn, self._turn.root, heard)

    def _wait(self, turn: Turn, heard: Heard) -> None:
        """Another run's turn is open: this one follows it."""
        waiting = self._turns.of(heard.run)
        if waiting and waiting[0].is_streamed != heard.is_streamed:
            return
        has_room = self._turns.keep(heard.run, heard)
        # The feed has all in order: what begins in it before another has ended missed that end.
        is_late = not heard.is_streamed and isinstance(heard.what, OPENING)
        if not has_room or (is_late and not turn.is_streamed):
            remember(self._over, turn.run)
            self._lose(heard.at, UNSEEN)
            self._go_on()
        if not has_room:
            self._hear(heard)

    def _hear_task(self, heard: Heard, parent: Parent) -> None:
        if self._turn is not None and not self._turn.run:
            self._is_resumed(parent.run)
        if self._turn is not None and (lane := self._turn.lane_of(heard)) is not None:
            # Where the turn was recovered, some may have waited for this one to be heard of.
            self._release(heard.run, (task.key[0] for task in lane.tasks))
            self._tell(self._turn, lane, heard)
            return
        if not self._background.has(heard):
            if parent.run in self._over:
                return
            if derived_id(self._session, "turn", parent.run, 0) not in self._closed:
                self._orphans.keep_newest((parent.run, parent.call), heard)
                return
            self._background.adopt(heard)
        if report := self._background.hear(heard):
            remember(self._over, heard.run)
            self._note(report, heard.at, "report", heard.run)

    def _release(self, run: str, calls: Iterable[str]) -> None:
        """Those who came before the calls that set them off."""
        for call in list(calls) if self._orphans else ():
            for orphan in self._orphans.take((run, call)):
                self._hear(orphan)

    def _tell(self, turn: Turn, lane: Lane, heard: Heard) -> None:
        if heard.missed:
            turn.note(f"**Note:** up to {heard.missed} events may be missing here.", heard.at)
        if isinstance(heard.what, Ended) and lane is turn.root:
            self._finish(turn, heard.what, heard.at)
            return
        turn.hear(lane, heard)
        self._keep_outlived(turn)
        if isinstance(heard.what, Ended):
            remember(self._over, heard.run)
        elif isinstance(heard.what, Called):
            self._release(heard.run, (call.id for call in heard.what.calls))

    def _keep_outlived(self, turn: Turn) -> None:
        for task in turn.calls.outlived:
            self._background.keep(task)
        turn.calls.outlived.clear()

    # ── Beginnings and ends ─────────────────────────────────────────────────────────────────────

    def _finish(self, turn: Turn, ended: Ended, at: int) -> None:
        remember(self._over, turn.run)
        status, service = outcome(ended, is_killed=turn.is_killed)
        self._end(turn, status, at, service=service)

    def _lose(self, at: int, why: str) -> None:
        if self._turn is not None:
            is_killed = self._turn.is_killed
            status: Status = "cancelled" if is_killed else "failed"
            self._end(self._turn, status, at, service="" if is_killed else why)

    def _end(self, turn: Turn, status: Status, at: int, *, service: str = "") -> None:
        turn.end(status, at, service=service)
        self._keep_outlived(turn)
        self._out += turn.take()
        remember(self._closed, turn.id)
        for run in turn.runs:
            if run != turn.run:
                remember(self._over, run)
        if turn is self._turn:
            self._turn = None
            for run, call in [key for key in self._orphans if key[0] in self._over]:
                self._orphans.take((run, call))

    def _go_on(self) -> None:
        """What had to wait for the end of a turn."""
        while self._turn is None and self._turns:
            for heard in self._turns.take(next(iter(self._turns))):
                self._hear(heard)

    def _note(self, text: str, at: int, *key: str | int) -> None:
        if self._turn is not None:
            self._turn.note(text, at)
        elif (aside := self._aside(at, *key)) is not None:
            aside.note(text, at)
            self._end(aside, "completed", at)

    def _aside(self, at: int, *key: str | int) -> Turn | None:
        """A turn for something said outside of any. None if it was said already."""
        turn = derived_id(self._session, "aside", *key)
        if turn in self._closed:
            return None
        aside = self._new_turn(turn)
        aside.begin("", at)
        return aside

    def _new_turn(
        self, turn: str, *, run: str = "", guest: str = "", is_streamed: bool = False
    ) -> Turn:
        return Turn(
            Sheet(self._session, turn, self._times),
            run=run,
            guest=guest,
            is_streamed=is_streamed,
            is_compat=self._is_compat,
            shows_output=self._shows_output,
            context_window=self._context_window,
        )

    def _turn_id(self, run: str) -> str:
        """A run that goes on after its turn was given up has another."""
        part = 0
        while (turn := derived_id(self._session, "turn", run, part)) in self._closed:
            part += 1
        return turn

    def _taken(self) -> list[Envelope]:
        out, self._out = self._out, []
        return out + (self._turn.take() if self._turn is not None else [])


def outcome(ended: Ended, *, is_killed: bool) -> tuple[Status, str]:
    """How a turn ended, and what is to be said of it."""
    if is_killed or ended.reason is Reason.CANCELLED:
        return "cancelled", ""
    if ended.error or ended.reason is Reason.ERROR:
        return "failed", f"**Error:** {ended.error or 'nobody said which'}"
    if ended.reason in SENTENCES:
        return "failed", SENTENCES[ended.reason]
    return "completed", ""


def remember(known: dict[str, None], key: str) -> None:
    known[key] = None
    while len(known) > REMEMBERED:
        del known[next(iter(known))]
