"""Calls: tools from their start to their end, the tasks that some of them delegate, and questions.

Whatever begins ends exactly once: by its result, with its step, or with its turn.
"""

from collections.abc import Sequence
from typing import Any

from crabtalk_web.stream import Start, Stop, Text, ToolCallEnd, ToolCallStart, derived_id

from .asks import ASKING, Ask, approval_title, form, without_approvals
from .delegation import (
    Delegation,
    Outcome,
    agent_of,
    delegation,
    outcomes,
    summary,
    task_arguments,
)
from .happenings import Asked, Call, Ended, Heard, Question, Reason, Returned
from .lane import Lane, OpenCall, Task
from .sheet import Sheet
from .speech import flush
from .words import (
    DESCRIPTION,
    RESULT,
    TITLE,
    arguments,
    bounded,
    compat_arguments,
    compat_name,
    description,
    excerpt,
    line,
    output,
    said,
    shortened,
    title,
    tool_name,
)

INTERRUPTED = "interrupted"
NOT_ANSWERED_HERE = "Not answered here."
LONGEST_ID = 200


class Calls:
    def __init__(self, sheet: Sheet, *, is_compat: bool, shows_output: bool) -> None:
        self.asks: dict[str, Ask] = {}
        self.names: set[str] = set()  # given to calls of this turn
        self.outlived: list[Task] = []  # in the background, of lanes that are over
        self._sheet = sheet
        self._is_compat = is_compat
        self._shows_output = shows_output

    def start(self, lane: Lane, call: Call, at: int) -> None:
        if call.id in lane.calls:
            return
        if (told := delegation(call.name, call.arguments)) is not None:
            self._delegate(lane, call, told, at)
            return
        opened = OpenCall(self._named(call.id), at, asks=call.name == "ask_user")
        lane.calls[call.id] = opened
        args = arguments(call.arguments)
        if self._tool(call.name) in ASKING:
            args = without_approvals(args)
        self._show(lane, opened.call, call.name, args, at)

    def end(self, lane: Lane, returned: Returned, at: int) -> None:
        opened = lane.calls.pop(returned.call, None)
        if opened is None:
            return
        if not opened.tasks:
            took = returned.duration_ms
            took = max(0, at - opened.began) if took is None else took
            if self._shows_output and returned.output.strip():
                shown = output(excerpt(returned.output, RESULT))
                self._sheet.write(Text(text=shown, thinking=True), at, lane.subagent)
            self._end(lane, opened.call, at, took, returned.output, is_error=returned.is_error)
            return
        for task in opened.tasks:
            if opened.in_background and not returned.is_error:
                task.lane.in_background = True
            else:
                self.leave(task.lane, at)
        told = outcomes(returned.output, len(opened.tasks))
        for task, outcome in zip(opened.tasks, told, strict=True):
            self._end_task(task, outcome, at, is_error=returned.is_error)

    def end_step(self, lane: Lane, at: int) -> None:
        """Those whose results got lost end as well; what goes on in the background goes on."""
        for opened in list(lane.calls.values()):
            for task in opened.tasks:
                if opened.in_background:
                    task.lane.in_background = True
                else:
                    self.leave(task.lane, at)
                self._end_task(task, Outcome(result=task.lane.last_text), at)
            if not opened.tasks:
                result = NOT_ANSWERED_HERE if opened.approves else ""
                self._end(lane, opened.call, at, max(0, at - opened.began), result)
        lane.calls.clear()
        self._forget_asks(lane)

    def end_run(self, task: Task, ended: Ended, at: int) -> None:
        """A delegated run is over, and its task with it."""
        self.leave(task.lane, at)
        self._end_task(task, outcome_of(task.lane, ended), at)

    def ask(self, lane: Lane, asked: Asked, heard: Heard) -> None:
        """Shown as the call that asks. Where none does, it is about calls that need a yes, and is
        shown as a call of its own. An approval always is: another call may be asking as well."""
        is_approval = any(question.approval is not None for question in asked.questions)
        opened = lane.calls.get(asked.ask_id)
        if opened is None and not is_approval:
            opened = next((call for call in lane.calls.values() if call.asks), None)
        if opened is None:
            opened = OpenCall(
                self._named(asked.ask_id), heard.at, asks=not is_approval, approves=is_approval
            )
            lane.calls[asked.ask_id] = opened
            if is_approval:
                self._show_approval(lane, opened.call, asked.questions, heard.at)
            else:
                self._show(lane, opened.call, "ask_user", bounded(form(asked.questions)), heard.at)
        self.asks[asked.ask_id] = Ask(
            id=asked.ask_id,
            call=opened.call,
            agent=heard.agent,
            sender=heard.sender,
            run=heard.run,
            at=heard.at,
            questions=asked.questions,
        )

    def settle(self, root: Lane, ask_id: str, at: int, receipt: str = "") -> None:
        """Somebody answered. `receipt` says what was decided about a call."""
        if self.asks.pop(ask_id, None) is None:
            return
        for lane in root.below():
            if (opened := lane.calls.pop(ask_id, None)) is not None:
                self._end(lane, opened.call, at, max(0, at - opened.began), receipt)

    def record(self, lane: Lane, ask: Ask, receipt: str, at: int) -> None:
        """An approval of another conversation's run, and what was decided."""
        name = self._named(ask.id)
        self._show_approval(lane, name, ask.questions, at)
        self._end(lane, name, at, max(0, at - ask.at), receipt)

    def leave(self, lane: Lane, at: int) -> None:
        """Ends all that a lane has open, and the lane: what is deepest down first, and of what is
        equally deep the calls before the agents that made them."""
        if not lane.is_active:
            return
        lanes = list(lane.below())
        self.outlived += [one.of for one in lanes[1:] if one.of is not None and one.in_background]
        for one in lanes:
            flush(self._sheet, one, at)
        for depth in range(max(one.depth for one in lanes), lane.depth - 1, -1):
            level = [one for one in lanes if one.depth == depth]
            for one in level:
                self._interrupt(one, at)
            for one in level:
                one.is_active = False
                if one.subagent:
                    self._sheet.write(Stop(), at, one.subagent)

    def _interrupt(self, lane: Lane, at: int) -> None:
        cut_off = Outcome(error=INTERRUPTED)
        for opened in lane.calls.values():
            for task in opened.tasks:
                self._end_task(task, cut_off, at)
            if not opened.tasks:
                took = max(0, at - opened.began)
                self._end(lane, opened.call, at, took, INTERRUPTED, is_error=True)
        lane.calls.clear()
        self._forget_asks(lane)

    def _delegate(self, lane: Lane, call: Call, told: Delegation, at: int) -> None:
        tasks = []
        for number, task in enumerate(told.tasks):
            agent, message = agent_of(task), summary(task)
            name = self._named(f"{call.id}:{number}")
            subagent = derived_id(self._sheet.session, self._sheet.turn, lane.subagent, name)
            heading = shortened(f"{agent} — {message}" if message else agent, TITLE)
            inner = Lane(subagent, lane.depth + 1)
            tasks.append(Task((call.id, number), name, heading, at, lane, inner))
            lane.delegate(tasks[-1])
            start = ToolCallStart(
                call=name,
                name=self._tool("task"),
                title=said(heading, TITLE),
                description=said(f"{agent} — {line(task.message) or '…'}", DESCRIPTION),
                args=task_arguments(task, subagent, in_background=told.background),
            )
            self._sheet.write(start, at, lane.subagent)
            self._sheet.write(Start(title=heading), at, subagent)
        lane.calls[call.id] = OpenCall(
            call.id, at, tasks=tuple(tasks), in_background=told.background
        )

    def _show(self, lane: Lane, call: str, name: str, args: dict[str, Any], at: int) -> None:
        start = ToolCallStart(
            call=call,
            name=self._tool(name),
            title=title(name, args),
            description=description(name, args),
            args=compat_arguments(name, args) if self._is_compat else args,
        )
        self._sheet.write(start, at, lane.subagent)

    def _show_approval(self, lane: Lane, call: str, questions: Sequence[Question], at: int) -> None:
        """With all of the calls in question, which are literal text and may be long."""
        args = form(questions)
        start = ToolCallStart(
            call=call,
            name=self._tool("ask_user"),
            title=approval_title(questions, TITLE),
            description=description("ask_user", args),
            args=args,
        )
        self._sheet.write(start, at, lane.subagent)

    def _tool(self, name: str) -> str:
        return compat_name(name) if self._is_compat else tool_name(name)

    def _named(self, call_id: str) -> str:
        """Some models number their calls anew in every step; readers tell calls apart by these."""
        name = call_id if len(call_id) <= LONGEST_ID else derived_id(call_id)
        name = first = name or "call"
        number = 1
        while name in self.names:
            number += 1
            name = f"{first}~{number}"
        self.names.add(name)
        return name

    def _end_task(self, task: Task, outcome: Outcome, at: int, *, is_error: bool = False) -> None:
        if task.is_shown:
            task.is_shown = False
            result = outcome.result or outcome.error or ""
            is_error = is_error or outcome.error is not None
            took = max(0, at - task.began)
            self._end(task.caller, task.call, at, took, result, is_error=is_error)

    def _end(
        self, lane: Lane, call: str, at: int, took: int, result: str = "", *, is_error: bool = False
    ) -> None:
        end = ToolCallEnd(
            call=call, result=excerpt(result, RESULT), is_error=is_error, duration_ms=took
        )
        self._sheet.write(end, at, lane.subagent)

    def _forget_asks(self, lane: Lane) -> None:
        for ask_id in [key for key, ask in self.asks.items() if ask.run == lane.run]:
            del self.asks[ask_id]


def outcome_of(lane: Lane, ended: Ended) -> Outcome:
    match ended.reason:
        case Reason.CANCELLED:
            return Outcome(error="it was cancelled")
        case Reason.ERROR:
            return Outcome(error=ended.error or "it failed")
        case _:
            return Outcome(result=lane.last_text)
