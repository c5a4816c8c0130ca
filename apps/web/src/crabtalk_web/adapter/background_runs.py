"""Delegated runs that outlive the turn they began in, until they end."""

from dataclasses import dataclass

from .run_events import EndReason, ParentCall, ReceivedEvent, RunEnded, TextPiece
from .run_state import DelegatedTask
from .text_segment import TextSegment
from .tool_text import MAX_RESULT, MAX_TITLE, escape_markdown, excerpt_text

# Background runs tracked at once. Beyond this the oldest run is dropped, and no report of it is
# written.
MAX_RUNS = 64
# Runs that background runs delegate to in turn. Nothing is written about them.
MAX_CHILD_RUNS = 1024


@dataclass(slots=True, eq=False)
class BackgroundRun:
    title: str
    last_text: str
    segment: TextSegment | None = None

    def handle_event(self, received: ReceivedEvent) -> None:
        match received.event:
            case TextPiece(thinking=False, text=text):
                self.segment = self.segment or TextSegment()
                for piece in self.segment.add(text):
                    self.last_text = excerpt_text(piece, MAX_RESULT)
            case TextPiece():
                pass
            case _ if self.segment is not None:
                for piece in self.segment.take_rest():
                    self.last_text = excerpt_text(piece, MAX_RESULT)
                self.segment = None

    def build_report(self, ended: RunEnded) -> str:
        title = f"**{escape_markdown(self.title, 2 * MAX_TITLE)}**"
        match ended.reason:
            case EndReason.CANCELLED:
                return f"{title} was cancelled."
            case EndReason.ERROR:
                return f"{title} failed: {ended.error or 'no reason was given'}"
            case _:
                return f"{title} has finished.\n\n{self.last_text}"


class BackgroundRuns:
    def __init__(self) -> None:
        self._runs: dict[str | ParentCall, BackgroundRun] = {}
        self._child_runs: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add_task(self, task: DelegatedTask) -> None:
        key = task.run_state.run or ParentCall(task.caller.run, *task.key)
        self._add(key, BackgroundRun(task.title, task.run_state.last_text, task.run_state.segment))

    def add_run(self, received: ReceivedEvent) -> None:
        """Track a run whose turn ended before this process started."""
        self._add(received.run, BackgroundRun(received.agent or "A task", ""))

    def _add(self, key: str | ParentCall, run: BackgroundRun) -> None:
        self._runs[key] = run
        while len(self._runs) > MAX_RUNS:
            del self._runs[next(iter(self._runs))]

    def is_tracking(self, received: ReceivedEvent) -> bool:
        """Return whether the event belongs to a background run, or to a run that one of them
        delegated to."""
        if received.run in self._runs or received.run in self._child_runs:
            return True
        if received.parent is None:
            return False
        if (run := self._runs.pop(received.parent, None)) is not None:
            self._runs[received.run] = run
            return True
        if received.parent.run in self._runs or received.parent.run in self._child_runs:
            self._child_runs[received.run] = None
            while len(self._child_runs) > MAX_CHILD_RUNS:
                del self._child_runs[next(iter(self._child_runs))]
            return True
        return False

    def handle_event(self, received: ReceivedEvent) -> str:
        """Return the report once the run is over, else an empty string."""
        run = self._runs.get(received.run)
        if run is None:
            return ""
        run.handle_event(received)
        if not isinstance(received.event, RunEnded):
            return ""
        del self._runs[received.run]
        return run.build_report(received.event)
