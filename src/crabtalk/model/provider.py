"""Provider: what the engine asks of a model. HttpProvider: all of it but a vendor's dialect.

A dialect is pure: it says what to send and reads what came back, and never touches a socket. The
driver here owns time-outs, retries and connections, once for every vendor.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from .errors import ApiError, ErrorKind
from .http_client import HttpClient, HttpReply, HttpRequest, Timeouts
from .messages import Chunk, ModelInfo, Request, Response, Value
from .redaction import Redactor
from .response_assembler import ResponseAssembler

# The vendor asks to wait longer than this: better to say so than to sit and wait.
MAX_RETRY_AFTER = 30.0
FIRST_BACKOFF = 0.1


class Provider(Protocol):
    """A place that answers requests for models. `name` is what configuration calls it."""

    @property
    def name(self) -> str: ...

    async def complete(self, request: Request) -> Response:
        """The whole answer. Raises ApiError. Cancelled, the request is closed at once."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """The answer as it comes. Raises ApiError. Closing it closes the request at once."""
        ...

    async def models(self) -> list[ModelInfo]:
        """What it offers, asked anew. Raises ApiError."""
        ...

    def context_limit(self, model: str) -> int | None:
        """Tokens the model can read, if that is known without asking."""
        ...

    async def close(self) -> None:
        """Gives back what it holds: connections, child processes."""
        ...


class AnswerDecoder(Protocol):
    """Reads one streamed answer, fed with bytes split anywhere."""

    @property
    def is_over(self) -> bool:
        """Whether the vendor has said that this was all. Some never do."""
        ...

    def feed(self, data: bytes) -> list[Chunk]:
        """The chunks `data` completes. Raises ApiError when the vendor reports one."""
        ...

    def end(self) -> list[Chunk]:
        """The body is over. Raises ApiError when the answer is not."""
        ...


class Dialect(Protocol):
    """How one vendor is spoken to. Pure: same input, same output."""

    name: str

    def build_chat_request(self, request: Request) -> HttpRequest: ...

    def create_decoder(self, request: Request) -> AnswerDecoder: ...

    def parse_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError: ...

    def build_models_request(self) -> HttpRequest: ...

    def parse_models(self, body: bytes) -> list[ModelInfo]: ...

    def context_limit(self, model: str) -> int | None: ...

    def drop_rejected_option(self, error: ApiError) -> bool:
        """True when it gave up an optional part that `error` objects to: try again."""
        ...


def draw_uniform(low: float, high: float) -> float:
    import random  # late: few programs ever get here

    return random.uniform(low, high)  # noqa: S311 - so that clients spread, not to keep a secret


class RetryPolicy(Value, frozen=True):
    """How often, and how long in between: doubling, with jitter between half and full."""

    max_retries: int = 2
    backoff: float = FIRST_BACKOFF
    # Draws the jitter; tests put their own here.
    draw_jitter: Callable[[float, float], float] | None = None

    def compute_delay(self, attempt: int, error: ApiError) -> float:
        backoff = self.backoff * 2**attempt
        jittered = (self.draw_jitter or draw_uniform)(backoff / 2, backoff)
        return max(jittered, error.retry_after or 0.0)


def finish_decoding(
    decoder: AnswerDecoder, is_complete: bool, failure: ApiError | None = None
) -> list[Chunk]:
    """An answer that is complete stays one, however its connection ends: what was cut off behind
    it, its price or the word that this was all, is no part of it. Of another, the failure is told.
    """
    try:
        return decoder.end()
    except ApiError as error:
        if is_complete:
            return []
        raise failure or error from None


class HttpProvider:
    """A Provider over HTTP: one dialect, one shared client.

    `secrets` are sent to the server and never shown of what it answers.
    """

    def __init__(
        self,
        dialect: Dialect,
        http: HttpClient,
        *,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        self.dialect = dialect
        self._http = http
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        self._redactor = Redactor(secrets)

    @property
    def name(self) -> str:
        return self.dialect.name

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no log may show: keys, with variables filled in."""
        return self._redactor.secrets

    async def complete(self, request: Request) -> Response:
        """Nobody has seen a chunk before the last one, so the whole of it can be tried again."""
        attempt = 0
        while True:
            assembler = ResponseAssembler()
            call = self.dialect.build_chat_request(request)
            try:
                async with aclosing(self._attempt(request, call)) as chunks:
                    async for chunk in chunks:
                        assembler.add(chunk)
                return assembler.build_response(request.model)
            except ApiError as error:
                self._redactor.redact_error(error)
                if not self._can_send_differently(error, request, call):
                    attempt = await self._wait_before_retry(error, attempt)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Tried again only while nobody has seen a chunk of it."""
        attempt = 0
        while True:
            seen = False
            call = self.dialect.build_chat_request(request)
            try:
                async with aclosing(self._attempt(request, call)) as chunks:
                    async for chunk in chunks:
                        seen = True
                        yield chunk
                return
            except ApiError as error:
                self._redactor.redact_error(error)
                if seen:
                    error.provider = error.provider or self.name
                    raise
                if not self._can_send_differently(error, request, call):
                    attempt = await self._wait_before_retry(error, attempt)

    async def models(self) -> list[ModelInfo]:
        attempt = 0
        while True:
            try:
                status, headers, body = await self._http.fetch(
                    self.dialect.build_models_request(), self._timeouts
                )
                if status != 200:
                    raise self.dialect.parse_error(status, headers, body)
                return self.dialect.parse_models(body)
            except ApiError as error:
                self._redactor.redact_error(error)
                attempt = await self._wait_before_retry(error, attempt)

    def context_limit(self, model: str) -> int | None:
        return self.dialect.context_limit(model)

    async def close(self) -> None:
        """Nothing of its own: the connections are the shared client's."""

    async def _attempt(self, request: Request, call: HttpRequest) -> AsyncGenerator[Chunk, None]:
        redactor = self._redactor.open_stream()
        async with self._http.open(call, self._timeouts) as reply:
            if reply.status != 200:
                raise self.dialect.parse_error(reply.status, reply.headers, await reply.read())
            self._check_is_stream(reply)
            decoder = self.dialect.create_decoder(request)
            is_complete = False
            piece = await reply.read_piece()
            if piece.lstrip().startswith(b"{"):  # no stream begins with a brace
                piece += await reply.read()
                if b'"error"' in piece:
                    raise self.dialect.parse_error(reply.status, reply.headers, piece)
            while piece:
                chunks = decoder.feed(piece)
                for chunk in redactor.redact(chunks) if redactor else chunks:
                    is_complete = is_complete or chunk.finish != ""
                    yield chunk
                if decoder.is_over:
                    await reply.drain()
                    break
                if chunks:
                    reply.extend_deadline()
                try:
                    piece = await reply.read_piece()
                except ApiError as error:
                    chunks = finish_decoding(decoder, is_complete, error)
                    for chunk in redactor.redact(chunks) if redactor else chunks:
                        yield chunk
                    break
            else:
                chunks = finish_decoding(decoder, is_complete)
                for chunk in redactor.redact(chunks) if redactor else chunks:
                    yield chunk
            for chunk in redactor.end() if redactor else ():
                yield chunk

    def _check_is_stream(self, reply: HttpReply) -> None:
        """A page where a stream should be: a proxy's, a login's, or the wrong base_url's."""
        kind = reply.headers.get("Content-Type", "")
        if "html" in kind:
            raise ApiError(
                ErrorKind.PROTOCOL,
                "answered with a web page instead of a model's stream; check base_url",
                status=reply.status,
            )

    def _can_send_differently(self, error: ApiError, request: Request, sent: HttpRequest) -> bool:
        """Whether the same request would be put differently now, because of this objection.

        Another request may have met it first and taught the dialect already.
        """
        if error.is_transient:
            return False
        return (
            self.dialect.drop_rejected_option(error)
            or self.dialect.build_chat_request(request).body != sent.body
        )

    async def _wait_before_retry(self, error: ApiError, attempt: int) -> int:
        """Waits before the next attempt, or raises `error` when there is none."""
        error.provider = error.provider or self.name
        if not error.is_transient or attempt >= self._retry.max_retries:
            raise error
        delay = self._retry.compute_delay(attempt, error)
        if delay > MAX_RETRY_AFTER:
            raise error
        await asyncio.sleep(delay)
        return attempt + 1
