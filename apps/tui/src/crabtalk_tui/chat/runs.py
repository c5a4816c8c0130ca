"""Runs: the agents that work for the chat's own turns, as a tree, from the feed of all events.

It hears of every run there is and remembers who set it off; which of them belong here is found out
when they are drawn, for a feed and a stream keep no order between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from crabtalk.component.command import one_line, visible
from crabtalk.protocol import wire

from .blocks import duration
from .calls import Call, colourless
from .flow import Span, fitted, paint
from .look import Look

MOST = 512  # runs remembered
DEEPEST = 8
DOING = 120  # characters


@dataclass(slots=True)
class Run:
    id: str
    agent: str
    parent: str
    call: str  # of the parent
    task: int
    started: float
    seconds: float | None = None
    doing: str = ""
    tools: int = 0
    calls: dict[str, Call] = field(default_factory=dict)


class Runs:
    def __init__(self, look: Look) -> None:
        self._look = look
        self._runs: dict[str, Run] = {}

    def follow(self, event: wire.AgentEventMsg, now: float) -> Run | None:
        """The run it is about, if somebody set that off."""
        run = self._runs.get(event.run_id)
        if run is None:
            if not event.HasField("parent") or event.kind == wire.DONE:
                return None
            run = self._remember(event, now)
        self._note(run, event, now)
        return run

    def get(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    def call_of(self, run: Run) -> Call | None:
        """That set it off, where another of the runs made it."""
        parent = self._runs.get(run.parent)
        return parent.calls.get(run.call) if parent is not None else None

    def of_call(self, run_id: str, call_id: str) -> list[Run]:
        found = [r for r in self._runs.values() if r.call == call_id and r.parent == run_id]
        return sorted(found, key=lambda run: run.task)

    def tree(
        self, runs: Sequence[Run], tasks: Sequence[tuple[str, str]], width: int, now: float
    ) -> list[str]:
        """Runs side by side, each with those it set off."""
        return self._branches(runs, tasks, width, now, [("  ", "")], 0)

    def outcome(
        self,
        tasks: Sequence[tuple[str, str]],
        results: Sequence[tuple[bool | None, str]],
        run_id: str,
        call_id: str,
        width: int,
    ) -> list[str]:
        """What became of the tasks of a call that has ended."""
        styles, glyphs = self._look.styles, self._look.glyphs
        runs = {run.task: run for run in self.of_call(run_id, call_id)}
        lines: list[str] = []
        for number, ((agent, task), (failed, said)) in enumerate(zip(tasks, results, strict=True)):
            branch = glyphs.last if number == len(tasks) - 1 else glyphs.branch
            mark = {
                None: (glyphs.more, styles.dim),
                True: (glyphs.failed, styles.failed),
                False: (glyphs.done, styles.done),
            }[failed]
            run = runs.get(number)
            took = duration(run.seconds) if run is not None and run.seconds is not None else ""
            last = "goes on in the background" if failed is None else one_line(said, DOING) or took
            spans: list[Span] = [
                (f"  {branch} ", styles.dim),
                (f"{mark[0]} ", mark[1]),
                (visible(agent), self._look.guest(agent)),
                *fitted([(f"  {task}", "")], max(8, width // 2), glyphs.more),
                (f"  {last}" if last else "", styles.failed if failed else styles.dim),
            ]
            lines.append(paint(fitted(spans, width, glyphs.more)))
        return lines

    def line(self, run: Run, task: str, width: int, now: float) -> str:
        """A run on a line of its own."""
        return paint(self._spans(run, task, width, now))

    def _remember(self, event: wire.AgentEventMsg, now: float) -> Run:
        if len(self._runs) >= MOST:
            ended = (run.id for run in self._runs.values() if run.seconds is not None)
            del self._runs[next(ended, next(iter(self._runs)))]
        parent = event.parent
        agent = event.agent.partition(":")[0]  # what was made for one task has a number behind it
        run = Run(event.run_id, agent, parent.run_id, parent.call_id, parent.task, now)
        self._runs[run.id] = run
        return run

    def _note(self, run: Run, event: wire.AgentEventMsg, now: float) -> None:
        match event.kind:
            case wire.TEXT_START | wire.TEXT_DELTA:
                run.doing = "writing"
            case wire.THINKING_START | wire.THINKING_DELTA:
                run.doing = "thinking"
            case wire.TOOL_START:
                run.calls = {
                    call.id: Call(call.id, call.name, call.arguments, now)
                    for call in event.tool_calls
                }
                run.tools += len(event.tool_calls)
                run.doing = self._doing(run)
            case wire.TOOL_RESULT:
                if event.call_id in run.calls:
                    run.calls[event.call_id].seconds = 0.0
                run.doing = self._doing(run)
            case wire.TOOL_PROGRESS:
                if event.call_id in run.calls:
                    run.calls[event.call_id].progress = one_line(colourless(event.content), DOING)
                run.doing = self._doing(run)
            case wire.ASK_USER:
                run.doing = f"asks: {one_line(event.content, DOING)}"
            case wire.DONE:
                run.doing, run.seconds = "", now - run.started

    def _doing(self, run: Run) -> str:
        """The first of the calls that run."""
        for call in run.calls.values():
            if call.seconds is None:
                label = f"{visible(call.name)}({call.about})" if call.about else visible(call.name)
                return f"{label}  {call.progress}".rstrip()
        return ""

    def _branches(
        self,
        runs: Sequence[Run],
        tasks: Sequence[tuple[str, str]],
        width: int,
        now: float,
        before: list[Span],
        depth: int,
    ) -> list[str]:
        glyphs, dim = self._look.glyphs, self._look.styles.dim
        lines: list[str] = []
        for run in runs:
            is_last = run is runs[-1]
            branch = (f"{glyphs.last if is_last else glyphs.branch} ", dim)
            task = tasks[run.task][1] if run.task < len(tasks) else ""
            spans = [*before, branch, *self._spans(run, task, width, now)]
            lines.append(paint(fitted(spans, width, glyphs.more)))
            if depth < DEEPEST and run.seconds is None:
                trunk = ("   " if is_last else f"{glyphs.trunk} ", dim)
                for call in run.calls.values():
                    inner = self.of_call(run.id, call.id)
                    lines += self._branches(
                        inner, call.tasks, width, now, [*before, trunk], depth + 1
                    )
        return lines

    def _spans(self, run: Run, task: str, width: int, now: float) -> list[Span]:
        styles, glyphs = self._look.styles, self._look.glyphs
        if run.seconds is None:
            mark = (f"{self._look.spinner(now)} ", styles.running)
            what = run.doing or "waiting"
        else:
            mark = (f"{glyphs.done} ", styles.dim)
            what = f"{run.tools} {'tool' if run.tools == 1 else 'tools'}" if run.tools else "done"
        time = duration(now - run.started if run.seconds is None else run.seconds)
        name = (visible(run.agent), self._look.guest(run.agent))
        spans: list[Span] = [mark, name, (f"  {time}", styles.dim)]
        if task:
            spans += fitted([(f"  {visible(task)}", "")], max(8, width // 2 - 8), glyphs.more)
        return [*spans, (f"  {what}", styles.dim)]
