"""A scripted model: an OpenAI-compatible server for tests and benchmarks.

The last user message of a request is the script, one directive per line. `!then` divides it into
steps; step k answers after k assistant messages with tool calls. So one server serves any number of
tests, and a conversation gets the same answers from any client, any number of times.

    !say TEXT                 sends text, one chunk per word
    !think TEXT               the same, as reasoning
    !tool NAME ARGUMENTS      calls a tool; several lines are several calls in one answer
    !chunks COUNT RATE        RATE chunks a second, 0 for a burst; each is time.monotonic_ns()
    !wait, !hang, !cut        pauses until release(); sends nothing more; closes the connection
    !status CODE MESSAGE      an error: the HTTP status, or an event after text was sent
    !usage PROMPT COMPLETION  instead of the number of messages and the number of chunks
    !length                   ends with the finish reason "length"
    !summary                  sends the server's summary
    !nothing                  an answer without text

Text without directives, and a tool result after the last step, is answered with `heard: ` and the
text. Nothing is sent before the first directive that has output, not even headers.

`model_server()` runs one in this process, `model_process()` one in another: `python -m
tests.model_server` prints {"url": ...} and serves until its stdin closes or SIGTERM. Over HTTP,
/control/requests, /control/statistics, /control/release and /control/reset do the same as the
attributes of ModelServer with these names.
"""

import argparse
import asyncio
import heapq
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, Literal, Protocol, cast, get_args

import msgspec

ROOT = Path(__file__).resolve().parents[1]
# A test that waits longer than this waits for something that will not happen.
PATIENCE = 30.0
# The loop polls its sockets after this many chunks: a chunk leaves soon after the time it contains,
# even when a thousand streams are due at once.
CHUNKS_PER_TURN = 16
SUMMARY = "They talked. More was said."

encode = msgspec.json.encode


# ── Scripts ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SayDirective:
    pieces: tuple[str, ...]
    field: str = "content"


@dataclass(frozen=True, slots=True)
class CallDirective:
    name: str
    arguments: str  # as written, JSON or not


@dataclass(frozen=True, slots=True)
class ChunksDirective:
    count: int
    rate: float


@dataclass(frozen=True, slots=True)
class StatusDirective:
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class UsageDirective:
    prompt: int
    completion: int

    def to_document(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


SimpleDirective = Literal["wait", "hang", "cut", "length", "nothing", "summary"]
Directive = (
    SayDirective
    | CallDirective
    | ChunksDirective
    | StatusDirective
    | UsageDirective
    | SimpleDirective
)
Script = tuple[Directive, ...]

DIRECTIVE_LINE = re.compile(
    rf"!(say|think|tool|chunks|usage|status|then|{'|'.join(get_args(SimpleDirective))})(?: (.*))?"
)


class ScriptError(ValueError):
    """A directive that is malformed; answered with status 400."""


@lru_cache(maxsize=1024)
def read_script(text: str) -> tuple[Script, ...]:
    """The steps of a text; none when it has no directives. Raises ScriptError."""
    lines = [match for line in text.split("\n") if (match := DIRECTIVE_LINE.fullmatch(line))]
    if not lines:
        return ()
    steps: list[list[Directive]] = [[]]
    for line in lines:
        name, rest = line[1], line[2] or ""
        if name == "then":
            steps.append([])
            continue
        try:
            steps[-1].append(read_directive(name, rest))
        except ValueError:
            raise ScriptError(f"{line[0]!r} is not how !{name} is written") from None
    return tuple(tuple(step) for step in steps)


def read_directive(name: str, rest: str) -> Directive:
    match name:
        case "say":
            return SayDirective(split_words(rest))
        case "think":
            return SayDirective(split_words(rest), "reasoning_content")
        case "tool":
            tool, _, arguments = rest.partition(" ")
            if not tool:
                raise ValueError
            return CallDirective(tool, arguments or "{}")
        case "chunks":
            count, rate = rest.split()
            return ChunksDirective(int(count), float(rate))
        case "usage":
            prompt, completion = rest.split()
            return UsageDirective(int(prompt), int(completion))
        case "status":
            code, _, message = rest.partition(" ")
            return StatusDirective(int(code), message)
    if rest.strip():
        raise ValueError
    return cast("SimpleDirective", name)


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text, each with the space after it."""
    return tuple(re.findall(r"\S+\s*|\s+", text))


# ── Requests ───────────────────────────────────────────────────────────────────────────────────


class ChatMessage(msgspec.Struct):
    """The fields of a message that decide the answer."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[Any] | None = None

    @property
    def has_images(self) -> bool:
        return isinstance(self.content, list) and any("image_url" in part for part in self.content)

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.get("text", "") for part in self.content)
        return self.content or ""


class ChatRequest(msgspec.Struct):
    """The fields of a request that decide the answer."""

    model: str
    messages: list[ChatMessage]
    tools: list[Any] | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None

    @property
    def includes_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def asks_for_summary(self) -> bool:
        """Whether the request comes from compaction."""
        system = " ".join(m.text for m in self.messages if m.role == "system").lower()
        return not self.tools and ("compact" in system or "summar" in system)

    def current_step(self) -> Script:
        """The step the conversation has reached. Raises ScriptError."""
        used = 0
        last_text = None
        for message in reversed(self.messages):
            if message.role == "assistant" and message.tool_calls:
                used += 1
            if message.role in ("user", "tool") and not message.has_images:
                last_text = message.text if last_text is None else last_text
            if message.role == "user" and not message.has_images:  # images come from tools
                steps = read_script(message.text)
                if used < len(steps):
                    return steps[used]
                break
        return (SayDirective(split_words(f"heard: {last_text or ''}")),)


# ── Encoding ───────────────────────────────────────────────────────────────────────────────────

RESPONSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
CLOCK_PLACEHOLDER = b"0" * 19  # room for the nanoseconds of any uptime
COMMON_FIELDS = {"id": "chatcmpl-scripted", "created": 1700000000}


def frame_event(data: bytes) -> bytes:
    """Encode a server-sent event as a chunk of HTTP."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


END_OF_STREAM = frame_event(b"[DONE]") + b"0\r\n\r\n"


def encode_event(model: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    kind = {"object": "chat.completion.chunk", "model": model}
    return frame_event(encode({**COMMON_FIELDS, **kind, "choices": choices, **more}))


def encode_delta(model: str, fields: dict[str, Any], finish: str | None = None) -> bytes:
    return encode_event(model, [{"index": 0, "delta": fields, "finish_reason": finish}])


@lru_cache(maxsize=1024)
def encode_opening(model: str) -> bytes:
    return RESPONSE_HEAD + encode_delta(model, {"role": "assistant", "content": ""})


@lru_cache(maxsize=1024)
def encode_text(model: str, say: SayDirective) -> bytes:
    return b"".join(encode_delta(model, {say.field: piece}) for piece in say.pieces)


@lru_cache(maxsize=1024)
def make_stamp_template(model: str) -> bytes:
    """A chunk with a placeholder for the clock's nanoseconds."""
    chunk = encode_delta(model, {"content": f"{CLOCK_PLACEHOLDER.decode()} "})
    return chunk.replace(b"%", b"%%").replace(CLOCK_PLACEHOLDER, b"%019d")


def make_error_document(status: StatusDirective) -> dict[str, Any]:
    kind = "server_error" if status.code >= 500 else "invalid_request_error"
    error = {"message": status.message, "type": kind, "param": None, "code": str(status.code)}
    return {"error": error}


class AnswerWriter(Protocol):
    """Writes an answer, as a stream or in one piece. `chunk_count` counts the chunks written."""

    chunk_count: int

    def write_text(self, say: SayDirective) -> None: ...

    def write_timestamps(self, count: int) -> None: ...

    def write_tool_call(self, call_id: str, call: CallDirective) -> None: ...

    def write_error(self, status: StatusDirective) -> None: ...

    def finish(self, reason: str, usage: UsageDirective) -> None: ...


class StreamingAnswerWriter:
    def __init__(self, connection: "ModelConnection", request: ChatRequest) -> None:
        self.chunk_count = 0
        self._calls = 0
        self._connection = connection
        self._write = connection.transport.write
        self._model = request.model
        self._includes_usage = request.includes_usage
        self._stamp_template = make_stamp_template(request.model)
        self._is_open = False

    def write_text(self, say: SayDirective) -> None:
        self._send(encode_text(self._model, say), len(say.pieces))

    def write_timestamps(self, count: int) -> None:
        if count == 1:
            self._send(self._stamp_template % time.monotonic_ns(), 1)
        else:
            stamps = [self._stamp_template % time.monotonic_ns() for _ in range(count)]
            self._send(b"".join(stamps), count)

    def write_tool_call(self, call_id: str, call: CallDirective) -> None:
        half = (len(call.arguments) + 1) // 2
        function = {"name": call.name, "arguments": call.arguments[:half]}
        first = {"index": self._calls, "id": call_id, "type": "function", "function": function}
        rest = {"index": self._calls, "function": {"arguments": call.arguments[half:]}}
        pieces = [encode_delta(self._model, {"tool_calls": [piece]}) for piece in (first, rest)]
        self._send(b"".join(pieces), len(pieces))
        self._calls += 1

    def write_error(self, status: StatusDirective) -> None:
        if self._is_open:
            self._write(frame_event(encode(make_error_document(status))) + END_OF_STREAM)
        else:
            self._connection.reply(make_error_document(status), status.code)

    def finish(self, reason: str, usage: UsageDirective) -> None:
        last = encode_delta(self._model, {}, reason)
        if self._includes_usage:
            last += encode_event(self._model, [], usage=usage.to_document())
        self._send(last + END_OF_STREAM, 0)

    def _send(self, data: bytes, chunks: int) -> None:
        self.chunk_count += chunks
        if not self._is_open:
            self._is_open = True
            data = encode_opening(self._model) + data
        self._write(data)


class WholeAnswerWriter:
    def __init__(self, connection: "ModelConnection", request: ChatRequest) -> None:
        self.chunk_count = 0
        self._connection = connection
        self._model = request.model
        self._texts: dict[str, str] = {}
        self._calls: list[dict[str, Any]] = []

    def write_text(self, say: SayDirective) -> None:
        self._texts[say.field] = self._texts.get(say.field, "") + "".join(say.pieces)
        self.chunk_count += len(say.pieces)

    def write_timestamps(self, count: int) -> None:
        self.write_text(SayDirective(tuple(f"{time.monotonic_ns():019d} " for _ in range(count))))

    def write_tool_call(self, call_id: str, call: CallDirective) -> None:
        function = {"name": call.name, "arguments": call.arguments}
        self._calls.append({"id": call_id, "type": "function", "function": function})
        self.chunk_count += 2

    def write_error(self, status: StatusDirective) -> None:
        self._connection.reply(make_error_document(status), status.code)

    def finish(self, reason: str, usage: UsageDirective) -> None:
        text = None if self._calls else ""
        message: dict[str, Any] = {"role": "assistant", "content": text, **self._texts}
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "finish_reason": reason}
        kind = {"object": "chat.completion", "model": self._model}
        self._connection.reply(
            {**COMMON_FIELDS, **kind, "choices": [choice], "usage": usage.to_document()}
        )


# ── Answers and their timing ───────────────────────────────────────────────────────────────────


class AnswerPause(Enum):
    """What an answer waits for, other than a time."""

    RELEASE = "release"
    ROOM = "room in the socket"
    NEVER = "never"


class SharedTimer:
    """One timer for all paced answers, so that a chunk needs no task, handle or wake-up of its own.

    It counts whole milliseconds, as uvloop's timers do; with finer times it would spin.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._timer: asyncio.Handle | None = None
        self._scheduled_at: float = math.inf

    def call_at(self, due: float, step: Callable[[], None]) -> None:
        """Call `step` at a time of the loop's clock, or up to a millisecond later."""
        moment = math.ceil(due * 1000 - 1e-3)  # a rounding error must not add a millisecond
        heapq.heappush(self._waiting, (moment, next(self._order), step))
        if moment < self._scheduled_at:
            self._reschedule()

    def stop(self) -> None:
        self._waiting.clear()
        self._reschedule()

    def _reschedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._scheduled_at = math.inf
        if self._waiting:
            self._scheduled_at = self._waiting[0][0]
            self._timer = asyncio.get_running_loop().call_at(
                self._scheduled_at / 1000, self._run_due_steps
            )

    def _run_due_steps(self) -> None:
        # By the loop's clock a timer may fire slightly early, so its target time counts.
        now = max(asyncio.get_running_loop().time() * 1000, self._scheduled_at)
        self._scheduled_at = -math.inf  # steps must not reschedule; that happens below
        for _ in range(CHUNKS_PER_TURN):
            if not self._waiting or self._waiting[0][0] > now:
                break
            heapq.heappop(self._waiting)[2]()
        self._reschedule()


class RunningAnswer:
    """The answer to one request."""

    def __init__(self, connection: "ModelConnection", request: ChatRequest, script: Script) -> None:
        self.pause: AnswerPause | None = None
        self._connection = connection
        self._server = connection.server
        self._writer: AnswerWriter = (
            StreamingAnswerWriter if request.stream else WholeAnswerWriter
        )(connection, request)
        self._message_count = len(request.messages)
        self._pauses = self._play_script(script)

    def step(self) -> None:
        """Run until there is something to wait for."""
        self.pause = None
        if self._connection.answer is not self:
            return  # the client disconnected while this was scheduled
        match next(self._pauses, None):
            case None:
                self._connection.finish_answer()
            case AnswerPause() as pause:
                self.pause = pause
                self._server.changed.set()
            case due:
                self._server.timer.call_at(due, self.step)

    def _play_script(self, script: Script) -> Iterator[AnswerPause | float]:
        """Yields what to wait for next: a time of the loop's clock, or an AnswerPause."""
        writer = self._writer
        reason = "stop"
        usage = None
        for directive in script:
            match directive:
                case SayDirective():
                    writer.write_text(directive)
                case CallDirective():
                    writer.write_tool_call(f"call_{next(self._server.call_numbers)}", directive)
                    reason = "tool_calls"
                case ChunksDirective(count, rate):
                    yield from self._write_paced(count, rate) if rate else self._write_burst(count)
                case UsageDirective():
                    usage = directive
                case StatusDirective():
                    writer.write_error(directive)
                    return
                case "summary":
                    writer.write_text(SayDirective(split_words(self._server.summary or SUMMARY)))
                case "length":
                    reason = "length"
                case "wait":
                    yield AnswerPause.RELEASE
                case "hang":
                    yield AnswerPause.NEVER
                case "cut":
                    self._connection.close_when_done()
                    return
        writer.finish(reason, usage or UsageDirective(self._message_count, writer.chunk_count))

    def _write_paced(self, count: int, rate: float) -> Iterator[AnswerPause | float]:
        """Each chunk has its own time since the start, so a late one does not delay the others."""
        start = asyncio.get_running_loop().time()
        for number in range(count):
            if number:
                yield start + number / rate
            if self._connection.is_write_paused:
                yield AnswerPause.ROOM
            self._writer.write_timestamps(1)

    def _write_burst(self, count: int) -> Iterator[AnswerPause | float]:
        for start in range(0, count, CHUNKS_PER_TURN):
            if self._connection.is_write_paused:
                yield AnswerPause.ROOM
            self._writer.write_timestamps(min(CHUNKS_PER_TURN, count - start))
            yield 0.0  # lets other answers run


# ── Connections ────────────────────────────────────────────────────────────────────────────────

FIRST_LINE = re.compile(rb"([A-Z]+) ([^ ?]+)\S* HTTP/1\.[01]\r\n")
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TRANSFER_ENCODING = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
CONNECTION_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


class ModelConnection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request at a time."""

    transport: asyncio.Transport

    def __init__(self, server: "ModelServer") -> None:
        self.server = server
        self.answer: RunningAnswer | None = None
        self.is_write_paused = False  # the client reads more slowly than the server writes
        self._is_last = False
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        if self.answer is not None:
            self.server.hangups += 1
            self.answer = None
        self.server.changed.set()

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self.answer is not None and self.answer.pause is AnswerPause.ROOM:
            self.answer.step()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._serve_next()

    def finish_answer(self) -> None:
        """The answer is complete; serve what arrived meanwhile."""
        self.answer = None
        if self._is_last:
            self.transport.close()
        else:
            self._serve_next()

    def close_when_done(self) -> None:
        """Close after what was written has been sent."""
        self._is_last = True

    def reply(self, document: Any, status: int = 200) -> None:
        """Send a complete JSON response."""
        body = encode(document)
        head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _serve_next(self) -> None:
        """Serve the next request, once it is complete and the previous one is answered."""
        end = self._buffer.find(b"\r\n\r\n") + 2
        if self.answer is not None or end < 2:
            return
        head = bytes(self._buffer[:end])
        first = FIRST_LINE.match(head)
        if first is None or TRANSFER_ENCODING.search(head):
            self._is_last = True
            self._reply_error(400, "write HTTP/1.1, with Content-Length")
            return
        match = CONTENT_LENGTH.search(head)
        start = end + 2
        stop = start + (int(match[1]) if match else 0)
        if len(self._buffer) < stop:
            return
        body = bytes(self._buffer[start:stop])
        del self._buffer[:stop]
        self._is_last = CONNECTION_CLOSE.search(head) is not None
        self._route_request(first[2].decode(), body)

    def _route_request(self, path: str, body: bytes) -> None:
        server = self.server
        match path:
            case "/v1/chat/completions":
                self._start_answer(body)
                return
            case "/v1/models":
                common = {"object": "model", "created": 1700000000, "owned_by": "tests"}
                common |= {"context_length": server.context} if server.context else {}
                data = [{"id": name, **common} for name in server.models]
                self.reply({"object": "list", "data": data})
            case "/control/requests":
                self.reply(server.requests)
            case "/control/statistics":
                self.reply(server.statistics())
            case "/control/release":
                self.reply({"released": server.release()})
            case "/control/reset":
                server.reset()
                self.reply({})
            case _:
                self._reply_error(404, f"there is nothing at {path}")
                return
        self.finish_answer()

    def _start_answer(self, body: bytes) -> None:
        try:
            request = self.server.accept(body)
            script = self.server.script(request)
        except ValueError as error:  # includes msgspec's errors and ScriptError
            self._reply_error(400, str(error))
            return
        self.answer = RunningAnswer(self, request, script)
        self.answer.step()

    def _reply_error(self, status: int, message: str) -> None:
        self.reply(make_error_document(StatusDirective(status, message)), status)
        self.finish_answer()


# ── The server ─────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class ModelServer:
    """The settings and observations of a test.

    `summary`, if set, also answers requests without tools whose system prompt is about compacting
    or summaries, whatever their messages say. With `is_text_only` it refuses requests with images,
    as text-only models do.
    """

    is_recording: bool = True
    models: list[str] = field(default_factory=lambda: ["scripted"])
    context: int = 0  # tokens, reported with its models; 0: not reported
    summary: str = ""
    is_text_only: bool = False
    url: str = ""  # the base URL, with /v1
    requests: list[dict[str, Any]] = field(default_factory=list)  # bodies, in order
    request_count: int = 0  # chat requests, recorded or not
    hangups: int = 0  # clients that disconnected before the end of their answer
    connections: set[ModelConnection] = field(default_factory=set)
    # Used by running answers:
    timer: SharedTimer = field(default_factory=SharedTimer)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    call_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def release(self) -> int:
        """Continue all answers that are at a `!wait`; return how many."""
        waiting = self._find_paused(AnswerPause.RELEASE)
        for answer in waiting:
            answer.step()
        return len(waiting)

    def reset(self) -> None:
        self.requests.clear()
        self.request_count = self.hangups = 0

    def statistics(self) -> dict[str, int]:
        return {
            "asked": self.request_count,
            "answering": sum(c.answer is not None for c in self.connections),
            "waiting": len(self._find_paused(AnswerPause.RELEASE)),
            "hangups": self.hangups,
            "connections": len(self.connections),
        }

    async def until_asked(self, count: int = 1) -> dict[str, Any]:
        """Wait for request number `count` and return its body; empty if none are recorded."""
        await self._until(lambda: self.request_count >= count)
        return self.requests[count - 1] if self.is_recording else {}

    async def until_waiting(self, count: int = 1) -> None:
        """Wait until `count` answers are at a `!wait`."""
        await self._until(lambda: len(self._find_paused(AnswerPause.RELEASE)) >= count)

    async def until_hung_up(self, count: int = 1) -> None:
        """Wait until `count` clients have disconnected before the end."""
        await self._until(lambda: self.hangups >= count)

    def accept(self, body: bytes) -> ChatRequest:
        request = msgspec.json.decode(body, type=ChatRequest)
        if self.is_recording:
            self.requests.append(msgspec.json.decode(body))
        self.request_count += 1
        self.changed.set()
        return request

    def script(self, request: ChatRequest) -> Script:
        if self.is_text_only and any(message.has_images for message in request.messages):
            raise ScriptError("this model does not support image input")
        if self.summary and request.asks_for_summary:
            return ("summary",)
        return request.current_step()

    async def close(self) -> None:
        """Abort every connection; none of them counts as a hang-up."""
        self.timer.stop()
        for connection in self.connections:
            connection.answer = None
            connection.transport.abort()
        await self._until(lambda: not self.connections)

    def _find_paused(self, pause: AnswerPause) -> list[RunningAnswer]:
        answers = [connection.answer for connection in self.connections]
        return [answer for answer in answers if answer is not None and answer.pause is pause]

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def model_server(
    *, port: int = 0, is_recording: bool = True, summary: str = ""
) -> AsyncIterator[ModelServer]:
    """A server on loopback, in this process."""
    server = ModelServer(is_recording=is_recording, summary=summary)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: ModelConnection(server), "127.0.0.1", port, backlog=4096
    )
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()
        await server.close()
        await listener.wait_closed()


@contextmanager
def model_process(*options: str) -> Iterator[tuple[str, int]]:
    """A server in another process: its URL and its pid. It ends with the block."""
    command = [sys.executable, "-m", "tests.model_server", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process.pid


async def serve_until_closed(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, done.set)

    def read_until_eof() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(done.set)

    async with model_server(
        port=options.port, is_recording=options.record, summary=options.summary
    ) as server:
        sys.stdout.write(json.dumps({"url": server.url}) + "\n")
        sys.stdout.flush()
        Thread(target=read_until_eof, daemon=True).start()
        await done.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.model_server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--no-record", dest="record", action="store_false")
    parser.add_argument("--summary", default="", help="what compaction is answered with")
    options = parser.parse_args()
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve_until_closed(options))


if __name__ == "__main__":
    main()
