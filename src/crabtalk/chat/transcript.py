"""The transcript of a chat: takes events and gives lines; it prints nothing itself.

Finished lines are taken once and belong to the terminal from then on. Lines that can still change
are rendered for every drawing. Events may be unknown, missing or out of order: the transcript shows
what it can, and the end of a turn closes everything the turn left open.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from crabtalk.protocol import wire
from crabtalk.service.command_line import to_one_line

from .block_renderer import BlockRenderer, format_duration
from .line_wrapping import render_ansi, truncate_spans
from .run_tree import DelegationTree, RunNode
from .theme import Theme
from .tool_calls import ChatToolCall, strip_colours
from .transcript_items import AnswerItem, StaticItem, ThinkingItem, ToolStepItem, TranscriptItem

MAX_OWN_RUNS = 64  # turns whose background tasks are still shown
MAX_OUTPUTS = 4 << 20  # characters of outputs stored to be shown in full
WAITING_SECONDS = 0.5  # seconds without events before "waiting" is shown

# Notices for turns that ended in a way the answer does not show.
ENDINGS = {
    wire.STOP_REASON_CANCELLED: ("stopped", "info"),
    wire.STOP_REASON_MAX_ITERATIONS: ("it used up its steps; say so to go on", "hint"),
    wire.STOP_REASON_NO_ACTION: ("it said nothing", "hint"),
    wire.STOP_REASON_LENGTH: ("a limit of the model cut this answer off; say “go on”", "hint"),
}


class ChatTranscript:
    """`has_keys`: whether the interface has Ctrl+O and Ctrl+T."""

    def __init__(self, theme: Theme | None = None, *, has_keys: bool = True) -> None:
        self.theme = theme or Theme()
        self.is_running = False
        self.usage: wire.ContextUsageEvent | None = None
        self.end: wire.StreamEnd | None = None
        self.pending_ask: wire.AskUserEvent | None = None
        self._renderer = BlockRenderer(self.theme, has_keys=has_keys)
        self._runs = DelegationTree(self.theme)
        self._own_runs: dict[str, None] = {}  # the ids of our runs, oldest first
        # Calls that left background tasks running, by call id, each with its run id.
        self._background_calls: dict[str, tuple[str, ChatToolCall]] = {}
        self._items: deque[TranscriptItem] = deque()
        self._last_item: TranscriptItem | None = None  # the item of the last line
        self._agent = ""  # the conversation's agent
        self._quiet_since = 0.0
        self._last_thought = ""
        self._stored_calls: list[
            ChatToolCall
        ] = []  # of the last turn with calls, in the order they ended
        self._has_no_calls = True  # the current turn has had none

    # ── Messages and notices ────────────────────────────────────────────────────────────────

    def add_message(self, text: str, *, agent: str, guest: str | None = None) -> None:
        """Add a message of the user."""
        self._agent = agent
        self._add_static(
            partial(self._renderer.render_message, text, guest=guest or ""), is_spaced=True
        )

    def add_notice(self, text: str, kind: Literal["info", "error", "hint"] = "info") -> None:
        self._add_static(partial(self._renderer.render_notice, text, kind))

    def add_markdown(self, markdown: str) -> None:
        """Add the output of a command."""
        item = AnswerItem(self._renderer)
        item.feed(markdown)
        item.finish()
        self._items.append(item)

    def clear_question(self) -> None:
        """Remove the pending question, which was answered in this chat."""
        self.pending_ask = None

    def add_history(self, messages: Sequence[wire.ConversationMessage]) -> None:
        """Add earlier messages. People's messages as they typed them, without skill texts."""
        results: dict[str, wire.ConversationMessage] = {}
        additions: list[Callable[[], None]] = []
        # From the end, so that a call gets the next result with its id: ids are reused.
        for message in reversed(messages):
            if message.role == "tool":
                results[message.call_id] = message
            elif message.role == "assistant":
                call_results = [results.pop(call.id, None) for call in message.tool_calls]
                additions.append(partial(self._add_assistant_message, message, call_results))
            elif message.role == "user":
                render = partial(self._renderer.render_message, message.said or message.content)
                additions.append(partial(self._add_static, render, is_spaced=True))
        for add in reversed(additions):
            add()

    def _add_assistant_message(
        self,
        message: wire.ConversationMessage,
        results: Sequence[wire.ConversationMessage | None],
    ) -> None:
        self._last_thought = message.reasoning or self._last_thought
        if message.content:
            head = self._renderer.render_name(message.agent) if message.agent else ""
            item = AnswerItem(self._renderer, head)
            item.feed(message.content)
            item.finish()
            self._items.append(item)
        for info, result in zip(message.tool_calls, results, strict=True):
            call = ChatToolCall(info.id, info.name, info.arguments)
            # A daemon that does not report the run of a message does not report failures either.
            is_error = result.is_error if result is not None and result.run_id else None
            call.finish(result.content if result is not None else "", None, is_error)
            self._add_static(partial(self._renderer.render_ended_call, call))

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def handle_event(self, event: wire.StreamEvent, now: float) -> None:
        """Handle the next event of a turn's stream; `now` is in seconds of a monotonic clock."""
        kind = event.WhichOneof("event")
        match kind:
            case "start":
                self._start_turn(event.start, now)
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
                self._start_calls(event.tool_start, now)
            case "tool_result":
                self._end_call(event.tool_result)
            case "tools_complete":
                self.pending_ask = None
                self._close_step("it gave no result")
            case "ask_user":
                self.pending_ask = event.ask_user
            case "user_steered":
                self._add_static(
                    partial(self._renderer.render_message, event.user_steered.content),
                    is_spaced=True,
                )
            case "context_usage":
                self.usage = event.context_usage
            case "end":
                self._end_turn(event.end, now)
        self._quiet_since = now

    def handle_feed_event(self, event: wire.AgentEventMsg, now: float) -> None:
        """Handle the next event of the feed; events of unrelated runs change nothing visible."""
        if event.run_id in self._own_runs:
            if event.kind == wire.TOOL_PROGRESS and (
                call := self._find_running_call(event.call_id)
            ):
                call.progress = to_one_line(strip_colours(event.content), 200)
            return
        run = self._runs.handle_event(event, now)
        if run is not None and event.kind == wire.DONE and run.parent_id in self._own_runs:
            self._add_finished_task(run)

    def find_task(self, run_id: str) -> str:
        """Return the task of a delegated run; empty if not known."""
        run = self._runs.get_run(run_id)
        if run is None:
            return ""
        _, call = self._background_calls.get(run.call_id, ("", None))
        call = call or self._find_running_call(run.call_id) or self._runs.find_parent_call(run)
        return call.tasks[run.task_number][1] if call and run.task_number < len(call.tasks) else ""

    def interrupt_turn(self, now: float) -> None:
        """Close everything open: the stream broke off."""
        self._close_segment(now)
        self._close_step("cut off")
        self.is_running, self.pending_ask = False, None

    def _start_turn(self, start: wire.StreamStart, now: float) -> None:
        self.interrupt_turn(now)
        self.is_running, self.end = True, None
        self._has_no_calls = True
        self._own_runs[start.run_id] = None
        if len(self._own_runs) > MAX_OWN_RUNS:
            del self._own_runs[next(iter(self._own_runs))]

    def _open_text(self, agent: str, now: float) -> AnswerItem:
        item = self._find_open_segment()
        if isinstance(item, AnswerItem):
            return item
        self._close_segment(now)
        is_guest = agent and self._agent and agent != self._agent
        item = AnswerItem(self._renderer, self._renderer.render_name(agent) if is_guest else "")
        self._items.append(item)
        return item

    def _open_thinking(self, now: float) -> ThinkingItem:
        item = self._find_open_segment()
        if isinstance(item, ThinkingItem):
            return item
        self._close_segment(now)
        item = ThinkingItem(self._renderer, now)
        self._items.append(item)
        return item

    def _find_open_segment(self) -> AnswerItem | ThinkingItem | None:
        """Find the open text or thought."""
        for item in reversed(self._items):
            if isinstance(item, AnswerItem | ThinkingItem) and not item.is_done:
                return item
        return None

    def _close_segment(self, now: float) -> None:
        item = self._find_open_segment()
        if isinstance(item, ThinkingItem):
            item.finish(now)
            self._last_thought = item.text or self._last_thought
        elif item is not None:
            item.finish()

    def _find_open_step(self) -> ToolStepItem | None:
        for item in reversed(self._items):
            if isinstance(item, ToolStepItem) and not item.is_done:
                return item
        return None

    def _close_step(self, sentence: str) -> None:
        step = self._find_open_step()
        if step is not None:
            self._store_calls(step.finish(sentence))

    def _start_calls(self, event: wire.ToolStartEvent, now: float) -> None:
        if not event.early:
            self._close_segment(now)
        step = self._find_open_step()
        if step is None:
            step = ToolStepItem(self._renderer, self._runs, self._run_id)
            self._items.append(step)
        step.start_calls(
            [
                ChatToolCall(call.id, call.name, call.arguments, now, is_early=event.early)
                for call in event.calls
            ]
        )

    def _end_call(self, result: wire.ToolResultEvent) -> None:
        step = self._find_open_step()
        call = step.get_call(result.call_id) if step is not None else None
        is_known = call is not None
        call = call or ChatToolCall(result.call_id, "a call")
        call.finish(result.output, result.duration_ms / 1000, result.is_error)
        if call.name == "ask_user":
            self.pending_ask = None
        if call.tasks and call.parsed_arguments.get("background") is True and not call.is_error:
            self._background_calls[call.id] = (self._run_id, call)
            if len(self._background_calls) > MAX_OWN_RUNS:
                del self._background_calls[next(iter(self._background_calls))]
        if is_known and step is not None:
            step.end_call(result.call_id)
        else:
            self._add_static(partial(self._renderer.render_ended_call, call))
        self._store_calls([call])

    def _end_turn(self, end: wire.StreamEnd, now: float) -> None:
        reason = end.stop_reason
        is_cancelled = reason == wire.STOP_REASON_CANCELLED
        self._close_segment(now)
        self._close_step("stopped" if is_cancelled else "the turn ended before it did")
        self.is_running, self.end, self.pending_ask = False, end, None
        if end.error:
            self.add_notice(end.error, "error")
        elif reason in ENDINGS:
            sentence, kind = ENDINGS[reason]
            self._add_static(partial(self._renderer.render_notice, sentence, kind))

    @property
    def _run_id(self) -> str:
        """The run of the latest turn."""
        return next(reversed(self._own_runs), "")

    def _find_running_call(self, call_id: str) -> ChatToolCall | None:
        step = self._find_open_step()
        return step.get_call(call_id) if step is not None else None

    def _store_calls(self, calls: Sequence[ChatToolCall]) -> None:
        """Store calls to be shown in full; the oldest are dropped when there are too many."""
        if self._has_no_calls and calls:
            self._stored_calls, self._has_no_calls = [], False
        self._stored_calls += calls
        size = sum(len(call.output) for call in self._stored_calls)
        while size > MAX_OUTPUTS and len(self._stored_calls) > 1:
            size -= len(self._stored_calls.pop(0).output)

    def _add_finished_task(self, run: RunNode) -> None:
        """Show that a background task is done."""
        _, call = self._background_calls.get(run.call_id, ("", None))
        if call is not None:
            task = call.tasks[run.task_number][1] if run.task_number < len(call.tasks) else ""
            self._add_static(lambda width: [self._runs.render_run(run, task, width, 0.0)])

    # ── Output ──────────────────────────────────────────────────────────────────────────────

    def take_text(self, width: int) -> str:
        """Take what was finished since the last call: whole lines, or an empty text."""
        lines: list[str] = []
        for item in list(self._items):
            lines += self._add_spacing(item, item.take_lines(width))
            if item.is_done:
                self._items.remove(item)
            elif not item.can_be_overtaken:
                break
        return "".join(f"{line}\n" for line in lines)

    def live_lines(self, width: int, height: int, now: float) -> list[str]:
        """Render what can still change, at most `height` lines. Take finished text first."""
        last_item = self._last_item
        lines: list[str] = []
        for item in self._items:
            lines += self._add_spacing(item, item.live_lines(width, height, now))
        lines += self._render_background_tasks(width, now)
        if self.is_running and not self._items and now - self._quiet_since >= WAITING_SECONDS:
            text = (
                f"{self.theme.get_spinner(now)} waiting  {format_duration(now - self._quiet_since)}"
            )
            lines.append(render_ansi(truncate_spans([(text, self.theme.styles.dim)], width)))
        self._last_item = last_item
        return lines[-height:] if height > 0 else []

    def render_full(self, what: Literal["thinking", "output"], width: int) -> str:
        """Render the last thought, or all outputs of the last turn with tool calls."""
        lines: list[str] = []
        if what == "thinking":
            lines = self._renderer.render_full_thought(self._last_thought, width)
        else:
            for call in self._stored_calls:
                lines += self._renderer.render_full_call(call, width)
        return "".join(f"{line}\n" for line in lines)

    def _add_static(self, lines: Callable[[int], list[str]], *, is_spaced: bool = False) -> None:
        self._items.append(StaticItem(lines, is_spaced=is_spaced))

    def _add_spacing(self, item: TranscriptItem, lines: list[str]) -> list[str]:
        """Add a blank line before the lines if they begin a spaced item."""
        if not lines:
            return lines
        previous, self._last_item = self._last_item, item
        if previous is None or previous is item or not lines[0]:
            return lines
        return ["", *lines] if previous.is_spaced or item.is_spaced else lines

    def _render_background_tasks(self, width: int, now: float) -> list[str]:
        lines: list[str] = []
        for run_id, call in self._background_calls.values():
            running = [
                r for r in self._runs.list_runs_of_call(run_id, call.id) if r.seconds is None
            ]
            if running and not lines:
                lines.append(
                    render_ansi(
                        truncate_spans([("in the background", self.theme.styles.dim)], width)
                    )
                )
            lines += self._runs.render_tree(running, call.tasks, width, now)
        return lines
