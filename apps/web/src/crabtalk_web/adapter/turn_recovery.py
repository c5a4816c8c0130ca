"""Recovers the turn that was open at the end of the journal, from its envelopes alone."""

from collections.abc import Callable, Iterable

from crabtalk_web.stream import (
    Envelope,
    IncreasingClock,
    SubagentStart,
    SubagentStop,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    derive_id,
)

from .open_turn import OpenTurn
from .questions import QUESTION_TOOLS, has_approval
from .run_state import DelegatedTask, OpenCall, RunState


def recover_turn(
    history: Iterable[Envelope],
    new_turn: Callable[[str], OpenTurn],
    times: IncreasingClock,
    close: Callable[[str], None],
) -> OpenTurn | None:
    """`close` is called with every turn that is over. Text that was not journalled is not
    recovered."""
    envelopes: list[Envelope] = []
    for envelope in history:
        times.last = max(times.last, int(envelope.time))
        envelopes.append(envelope)
        if isinstance(envelope.ev, TurnEnd):
            close(envelope.turn)
            envelopes = []
    opened = next((e for e in envelopes if isinstance(e.ev, TurnStart)), None)
    if opened is None:
        return None
    turn = new_turn(opened.turn)
    turn.is_recovered = True
    reader = TurnRecovery(turn)
    for envelope in envelopes:
        if envelope.id == derive_id(turn.builder.session, turn.id, turn.builder.ordinal):
            turn.builder.ordinal += 1
            reader.apply_envelope(envelope)
    return turn


class TurnRecovery:
    def __init__(self, turn: OpenTurn) -> None:
        self._turn = turn
        self._run_states: dict[str, RunState] = {"": turn.root}
        self._tasks: dict[str, DelegatedTask] = {}  # by the call that shows it

    def apply_envelope(self, envelope: Envelope) -> None:
        run_state = self._run_states.get(envelope.subagent)
        match envelope.ev:
            case SubagentStart(title=title) if run_state is None:
                self._turn.set_guest(title, envelope.subagent)
                self._run_states[envelope.subagent] = self._turn.root
            case ToolCallStart() if run_state is not None:
                self._start(run_state, envelope.ev, int(envelope.time))
            case ToolCallEnd(call=call) if run_state is not None:
                self._end(run_state, call)
            case SubagentStop() if run_state is not None:
                run_state.is_active = False
            case _:
                pass

    def _start(self, run_state: RunState, start: ToolCallStart, at: int) -> None:
        call = self._original_call_id(start.call)
        self._turn.calls.call_names.add(start.call)
        subagent = start.args.get("sessionSubagent")
        call_id, _, number = call.rpartition(":")
        if not isinstance(subagent, str) or not number.isdecimal():
            is_approval = start.name in QUESTION_TOOLS and has_approval(start.args)
            is_question = start.name in QUESTION_TOOLS and not is_approval
            run_state.calls[call] = OpenCall(
                start.call, at, is_question=is_question, is_approval=is_approval
            )
            return
        inner = RunState(subagent, run_state.depth + 1)
        task = DelegatedTask((call_id, int(number)), start.call, start.title, at, run_state, inner)
        run_state.add_task(task)
        opened = run_state.calls.setdefault(call_id, OpenCall(call_id, at))
        opened.tasks = (*opened.tasks, task)
        opened.in_background = start.args.get("background") is True
        self._run_states[subagent] = inner
        self._tasks[start.call] = task

    def _original_call_id(self, name: str) -> str:
        """Return the id the call had before a suffix told it apart from an earlier call with the
        same id."""
        first, _, number = name.rpartition("~")
        return first if number.isdecimal() and first in self._turn.calls.call_names else name

    def _end(self, run_state: RunState, name: str) -> None:
        if name in self._tasks:
            task = self._tasks[name]
            call_id, _ = task.key
            task.is_shown = False
            task.run_state.in_background = task.run_state.is_active
            opened = run_state.calls.get(call_id)
            if opened is not None and not any(other.is_shown for other in opened.tasks):
                del run_state.calls[call_id]
        for key, opened in list(run_state.calls.items()):
            if opened.call == name and not opened.tasks:
                del run_state.calls[key]
