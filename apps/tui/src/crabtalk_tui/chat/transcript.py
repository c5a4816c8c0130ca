"""Transcript: what a chat shows of its turns. Events in, lines out; it prints nothing itself.

What is finished is taken once, and belongs to the terminal from then on. What can still change is
asked for as often as it is drawn. Events may be unknown, missing or out of order: what can be made
of them is shown, and a turn that ends closes all it left open.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from crabtalk.component.command import one_line
from crabtalk.protocol import wire

from .blocks import Blocks, duration
from .calls import Call, colourless
from .flow import fitted, paint
from .look import Look
from .parts import Fixed, Part, Step, Text, Thinking
from .runs import Run, Runs

OWN = 64  # turns whose tasks in the background are still heard of
OUTPUTS = 4 << 20  # characters of outputs kept to be shown in full
PATIENCE = 0.5  # seconds before it is said that nothing comes

# How a turn ended, where the answer does not show it.
ENDINGS = {
    wire.STOP_REASON_CANCELLED: ("stopped", "info"),
    wire.STOP_REASON_MAX_ITERATIONS: ("it used up its steps; say so to go on", "hint"),
    wire.STOP_REASON_NO_ACTION: ("it said nothing", "hint"),
    wire.STOP_REASON_LENGTH: ("a limit of the model cut this answer off; say “go on”", "hint"),
}


class Transcript:
    """`has_keys` says whether Ctrl+O and Ctrl+T are there to be pressed."""

    def __init__(self, look: Look | None = None, *, has_keys: bool = True) -> None:
        self.look = look or Look()
        self.running = False
        self.usage: wire.ContextUsageEvent | None = None
        self.end: wire.StreamEnd | None = None
        self.ask: wire.AskUserEvent | None = None
        self._blocks = Blocks(self.look, has_keys=has_keys)
        self._runs = Runs(self.look)
        self._own: dict[str, None] = {}  # the ids of our runs, oldest first
        # Calls of ours that left tasks running, by their id, each with its run's.
        self._background: dict[str, tuple[str, Call]] = {}
        self._parts: deque[Part] = deque()
        self._shown: Part | None = None  # what the last line belongs to
        self._agent = ""  # whose conversation it is
        self._quiet_since = 0.0
        self._thought = ""
        self._calls: list[Call] = []  # of the last turn that had some, as they ended
        self._is_new = True  # the turn has had none

    # ── What is said ────────────────────────────────────────────────────────────────────────

    def begin(self, text: str, *, agent: str, guest: str | None = None) -> None:
        """The user's own line."""
        self._agent = agent
        self._fixed(partial(self._blocks.said, text, guest=guest or ""), is_loose=True)

    def notice(self, text: str, kind: Literal["info", "error", "hint"] = "info") -> None:
        self._fixed(partial(self._blocks.notice, text, kind))

    def show(self, markdown: str) -> None:
        """What the program itself has to say at length: the answer to a command."""
        text = Text(self._blocks)
        text.feed(markdown)
        text.finish()
        self._parts.append(text)

    def answered(self) -> None:
        """The question got its reply from here; nothing is asked any more."""
        self.ask = None

    def history(self, messages: Sequence[wire.ConversationMessage]) -> None:
        """What was said before. Of a person what they typed, not what a skill made of it."""
        results: dict[str, wire.ConversationMessage] = {}
        shown: list[Callable[[], None]] = []
        # From the end, so that a call has the next result of its id: ids are used again.
        for message in reversed(messages):
            if message.role == "tool":
                results[message.call_id] = message
            elif message.role == "assistant":
                found = [results.pop(call.id, None) for call in message.tool_calls]
                shown.append(partial(self._said_before, message, found))
            elif message.role == "user":
                said = partial(self._blocks.said, message.said or message.content)
                shown.append(partial(self._fixed, said, is_loose=True))
        for show in reversed(shown):
            show()

    def _said_before(
        self,
        message: wire.ConversationMessage,
        results: Sequence[wire.ConversationMessage | None],
    ) -> None:
        self._thought = message.reasoning or self._thought
        if message.content:
            head = self._blocks.name(message.agent) if message.agent else ""
            text = Text(self._blocks, head)
            text.feed(message.content)
            text.finish()
            self._parts.append(text)
        for info, result in zip(message.tool_calls, results, strict=True):
            call = Call(info.id, info.name, info.arguments)
            # A daemon that does not say which run a message is of does not say what failed either.
            is_error = result.is_error if result is not None and result.run_id else None
            call.finish(result.content if result is not None else "", None, is_error)
            self._fixed(partial(self._blocks.ended, call))

    # ── What happens ────────────────────────────────────────────────────────────────────────

    def feed(self, event: wire.StreamEvent, now: float) -> None:
        """The next of a turn's stream; `now` is in seconds, from any clock that only goes on."""
        kind = event.WhichOneof("event")
        match kind:
            case "start":
                self._start(event.start, now)
            case "text_start":
                self._open_text(event.text_start.agent, now)
            case "chunk":
                self._open_text("", now).feed(event.chunk.content)
            case "thinking_start":
                self._open_thinking(now)
            case "thinking":
                self._open_thinking(now).feed(event.thinking.content)
            case "text_end" | "thinking_end":
                self._close_segment(now)
            case "tool_start":
                self._tool_start(event.tool_start, now)
            case "tool_result":
                self._tool_result(event.tool_result)
            case "tools_complete":
                self.ask = None
                self._close_step("it gave no result")
            case "ask_user":
                self.ask = event.ask_user
            case "user_steered":
                self._fixed(partial(self._blocks.said, event.user_steered.content), is_loose=True)
            case "context_usage":
                self.usage = event.context_usage
            case "end":
                self._end(event.end, now)
        self._quiet_since = now

    def follow(self, event: wire.AgentEventMsg, now: float) -> None:
        """The next of the feed of everything; what is not about our runs changes nothing."""
        if event.run_id in self._own:
            if event.kind == wire.TOOL_PROGRESS and (call := self._running(event.call_id)):
                call.progress = one_line(colourless(event.content), 200)
            return
        run = self._runs.follow(event, now)
        if run is not None and event.kind == wire.DONE and run.parent in self._own:
            self._task_done(run)

    def task_of(self, run_id: str) -> str:
        """What one of the runs was set off to do, as far as it is known."""
        run = self._runs.get(run_id)
        if run is None:
            return ""
        _, call = self._background.get(run.call, ("", None))
        call = call or self._running(run.call) or self._runs.call_of(run)
        return call.tasks[run.task][1] if call and run.task < len(call.tasks) else ""

    def cut(self, now: float) -> None:
        """The stream broke off, and no more of it will come."""
        self._close_segment(now)
        self._close_step("cut off")
        self.running, self.ask = False, None

    def _start(self, start: wire.StreamStart, now: float) -> None:
        self.cut(now)
        self.running, self.end = True, None
        self._is_new = True
        self._own[start.run_id] = None
        if len(self._own) > OWN:
            del self._own[next(iter(self._own))]

    def _open_text(self, agent: str, now: float) -> Text:
        part = self._segment()
        if isinstance(part, Text):
            return part
        self._close_segment(now)
        is_guest = agent and self._agent and agent != self._agent
        part = Text(self._blocks, self._blocks.name(agent) if is_guest else "")
        self._parts.append(part)
        return part

    def _open_thinking(self, now: float) -> Thinking:
        part = self._segment()
        if isinstance(part, Thinking):
            return part
        self._close_segment(now)
        part = Thinking(self._blocks, now)
        self._parts.append(part)
        return part

    def _segment(self) -> Text | Thinking | None:
        """The one that is open."""
        for part in reversed(self._parts):
            if isinstance(part, Text | Thinking) and not part.is_done:
                return part
        return None

    def _close_segment(self, now: float) -> None:
        part = self._segment()
        if isinstance(part, Thinking):
            part.finish(now)
            self._thought = part.text or self._thought
        elif part is not None:
            part.finish()

    def _step(self) -> Step | None:
        for part in reversed(self._parts):
            if isinstance(part, Step) and not part.is_done:
                return part
        return None

    def _close_step(self, sentence: str) -> None:
        step = self._step()
        if step is not None:
            self._keep(step.finish(sentence))

    def _tool_start(self, started: wire.ToolStartEvent, now: float) -> None:
        if not started.early:
            self._close_segment(now)
        step = self._step()
        if step is None:
            step = Step(self._blocks, self._runs, self._run_id)
            self._parts.append(step)
        step.start(
            [
                Call(call.id, call.name, call.arguments, now, is_early=started.early)
                for call in started.calls
            ]
        )

    def _tool_result(self, result: wire.ToolResultEvent) -> None:
        step = self._step()
        call = step.get(result.call_id) if step is not None else None
        is_known = call is not None
        call = call or Call(result.call_id, "a call")
        call.finish(result.output, result.duration_ms / 1000, result.is_error)
        if call.name == "ask_user":
            self.ask = None
        if call.tasks and call.values.get("background") is True and not call.is_error:
            self._background[call.id] = (self._run_id, call)
            if len(self._background) > OWN:
                del self._background[next(iter(self._background))]
        if is_known and step is not None:
            step.end(result.call_id)
        else:
            self._fixed(partial(self._blocks.ended, call))
        self._keep([call])

    def _end(self, end: wire.StreamEnd, now: float) -> None:
        reason = end.stop_reason
        is_cancelled = reason == wire.STOP_REASON_CANCELLED
        self._close_segment(now)
        self._close_step("stopped" if is_cancelled else "the turn ended before it did")
        self.running, self.end, self.ask = False, end, None
        if end.error:
            self.notice(end.error, "error")
        elif reason in ENDINGS:
            sentence, kind = ENDINGS[reason]
            self._fixed(partial(self._blocks.notice, sentence, kind))

    @property
    def _run_id(self) -> str:
        """Of the turn that came last."""
        return next(reversed(self._own), "")

    def _running(self, call_id: str) -> Call | None:
        step = self._step()
        return step.get(call_id) if step is not None else None

    def _keep(self, calls: Sequence[Call]) -> None:
        """To be shown in full; the oldest give way."""
        if self._is_new and calls:
            self._calls, self._is_new = [], False
        self._calls += calls
        size = sum(len(call.output) for call in self._calls)
        while size > OUTPUTS and len(self._calls) > 1:
            size -= len(self._calls.pop(0).output)

    def _task_done(self, run: Run) -> None:
        """Of a task in the background it is said when it is done."""
        _, call = self._background.get(run.call, ("", None))
        if call is not None:
            task = call.tasks[run.task][1] if run.task < len(call.tasks) else ""
            self._fixed(lambda width: [self._runs.line(run, task, width, 0.0)])

    # ── What is shown ───────────────────────────────────────────────────────────────────────

    def take(self, width: int) -> str:
        """What was finished since it was last taken: nothing, or whole lines."""
        lines: list[str] = []
        for part in list(self._parts):
            lines += self._spaced(part, part.take(width))
            if part.is_done:
                self._parts.remove(part)
            elif not part.lets_pass:
                break
        return "".join(f"{line}\n" for line in lines)

    def live(self, width: int, height: int, now: float) -> list[str]:
        """What can still change, at most so many lines. Take what is finished first."""
        shown = self._shown
        lines: list[str] = []
        for part in self._parts:
            lines += self._spaced(part, part.live(width, height, now))
        lines += self._in_background(width, now)
        if self.running and not self._parts and now - self._quiet_since >= PATIENCE:
            waited = f"{self.look.spinner(now)} waiting  {duration(now - self._quiet_since)}"
            lines.append(paint(fitted([(waited, self.look.styles.dim)], width)))
        self._shown = shown
        return lines[-height:] if height > 0 else []

    def full(self, what: Literal["thinking", "output"], width: int) -> str:
        """The last thought, or all outputs of the last turn that had some."""
        lines: list[str] = []
        if what == "thinking":
            lines = self._blocks.thought_in_full(self._thought, width)
        else:
            for call in self._calls:
                lines += self._blocks.in_full(call, width)
        return "".join(f"{line}\n" for line in lines)

    def _fixed(self, lines: Callable[[int], list[str]], *, is_loose: bool = False) -> None:
        self._parts.append(Fixed(lines, is_loose=is_loose))

    def _spaced(self, part: Part, lines: list[str]) -> list[str]:
        """With a blank line before them, where they begin something."""
        if not lines:
            return lines
        before, self._shown = self._shown, part
        if before is None or before is part or not lines[0]:
            return lines
        return ["", *lines] if before.is_loose or part.is_loose else lines

    def _in_background(self, width: int, now: float) -> list[str]:
        lines: list[str] = []
        for run_id, call in self._background.values():
            going = [r for r in self._runs.of_call(run_id, call.id) if r.seconds is None]
            if going and not lines:
                lines.append(paint(fitted([("in the background", self.look.styles.dim)], width)))
            lines += self._runs.tree(going, call.tasks, width, now)
        return lines
