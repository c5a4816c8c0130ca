"""The open turn: turns the events of its runs into envelopes."""

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
    """`run` is empty until it is known which run the turn belongs to."""

    def __init__(
        self,
        builder: EnvelopeBuilder,
        *,
        run: str = "",
        guest: str = "",
        is_streamed: bool = False,
        is_compat: bool = False,
        shows_output: bool = False,
        context_window: int = 0,
    ) -> None:
        self.builder = builder
        self.run = run
        self.guest = guest
        self.is_streamed = is_streamed
        self.is_killed = False
        self.is_recovered = False  # from its envelopes, which do not name the runs of tasks
        self.calls = TurnCalls(builder, is_compat=is_compat, shows_output=shows_output)
        self.root = RunState(
            run=run, subagent=derive_guest_id(builder.session, guest) if guest else ""
        )
        self._run_states = {run: self.root} if run else {}
        self._is_compat = is_compat
        self._context_window = context_window
        builder.main_subagent = self.root.subagent

    @property
    def runs(self) -> list[str]:
        """The foreground runs of this turn that have had events, active or not."""
        return [run for run, run_state in self._run_states.items() if not run_state.in_background]

    @property
    def id(self) -> str:
        return self.builder.turn

    def take_envelopes(self) -> list[Envelope]:
        """Return the envelopes written since the last call."""
        envelopes, self.builder.unclaimed = self.builder.unclaimed, []
        return envelopes

    def begin(self, text: str, at: int) -> None:
        self.write_user_text(text, at)
        self.builder.write(TurnStart(), at)
        if self.guest:
            if self._is_compat:
                self.write_notice(f"**{escape_markdown(self.guest, MAX_TITLE)}** (guest)", at)
            name = shorten_text(to_one_line(self.guest), MAX_TITLE)
            self.builder.write(SubagentStart(title=name), at, self.root.subagent)

    def end(self, status: TurnStatus, at: int, *, service: str = "") -> None:
        """Close everything that is open, the innermost first."""
        if status == "cancelled" and self.guest:
            self.root.segment = None  # the conversation does not store it either
        for run_state in self.root.iter_active():
            flush_text(self.builder, run_state, at)
        self.write_notice(service, at)
        self.calls.close_run(self.root, at)
        self.builder.write(TurnEnd(status=status), at)

    def find_run(self, received: ReceivedEvent) -> RunState | None:
        """Return None for a run that nothing in this turn started."""
        if received.run in self._run_states:
            run_state = self._run_states[received.run]
            return None if run_state.in_background and not run_state.is_active else run_state
        if received.parent is None:
            return None
        key = (received.parent.call, received.parent.task)
        parent_state = self._run_states.get(received.parent.run) or self._match_recovered_run(
            received.parent.run, key
        )
        task = parent_state.find_task(key) if parent_state is not None else None
        if task is None or (task.run_state.in_background and not task.run_state.is_active):
            return None
        task.run_state.run = received.run
        self._run_states[received.run] = task.run_state
        return task.run_state

    def _match_recovered_run(self, run: str, key: tuple[str, int]) -> RunState | None:
        """Find the run that made a call by the id of that call alone."""
        if not self.is_recovered:
            return None
        run_states = [
            state
            for state in self.root.iter_active()
            if not state.run and state.find_task(key) is not None
        ]
        if len(run_states) != 1:
            return None
        run_states[0].run = run
        self._run_states[run] = run_states[0]
        return run_states[0]

    def set_guest(self, guest: str, subagent: str) -> None:
        """Set the guest of a turn that was recovered without it."""
        self.guest, self.root.subagent, self.builder.main_subagent = guest, subagent, subagent

    def set_run(self, run: str) -> None:
        """Set the run of a turn that was recovered without it."""
        self.run = self.root.run = run
        self._run_states[run] = self.root

    def handle_event(self, run_state: RunState, received: ReceivedEvent) -> None:
        """Handle any event except the end of the turn itself."""
        what, at = received.event, received.at
        if not run_state.is_active:
            return  # text of a run that was stopped
        # An ended segment waits for its token usage, which comes next if it comes at all.
        is_waiting = run_state.segment is not None and run_state.segment.is_ended
        is_same_segment = isinstance(what, TextPiece | SegmentEnded) and not is_waiting
        if not is_same_segment and not isinstance(what, TokensUsed):
            flush_text(self.builder, run_state, at)
        match what:
            case TextPiece():
                add_text(self.builder, run_state, what, at)
            case SegmentEnded():
                if run_state.segment is not None:
                    run_state.segment.is_ended = True
            case TokensUsed():
                self._record_usage(run_state, what, at)
            case ToolsCalled(calls=calls):
                for call in calls:
                    self.calls.start(run_state, call, at)
            case ToolReturned():
                self.calls.end(run_state, what, at)
            case StepEnded():
                self.calls.end_step(run_state, at)
            case QuestionsAsked():
                self.calls.show_ask(run_state, what, received)
            case RunSteered(text=text):
                self.write_user_text(text, at)
            case RunEnded() if run_state.parent_task is not None:
                self.calls.end_run(run_state.parent_task, what, at)
            case _:
                pass

    def flush_ready_text(self, at: int) -> None:
        """Write the complete paragraphs when no event has come for a while."""
        for run_state in self.root.iter_active():
            flush_paragraphs(self.builder, run_state, at)

    def write_user_text(self, text: str, at: int) -> None:
        """Write a person's message, for readers that do not have it yet."""
        for piece in split_text(text):
            self.builder.write(TextEvent(text=piece), at, role="user")

    def write_notice(self, text: str, at: int) -> None:
        for piece in split_text(text):
            self.builder.write(ServiceEvent(text=piece), at)

    def write_file(self, file: FileEvent, run: str, at: int) -> None:
        run_state = self._run_states.get(run, self.root)
        if not run_state.is_active:
            run_state = self.root
        # The envelope comes when the file has been uploaded, which may be in the middle of a
        # sentence.
        flush_paragraphs(self.builder, run_state, at)
        self.builder.write(file, at, run_state.subagent)

    def _record_usage(self, run_state: RunState, used: TokensUsed, at: int) -> None:
        if self._is_compat:
            flush_text(self.builder, run_state, at)
        if (
            run_state is self.root
        ):  # people look at the context of the main run, not at that of a task
            cached = min(used.cached, used.prompt)
            self.builder.usage = EnvelopeUsage(
                input_tokens=used.prompt - cached,
                output_tokens=used.completion,
                cache_read_input_tokens=cached,
                context_window=self._context_window,
            )
        if self._is_compat:
            self.builder.write_usage(at)
        flush_text(self.builder, run_state, at)


def derive_guest_id(session: str, guest: str) -> str:
    return derive_id(session, "guest", guest)
