"""Turn: the one that is open. What happens in its runs becomes envelopes on its sheet."""

from crabtalk_web.stream import (
    Envelope,
    File,
    Service,
    Start,
    Status,
    Text,
    TurnEnd,
    TurnStart,
    Usage,
    derived_id,
)

from .calls import Calls
from .happenings import (
    Asked,
    Called,
    Ended,
    Heard,
    Piece,
    Returned,
    SegmentOver,
    Steered,
    StepOver,
    Used,
)
from .lane import Lane
from .segment import in_pieces
from .sheet import Sheet
from .speech import flush, flush_paragraphs, say
from .words import TITLE, line, said, shortened


class Turn:
    """`run` is empty where nobody knows yet whose turn it is."""

    def __init__(
        self,
        sheet: Sheet,
        *,
        run: str = "",
        guest: str = "",
        is_streamed: bool = False,
        is_compat: bool = False,
        shows_output: bool = False,
        context_window: int = 0,
    ) -> None:
        self.sheet = sheet
        self.run = run
        self.guest = guest
        self.is_streamed = is_streamed
        self.is_killed = False
        self.is_recovered = False  # from its envelopes, which do not say which run a task is
        self.calls = Calls(sheet, is_compat=is_compat, shows_output=shows_output)
        self.root = Lane(run=run, subagent=guest_id(sheet.session, guest) if guest else "")
        self._lanes = {run: self.root} if run else {}
        self._is_compat = is_compat
        self._context_window = context_window
        sheet.main = self.root.subagent

    @property
    def runs(self) -> list[str]:
        """All that were heard of and are at work in the foreground, or were."""
        return [run for run, lane in self._lanes.items() if not lane.in_background]

    @property
    def id(self) -> str:
        return self.sheet.turn

    def take(self) -> list[Envelope]:
        """What has come of it since the last time."""
        written, self.sheet.written = self.sheet.written, []
        return written

    def begin(self, said_by_user: str, at: int) -> None:
        self.repeat(said_by_user, at)
        self.sheet.write(TurnStart(), at)
        if self.guest:
            if self._is_compat:
                self.note(f"**{said(self.guest, TITLE)}** (guest)", at)
            name = shortened(line(self.guest), TITLE)
            self.sheet.write(Start(title=name), at, self.root.subagent)

    def end(self, status: Status, at: int, *, service: str = "") -> None:
        """Closes all that is open, the innermost first."""
        if status == "cancelled" and self.guest:
            self.root.segment = None  # the conversation keeps nothing of it either
        for lane in self.root.below():
            flush(self.sheet, lane, at)
        self.note(service, at)
        self.calls.leave(self.root, at)
        self.sheet.write(TurnEnd(status=status), at)

    def lane_of(self, heard: Heard) -> Lane | None:
        """None for a run that nothing in here has set off."""
        if heard.run in self._lanes:
            lane = self._lanes[heard.run]
            return None if lane.in_background and not lane.is_active else lane
        if heard.parent is None:
            return None
        key = (heard.parent.call, heard.parent.task)
        above = self._lanes.get(heard.parent.run) or self._recovered(heard.parent.run, key)
        task = above.task(key) if above is not None else None
        if task is None or (task.lane.in_background and not task.lane.is_active):
            return None
        task.lane.run = heard.run
        self._lanes[heard.run] = task.lane
        return task.lane

    def _recovered(self, run: str, key: tuple[str, int]) -> Lane | None:
        """The lane of a run that made a call, told by that call alone."""
        if not self.is_recovered:
            return None
        lanes = [one for one in self.root.below() if not one.run and one.task(key) is not None]
        if len(lanes) != 1:
            return None
        lanes[0].run = run
        self._lanes[run] = lanes[0]
        return lanes[0]

    def welcome(self, guest: str, subagent: str) -> None:
        """Says who speaks in it, where that was not known."""
        self.guest, self.root.subagent, self.sheet.main = guest, subagent, subagent

    def bind(self, run: str) -> None:
        """Says whose turn it is, where that was not known."""
        self.run = self.root.run = run
        self._lanes[run] = self.root

    def hear(self, lane: Lane, heard: Heard) -> None:
        """Anything but the end of the turn itself."""
        what, at = heard.what, heard.at
        if not lane.is_active:
            return  # the words of one who was told to stop
        # A segment that is over waits for what it cost, which comes next if it comes at all.
        is_waiting = lane.segment is not None and lane.segment.is_over
        goes_on = isinstance(what, Piece | SegmentOver) and not is_waiting
        if not goes_on and not isinstance(what, Used):
            flush(self.sheet, lane, at)
        match what:
            case Piece():
                say(self.sheet, lane, what, at)
            case SegmentOver():
                if lane.segment is not None:
                    lane.segment.is_over = True
            case Used():
                self._use(lane, what, at)
            case Called(calls=calls):
                for call in calls:
                    self.calls.start(lane, call, at)
            case Returned():
                self.calls.end(lane, what, at)
            case StepOver():
                self.calls.end_step(lane, at)
            case Asked():
                self.calls.ask(lane, what, heard)
            case Steered(text=text):
                self.repeat(text, at)
            case Ended() if lane.of is not None:
                self.calls.end_run(lane.of, what, at)
            case _:
                pass

    def idle(self, at: int) -> None:
        """Nothing has come for a while: what can stand alone goes."""
        for lane in self.root.below():
            flush_paragraphs(self.sheet, lane, at)

    def repeat(self, text: str, at: int) -> None:
        """What a person said, for those who have not heard it."""
        for piece in in_pieces(text):
            self.sheet.write(Text(text=piece), at, role="user")

    def note(self, text: str, at: int) -> None:
        for piece in in_pieces(text):
            self.sheet.write(Service(text=piece), at)

    def attach(self, file: File, run: str, at: int) -> None:
        lane = self._lanes.get(run, self.root)
        if not lane.is_active:
            lane = self.root
        # It comes when it has been uploaded, which may be in the middle of a sentence.
        flush_paragraphs(self.sheet, lane, at)
        self.sheet.write(file, at, lane.subagent)

    def _use(self, lane: Lane, used: Used, at: int) -> None:
        if self._is_compat:
            flush(self.sheet, lane, at)
        if lane is self.root:  # a task's context is not the one that people look at
            cached = min(used.cached, used.prompt)
            self.sheet.usage = Usage(
                input_tokens=used.prompt - cached,
                output_tokens=used.completion,
                cache_read_input_tokens=cached,
                context_window=self._context_window,
            )
        if self._is_compat:
            self.sheet.write_usage(at)
        flush(self.sheet, lane, at)


def guest_id(session: str, guest: str) -> str:
    return derived_id(session, "guest", guest)
