"""Recovery: the turn that was open when the journal ends, told from its envelopes alone."""

from collections.abc import Callable, Iterable

from crabtalk_web.stream import (
    Envelope,
    Start,
    Stop,
    Times,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    derived_id,
)

from .asks import ASKING, is_approval
from .lane import Lane, OpenCall, Task
from .turn import Turn


def recover(
    history: Iterable[Envelope],
    new_turn: Callable[[str], Turn],
    times: Times,
    close: Callable[[str], None],
) -> Turn | None:
    """`close` hears of every turn that is over. Text that was not journalled is not recovered."""
    since: list[Envelope] = []
    for envelope in history:
        times.last = max(times.last, int(envelope.time))
        since.append(envelope)
        if isinstance(envelope.ev, TurnEnd):
            close(envelope.turn)
            since = []
    opened = next((e for e in since if isinstance(e.ev, TurnStart)), None)
    if opened is None:
        return None
    turn = new_turn(opened.turn)
    turn.is_recovered = True
    reader = Reader(turn)
    for envelope in since:
        if envelope.id == derived_id(turn.sheet.session, turn.id, turn.sheet.ordinal):
            turn.sheet.ordinal += 1
            reader.read(envelope)
    return turn


class Reader:
    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lanes: dict[str, Lane] = {"": turn.root}
        self._tasks: dict[str, Task] = {}  # by the call that shows it

    def read(self, envelope: Envelope) -> None:
        lane = self._lanes.get(envelope.subagent)
        match envelope.ev:
            case Start(title=title) if lane is None:
                self._turn.welcome(title, envelope.subagent)
                self._lanes[envelope.subagent] = self._turn.root
            case ToolCallStart() if lane is not None:
                self._start(lane, envelope.ev, int(envelope.time))
            case ToolCallEnd(call=call) if lane is not None:
                self._end(lane, call)
            case Stop() if lane is not None:
                lane.is_active = False
            case _:
                pass

    def _start(self, lane: Lane, start: ToolCallStart, at: int) -> None:
        call = self._given(start.call)
        self._turn.calls.names.add(start.call)
        subagent = start.args.get("sessionSubagent")
        call_id, _, number = call.rpartition(":")
        if not isinstance(subagent, str) or not number.isdecimal():
            approves = start.name in ASKING and is_approval(start.args)
            asks = start.name in ASKING and not approves
            lane.calls[call] = OpenCall(start.call, at, asks=asks, approves=approves)
            return
        inner = Lane(subagent, lane.depth + 1)
        task = Task((call_id, int(number)), start.call, start.title, at, lane, inner)
        lane.delegate(task)
        opened = lane.calls.setdefault(call_id, OpenCall(call_id, at))
        opened.tasks = (*opened.tasks, task)
        opened.in_background = start.args.get("background") is True
        self._lanes[subagent] = inner
        self._tasks[start.call] = task

    def _given(self, name: str) -> str:
        """The id a call had before it was told from an earlier one of the same id."""
        first, _, number = name.rpartition("~")
        return first if number.isdecimal() and first in self._turn.calls.names else name

    def _end(self, lane: Lane, name: str) -> None:
        if name in self._tasks:
            task = self._tasks[name]
            call_id, _ = task.key
            task.is_shown = False
            task.lane.in_background = task.lane.is_active
            opened = lane.calls.get(call_id)
            if opened is not None and not any(one.is_shown for one in opened.tasks):
                del lane.calls[call_id]
        for key, opened in list(lane.calls.items()):
            if opened.call == name and not opened.tasks:
                del lane.calls[key]
