"""The state of one run of a turn: its open calls, its tasks and its text. The turn's own run is the
outermost."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .text_segment import TextSegment


@dataclass(slots=True, eq=False)
class OpenCall:
    call: str  # its name in envelopes
    started_at: int
    is_question: bool = False
    is_approval: bool = False  # it shows a question about other calls
    # The tasks it delegates. If there are any, only they are shown, and not the call.
    tasks: tuple["DelegatedTask", ...] = ()
    in_background: bool = False


@dataclass(slots=True, eq=False)
class DelegatedTask:
    """A delegated task: shown as a call of its own, with the state of its run inside."""

    key: tuple[str, int]  # the id of the call, and the index of the task in it
    call: str
    title: str
    started_at: int
    caller: "RunState"
    run_state: "RunState"
    is_shown: bool = True  # its call has not ended


@dataclass(slots=True, eq=False)
class RunState:
    subagent: str = ""
    depth: int = 0
    run: str = ""  # empty until its first event
    segment: TextSegment | None = None
    last_text: str = ""  # its latest text, for the run that delegated to it
    calls: dict[str, OpenCall] = field(default_factory=dict)
    # the active ones, and some that have ended
    tasks: list[DelegatedTask] = field(default_factory=list)
    is_active: bool = True
    in_background: bool = False  # outlives the call, and maybe the turn, that started it
    parent_task: DelegatedTask | None = None  # the task it carries out; None for the outermost run

    def add_task(self, task: DelegatedTask) -> None:
        task.run_state.parent_task = task
        self.tasks = [*(other for other in self.tasks if other.run_state.is_active), task]

    def find_task(self, key: tuple[str, int]) -> DelegatedTask | None:
        """Return a task whose run has had no event yet."""
        return next(
            (task for task in self.tasks if task.key == key and not task.run_state.run), None
        )

    def iter_active(self) -> Iterator["RunState"]:
        """Yield this run, and all active runs that it delegated to, directly or not."""
        yield self
        for task in self.tasks:
            if task.run_state.is_active:
                yield from task.run_state.iter_active()
