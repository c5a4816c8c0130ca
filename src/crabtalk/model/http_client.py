"""HttpClient: one connection pool for all providers. It imports aiohttp on first use."""

import asyncio
import importlib
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from .errors import ApiError, ErrorKind
from .messages import Value

if TYPE_CHECKING:
    import aiohttp

# Bytes read of an error's body. The rest is not worth waiting for.
MAX_ERROR_BODY = 64 * 1024
# Characters quoted of an answer that is not HTTP.
MAX_QUOTED = 200
# Seconds for a body to end after the answer in it is complete.
DRAIN_TIMEOUT = 1.0
# Bytes of an answer. Answers of models are shorter; a longer stream is considered endless.
MAX_BODY = 64 * 1024 * 1024
# No limit: the engine limits concurrent turns, and a second limit would make some wait unnoticed.
MAX_CONNECTIONS = 0
LOOPBACK = re.compile(r"https?://(localhost|127(\.\d+){3}|\[::1\])(:\d+)?([/?#]|$)", re.IGNORECASE)


class HttpRequest(Value, frozen=True):
    """One HTTP request, ready to send."""

    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    method: str = "POST"


class Timeouts(Value, frozen=True):
    """Seconds. `first` runs from sending the request to the first token, `between` from then on."""

    connect: float = 10.0
    first: float = 120.0
    between: float = 60.0


class HttpClient:
    """Shared by all providers of a process; closed once, at the end.

    Proxies come from HTTPS_PROXY and similar variables, certificates from SSL_CERT_FILE,
    REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, else from the system.
    """

    def __init__(self) -> None:
        # By (without proxy, with TLS).
        self._sessions: dict[tuple[bool, bool], aiohttp.ClientSession] = {}

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()

    @asynccontextmanager
    async def open(self, call: HttpRequest, timeouts: Timeouts) -> AsyncIterator["HttpReply"]:
        """Send `call` and yield its reply once the headers have arrived.

        Leaving the block before the body was read to its end closes the connection at once.
        Raises ApiError for all network errors.
        """
        if "aiohttp" not in sys.modules:
            # The import takes a tenth of a second and must not block the loop.
            await asyncio.to_thread(importlib.import_module, "aiohttp")
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect)
        deadline = asyncio.get_running_loop().time() + timeouts.first
        try:
            async with asyncio.timeout_at(deadline):
                session = await self.get_session(call.url)
                response = await session.request(
                    call.method,
                    call.url,
                    data=call.body,
                    headers=call.headers,
                    timeout=limits,
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise translate_error(error, call.url, timeouts) from None
        reply = HttpReply(response, call.url, timeouts, deadline)
        try:
            yield reply
        finally:
            reply.close()

    async def fetch(
        self, call: HttpRequest, timeouts: Timeouts
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and the whole body of an answer that is not streamed."""
        async with self.open(call, timeouts) as reply:
            return reply.status, reply.headers, await reply.read(MAX_BODY)

    async def get_session(self, url: str) -> "aiohttp.ClientSession":
        """Return the session for a URL. Loopback URLs never go through a proxy."""
        direct = is_loopback(url)
        kind = direct, url.lower().startswith("https:")
        if kind not in self._sessions:
            import aiohttp

            # Reading all certificates is slow, so it happens in a thread and only if they are
            # needed. A proxy may need them too.
            tls = await asyncio.to_thread(create_tls_context) if kind != (True, False) else True
            if kind in self._sessions:  # another task was faster
                return self._sessions[kind]
            self._sessions[kind] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS, keepalive_timeout=60, ssl=tls
                ),
                trust_env=not direct,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=256 * 1024,
            )
        return self._sessions[kind]


def is_loopback(url: str) -> bool:
    return LOOPBACK.match(url) is not None


class HttpReply:
    """A response whose body is still to be read.

    One timer for the whole body checks the deadline when it fires. A timer for each read would cost
    as much as reading a small chunk.
    """

    __slots__ = (
        "_due",
        "_is_overdue",
        "_is_waiting",
        "_loop",
        "_read",
        "_response",
        "_seen",
        "_timeouts",
        "_url",
        "_watch",
        "deadline",
        "headers",
        "status",
    )

    def __init__(
        self, response: "aiohttp.ClientResponse", url: str, timeouts: Timeouts, deadline: float
    ) -> None:
        self._response = response
        self._read = response.content.readany
        self._url = url
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._seen = 0
        self._is_waiting = False
        self._is_overdue = False
        self.deadline = deadline  # for the next token, in the loop's time
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._schedule_deadline_check(deadline)

    async def read_piece(self) -> bytes:
        """Return the bytes that have arrived; empty at the end. Raises ApiError past the
        deadline."""
        self._is_waiting = True
        try:
            piece = await self._read()
        except OSError as error:
            raise self._to_api_error(error) from None
        except Exception as error:
            import aiohttp

            if not isinstance(error, aiohttp.ClientError):
                raise
            raise self._to_api_error(error) from None
        finally:
            self._is_waiting = False
        self._seen += len(piece)
        if self._seen > MAX_BODY:
            raise ApiError(ErrorKind.PROTOCOL, "the answer does not end; it was cut off")
        if not piece and self._is_overdue:
            raise self._to_api_error(TimeoutError())
        return piece

    async def drain(self) -> None:
        """Read the rest of the body. If it ends within DRAIN_TIMEOUT, the connection can be
        reused; otherwise it is closed."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while await self.read_piece():
                    pass

    def extend_deadline(self) -> None:
        """A token has arrived: restart the deadline for the next one."""
        self.deadline = self._loop.time() + self._timeouts.between
        if self.deadline < self._due:  # the first token has more time than those after it
            self._watch.cancel()
            self._schedule_deadline_check(self.deadline)

    async def read(self, limit: int = MAX_ERROR_BODY) -> bytes:
        """Return at most the first `limit` bytes of the body."""
        body = bytearray()
        while len(body) < limit and (piece := await self.read_piece()):
            body += piece
        return bytes(body[:limit])

    def close(self) -> None:
        """Close the connection, or return it to the pool if the body was read."""
        self._watch.cancel()
        self._response.close()

    def _check_deadline(self) -> None:
        now = self._loop.time()
        if self._is_waiting and now >= self.deadline:
            self._is_overdue = True
            self._response.close()  # ends the read that is waiting
            return
        later = self.deadline if now < self.deadline else now + self._timeouts.between
        self._schedule_deadline_check(later)

    def _schedule_deadline_check(self, due: float) -> None:
        self._due = due
        self._watch = self._loop.call_at(due, self._check_deadline)

    def _to_api_error(self, error: Exception) -> ApiError:
        return translate_error(
            TimeoutError() if self._is_overdue else error, self._url, self._timeouts
        )


def create_tls_context() -> ssl.SSLContext:
    """Load the system's certificates, or the bundle named in the environment."""
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if path := os.environ.get(name):
            try:
                return ssl.create_default_context(cafile=path)
            except OSError as error:
                raise ApiError(
                    ErrorKind.CONFIG, f"{name} names {path}, which cannot be used: {error}"
                ) from None
    return ssl.create_default_context()


def translate_error(error: Exception, url: str, timeouts: Timeouts) -> ApiError:
    """Convert a network error to an ApiError."""
    import aiohttp

    where = url.split("?")[0]
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return ApiError(ErrorKind.TLS, f"no secure connection to {where}: {describe_cause(error)}")
    if isinstance(error, ValueError):  # InvalidURL is one
        return ApiError(ErrorKind.CONFIG, f"{url!r} is not a URL; check base_url")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ApiError(
            ErrorKind.TIMEOUT, f"{where} could not be reached within {timeouts.connect:g} s"
        )
    if isinstance(error, TimeoutError):
        return ApiError(ErrorKind.TIMEOUT, f"{where} sent nothing for too long")
    if isinstance(error, aiohttp.ClientConnectorError):
        return ApiError(ErrorKind.CONNECTION, f"{where} cannot be reached: {describe_cause(error)}")
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return ApiError(ErrorKind.CONNECTION, f"{where} closed the connection in mid-answer")
    if isinstance(error, aiohttp.ClientResponseError):
        # aiohttp quotes the text it could not parse, of any length.
        quoted = " ".join(error.message.split())[:MAX_QUOTED]
        return ApiError(ErrorKind.PROTOCOL, f"{where} does not answer in HTTP: {quoted}")
    return ApiError(
        ErrorKind.CONNECTION, f"the connection to {where} failed: {describe_cause(error)}"
    )


def describe_cause(error: Exception) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
