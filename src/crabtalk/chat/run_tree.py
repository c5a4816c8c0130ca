"""The tree of delegated runs of the chat's own turns, built from the feed of all events.

It stores every run with its parent. Which runs belong to the chat is decided when they are drawn,
because the feed and the turn's stream have no common order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from crabtalk.protocol import wire
from crabtalk.service.command_line import escape_controls, to_one_line

from .block_renderer import format_duration
from .line_wrapping import Span, render_ansi, truncate_spans
from .theme import Theme
from .tool_calls import ChatToolCall, strip_colours

MAX_RUNS = 512  # runs remembered
MAX_DEPTH = 8
MAX_ACTIVITY = 120  # characters


@dataclass(slots=True)
class RunNode:
    id: str
    agent: str
    parent_id: str
    call_id: str  # of the parent
    task_number: int
    started: float
    seconds: float | None = None
    activity: str = ""
    tool_count: int = 0
    calls: dict[str, ChatToolCall] = field(default_factory=dict)


class DelegationTree:
    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._runs: dict[str, RunNode] = {}

    def handle_event(self, event: wire.AgentEventMsg, now: float) -> RunNode | None:
        """Update the tree; return the event's run if it has a parent."""
        run = self._runs.get(event.run_id)
        if run is None:
            if not event.HasField("parent") or event.kind == wire.DONE:
                return None
            run = self._add_run(event, now)
        self._update_run(run, event, now)
        return run

    def get_run(self, run_id: str) -> RunNode | None:
        return self._runs.get(run_id)

    def find_parent_call(self, run: RunNode) -> ChatToolCall | None:
        """Return the call that started the run, if another delegated run made it."""
        parent = self._runs.get(run.parent_id)
        return parent.calls.get(run.call_id) if parent is not None else None

    def list_runs_of_call(self, run_id: str, call_id: str) -> list[RunNode]:
        runs = [r for r in self._runs.values() if r.call_id == call_id and r.parent_id == run_id]
        return sorted(runs, key=lambda run: run.task_number)

    def render_tree(
        self, runs: Sequence[RunNode], tasks: Sequence[tuple[str, str]], width: int, now: float
    ) -> list[str]:
        """Render sibling runs, each with the runs it started."""
        return self._render_branches(runs, tasks, width, now, [("  ", "")], 0)

    def render_outcome(
        self,
        tasks: Sequence[tuple[str, str]],
        results: Sequence[tuple[bool | None, str]],
        run_id: str,
        call_id: str,
        width: int,
    ) -> list[str]:
        """Render the outcomes of the tasks of a call that has ended."""
        styles, glyphs = self._theme.styles, self._theme.glyphs
        runs = {run.task_number: run for run in self.list_runs_of_call(run_id, call_id)}
        lines: list[str] = []
        for number, ((agent, task), (failed, output)) in enumerate(
            zip(tasks, results, strict=True)
        ):
            branch = glyphs.last if number == len(tasks) - 1 else glyphs.branch
            mark = {
                None: (glyphs.more, styles.dim),
                True: (glyphs.failed, styles.failed),
                False: (glyphs.done, styles.done),
            }[failed]
            run = runs.get(number)
            duration = (
                format_duration(run.seconds) if run is not None and run.seconds is not None else ""
            )
            outcome = (
                "goes on in the background"
                if failed is None
                else to_one_line(output, MAX_ACTIVITY) or duration
            )
            spans: list[Span] = [
                (f"  {branch} ", styles.dim),
                (f"{mark[0]} ", mark[1]),
                (escape_controls(agent), self._theme.get_guest_colour(agent)),
                *truncate_spans([(f"  {task}", "")], max(8, width // 2), glyphs.more),
                (f"  {outcome}" if outcome else "", styles.failed if failed else styles.dim),
            ]
            lines.append(render_ansi(truncate_spans(spans, width, glyphs.more)))
        return lines

    def render_run(self, run: RunNode, task: str, width: int, now: float) -> str:
        """Render a run on a line of its own."""
        return render_ansi(self._render_spans(run, task, width, now))

    def _add_run(self, event: wire.AgentEventMsg, now: float) -> RunNode:
        if len(self._runs) >= MAX_RUNS:
            ended_ids = (run.id for run in self._runs.values() if run.seconds is not None)
            del self._runs[next(ended_ids, next(iter(self._runs)))]
        parent = event.parent
        agent = event.agent.partition(":")[
            0
        ]  # an agent created for one task has a number after the colon
        run = RunNode(event.run_id, agent, parent.run_id, parent.call_id, parent.task, now)
        self._runs[run.id] = run
        return run

    def _update_run(self, run: RunNode, event: wire.AgentEventMsg, now: float) -> None:
        match event.kind:
            case wire.TEXT_START | wire.TEXT_DELTA:
                run.activity = "writing"
            case wire.THINKING_START | wire.THINKING_DELTA:
                run.activity = "thinking"
            case wire.TOOL_START:
                run.calls = {
                    call.id: ChatToolCall(call.id, call.name, call.arguments, now)
                    for call in event.tool_calls
                }
                run.tool_count += len(event.tool_calls)
                run.activity = self._describe_activity(run)
            case wire.TOOL_RESULT:
                if event.call_id in run.calls:
                    run.calls[event.call_id].seconds = 0.0
                run.activity = self._describe_activity(run)
            case wire.TOOL_PROGRESS:
                if event.call_id in run.calls:
                    run.calls[event.call_id].progress = to_one_line(
                        strip_colours(event.content), MAX_ACTIVITY
                    )
                run.activity = self._describe_activity(run)
            case wire.ASK_USER:
                run.activity = f"asks: {to_one_line(event.content, MAX_ACTIVITY)}"
            case wire.DONE:
                run.activity, run.seconds = "", now - run.started

    def _describe_activity(self, run: RunNode) -> str:
        """Describe the first running call."""
        for call in run.calls.values():
            if call.seconds is None:
                label = (
                    f"{escape_controls(call.name)}({call.summary})"
                    if call.summary
                    else escape_controls(call.name)
                )
                return f"{label}  {call.progress}".rstrip()
        return ""

    def _render_branches(
        self,
        runs: Sequence[RunNode],
        tasks: Sequence[tuple[str, str]],
        width: int,
        now: float,
        prefix: list[Span],
        depth: int,
    ) -> list[str]:
        glyphs, dim = self._theme.glyphs, self._theme.styles.dim
        lines: list[str] = []
        for run in runs:
            is_last = run is runs[-1]
            branch = (f"{glyphs.last if is_last else glyphs.branch} ", dim)
            task = tasks[run.task_number][1] if run.task_number < len(tasks) else ""
            spans = [*prefix, branch, *self._render_spans(run, task, width, now)]
            lines.append(render_ansi(truncate_spans(spans, width, glyphs.more)))
            if depth < MAX_DEPTH and run.seconds is None:
                trunk = ("   " if is_last else f"{glyphs.trunk} ", dim)
                for call in run.calls.values():
                    children = self.list_runs_of_call(run.id, call.id)
                    lines += self._render_branches(
                        children, call.tasks, width, now, [*prefix, trunk], depth + 1
                    )
        return lines

    def _render_spans(self, run: RunNode, task: str, width: int, now: float) -> list[Span]:
        styles, glyphs = self._theme.styles, self._theme.glyphs
        if run.seconds is None:
            mark = (f"{self._theme.get_spinner(now)} ", styles.running)
            state = run.activity or "waiting"
        else:
            mark = (f"{glyphs.done} ", styles.dim)
            state = (
                f"{run.tool_count} {'tool' if run.tool_count == 1 else 'tools'}"
                if run.tool_count
                else "done"
            )
        time = format_duration(now - run.started if run.seconds is None else run.seconds)
        name = (escape_controls(run.agent), self._theme.get_guest_colour(run.agent))
        spans: list[Span] = [mark, name, (f"  {time}", styles.dim)]
        if task:
            spans += truncate_spans(
                [(f"  {escape_controls(task)}", "")], max(8, width // 2 - 8), glyphs.more
            )
        return [*spans, (f"  {state}", styles.dim)]
