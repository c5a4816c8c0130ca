"""Parts: what a transcript is made of, one after the other. Each gives out the lines that are
finished, once, and shows those that can still change.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from .blocks import Blocks
from .calls import Call
from .flow import fitted, paint
from .markdown import MarkdownStream
from .runs import Runs

KEPT = 1 << 20  # characters of a thought


class Part(Protocol):
    is_loose: bool  # with a blank line around it
    is_done: bool

    @property
    def lets_pass(self) -> bool:
        """Whether what comes after it may be shown for good before it is done."""

    def take(self, width: int) -> list[str]: ...

    def live(self, width: int, height: int, now: float) -> list[str]: ...


class Fixed:
    """What is finished when it comes."""

    is_done = True
    lets_pass = True

    def __init__(self, lines: Callable[[int], list[str]], *, is_loose: bool = False) -> None:
        self._lines = lines
        self.is_loose = is_loose

    def take(self, width: int) -> list[str]:
        return self._lines(width)

    def live(self, width: int, height: int, now: float) -> list[str]:
        return self._lines(width)


class Text:
    """An answer in markdown; `head` is a line above it."""

    is_loose = True

    def __init__(self, blocks: Blocks, head: str = "") -> None:
        self._stream = MarkdownStream(blocks.look)
        self._head = head
        self.is_done = False

    @property
    def lets_pass(self) -> bool:
        return self._stream.is_at_rest

    def feed(self, text: str) -> None:
        self._stream.feed(text)

    def finish(self) -> None:
        self._stream.finish()
        self.is_done = True

    def take(self, width: int) -> list[str]:
        lines = self._stream.take(width)
        if lines and self._head:
            lines.insert(0, self._head)
            self._head = ""
        return lines

    def live(self, width: int, height: int, now: float) -> list[str]:
        lines = self._stream.live(width)
        return [self._head, *lines] if lines and self._head else lines


class Thinking:
    is_loose = False
    lets_pass = True

    def __init__(self, blocks: Blocks, now: float) -> None:
        self._blocks = blocks
        self._started = now
        self._pieces: list[str] = []
        self._length = 0
        self._seconds = 0.0
        self.is_done = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, text: str) -> None:
        """What is beyond all reading is not kept."""
        if self._length < KEPT:
            self._pieces.append(text)
            self._length += len(text)

    def finish(self, now: float) -> None:
        self._seconds = now - self._started
        self.is_done = True

    def take(self, width: int) -> list[str]:
        return self._blocks.thought(self._seconds, width) if self.is_done and self._length else []

    def live(self, width: int, height: int, now: float) -> list[str]:
        tail = "".join(self._pieces[-width:])
        return self._blocks.thinking(tail, now - self._started, now, width)[: max(1, height)]


class Step:
    """The calls of one step. Each is finished when it has ended, whatever the others do."""

    is_loose = False
    lets_pass = True

    def __init__(self, blocks: Blocks, runs: Runs, run_id: str) -> None:
        self._blocks = blocks
        self._runs = runs
        self._run_id = run_id
        self._calls: dict[str, Call] = {}
        self._ended: list[Call] = []
        self.is_done = False

    @property
    def calls(self) -> Sequence[Call]:
        """That still run."""
        return list(self._calls.values())

    def start(self, calls: Sequence[Call]) -> None:
        """In the place of those that were only announced."""
        began = {call.name: call.started for call in self._calls.values() if call.is_early}
        self._calls = {key: call for key, call in self._calls.items() if not call.is_early}
        for number, call in enumerate(calls):
            if call.is_early:
                call.started = began.get(call.name, call.started)
            self._calls[call.id or f"{number}"] = call

    def end(self, call_id: str) -> Call | None:
        """A call of this step, which has got its result."""
        call = self._calls.pop(call_id, None)
        if call is not None:
            self._ended.append(call)
        return call

    def get(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def finish(self, sentence: str) -> list[Call]:
        """Those without a result are over for the reason given; announced ones never began."""
        left = [call for call in self._calls.values() if not call.is_early]
        for call in left:
            call.finish(sentence, None, True)
            self._ended.append(call)
        self._calls.clear()
        self.is_done = True
        return left

    def take(self, width: int) -> list[str]:
        lines: list[str] = []
        for call in self._ended:
            lines += self._lines(call, width)
        self._ended.clear()
        return lines

    def _lines(self, call: Call, width: int) -> list[str]:
        results = call.results() if call.tasks and not call.is_error else None
        if results is None:
            return self._blocks.ended(call, width)
        outcome = self._runs.outcome(call.tasks, results, self._run_id, call.id, width)
        return [self._blocks.head(call, width), *outcome]

    def live(self, width: int, height: int, now: float) -> list[str]:
        lines: list[str] = []
        calls = self.calls
        for number, call in enumerate(calls):
            lines.append(self._blocks.running(call, now, width))
            children = self._runs.of_call(self._run_id, call.id)
            lines += self._runs.tree(children, call.tasks, width, now) if children else []
            left = len(calls) - number - 1
            if len(lines) >= height - 1 and (left or len(lines) > height):
                look = self._blocks.look
                more = f"{look.glyphs.more} {left} more running" if left else look.glyphs.more
                return [
                    *lines[: height - 1],
                    paint(fitted([(more, look.styles.dim)], width)),
                ]
        return lines
