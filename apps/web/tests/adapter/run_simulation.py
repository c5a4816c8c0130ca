"""A simulation of runs for property tests: turns with parallel tools, nested tasks, guests,
questions, steering and background work, with events in a random valid order."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from crabtalk_web.adapter import ReceivedEvent
from crabtalk_web.adapter.run_events import (
    AgentQuestion,
    AnswerOption,
    AnyRunEvent,
    EndReason,
    ParentCall,
    QuestionsAsked,
    RunBegan,
    RunEnded,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    TokensUsed,
    ToolCallRequest,
    ToolReturned,
    ToolsCalled,
)


@dataclass(frozen=True)
class PlannedCall:
    """A call of a tool, a question, or a delegation."""

    name: str = "bash"
    tasks: tuple["RunPlan", ...] = ()
    in_background: bool = False


@dataclass(frozen=True)
class PlannedStep:
    pieces: tuple[TextPiece, ...] = ()
    calls: tuple[PlannedCall, ...] = ()
    steer: str = ""
    usage: TokensUsed | None = None


@dataclass(frozen=True)
class RunPlan:
    steps: tuple[PlannedStep, ...]
    end: RunEnded
    guest: str = ""


TEXTS = st.text(alphabet="ab \n`~#*", max_size=30).filter(bool)
PIECES = st.builds(TextPiece, TEXTS, st.booleans())
ENDS = st.sampled_from(
    [
        *[RunEnded(EndReason.COMPLETED)] * 4,
        RunEnded(EndReason.CANCELLED),
        RunEnded(EndReason.ERROR, "the model is gone"),
        RunEnded(EndReason.MAX_ITERATIONS),
        RunEnded(EndReason.NO_ACTION),
        RunEnded(EndReason.UNKNOWN),
    ]
)
TOOLS = st.sampled_from(["bash", "read", "ask_user", "github__list", "", "Ünïcode ```\n", "x" * 99])
USAGE = st.none() | st.builds(TokensUsed, st.integers(0, 9), st.integers(0, 9), st.integers(0, 20))


def build_plans(depth: int) -> st.SearchStrategy[RunPlan]:
    work = st.builds(PlannedCall, TOOLS)
    if depth:
        tasks = st.lists(st.deferred(lambda: build_plans(depth - 1)), min_size=1, max_size=2).map(
            tuple
        )
        work = work | st.builds(PlannedCall, st.just("delegate"), tasks, st.booleans())
    step = st.builds(
        PlannedStep,
        st.lists(PIECES, max_size=3).map(tuple),
        st.lists(work, max_size=2).map(tuple),
        st.sampled_from(["", "", "", "turn left"]),
        USAGE,
    )
    return st.builds(RunPlan, st.lists(step, max_size=2).map(tuple), ENDS)


GUESTS = st.builds(
    RunPlan,
    st.lists(
        st.builds(PlannedStep, st.lists(PIECES, min_size=1, max_size=3).map(tuple)), max_size=1
    ).map(tuple),
    ENDS,
    st.sampled_from(["twin", "Ünï\n**x**"]),
)
TURNS = st.lists(build_plans(3) | GUESTS, min_size=1, max_size=2)


@dataclass(eq=False)
class SimulatedRun:
    run: str
    plan: RunPlan
    parent: ParentCall | None
    events: Iterator[AnyRunEvent | None]
    is_detached: bool = False
    is_over: bool = False
    children: list["SimulatedRun"] = field(default_factory=list)


class RunSimulation:
    """Simulates turns one after the other, while the runs they delegate continue beside them."""

    def __init__(
        self, chance: Random, *, kill_at: int | None = None, has_unique_ids: bool = False
    ) -> None:
        self.log: list[ReceivedEvent] = []
        self._chance = chance
        self._kill_at = kill_at
        self._has_unique_ids = has_unique_ids
        self._running: list[SimulatedRun] = []
        self._count = 0

    def run_turns(self, turns: list[RunPlan]) -> list[ReceivedEvent]:
        for plan in turns:
            root = self._start(plan, None)
            while not root.is_over:
                if self._kill_at is not None and len(self.log) >= self._kill_at:
                    self._kill_at = None
                    self._kill(root)
                else:
                    self._advance()
        while self._running:
            self._advance()
        return self.log

    def _start(self, plan: RunPlan, parent: ParentCall | None) -> SimulatedRun:
        self._count += 1
        run = f"run-{self._count}"
        running = SimulatedRun(run, plan, parent, iter(()))
        running.events = self._generate_run(running)
        self._running.append(running)
        return running

    def _advance(self) -> None:
        running = self._chance.choice(self._running)
        what = next(running.events, None)
        if what is not None:
            self._emit(running, what)

    def _emit(self, running: SimulatedRun, what: AnyRunEvent) -> None:
        self.log.append(
            ReceivedEvent(
                run=running.run,
                event=what,
                # Clocks can stand still and go back.
                at=1000 + self._chance.randrange(-3, 3) + len(self.log),
                parent=running.parent,
                guest=running.plan.guest,
                agent="crab",
                sender="user",
            )
        )
        if isinstance(what, RunEnded):
            running.is_over = True
            self._running.remove(running)

    def _kill(self, root: SimulatedRun) -> None:
        """Stop everything it started, except background runs, at their next step."""
        stopped = [root]
        for running in stopped:
            stopped += [c for c in running.children if not c.is_over and not c.is_detached]
        # The order in which they learn it differs.
        self._chance.shuffle(stopped)
        for running in stopped:
            self._emit(running, RunEnded(EndReason.CANCELLED))

    def _generate_run(self, me: SimulatedRun) -> Iterator[AnyRunEvent | None]:
        yield RunBegan(f"say {me.run}" if me.parent is None else "")
        for number, step in enumerate(me.plan.steps):
            if step.steer and me.parent is None:
                yield RunSteered(step.steer)
            yield from self._generate_text(step)
            if step.calls:
                yield from self._generate_calls(me, step, number)
            if step.usage is not None:
                yield step.usage
        yield me.plan.end

    def _generate_text(self, step: PlannedStep) -> Iterator[AnyRunEvent]:
        before: TextPiece | None = None
        for piece in step.pieces:
            if before is not None and before.thinking != piece.thinking:
                yield SegmentEnded()
            yield piece
            before = piece
        if before is not None:
            yield SegmentEnded()

    def _generate_calls(
        self, me: SimulatedRun, step: PlannedStep, number: int
    ) -> Iterator[AnyRunEvent | None]:
        # Some models number their calls from one in every step.
        of = f"{me.run}_{number}_" if self._has_unique_ids else ""
        ids = [f"call_{of}{place}" for place in range(len(step.calls))]
        yield ToolsCalled(
            tuple(
                ToolCallRequest(key, w.name, build_arguments(w))
                for key, w in zip(ids, step.calls, strict=True)
            )
        )
        if any(work.name == "ask_user" for work in step.calls) or self._chance.random() < 0.1:
            options = (AnswerOption("Yes"), AnswerOption("No"))
            yield QuestionsAsked(f"{me.run}-{number}", (AgentQuestion("Really?", "Sure", options),))
        started: dict[str, list[SimulatedRun]] = {}
        for key, work in zip(ids, step.calls, strict=True):
            started[key] = [
                self._start(plan, ParentCall(me.run, key, place))
                for place, plan in enumerate(work.tasks)
            ]
            for child in started[key]:
                child.is_detached = work.in_background
            me.children += started[key]
        left = dict(zip(ids, step.calls, strict=True))
        while left:
            key = self._chance.choice(list(left))
            work, children = left[key], started[key]
            if work.in_background or all(child.is_over for child in children):
                del left[key]
                failed = not work.tasks and self._chance.random() < 0.2
                yield ToolReturned(key, build_output(work), failed)
            else:
                yield None
        yield StepEnded()


def build_arguments(work: PlannedCall) -> str:
    if not work.tasks:
        return '{"command": "ls"}'
    tasks = [{"message": f"do\nit {place}"} for place in range(len(work.tasks))]
    return json.dumps({"tasks": tasks, "background": work.in_background})


def build_output(work: PlannedCall) -> str:
    if not work.tasks:
        return "done"
    key = "task_id" if work.in_background else "result"
    return json.dumps([{"agent": "worker", key: "x"} for _ in work.tasks])
