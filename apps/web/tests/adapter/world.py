"""A world of runs for property tests: turns with tools side by side, tasks within tasks, guests,
questions, steering and work in the background, each happening told in an order that could be."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from crabtalk_web.adapter import Heard
from crabtalk_web.adapter.happenings import (
    AnyHappening,
    Asked,
    Began,
    Call,
    Called,
    Ended,
    Option,
    Parent,
    Piece,
    Question,
    Reason,
    Returned,
    SegmentOver,
    Steered,
    StepOver,
    Used,
)


@dataclass(frozen=True)
class Work:
    """A call: of a tool, a question, or tasks."""

    name: str = "bash"
    tasks: tuple["Plan", ...] = ()
    in_background: bool = False


@dataclass(frozen=True)
class Step:
    pieces: tuple[Piece, ...] = ()
    work: tuple[Work, ...] = ()
    steer: str = ""
    usage: Used | None = None


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    end: Ended
    guest: str = ""


TEXTS = st.text(alphabet="ab \n`~#*", max_size=30).filter(bool)
PIECES = st.builds(Piece, TEXTS, st.booleans())
ENDS = st.sampled_from(
    [
        *[Ended(Reason.COMPLETED)] * 4,
        Ended(Reason.CANCELLED),
        Ended(Reason.ERROR, "the model is gone"),
        Ended(Reason.MAX_ITERATIONS),
        Ended(Reason.NO_ACTION),
        Ended(Reason.UNKNOWN),
    ]
)
TOOLS = st.sampled_from(["bash", "read", "ask_user", "github__list", "", "Ünïcode ```\n", "x" * 99])
USAGE = st.none() | st.builds(Used, st.integers(0, 9), st.integers(0, 9), st.integers(0, 20))


def plans(depth: int) -> st.SearchStrategy[Plan]:
    work = st.builds(Work, TOOLS)
    if depth:
        tasks = st.lists(st.deferred(lambda: plans(depth - 1)), min_size=1, max_size=2).map(tuple)
        work = work | st.builds(Work, st.just("delegate"), tasks, st.booleans())
    step = st.builds(
        Step,
        st.lists(PIECES, max_size=3).map(tuple),
        st.lists(work, max_size=2).map(tuple),
        st.sampled_from(["", "", "", "turn left"]),
        USAGE,
    )
    return st.builds(Plan, st.lists(step, max_size=2).map(tuple), ENDS)


GUESTS = st.builds(
    Plan,
    st.lists(st.builds(Step, st.lists(PIECES, min_size=1, max_size=3).map(tuple)), max_size=1).map(
        tuple
    ),
    ENDS,
    st.sampled_from(["twin", "Ünï\n**x**"]),
)
TURNS = st.lists(plans(3) | GUESTS, min_size=1, max_size=2)


@dataclass(eq=False)
class Running:
    run: str
    plan: Plan
    parent: Parent | None
    program: Iterator[AnyHappening | None]
    is_detached: bool = False
    is_over: bool = False
    children: list["Running"] = field(default_factory=list)


class World:
    """Carries turns out one after the other; what they delegate goes on beside them."""

    def __init__(
        self, chance: Random, *, kill_at: int | None = None, has_unique_ids: bool = False
    ) -> None:
        self.log: list[Heard] = []
        self._chance = chance
        self._kill_at = kill_at
        self._has_unique_ids = has_unique_ids
        self._running: list[Running] = []
        self._count = 0

    def carry_out(self, turns: list[Plan]) -> list[Heard]:
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

    def _start(self, plan: Plan, parent: Parent | None) -> Running:
        self._count += 1
        run = f"run-{self._count}"
        running = Running(run, plan, parent, iter(()))
        running.program = self._program(running)
        self._running.append(running)
        return running

    def _advance(self) -> None:
        running = self._chance.choice(self._running)
        what = next(running.program, None)
        if what is not None:
            self._tell(running, what)

    def _tell(self, running: Running, what: AnyHappening) -> None:
        self.log.append(
            Heard(
                run=running.run,
                what=what,
                # Clocks stand still and go back.
                at=1000 + self._chance.randrange(-3, 3) + len(self.log),
                parent=running.parent,
                guest=running.plan.guest,
                agent="crab",
                sender="user",
            )
        )
        if isinstance(what, Ended):
            running.is_over = True
            self._running.remove(running)

    def _kill(self, root: Running) -> None:
        """All that came of it, and does not go on by itself, stops at its next breath."""
        stopped = [root]
        for running in stopped:
            stopped += [c for c in running.children if not c.is_over and not c.is_detached]
        # Who is told first differs.
        self._chance.shuffle(stopped)
        for running in stopped:
            self._tell(running, Ended(Reason.CANCELLED))

    def _program(self, me: Running) -> Iterator[AnyHappening | None]:
        yield Began(f"say {me.run}" if me.parent is None else "")
        for number, step in enumerate(me.plan.steps):
            if step.steer and me.parent is None:
                yield Steered(step.steer)
            yield from self._speech(step)
            if step.work:
                yield from self._work(me, step, number)
            if step.usage is not None:
                yield step.usage
        yield me.plan.end

    def _speech(self, step: Step) -> Iterator[AnyHappening]:
        before: Piece | None = None
        for piece in step.pieces:
            if before is not None and before.thinking != piece.thinking:
                yield SegmentOver()
            yield piece
            before = piece
        if before is not None:
            yield SegmentOver()

    def _work(self, me: Running, step: Step, number: int) -> Iterator[AnyHappening | None]:
        # Some models number their calls anew in every step.
        of = f"{me.run}_{number}_" if self._has_unique_ids else ""
        ids = [f"call_{of}{place}" for place in range(len(step.work))]
        yield Called(
            tuple(Call(key, w.name, arguments(w)) for key, w in zip(ids, step.work, strict=True))
        )
        if any(work.name == "ask_user" for work in step.work) or self._chance.random() < 0.1:
            options = (Option("Yes"), Option("No"))
            yield Asked(f"{me.run}-{number}", (Question("Really?", "Sure", options),))
        started: dict[str, list[Running]] = {}
        for key, work in zip(ids, step.work, strict=True):
            started[key] = [
                self._start(plan, Parent(me.run, key, place))
                for place, plan in enumerate(work.tasks)
            ]
            for child in started[key]:
                child.is_detached = work.in_background
            me.children += started[key]
        left = dict(zip(ids, step.work, strict=True))
        while left:
            key = self._chance.choice(list(left))
            work, children = left[key], started[key]
            if work.in_background or all(child.is_over for child in children):
                del left[key]
                failed = not work.tasks and self._chance.random() < 0.2
                yield Returned(key, output(work), failed)
            else:
                yield None
        yield StepOver()


def arguments(work: Work) -> str:
    if not work.tasks:
        return '{"command": "ls"}'
    tasks = [{"message": f"do\nit {place}"} for place in range(len(work.tasks))]
    return json.dumps({"tasks": tasks, "background": work.in_background})


def output(work: Work) -> str:
    if not work.tasks:
        return "done"
    key = "task_id" if work.in_background else "result"
    return json.dumps([{"agent": "worker", key: "x"} for _ in work.tasks])
