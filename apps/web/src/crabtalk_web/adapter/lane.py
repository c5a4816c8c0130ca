"""Lane: one run of a turn, and what it has open. The turn's own run is the outermost."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .segment import Segment


@dataclass(slots=True, eq=False)
class OpenCall:
    call: str  # as envelopes name it
    began: int
    asks: bool = False
    approves: bool = False  # shown for a question about other calls
    # What it delegates, and then it is shown by these alone.
    tasks: tuple["Task", ...] = ()
    in_background: bool = False


@dataclass(slots=True, eq=False)
class Task:
    """Shown as a call of its own, with a lane inside."""

    key: tuple[str, int]  # the id of the call, and which of its tasks it is
    call: str
    title: str
    began: int
    caller: "Lane"
    lane: "Lane"
    is_shown: bool = True  # its call has not ended


@dataclass(slots=True, eq=False)
class Lane:
    subagent: str = ""
    depth: int = 0
    run: str = ""  # empty until it is heard of
    segment: Segment | None = None
    last_text: str = ""  # what it said last, for whoever delegated to it
    calls: dict[str, OpenCall] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)  # those at work, and some that were
    is_active: bool = True
    in_background: bool = False  # outlives the call, and maybe the turn, that began it
    of: Task | None = None  # what it carries out, unless it is the outermost

    def delegate(self, task: Task) -> None:
        task.lane.of = task
        self.tasks = [*(one for one in self.tasks if one.lane.is_active), task]

    def task(self, key: tuple[str, int]) -> Task | None:
        """One that nobody has been heard of yet."""
        return next((one for one in self.tasks if one.key == key and not one.lane.run), None)

    def below(self) -> Iterator["Lane"]:
        """This one, and all that came of it and are at work."""
        yield self
        for task in self.tasks:
            if task.lane.is_active:
                yield from task.lane.below()
