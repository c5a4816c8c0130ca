"""Background: delegated runs that outlived the turn they began in, until they are over."""

from dataclasses import dataclass

from .run_events import EndReason, ParentCall, ReceivedEvent, RunEnded, TextPiece
from .run_state import DelegatedTask
from .text_segment import TextSegment
from .tool_text import MAX_RESULT, MAX_TITLE, escape_markdown, excerpt_text

# At once; the one that has been at it longest is then forgotten, with its report.
MAX_RUNS = 64
# Runs that they set off in turn, of which nothing is told.
MAX_CHILD_RUNS = 1024


@dataclass(slots=True, eq=False)
class BackgroundRun:
    title: str
    last_text: str
    segment: TextSegment | None = None

    def handle_event(self, heard: ReceivedEvent) -> None:
        match heard.event:
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
                return f"{title} failed: {ended.error or 'nobody said why'}"
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

    def add_run(self, heard: ReceivedEvent) -> None:
        """One that was not kept, because nobody was here when its turn ended."""
        self._add(heard.run, BackgroundRun(heard.agent or "A task", ""))

    def _add(self, key: str | ParentCall, stray: BackgroundRun) -> None:
        self._runs[key] = stray
        while len(self._runs) > MAX_RUNS:
            del self._runs[next(iter(self._runs))]

    def is_tracking(self, heard: ReceivedEvent) -> bool:
        """Whether it is of one of them, or of a run that one of them set off."""
        if heard.run in self._runs or heard.run in self._child_runs:
            return True
        if heard.parent is None:
            return False
        if (stray := self._runs.pop(heard.parent, None)) is not None:
            self._runs[heard.run] = stray
            return True
        if heard.parent.run in self._runs or heard.parent.run in self._child_runs:
            self._child_runs[heard.run] = None
            while len(self._child_runs) > MAX_CHILD_RUNS:
                del self._child_runs[next(iter(self._child_runs))]
            return True
        return False

    def handle_event(self, heard: ReceivedEvent) -> str:
        """The report, once it is over."""
        stray = self._runs.get(heard.run)
        if stray is None:
            return ""
        stray.handle_event(heard)
        if not isinstance(heard.event, RunEnded):
            return ""
        del self._runs[heard.run]
        return stray.build_report(heard.event)
