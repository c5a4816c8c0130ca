"""Executes the tool calls of one step concurrently. Each is timed, has its output bounded and gets
a result.
"""

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

# Seconds in which a cancelled tool must stop before it is abandoned.
GRACE = 5.0


class ToolCallBatch:
    """The calls of one step. Results are emitted as they come; `result_messages` has them in the
    order of the calls."""

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
        """Executes all calls. Cancelled, it cancels those still running; finished calls keep their
        results."""
        self._run.emit(ToolStart(tuple(self._calls)))
        dispatches = [self._make_dispatch(call) for call in self._calls]
        for ask in await self._env.hook.collect_questions(dispatches[: self._limits.tool_calls]):
            # A question that only the owner may answer is not shown to the run's own client.
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
            # Some calls may finish at the moment of the cancellation, or because of it.
            self._emit_results(tasks, pending)

    def _emit_results(
        self, tasks: Mapping[asyncio.Task[ToolResult], int], done: set[asyncio.Task[ToolResult]]
    ) -> None:
        for task in sorted(done, key=lambda task: tasks[task]):
            if task.done() and not task.cancelled():
                self.results[tasks[task]] = task.result()
                self._run.emit(task.result())

    def result_messages(self) -> list[Message]:
        """A message for each call; a call without a result was interrupted."""
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
            # The run was not cancelled, but a task the tool waited for was, such as that of a
            # closed connection.
            output, is_error = f"{call.name} failed: what it waited for was cancelled", True
        except Exception as error:
            log.exception("the tool %s failed", call.name)
            output, is_error = f"{call.name} failed: {type(error).__name__}: {error}", True
        duration_ms = int((self._clock.monotonic() - started) * 1000)
        text = truncate_middle(output, self._limits.tool_output)
        return ToolResult(call.call_id, text, duration_ms, is_error, images)

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
    """Whether the current task itself was cancelled."""
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
    """At most `limit` bytes: the beginning, a note of what is missing, and the end."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()  # without lone surrogates, which UTF-8 cannot encode
    head = data[: limit // 2].decode(errors="ignore")
    tail = data[len(data) - limit // 2 :].decode(errors="ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n… {missing} of {len(data)} bytes left out …\n{tail}"
