"""Turn: the agent loop. It starts with the user's message and runs steps until nothing is left to
do.

A step is one model call and the tool calls in its answer. The messages of a step are stored before
the next step begins, and all messages before the turn ends.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, closing

import msgspec

from crabtalk.model import ApiError, ErrorKind, ResponseAssembler
from crabtalk.model.messages import Message, Request, Response, Tool, Usage
from crabtalk.storage import Agent, EventRecord, StorageError, StorageUnavailableError

from .clock import Clock
from .conversation import Conversation, run_to_completion
from .events import (
    ContextUsage,
    Done,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolsComplete,
    ToolStart,
    UserMessageReceived,
    UserSteered,
)
from .hook import Env
from .limits import RuntimeLimits
from .model_request import build_framing, build_messages, drop_tool_images, has_tool_images
from .run import Run
from .run_tree import TreeLimitError
from .shared_provider import SharedProvider
from .tool_calls import ToolCallBatch

log = logging.getLogger(__name__)

# Turns with these stop reasons end in a text; the end is stored together with it.
SPEAKING_REASONS = (StopReason.COMPLETED, StopReason.LENGTH)


class Turn:
    """Executes one run while it holds the conversation's turn. `agent` is the agent that answers;
    a guest has no tools."""

    def __init__(
        self,
        run: Run,
        conversation: Conversation,
        agent: Agent,
        backend: SharedProvider,
        env: Env,
        limits: RuntimeLimits,
        clock: Clock,
        *,
        tool_choice: str = "",
    ) -> None:
        self._run = run
        self._conversation = conversation
        self._agent = agent
        self._backend = backend
        self._env = env
        self._limits = limits
        self._clock = clock
        self._model = ""
        self._tools: tuple[Tool, ...] = ()
        self._tool_choice = tool_choice or agent.tool_choice
        self._injected: list[Message] = []
        self._history_start = 0  # where in the history this turn begins
        self._steps = 0
        self._text = ""
        self._has_output = False  # whether the current model call has sent anything
        self._usage: Usage | None = None
        self._stored_count = 0  # messages of this run in the log

    async def run(self, content: str) -> Done:
        """Runs the turn. Raises nothing but CancelledError; any failure is in the Done.

        The user's message is stored in any case, unless storage itself fails.
        """
        is_passing = False
        try:
            await run_to_completion(self._store_user_message(content))
            if self._run.is_stopping:
                return await self.finish(StopReason.CANCELLED)
            await self._prepare_request()
            reason, error = await self._run_steps()
        except (ApiError, StorageError, TreeLimitError) as failure:
            reason, error = StopReason.ERROR, str(failure)
            is_passing = isinstance(failure, StorageUnavailableError)
        except Exception as failure:
            log.exception("run %s failed", self._run.id)
            reason = StopReason.ERROR
            error = f"internal error ({type(failure).__name__}); the daemon's log has the details"
        done = await self.finish(reason, error)
        return msgspec.structs.replace(done, is_passing=True) if is_passing else done

    async def finish(self, reason: StopReason, error: str = "") -> Done:
        """Stores the end of the turn and all steering messages that the agent has not read."""
        self._run.accepts_steers = False
        await self._run.wait_for_steers()
        steers = list(self._run.steers)
        self._run.steers.clear()
        done = Done(
            agent=self._run.speaker,
            reason=reason,
            text=self._text,
            error=error,
            model=self._model,
            usage=self._usage,
            steps=self._steps,
        )
        if self._conversation.exists and (steers or reason not in SPEAKING_REASONS):
            try:
                await self._append(
                    [Message("user", steer.text) for steer in steers],
                    self._make_done_records(reason, error),
                    steers=[steer.number for steer in steers],
                    snapshot=True,
                )
            except StorageError as failure:
                sentence = f"{error}; then {failure}" if error else str(failure)
                return msgspec.structs.replace(done, reason=StopReason.ERROR, error=sentence)
        return done

    async def _store_user_message(self, content: str) -> None:
        """Loads the conversation and stores the user's message, before anything else happens."""
        await self._conversation.load()
        self._history_start = len(self._conversation.history)
        await self._append([Message("user", content)])
        self._run.emit_started()
        self._run.notify_hooks(UserMessageReceived(self._run.typed_text))

    async def _prepare_request(self) -> None:
        """Collects tools, framing and model. The tools stay the same for the whole turn."""
        if not self._run.is_guest:
            await self._env.hook.prepare(self._agent)
            self._tools = self._env.list_tools(self._agent)
        self._injected = build_framing(
            self._conversation.history,
            await self._env.read_instructions(self._run.cwd),
            primary=self._run.pair.agent,
            guest=self._run.speaker if self._run.is_guest else "",
        )
        self._model = await self._backend.choose_model(self._agent.model)

    async def _run_steps(self) -> tuple[StopReason, str]:
        while True:
            await self._read_steers()
            response = await self._ask_model()
            message = response.message
            if self._run.is_guest:
                message = msgspec.structs.replace(message, tool_calls=(), agent=self._run.speaker)
            if message.tool_calls:
                await self._call_tools(message)
            if response.usage.total:
                self._run.emit(ContextUsage(response.usage))
            if response.message.tool_calls and not message.tool_calls and not message.text:
                return StopReason.ERROR, (
                    f"{self._run.speaker} called a tool, which a guest cannot; "
                    "ask the conversation's own agent for that"
                )
            if message.tool_calls:
                if self._steps >= self._agent.max_iterations and not await self._has_steers():
                    return StopReason.MAX_ITERATIONS, ""
                continue
            if message.text:
                self._text = message.text
                is_cut = response.finish == "length"
                reason = StopReason.LENGTH if is_cut else StopReason.COMPLETED
                await self._append([message], self._make_done_records(reason), snapshot=True)
            else:
                reason = StopReason.NO_ACTION
            # A steering message that came while the answer was being stored gets another step.
            if not await self._has_steers():
                return reason, ""

    async def _has_steers(self) -> bool:
        await self._run.wait_for_steers()
        return bool(self._run.steers)

    async def _read_steers(self) -> None:
        """Stores the steering messages that wait, in order, and emits an event for each."""
        while self._run.steers:
            # Removed before it is stored: a kill meanwhile does not stop the write, and `finish`
            # would store it a second time.
            steer = self._run.steers.popleft()
            event = self._make_event_record("user_steered", content=steer.text)
            await self._append([Message("user", steer.text)], [event], steers=[steer.number])
            self._run.emit(UserSteered(steer.text))

    async def _ask_model(self) -> Response:
        choice = self._tool_choice if self._tools and self._steps == 0 else "auto"
        request = Request(
            model=self._model,
            messages=build_messages(
                self._agent.prompt, self._conversation.history, self._injected, self._history_start
            ),
            tools=self._tools,
            tool_choice=choice,
            thinking=self._agent.thinking,
        )
        if not has_tool_images(request):
            return await self._stream(request)
        models_without_images = self._conversation.models_without_images
        if self._model not in models_without_images:
            try:
                return await self._stream(request)
            except ApiError as error:
                # Vendors do not list which models take images, so this tries once.
                if self._has_output or error.kind not in (ErrorKind.INVALID, ErrorKind.NOT_FOUND):
                    raise
        response = await self._stream(drop_tool_images(request))
        models_without_images.add(self._model)
        return response

    async def _stream(self, request: Request) -> Response:
        self._run.tree.add_model_call(self._limits)
        self._has_output = False
        assembler = ResponseAssembler()
        announced = self._run.is_guest
        event_queue = self._run.event_queue
        with closing(SegmentEmitter(self._run)) as segments:
            async with aclosing(self._backend.provider.stream(request)) as chunks:
                async for chunk in chunks:
                    self._has_output = True
                    assembler.add(chunk)
                    if chunk.reasoning:
                        segments.thinking(chunk.reasoning)
                    if chunk.text:
                        segments.text(chunk.text)
                    if chunk.tool_calls and not announced:
                        announced = self._announce_calls(assembler)
                    if event_queue.is_full:
                        await event_queue.wait_for_room()
        response = assembler.build_response(self._model)
        self._steps += 1
        if response.usage.total:
            self._usage = (self._usage or Usage()) + response.usage
            self._run.tree.add_tokens(response.usage.total)
        return response

    def _announce_calls(self, assembler: ResponseAssembler) -> bool:
        """Emits an early ToolStart as soon as a tool's name is known, so that a person sees
        progress."""
        calls = assembler.list_named_calls()
        if calls:
            self._run.emit(ToolStart(calls, early=True))
        return bool(calls)

    async def _call_tools(self, message: Message) -> None:
        """Stores the calls before it makes them, so that the log has every call that was made."""
        self._text = message.text or self._text
        started = self._make_event_record(
            "tool_start", calls=[[c.id, c.name] for c in message.tool_calls]
        )
        calls = ToolCallBatch(message.tool_calls, self._run, self._env, self._limits, self._clock)
        try:
            await self._append([message], [started])
        except asyncio.CancelledError:
            # Killed meanwhile: unless storage failed, the calls are stored, and none is made.
            if self._conversation.is_loaded:
                await self._append(calls.result_messages())
            raise
        is_complete = False
        try:
            await calls.run()
            is_complete = True
        finally:
            events = [
                self._make_event_record(
                    "tool_result",
                    call_id=result.call_id,
                    duration_ms=result.duration_ms,
                    is_error=result.is_error,
                )
                for result in calls.results.values()
            ]
            events += [
                self._make_event_record(event, **data) for event, data in self._run.decision_records
            ]
            self._run.decision_records.clear()
            await self._append(calls.result_messages(), events)
            if is_complete:
                # Only now, with the results on disk: clients act on this event, and a gateway sends
                # files.
                self._run.emit(ToolsComplete())
            self._run.replay_buffer.end_step(self._stored_count)

    async def _append(
        self,
        messages: Sequence[Message],
        events: Sequence[EventRecord] = (),
        *,
        steers: Sequence[int] = (),
        snapshot: bool = False,
    ) -> None:
        await self._conversation.append(
            messages, events, run=self._run, steers=steers, snapshot=snapshot
        )
        self._stored_count += len(messages)

    def _make_done_records(self, reason: StopReason, error: str = "") -> list[EventRecord]:
        usage = msgspec.to_builtins(self._usage) if self._usage is not None else None
        mode = self._env.permission_mode(self._run, self._agent)
        return [
            self._make_event_record(
                "done",
                model=self._model,
                agent=self._run.speaker,
                iterations=self._steps,
                stop_reason=reason.value,
                **({"error": error} if error else {}),
                **({"usage": usage} if usage else {}),
                **({"mode": mode} if mode else {}),
            )
        ]

    def _make_event_record(self, event: str, **data: object) -> EventRecord:
        return EventRecord(event, self._clock.now(), self._run.id, data)


class SegmentEmitter:
    """Emits start and end events around text and thinking: never nested, mixed or empty."""

    __slots__ = ("_open", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open = ""

    def text(self, piece: str) -> None:
        if self._open != "text":
            self.close()
            self._open = "text"
            self._run.emit(TextStart(self._run.speaker))
        self._run.emit(TextDelta(piece))

    def thinking(self, piece: str) -> None:
        if self._open != "thinking":
            self.close()
            self._open = "thinking"
            self._run.emit(ThinkingStart(self._run.speaker))
        self._run.emit(ThinkingDelta(piece))

    def close(self) -> None:
        if self._open == "text":
            self._run.emit(TextEnd(self._run.speaker))
        elif self._open == "thinking":
            self._run.emit(ThinkingEnd(self._run.speaker))
        self._open = ""
