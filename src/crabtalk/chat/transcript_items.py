"""The items of a transcript. Each gives out its finished lines once and renders the others live."""

from collections.abc import Callable, Sequence
from typing import Protocol

from .block_renderer import BlockRenderer
from .line_wrapping import render_ansi, truncate_spans
from .markdown_stream import MarkdownStream
from .run_tree import DelegationTree
from .tool_calls import ChatToolCall

MAX_THOUGHT = 1 << 20  # characters of a thought


class TranscriptItem(Protocol):
    is_spaced: bool  # with a blank line around it
    is_done: bool

    @property
    def can_be_overtaken(self) -> bool:
        """Whether later items may be printed before this one is done."""

    def take_lines(self, width: int) -> list[str]: ...

    def live_lines(self, width: int, height: int, now: float) -> list[str]: ...


class StaticItem:
    """An item that is finished from the beginning."""

    is_done = True
    can_be_overtaken = True

    def __init__(self, lines: Callable[[int], list[str]], *, is_spaced: bool = False) -> None:
        self._lines = lines
        self.is_spaced = is_spaced

    def take_lines(self, width: int) -> list[str]:
        return self._lines(width)

    def live_lines(self, width: int, height: int, now: float) -> list[str]:
        return self._lines(width)


class AnswerItem:
    """An answer in markdown; `head` is a line above it."""

    is_spaced = True

    def __init__(self, renderer: BlockRenderer, head: str = "") -> None:
        self._stream = MarkdownStream(renderer.theme)
        self._head = head
        self.is_done = False

    @property
    def can_be_overtaken(self) -> bool:
        return self._stream.is_between_blocks

    def feed(self, text: str) -> None:
        self._stream.feed(text)

    def finish(self) -> None:
        self._stream.finish()
        self.is_done = True

    def take_lines(self, width: int) -> list[str]:
        lines = self._stream.take_lines(width)
        if lines and self._head:
            lines.insert(0, self._head)
            self._head = ""
        return lines

    def live_lines(self, width: int, height: int, now: float) -> list[str]:
        lines = self._stream.live_lines(width)
        return [self._head, *lines] if lines and self._head else lines


class ThinkingItem:
    is_spaced = False
    can_be_overtaken = True

    def __init__(self, renderer: BlockRenderer, now: float) -> None:
        self._renderer = renderer
        self._started = now
        self._pieces: list[str] = []
        self._length = 0
        self._seconds = 0.0
        self.is_done = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, text: str) -> None:
        """Add text. Beyond MAX_THOUGHT it is dropped."""
        if self._length < MAX_THOUGHT:
            self._pieces.append(text)
            self._length += len(text)

    def finish(self, now: float) -> None:
        self._seconds = now - self._started
        self.is_done = True

    def take_lines(self, width: int) -> list[str]:
        return (
            self._renderer.render_thought(self._seconds, width)
            if self.is_done and self._length
            else []
        )

    def live_lines(self, width: int, height: int, now: float) -> list[str]:
        tail = "".join(self._pieces[-width:])
        return self._renderer.render_thinking(tail, now - self._started, now, width)[
            : max(1, height)
        ]


class ToolStepItem:
    """The calls of one step. Each is printed when it has ended, whether or not others run."""

    is_spaced = False
    can_be_overtaken = True

    def __init__(self, renderer: BlockRenderer, runs: DelegationTree, run_id: str) -> None:
        self._renderer = renderer
        self._runs = runs
        self._run_id = run_id
        self._calls: dict[str, ChatToolCall] = {}
        self._ended: list[ChatToolCall] = []
        self.is_done = False

    @property
    def running_calls(self) -> Sequence[ChatToolCall]:
        """The calls that still run."""
        return list(self._calls.values())

    def start_calls(self, calls: Sequence[ChatToolCall]) -> None:
        """Add calls. They replace those that were only announced."""
        start_times = {call.name: call.started for call in self._calls.values() if call.is_early}
        self._calls = {key: call for key, call in self._calls.items() if not call.is_early}
        for number, call in enumerate(calls):
            if call.is_early:
                call.started = start_times.get(call.name, call.started)
            self._calls[call.id or f"{number}"] = call

    def end_call(self, call_id: str) -> ChatToolCall | None:
        """Mark a call of this step as ended and return it."""
        call = self._calls.pop(call_id, None)
        if call is not None:
            self._ended.append(call)
        return call

    def get_call(self, call_id: str) -> ChatToolCall | None:
        return self._calls.get(call_id)

    def finish(self, sentence: str) -> list[ChatToolCall]:
        """End the step and return the calls without a result, which get `sentence` as output.

        Announced calls never began and are dropped.
        """
        unfinished = [call for call in self._calls.values() if not call.is_early]
        for call in unfinished:
            call.finish(sentence, None, True)
            self._ended.append(call)
        self._calls.clear()
        self.is_done = True
        return unfinished

    def take_lines(self, width: int) -> list[str]:
        lines: list[str] = []
        for call in self._ended:
            lines += self._render_call(call, width)
        self._ended.clear()
        return lines

    def _render_call(self, call: ChatToolCall, width: int) -> list[str]:
        results = call.parse_task_results() if call.tasks and not call.is_error else None
        if results is None:
            return self._renderer.render_ended_call(call, width)
        outcome = self._runs.render_outcome(call.tasks, results, self._run_id, call.id, width)
        return [self._renderer.render_call_head(call, width), *outcome]

    def live_lines(self, width: int, height: int, now: float) -> list[str]:
        lines: list[str] = []
        calls = self.running_calls
        for number, call in enumerate(calls):
            lines.append(self._renderer.render_running_call(call, now, width))
            children = self._runs.list_runs_of_call(self._run_id, call.id)
            lines += self._runs.render_tree(children, call.tasks, width, now) if children else []
            left = len(calls) - number - 1
            if len(lines) >= height - 1 and (left or len(lines) > height):
                theme = self._renderer.theme
                more = f"{theme.glyphs.more} {left} more running" if left else theme.glyphs.more
                return [
                    *lines[: height - 1],
                    render_ansi(truncate_spans([(more, theme.styles.dim)], width)),
                ]
        return lines
