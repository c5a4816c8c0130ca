"""Calls: tools from their start to their end, the tasks that some of them delegate, and questions.

Whatever begins ends exactly once: by its result, with its step, or with its turn.
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
    def __init__(self, sheet: EnvelopeBuilder, *, is_compat: bool, shows_output: bool) -> None:
        self.pending_asks: dict[str, OpenAsk] = {}
        self.call_names: set[str] = set()  # given to calls of this turn
        self.outlived_tasks: list[DelegatedTask] = []  # in the background, of lanes that are over
        self._builder = sheet
        self._is_compat = is_compat
        self._shows_output = shows_output

    def start(self, lane: RunState, call: ToolCallRequest, at: int) -> None:
        if call.id in lane.calls:
            return
        if (told := parse_delegation(call.name, call.arguments)) is not None:
            self._delegate(lane, call, told, at)
            return
        opened = OpenCall(self._unique_call_name(call.id), at, is_question=call.name == "ask_user")
        lane.calls[call.id] = opened
        args = parse_arguments(call.arguments)
        if self._tool_name(call.name) in QUESTION_TOOLS:
            args = without_approvals(args)
        self._write_start(lane, opened.call, call.name, args, at)

    def end(self, lane: RunState, returned: ToolReturned, at: int) -> None:
        opened = lane.calls.pop(returned.call, None)
        if opened is None:
            return
        if not opened.tasks:
            took = returned.duration_ms
            took = max(0, at - opened.started_at) if took is None else took
            if self._shows_output and returned.output.strip():
                shown = format_code_block(excerpt_text(returned.output, MAX_RESULT))
                self._builder.write(TextEvent(text=shown, thinking=True), at, lane.subagent)
            self._write_end(
                lane, opened.call, at, took, returned.output, is_error=returned.is_error
            )
            return
        for task in opened.tasks:
            if opened.in_background and not returned.is_error:
                task.run_state.in_background = True
            else:
                self.close_run(task.run_state, at)
        told = parse_outcomes(returned.output, len(opened.tasks))
        for task, outcome in zip(opened.tasks, told, strict=True):
            self._end_task(task, outcome, at, is_error=returned.is_error)

    def end_step(self, lane: RunState, at: int) -> None:
        """Those whose results got lost end as well; what goes on in the background goes on."""
        for opened in list(lane.calls.values()):
            for task in opened.tasks:
                if opened.in_background:
                    task.run_state.in_background = True
                else:
                    self.close_run(task.run_state, at)
                self._end_task(task, TaskOutcome(result=task.run_state.last_text), at)
            if not opened.tasks:
                result = ANSWERED_ELSEWHERE if opened.is_approval else ""
                self._write_end(lane, opened.call, at, max(0, at - opened.started_at), result)
        lane.calls.clear()
        self._forget_asks(lane)

    def end_run(self, task: DelegatedTask, ended: RunEnded, at: int) -> None:
        """A delegated run is over, and its task with it."""
        self.close_run(task.run_state, at)
        self._end_task(task, task_outcome(task.run_state, ended), at)

    def show_ask(self, lane: RunState, asked: QuestionsAsked, heard: ReceivedEvent) -> None:
        """Shown as the call that asks. Where none does, it is about calls that need a yes, and is
        shown as a call of its own. An approval always is: another call may be asking as well."""
        is_approval = any(question.approval is not None for question in asked.questions)
        opened = lane.calls.get(asked.ask_id)
        if opened is None and not is_approval:
            opened = next((call for call in lane.calls.values() if call.is_question), None)
        if opened is None:
            opened = OpenCall(
                self._unique_call_name(asked.ask_id),
                heard.at,
                is_question=not is_approval,
                is_approval=is_approval,
            )
            lane.calls[asked.ask_id] = opened
            if is_approval:
                self._write_approval(lane, opened.call, asked.questions, heard.at)
            else:
                self._write_start(
                    lane,
                    opened.call,
                    "ask_user",
                    limit_arguments(build_form(asked.questions)),
                    heard.at,
                )
        self.pending_asks[asked.ask_id] = OpenAsk(
            id=asked.ask_id,
            call=opened.call,
            agent=heard.agent,
            sender=heard.sender,
            run=heard.run,
            at=heard.at,
            questions=asked.questions,
        )

    def close_ask(self, root: RunState, ask_id: str, at: int, receipt: str = "") -> None:
        """Somebody answered. `receipt` says what was decided about a call."""
        if self.pending_asks.pop(ask_id, None) is None:
            return
        for lane in root.iter_active():
            if (opened := lane.calls.pop(ask_id, None)) is not None:
                self._write_end(lane, opened.call, at, max(0, at - opened.started_at), receipt)

    def record_approval(self, lane: RunState, ask: OpenAsk, receipt: str, at: int) -> None:
        """An approval of another conversation's run, and what was decided."""
        name = self._unique_call_name(ask.id)
        self._write_approval(lane, name, ask.questions, at)
        self._write_end(lane, name, at, max(0, at - ask.at), receipt)

    def close_run(self, lane: RunState, at: int) -> None:
        """Ends all that a lane has open, and the lane: what is deepest down first, and of what is
        equally deep the calls before the agents that made them."""
        if not lane.is_active:
            return
        lanes = list(lane.iter_active())
        self.outlived_tasks += [
            one.parent_task
            for one in lanes[1:]
            if one.parent_task is not None and one.in_background
        ]
        for one in lanes:
            flush_text(self._builder, one, at)
        for depth in range(max(one.depth for one in lanes), lane.depth - 1, -1):
            level = [one for one in lanes if one.depth == depth]
            for one in level:
                self._interrupt(one, at)
            for one in level:
                one.is_active = False
                if one.subagent:
                    self._builder.write(SubagentStop(), at, one.subagent)

    def _interrupt(self, lane: RunState, at: int) -> None:
        cut_off = TaskOutcome(error=INTERRUPTED)
        for opened in lane.calls.values():
            for task in opened.tasks:
                self._end_task(task, cut_off, at)
            if not opened.tasks:
                took = max(0, at - opened.started_at)
                self._write_end(lane, opened.call, at, took, INTERRUPTED, is_error=True)
        lane.calls.clear()
        self._forget_asks(lane)

    def _delegate(self, lane: RunState, call: ToolCallRequest, told: Delegation, at: int) -> None:
        tasks = []
        for number, task in enumerate(told.tasks):
            agent, message = task_agent(task), summarize_task(task)
            name = self._unique_call_name(f"{call.id}:{number}")
            subagent = derive_id(self._builder.session, self._builder.turn, lane.subagent, name)
            heading = shorten_text(f"{agent} — {message}" if message else agent, MAX_TITLE)
            inner = RunState(subagent, lane.depth + 1)
            tasks.append(DelegatedTask((call.id, number), name, heading, at, lane, inner))
            lane.add_task(tasks[-1])
            start = ToolCallStart(
                call=name,
                name=self._tool_name("task"),
                title=escape_markdown(heading, MAX_TITLE),
                description=escape_markdown(
                    f"{agent} — {to_one_line(task.message) or '…'}", MAX_DESCRIPTION
                ),
                args=build_task_arguments(task, subagent, in_background=told.background),
            )
            self._builder.write(start, at, lane.subagent)
            self._builder.write(SubagentStart(title=heading), at, subagent)
        lane.calls[call.id] = OpenCall(
            call.id, at, tasks=tuple(tasks), in_background=told.background
        )

    def _write_start(
        self, lane: RunState, call: str, name: str, args: dict[str, Any], at: int
    ) -> None:
        start = ToolCallStart(
            call=call,
            name=self._tool_name(name),
            title=build_title(name, args),
            description=build_description(name, args),
            args=add_compat_arguments(name, args) if self._is_compat else args,
        )
        self._builder.write(start, at, lane.subagent)

    def _write_approval(
        self, lane: RunState, call: str, questions: Sequence[AgentQuestion], at: int
    ) -> None:
        """With all of the calls in question, which are literal text and may be long."""
        args = build_form(questions)
        start = ToolCallStart(
            call=call,
            name=self._tool_name("ask_user"),
            title=build_approval_title(questions, MAX_TITLE),
            description=build_description("ask_user", args),
            args=args,
        )
        self._builder.write(start, at, lane.subagent)

    def _tool_name(self, name: str) -> str:
        return format_compat_name(name) if self._is_compat else format_tool_name(name)

    def _unique_call_name(self, call_id: str) -> str:
        """Some models number their calls anew in every step; readers tell calls apart by these."""
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
        lane: RunState,
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
        self._builder.write(end, at, lane.subagent)

    def _forget_asks(self, lane: RunState) -> None:
        for ask_id in [key for key, ask in self.pending_asks.items() if ask.run == lane.run]:
            del self.pending_asks[ask_id]


def task_outcome(lane: RunState, ended: RunEnded) -> TaskOutcome:
    match ended.reason:
        case EndReason.CANCELLED:
            return TaskOutcome(error="it was cancelled")
        case EndReason.ERROR:
            return TaskOutcome(error=ended.error or "it failed")
        case _:
            return TaskOutcome(result=lane.last_text)
