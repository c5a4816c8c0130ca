"""Background: delegated runs that outlived the turn they began in, until they are over."""

from dataclasses import dataclass

from .happenings import Ended, Heard, Parent, Piece, Reason
from .lane import Task
from .segment import Segment
from .words import RESULT, TITLE, excerpt, said

# At once; the one that has been at it longest is then forgotten, with its report.
MOST = 64
# Runs that they set off in turn, of which nothing is told.
MOST_BELOW = 1024


@dataclass(slots=True, eq=False)
class Stray:
    title: str
    last_text: str
    segment: Segment | None = None

    def hear(self, heard: Heard) -> None:
        match heard.what:
            case Piece(thinking=False, text=text):
                self.segment = self.segment or Segment()
                for piece in self.segment.add(text):
                    self.last_text = excerpt(piece, RESULT)
            case Piece():
                pass
            case _ if self.segment is not None:
                for piece in self.segment.rest():
                    self.last_text = excerpt(piece, RESULT)
                self.segment = None

    def report(self, ended: Ended) -> str:
        title = f"**{said(self.title, 2 * TITLE)}**"
        match ended.reason:
            case Reason.CANCELLED:
                return f"{title} was cancelled."
            case Reason.ERROR:
                return f"{title} failed: {ended.error or 'nobody said why'}"
            case _:
                return f"{title} has finished.\n\n{self.last_text}"


class Background:
    def __init__(self) -> None:
        self._strays: dict[str | Parent, Stray] = {}
        self._below: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._strays)

    def keep(self, task: Task) -> None:
        key = task.lane.run or Parent(task.caller.run, *task.key)
        self._keep(key, Stray(task.title, task.lane.last_text, task.lane.segment))

    def adopt(self, heard: Heard) -> None:
        """One that was not kept, because nobody was here when its turn ended."""
        self._keep(heard.run, Stray(heard.agent or "A task", ""))

    def _keep(self, key: str | Parent, stray: Stray) -> None:
        self._strays[key] = stray
        while len(self._strays) > MOST:
            del self._strays[next(iter(self._strays))]

    def has(self, heard: Heard) -> bool:
        """Whether it is of one of them, or of a run that one of them set off."""
        if heard.run in self._strays or heard.run in self._below:
            return True
        if heard.parent is None:
            return False
        if (stray := self._strays.pop(heard.parent, None)) is not None:
            self._strays[heard.run] = stray
            return True
        if heard.parent.run in self._strays or heard.parent.run in self._below:
            self._below[heard.run] = None
            while len(self._below) > MOST_BELOW:
                del self._below[next(iter(self._below))]
            return True
        return False

    def hear(self, heard: Heard) -> str:
        """The report, once it is over."""
        stray = self._strays.get(heard.run)
        if stray is None:
            return ""
        stray.hear(heard)
        if not isinstance(heard.what, Ended):
            return ""
        del self._strays[heard.run]
        return stray.report(heard.what)
