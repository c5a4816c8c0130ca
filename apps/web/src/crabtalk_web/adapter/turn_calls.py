"""Tool calls from start to end, the tasks that some of them delegate, and questions.

Everything that begins ends exactly once: with its result, with its step, or with its turn.
"""

from collections.abc import Sequence
from typing import Any

from crabtalk_web.stream import (
    SubagentStart,
    SubagentStop,
    TextEvent,
    ToolCallEnd,
    ToolCallStart,
    derive_id,
)

from .delegation import (
    Delegation,
    TaskOutcome,
    build_task_arguments,
    parse_delegation,
    parse_outcomes,
    summarize_task,
    task_agent,
)
from .envelope_builder import EnvelopeBuilder
from .questions import QUESTION_TOOLS, OpenAsk, build_approval_title, build_form, without_approvals
from .run_events import (
    AgentQuestion,
    EndReason,
    QuestionsAsked,
    ReceivedEvent,
    RunEnded,
    ToolCallRequest,
    ToolReturned,
)
from .run_state import DelegatedTask, OpenCall, RunState
from .text_output import flush_text
from .tool_text import (
    MAX_DESCRIPTION,
    MAX_RESULT,
    MAX_TITLE,
    add_compat_arguments,
    build_description,
    build_title,
    escape_markdown,
    excerpt_text,
    format_code_block,
    format_compat_name,
    format_tool_name,
    limit_arguments,
    parse_arguments,
    shorten_text,
    to_one_line,
)

INTERRUPTED = "interrupted"
ANSWERED_ELSEWHERE = "Not answered here."
MAX_ID_LENGTH = 200


class TurnCalls:
    def __init__(self, builder: EnvelopeBuilder, *, is_compat: bool, shows_output: bool) -> None:
        self.pending_asks: dict[str, OpenAsk] = {}
        self.call_names: set[str] = set()  # names given to calls of this turn
        self.outlived_tasks: list[DelegatedTask] = []  # background tasks of runs that are over
        self._builder = builder
        self._is_compat = is_compat
        self._shows_output = shows_output

    def start(self, run_state: RunState, call: ToolCallRequest, at: int) -> None:
        if call.id in run_state.calls:
            return
        if (delegation := parse_delegation(call.name, call.arguments)) is not None:
            self._delegate(run_state, call, delegation, at)
            return
        opened = OpenCall(self._unique_call_name(call.id), at, is_question=call.name == "ask_user")
        run_state.calls[call.id] = opened
        args = parse_arguments(call.arguments)
        if self._tool_name(call.name) in QUESTION_TOOLS:
            args = without_approvals(args)
        self._write_start(run_state, opened.call, call.name, args, at)

    def end(self, run_state: RunState, returned: ToolReturned, at: int) -> None:
        opened = run_state.calls.pop(returned.call, None)
        if opened is None:
            return
        if not opened.tasks:
            took = returned.duration_ms
            took = max(0, at - opened.started_at) if took is None else took
            if self._shows_output and returned.output.strip():
                shown = format_code_block(excerpt_text(returned.output, MAX_RESULT))
                self._builder.write(TextEvent(text=shown, thinking=True), at, run_state.subagent)
            self._write_end(
                run_state, opened.call, at, took, returned.output, is_error=returned.is_error
            )
            return
        for task in opened.tasks:
            if opened.in_background and not returned.is_error:
                task.run_state.in_background = True
            else:
                self.close_run(task.run_state, at)
        outcomes = parse_outcomes(returned.output, len(opened.tasks))
        for task, outcome in zip(opened.tasks, outcomes, strict=True):
            self._end_task(task, outcome, at, is_error=returned.is_error)

    def end_step(self, run_state: RunState, at: int) -> None:
        """End the calls whose results got lost. Background tasks continue."""
        for opened in list(run_state.calls.values()):
            for task in opened.tasks:
                if opened.in_background:
                    task.run_state.in_background = True
                else:
                    self.close_run(task.run_state, at)
                self._end_task(task, TaskOutcome(result=task.run_state.last_text), at)
            if not opened.tasks:
                result = ANSWERED_ELSEWHERE if opened.is_approval else ""
                self._write_end(run_state, opened.call, at, max(0, at - opened.started_at), result)
        run_state.calls.clear()
        self._forget_asks(run_state)

    def end_run(self, task: DelegatedTask, ended: RunEnded, at: int) -> None:
        """A delegated run is over, and its task with it."""
        self.close_run(task.run_state, at)
        self._end_task(task, task_outcome(task.run_state, ended), at)

    def show_ask(self, run_state: RunState, event: QuestionsAsked, received: ReceivedEvent) -> None:
        """Show a question as the call that asks it. If no call asks, the question is about calls
        that need permission, and is shown as a call of its own. An approval always gets its own
        call, because another call may be asking at the same time."""
        is_approval = any(question.approval is not None for question in event.questions)
        opened = run_state.calls.get(event.ask_id)
        if opened is None and not is_approval:
            opened = next((call for call in run_state.calls.values() if call.is_question), None)
        if opened is None:
            opened = OpenCall(
                self._unique_call_name(event.ask_id),
                received.at,
                is_question=not is_approval,
                is_approval=is_approval,
            )
            run_state.calls[event.ask_id] = opened
            if is_approval:
                self._write_approval(run_state, opened.call, event.questions, received.at)
            else:
                self._write_start(
                    run_state,
                    opened.call,
                    "ask_user",
                    limit_arguments(build_form(event.questions)),
                    received.at,
                )
        self.pending_asks[event.ask_id] = OpenAsk(
            id=event.ask_id,
            call=opened.call,
            agent=received.agent,
            sender=received.sender,
            run=received.run,
            at=received.at,
            questions=event.questions,
        )

    def close_ask(self, root: RunState, ask_id: str, at: int, receipt: str = "") -> None:
        """The question was answered. `receipt` describes the decision about a call."""
        if self.pending_asks.pop(ask_id, None) is None:
            return
        for run_state in root.iter_active():
            if (opened := run_state.calls.pop(ask_id, None)) is not None:
                self._write_end(run_state, opened.call, at, max(0, at - opened.started_at), receipt)

    def record_approval(self, run_state: RunState, ask: OpenAsk, receipt: str, at: int) -> None:
        """Record an approval of another conversation's run, with the decision."""
        name = self._unique_call_name(ask.id)
        self._write_approval(run_state, name, ask.questions, at)
        self._write_end(run_state, name, at, max(0, at - ask.at), receipt)

    def close_run(self, run_state: RunState, at: int) -> None:
        """End everything that a run has open, and the run itself: the deepest first, and at equal
        depth the calls before the agents that made them."""
        if not run_state.is_active:
            return
        states = list(run_state.iter_active())
        self.outlived_tasks += [
            state.parent_task
            for state in states[1:]
            if state.parent_task is not None and state.in_background
        ]
        for state in states:
            flush_text(self._builder, state, at)
        for depth in range(max(state.depth for state in states), run_state.depth - 1, -1):
            level = [state for state in states if state.depth == depth]
            for state in level:
                self._interrupt(state, at)
            for state in level:
                state.is_active = False
                if state.subagent:
                    self._builder.write(SubagentStop(), at, state.subagent)

    def _interrupt(self, run_state: RunState, at: int) -> None:
        interrupted = TaskOutcome(error=INTERRUPTED)
        for opened in run_state.calls.values():
            for task in opened.tasks:
                self._end_task(task, interrupted, at)
            if not opened.tasks:
                took = max(0, at - opened.started_at)
                self._write_end(run_state, opened.call, at, took, INTERRUPTED, is_error=True)
        run_state.calls.clear()
        self._forget_asks(run_state)

    def _delegate(
        self, run_state: RunState, call: ToolCallRequest, delegation: Delegation, at: int
    ) -> None:
        tasks = []
        for number, task in enumerate(delegation.tasks):
            agent, message = task_agent(task), summarize_task(task)
            name = self._unique_call_name(f"{call.id}:{number}")
            subagent = derive_id(
                self._builder.session, self._builder.turn, run_state.subagent, name
            )
            heading = shorten_text(f"{agent} — {message}" if message else agent, MAX_TITLE)
            inner = RunState(subagent, run_state.depth + 1)
            tasks.append(DelegatedTask((call.id, number), name, heading, at, run_state, inner))
            run_state.add_task(tasks[-1])
            start = ToolCallStart(
                call=name,
                name=self._tool_name("task"),
                title=escape_markdown(heading, MAX_TITLE),
                description=escape_markdown(
                    f"{agent} — {to_one_line(task.message) or '…'}", MAX_DESCRIPTION
                ),
                args=build_task_arguments(task, subagent, in_background=delegation.background),
            )
            self._builder.write(start, at, run_state.subagent)
            self._builder.write(SubagentStart(title=heading), at, subagent)
        run_state.calls[call.id] = OpenCall(
            call.id, at, tasks=tuple(tasks), in_background=delegation.background
        )

    def _write_start(
        self, run_state: RunState, call: str, name: str, args: dict[str, Any], at: int
    ) -> None:
        start = ToolCallStart(
            call=call,
            name=self._tool_name(name),
            title=build_title(name, args),
            description=build_description(name, args),
            args=add_compat_arguments(name, args) if self._is_compat else args,
        )
        self._builder.write(start, at, run_state.subagent)

    def _write_approval(
        self, run_state: RunState, call: str, questions: Sequence[AgentQuestion], at: int
    ) -> None:
        """Write an approval with the whole text of its calls, which is literal and may be long."""
        args = build_form(questions)
        start = ToolCallStart(
            call=call,
            name=self._tool_name("ask_user"),
            title=build_approval_title(questions, MAX_TITLE),
            description=build_description("ask_user", args),
            args=args,
        )
        self._builder.write(start, at, run_state.subagent)

    def _tool_name(self, name: str) -> str:
        return format_compat_name(name) if self._is_compat else format_tool_name(name)

    def _unique_call_name(self, call_id: str) -> str:
        """Some models number their calls from one in every step, but readers identify calls by
        these names."""
        name = call_id if len(call_id) <= MAX_ID_LENGTH else derive_id(call_id)
        name = first = name or "call"
        number = 1
        while name in self.call_names:
            number += 1
            name = f"{first}~{number}"
        self.call_names.add(name)
        return name

    def _end_task(
        self, task: DelegatedTask, outcome: TaskOutcome, at: int, *, is_error: bool = False
    ) -> None:
        if task.is_shown:
            task.is_shown = False
            result = outcome.result or outcome.error or ""
            is_error = is_error or outcome.error is not None
            took = max(0, at - task.started_at)
            self._write_end(task.caller, task.call, at, took, result, is_error=is_error)

    def _write_end(
        self,
        run_state: RunState,
        call: str,
        at: int,
        took: int,
        result: str = "",
        *,
        is_error: bool = False,
    ) -> None:
        end = ToolCallEnd(
            call=call, result=excerpt_text(result, MAX_RESULT), is_error=is_error, duration_ms=took
        )
        self._builder.write(end, at, run_state.subagent)

    def _forget_asks(self, run_state: RunState) -> None:
        for ask_id in [key for key, ask in self.pending_asks.items() if ask.run == run_state.run]:
            del self.pending_asks[ask_id]


def task_outcome(run_state: RunState, ended: RunEnded) -> TaskOutcome:
    match ended.reason:
        case EndReason.CANCELLED:
            return TaskOutcome(error="it was cancelled")
        case EndReason.ERROR:
            return TaskOutcome(error=ended.error or "it failed")
        case _:
            return TaskOutcome(result=run_state.last_text)
