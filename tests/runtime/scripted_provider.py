"""A model provider that gives scripted answers and records its requests.

An answer is a list of steps, executed in order: a chunk is sent, an error raised, a gate waited
for. A string is short for an answer with that text. Like a strict vendor the provider refuses a
history in which calls and results do not match, so every test with it checks our histories.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from crabtalk.model import (
    ApiError,
    Chunk,
    ErrorKind,
    Message,
    ModelInfo,
    Request,
    Response,
    ResponseAssembler,
    ToolCall,
    ToolCallDelta,
    Usage,
)

# Seconds that a test waits for anything, at most.
TEST_TIMEOUT = 5


class Gate:
    """Stops a task until the test opens the gate."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def pass_through(self) -> None:
        self._reached.set()
        await self._opened.wait()

    async def wait_until_reached(self) -> None:
        async with asyncio.timeout(TEST_TIMEOUT):
            await self._reached.wait()

    def open(self) -> None:
        self._opened.set()


AnswerStep = Chunk | ApiError | Gate
ScriptedAnswer = str | Sequence[AnswerStep]


def answer_with_text(*pieces: str, usage: Usage | None = None) -> list[AnswerStep]:
    """Steps that send text in pieces, and its usage at the end."""
    return [*(Chunk(text=piece) for piece in pieces), Chunk(finish="stop", usage=usage)]


def answer_with_calls(
    *calls: ToolCall, text: str = "", usage: Usage | None = None
) -> list[AnswerStep]:
    """Steps that send calls as a vendor does: the name and then the arguments, in two chunks."""
    steps: list[AnswerStep] = [Chunk(text=text)] if text else []
    for index, call in enumerate(calls):
        steps.append(Chunk(tool_calls=(ToolCallDelta(index, call.id, call.name),)))
        steps.append(Chunk(tool_calls=(ToolCallDelta(index, arguments=call.arguments),)))
    return [*steps, Chunk(finish="tool_calls", usage=usage)]


class ScriptedProvider:
    """Gives its answers one after the other; when they are used up, it calls `respond`."""

    name = "scripted"

    def __init__(
        self, *answers: ScriptedAnswer, respond: Callable[[Request], ScriptedAnswer] | None = None
    ) -> None:
        self._answers = deque(answers)
        self._respond = respond
        self.requests: list[Request] = []
        self.sent_chunks: list[int] = []  # number of chunks for each request
        self.cut_off_streams = 0  # streams that were closed before their end
        self._closed = asyncio.Event()
        self.on_request: Callable[[Request], Awaitable[None]] | None = None

    def add(self, *answers: ScriptedAnswer) -> None:
        self._answers += answers

    @property
    def last_messages(self) -> tuple[Message, ...]:
        """The messages of the last request, without the system prompt."""
        return tuple(m for m in self.requests[-1].messages if m.role != "system")

    async def complete(self, request: Request) -> Response:
        assembler = ResponseAssembler()
        async for chunk in self.stream(request):
            assembler.add(chunk)
        return assembler.build_response(request.model)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        number = len(self.requests)
        self.requests.append(request)
        self.sent_chunks.append(0)
        try:
            if self.on_request is not None:
                await self.on_request(request)
            for step in self._next_answer(request):
                if isinstance(step, Chunk):
                    self.sent_chunks[number] += 1
                    yield step
                elif isinstance(step, Gate):
                    await step.pass_through()
                else:
                    raise step
        except (asyncio.CancelledError, GeneratorExit):
            self.cut_off_streams += 1
            raise

    def _next_answer(self, request: Request) -> Sequence[AnswerStep]:
        if (error := find_history_error(request.messages)) is not None:
            raise ApiError(ErrorKind.INVALID, error)
        if self._answers:
            answer = self._answers.popleft()
        else:
            assert self._respond is not None, "asked more often than the test has answers"
            answer = self._respond(request)
        return answer_with_text(answer) if isinstance(answer, str) else answer

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo("m")]

    def context_limit(self, model: str) -> int | None:
        return None

    async def close(self) -> None:
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def wait_until_closed(self) -> None:
        async with asyncio.timeout(TEST_TIMEOUT):
            await self._closed.wait()


def find_history_error(messages: Sequence[Message]) -> str | None:
    """Finds a call without its result, or a result without its call, as a strict vendor does."""
    unanswered: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.call_id not in unanswered:
                return f"a result for {message.call_id!r}, which was not called"
            unanswered.remove(message.call_id)
            continue
        if unanswered:
            return f"no result for {unanswered}"
        unanswered = [call.id for call in message.tool_calls]
    return f"no result for {unanswered}" if unanswered else None
