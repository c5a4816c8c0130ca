"""Carrying out the tool calls of one step: side by side, each timed, bounded and answered."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from crabtalk.model.messages import Image, Message, ToolCall

from .clock import Clock
from .conversation import make_interrupted_result
from .events import ToolResult, ToolStart
from .hook import Env, ToolDispatch, ToolError
from .limits import RuntimeLimits
from .run import Run

log = logging.getLogger(__name__)

# What a cancelled tool has to stop in before it is left to itself.
GRACE = 5.0


class ToolCallBatch:
    """The calls of one step. Results are told as they come; `messages` has them in call order."""

    def __init__(
        self, calls: Sequence[ToolCall], run: Run, env: Env, limits: RuntimeLimits, clock: Clock
    ) -> None:
        self._calls = calls
        self._run = run
        self._env = env
        self._limits = limits
        self._clock = clock
        self.results: dict[int, ToolResult] = {}

    async def run(self) -> None:
        """Cancelled, it stops those that still run; what finished by then has its result."""
        self._run.emit(ToolStart(tuple(self._calls)))
        dispatches = [self._make_dispatch(call) for call in self._calls]
        for ask in await self._env.hook.collect_questions(dispatches[: self._limits.tool_calls]):
            # What only the owner may answer is not told to whoever this run belongs to.
            (self._run.notify_hooks if ask.for_owner else self._run.emit)(ask)
        tasks = {
            asyncio.ensure_future(self._run_call(call, number)): number
            for number, call in enumerate(dispatches)
        }
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                self._emit_results(tasks, done)
        finally:
            await cancel_tasks(pending)
            # Some may have finished in the moment of the cancellation, or because of it.
            self._emit_results(tasks, pending)

    def _emit_results(
        self, tasks: Mapping[asyncio.Task[ToolResult], int], some: set[asyncio.Task[ToolResult]]
    ) -> None:
        for task in sorted(some, key=lambda task: tasks[task]):
            if task.done() and not task.cancelled():
                self.results[tasks[task]] = task.result()
                self._run.emit(task.result())

    def result_messages(self) -> list[Message]:
        """One for each call; those without a result were interrupted."""
        return [
            make_interrupted_result(call)
            if (result := self.results.get(number)) is None
            else Message(
                "tool",
                result.output,
                result.images,
                call_id=call.id,
                name=call.name,
                is_error=result.is_error,
            )
            for number, call in enumerate(self._calls)
        ]

    async def _run_call(self, call: ToolDispatch, number: int) -> ToolResult:
        started = self._clock.monotonic()
        images: tuple[Image, ...] = ()
        try:
            output, images = await self._dispatch(call, number)
            is_error = False
        except ToolError as error:
            output, is_error = str(error), True
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            # Not us: something the tool waited for, such as a connection that was closed.
            output, is_error = f"{call.name} failed: what it waited for was cancelled", True
        except Exception as error:
            log.exception("the tool %s failed", call.name)
            output, is_error = f"{call.name} failed: {type(error).__name__}: {error}", True
        took = int((self._clock.monotonic() - started) * 1000)
        text = truncate_middle(output, self._limits.tool_output)
        return ToolResult(call.call_id, text, took, is_error, images)

    async def _dispatch(self, call: ToolDispatch, number: int) -> tuple[str, tuple[Image, ...]]:
        if number >= self._limits.tool_calls:
            raise ToolError(
                f"not carried out: at most {self._limits.tool_calls} calls in one step; "
                "call it again in the next"
            )
        work = self._env.hook.dispatch(call)
        if work is None:
            raise ToolError(f"tool not registered: {call.name}")
        output = await work
        return (output, ()) if isinstance(output, str) else (output.text, output.images)

    def _make_dispatch(self, call: ToolCall) -> ToolDispatch:
        return ToolDispatch(
            name=call.name,
            arguments=call.arguments,
            call_id=call.id,
            agent=self._run.pair.agent,
            sender=self._run.pair.sender,
            run=self._run,
            cwd=self._run.cwd,
        )


def is_cancelled() -> bool:
    """Whether somebody wants the current task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel_tasks(tasks: set[asyncio.Task[ToolResult]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=GRACE)
        for task in stubborn:
            log.warning("a tool does not stop: %s", task.get_name())


def truncate_middle(text: str, limit: int) -> str:
    """At most `limit` bytes: the beginning and the end, and between them what is missing."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()  # without halves of characters, which nobody could pass on
    head = data[: limit // 2].decode(errors="ignore")
    tail = data[len(data) - limit // 2 :].decode(errors="ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n… {missing} of {len(data)} bytes left out …\n{tail}"
