"""Turn: the one that is open. What happens in its runs becomes envelopes on its sheet."""

from crabtalk_web.stream import (
    Envelope,
    EnvelopeUsage,
    FileEvent,
    ServiceEvent,
    SubagentStart,
    TextEvent,
    TurnEnd,
    TurnStart,
    TurnStatus,
    derive_id,
)

from .envelope_builder import EnvelopeBuilder
from .run_events import (
    QuestionsAsked,
    ReceivedEvent,
    RunEnded,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    TokensUsed,
    ToolReturned,
    ToolsCalled,
)
from .run_state import RunState
from .text_output import add_text, flush_paragraphs, flush_text
from .text_segment import split_text
from .tool_text import MAX_TITLE, escape_markdown, shorten_text, to_one_line
from .turn_calls import TurnCalls


class OpenTurn:
    """`run` is empty where nobody knows yet whose turn it is."""

    def __init__(
        self,
        sheet: EnvelopeBuilder,
        *,
        run: str = "",
        guest: str = "",
        is_streamed: bool = False,
        is_compat: bool = False,
        shows_output: bool = False,
        context_window: int = 0,
    ) -> None:
        self.builder = sheet
        self.run = run
        self.guest = guest
        self.is_streamed = is_streamed
        self.is_killed = False
        self.is_recovered = False  # from its envelopes, which do not say which run a task is
        self.calls = TurnCalls(sheet, is_compat=is_compat, shows_output=shows_output)
        self.root = RunState(
            run=run, subagent=derive_guest_id(sheet.session, guest) if guest else ""
        )
        self._run_states = {run: self.root} if run else {}
        self._is_compat = is_compat
        self._context_window = context_window
        sheet.main_subagent = self.root.subagent

    @property
    def runs(self) -> list[str]:
        """All that were heard of and are at work in the foreground, or were."""
        return [run for run, lane in self._run_states.items() if not lane.in_background]

    @property
    def id(self) -> str:
        return self.builder.turn

    def take_envelopes(self) -> list[Envelope]:
        """What has come of it since the last time."""
        written, self.builder.unclaimed = self.builder.unclaimed, []
        return written

    def begin(self, said_by_user: str, at: int) -> None:
        self.write_user_text(said_by_user, at)
        self.builder.write(TurnStart(), at)
        if self.guest:
            if self._is_compat:
                self.write_notice(f"**{escape_markdown(self.guest, MAX_TITLE)}** (guest)", at)
            name = shorten_text(to_one_line(self.guest), MAX_TITLE)
            self.builder.write(SubagentStart(title=name), at, self.root.subagent)

    def end(self, status: TurnStatus, at: int, *, service: str = "") -> None:
        """Closes all that is open, the innermost first."""
        if status == "cancelled" and self.guest:
            self.root.segment = None  # the conversation keeps nothing of it either
        for lane in self.root.iter_active():
            flush_text(self.builder, lane, at)
        self.write_notice(service, at)
        self.calls.close_run(self.root, at)
        self.builder.write(TurnEnd(status=status), at)

    def find_run(self, heard: ReceivedEvent) -> RunState | None:
        """None for a run that nothing in here has set off."""
        if heard.run in self._run_states:
            lane = self._run_states[heard.run]
            return None if lane.in_background and not lane.is_active else lane
        if heard.parent is None:
            return None
        key = (heard.parent.call, heard.parent.task)
        above = self._run_states.get(heard.parent.run) or self._match_recovered_run(
            heard.parent.run, key
        )
        task = above.find_task(key) if above is not None else None
        if task is None or (task.run_state.in_background and not task.run_state.is_active):
            return None
        task.run_state.run = heard.run
        self._run_states[heard.run] = task.run_state
        return task.run_state

    def _match_recovered_run(self, run: str, key: tuple[str, int]) -> RunState | None:
        """The lane of a run that made a call, told by that call alone."""
        if not self.is_recovered:
            return None
        lanes = [
            one for one in self.root.iter_active() if not one.run and one.find_task(key) is not None
        ]
        if len(lanes) != 1:
            return None
        lanes[0].run = run
        self._run_states[run] = lanes[0]
        return lanes[0]

    def set_guest(self, guest: str, subagent: str) -> None:
        """Says who speaks in it, where that was not known."""
        self.guest, self.root.subagent, self.builder.main_subagent = guest, subagent, subagent

    def set_run(self, run: str) -> None:
        """Says whose turn it is, where that was not known."""
        self.run = self.root.run = run
        self._run_states[run] = self.root

    def handle_event(self, lane: RunState, heard: ReceivedEvent) -> None:
        """Anything but the end of the turn itself."""
        what, at = heard.event, heard.at
        if not lane.is_active:
            return  # the words of one who was told to stop
        # A segment that is over waits for what it cost, which comes next if it comes at all.
        is_waiting = lane.segment is not None and lane.segment.is_ended
        goes_on = isinstance(what, TextPiece | SegmentEnded) and not is_waiting
        if not goes_on and not isinstance(what, TokensUsed):
            flush_text(self.builder, lane, at)
        match what:
            case TextPiece():
                add_text(self.builder, lane, what, at)
            case SegmentEnded():
                if lane.segment is not None:
                    lane.segment.is_ended = True
            case TokensUsed():
                self._record_usage(lane, what, at)
            case ToolsCalled(calls=calls):
                for call in calls:
                    self.calls.start(lane, call, at)
            case ToolReturned():
                self.calls.end(lane, what, at)
            case StepEnded():
                self.calls.end_step(lane, at)
            case QuestionsAsked():
                self.calls.show_ask(lane, what, heard)
            case RunSteered(text=text):
                self.write_user_text(text, at)
            case RunEnded() if lane.parent_task is not None:
                self.calls.end_run(lane.parent_task, what, at)
            case _:
                pass

    def flush_ready_text(self, at: int) -> None:
        """Nothing has come for a while: what can stand alone goes."""
        for lane in self.root.iter_active():
            flush_paragraphs(self.builder, lane, at)

    def write_user_text(self, text: str, at: int) -> None:
        """What a person said, for those who have not heard it."""
        for piece in split_text(text):
            self.builder.write(TextEvent(text=piece), at, role="user")

    def write_notice(self, text: str, at: int) -> None:
        for piece in split_text(text):
            self.builder.write(ServiceEvent(text=piece), at)

    def write_file(self, file: FileEvent, run: str, at: int) -> None:
        lane = self._run_states.get(run, self.root)
        if not lane.is_active:
            lane = self.root
        # It comes when it has been uploaded, which may be in the middle of a sentence.
        flush_paragraphs(self.builder, lane, at)
        self.builder.write(file, at, lane.subagent)

    def _record_usage(self, lane: RunState, used: TokensUsed, at: int) -> None:
        if self._is_compat:
            flush_text(self.builder, lane, at)
        if lane is self.root:  # a task's context is not the one that people look at
            cached = min(used.cached, used.prompt)
            self.builder.usage = EnvelopeUsage(
                input_tokens=used.prompt - cached,
                output_tokens=used.completion,
                cache_read_input_tokens=cached,
                context_window=self._context_window,
            )
        if self._is_compat:
            self.builder.write_usage(at)
        flush_text(self.builder, lane, at)


def derive_guest_id(session: str, guest: str) -> str:
    return derive_id(session, "guest", guest)
