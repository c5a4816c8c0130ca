"""Provider: the interface of a model for the engine. HttpProvider: its implementation over HTTP.

A dialect knows one vendor's API: it builds requests and parses answers, and does no I/O.
HttpProvider has the timeouts, retries and connections for all vendors.
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

# Seconds. If the vendor asks to wait longer, the error is raised instead of waiting.
MAX_RETRY_AFTER = 30.0
FIRST_BACKOFF = 0.1


class Provider(Protocol):
    """A service that offers models. `name` is its name in the configuration."""

    @property
    def name(self) -> str: ...

    async def complete(self, request: Request) -> Response:
        """Return the whole answer. Raises ApiError. Cancelling this closes the request at once."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it arrives. Raises ApiError. Closing this closes the request."""
        ...

    async def models(self) -> list[ModelInfo]:
        """Ask the service which models it offers. Raises ApiError."""
        ...

    def context_limit(self, model: str) -> int | None:
        """Return how many tokens the model can read, if that is known without a request."""
        ...

    async def close(self) -> None:
        """Release connections and child processes."""
        ...


class AnswerDecoder(Protocol):
    """Decodes one streamed answer from bytes that may be split anywhere."""

    @property
    def is_over(self) -> bool:
        """Whether the vendor has marked the end of the answer. Some never do."""
        ...

    def feed(self, data: bytes) -> list[Chunk]:
        """Return the chunks that `data` completes. Raises ApiError for an error of the vendor."""
        ...

    def end(self) -> list[Chunk]:
        """End the body. Raises ApiError if the answer is not complete."""
        ...


class Dialect(Protocol):
    """The API of one vendor. It does no I/O."""

    name: str

    def build_chat_request(self, request: Request) -> HttpRequest: ...

    def create_decoder(self, request: Request) -> AnswerDecoder: ...

    def parse_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ApiError: ...

    def build_models_request(self) -> HttpRequest: ...

    def parse_models(self, body: bytes) -> list[ModelInfo]: ...

    def context_limit(self, model: str) -> int | None: ...

    def drop_rejected_option(self, error: ApiError) -> bool:
        """Stop sending an optional part that `error` rejects. Returns True if a retry may help."""
        ...


def draw_uniform(low: float, high: float) -> float:
    import random  # late: needed for retries only

    return random.uniform(low, high)  # noqa: S311 - spreads clients, and is no secret


class RetryPolicy(Value, frozen=True):
    """How often to retry, and the delays: doubled each time, with jitter between half and full."""

    max_retries: int = 2
    backoff: float = FIRST_BACKOFF
    # Draws the jitter; tests replace it.
    draw_jitter: Callable[[float, float], float] | None = None

    def compute_delay(self, attempt: int, error: ApiError) -> float:
        backoff = self.backoff * 2**attempt
        jittered = (self.draw_jitter or draw_uniform)(backoff / 2, backoff)
        return max(jittered, error.retry_after or 0.0)


def finish_decoding(
    decoder: AnswerDecoder, is_complete: bool, failure: ApiError | None = None
) -> list[Chunk]:
    """Return the last chunks. For an incomplete answer, raises `failure` or the decoder's error.

    A complete answer is valid even if its connection broke: only the usage or the end marker is
    missing then.
    """
    try:
        return decoder.end()
    except ApiError as error:
        if is_complete:
            return []
        raise failure or error from None


class HttpProvider:
    """A Provider over HTTP: one dialect, one shared client.

    `secrets` are the credentials sent to the server; they are masked in its answers.
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
        """Texts that no log may show: keys, with variables filled in."""
        return self._redactor.secrets

    async def complete(self, request: Request) -> Response:
        """Retries as a whole: no chunk has been returned before the answer is complete."""
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
        """Retries only before the first chunk."""
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
        """Nothing to do: the connections belong to the shared client."""

    async def _attempt(self, request: Request, call: HttpRequest) -> AsyncGenerator[Chunk, None]:
        redactor = self._redactor.open_stream()
        async with self._http.open(call, self._timeouts) as reply:
            if reply.status != 200:
                raise self.dialect.parse_error(reply.status, reply.headers, await reply.read())
            self._check_is_stream(reply)
            decoder = self.dialect.create_decoder(request)
            is_complete = False
            piece = await reply.read_piece()
            if piece.lstrip().startswith(b"{"):  # no event stream starts with a brace
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
        """Raises ApiError for a web page, such as that of a proxy, a login or a wrong base_url."""
        kind = reply.headers.get("Content-Type", "")
        if "html" in kind:
            raise ApiError(
                ErrorKind.PROTOCOL,
                "answered with a web page instead of a model's stream; check base_url",
                status=reply.status,
            )

    def _can_send_differently(self, error: ApiError, request: Request, sent: HttpRequest) -> bool:
        """Whether the request would be encoded differently now, because of this error.

        Another request may have got the same error before and have changed the dialect already.
        """
        if error.is_transient:
            return False
        return (
            self.dialect.drop_rejected_option(error)
            or self.dialect.build_chat_request(request).body != sent.body
        )

    async def _wait_before_retry(self, error: ApiError, attempt: int) -> int:
        """Wait before the next attempt, or raise `error` if there is none."""
        error.provider = error.provider or self.name
        if not error.is_transient or attempt >= self._retry.max_retries:
            raise error
        delay = self._retry.compute_delay(attempt, error)
        if delay > MAX_RETRY_AFTER:
            raise error
        await asyncio.sleep(delay)
        return attempt + 1
