"""Lane: one run of a turn, and what it has open. The turn's own run is the outermost."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .text_segment import TextSegment


@dataclass(slots=True, eq=False)
class OpenCall:
    call: str  # as envelopes name it
    started_at: int
    is_question: bool = False
    is_approval: bool = False  # shown for a question about other calls
    # What it delegates, and then it is shown by these alone.
    tasks: tuple["DelegatedTask", ...] = ()
    in_background: bool = False


@dataclass(slots=True, eq=False)
class DelegatedTask:
    """Shown as a call of its own, with a lane inside."""

    key: tuple[str, int]  # the id of the call, and which of its tasks it is
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
    run: str = ""  # empty until it is heard of
    segment: TextSegment | None = None
    last_text: str = ""  # what it said last, for whoever delegated to it
    calls: dict[str, OpenCall] = field(default_factory=dict)
    tasks: list[DelegatedTask] = field(default_factory=list)  # those at work, and some that were
    is_active: bool = True
    in_background: bool = False  # outlives the call, and maybe the turn, that began it
    parent_task: DelegatedTask | None = None  # what it carries out, unless it is the outermost

    def add_task(self, task: DelegatedTask) -> None:
        task.run_state.parent_task = task
        self.tasks = [*(one for one in self.tasks if one.run_state.is_active), task]

    def find_task(self, key: tuple[str, int]) -> DelegatedTask | None:
        """One that nobody has been heard of yet."""
        return next((one for one in self.tasks if one.key == key and not one.run_state.run), None)

    def iter_active(self) -> Iterator["RunState"]:
        """This one, and all that came of it and are at work."""
        yield self
        for task in self.tasks:
            if task.run_state.is_active:
                yield from task.run_state.iter_active()
