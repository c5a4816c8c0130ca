"""HttpClient: one pool of connections for all backends. Loads aiohttp when first used."""

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

# Of an error's body, this much is read. The rest is not worth waiting for.
MAX_ERROR_BODY = 64 * 1024
# Characters of what a server said that was no HTTP.
MAX_QUOTED = 200
# Seconds that a body has to end in after the answer has.
DRAIN_TIMEOUT = 1.0
# No answer of a model is longer; a stream that goes on past it has no end.
MAX_BODY = 64 * 1024 * 1024
# The engine bounds how many turns run at once; a second bound here would make some wait unseen.
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

    Proxies come from HTTPS_PROXY and its kin, certificates from SSL_CERT_FILE, REQUESTS_CA_BUNDLE
    or CURL_CA_BUNDLE, else from the system.
    """

    def __init__(self) -> None:
        # By whether they go direct, and whether they are secured.
        self._sessions: dict[tuple[bool, bool], aiohttp.ClientSession] = {}

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()

    @asynccontextmanager
    async def open(self, call: HttpRequest, timeouts: Timeouts) -> AsyncIterator["HttpReply"]:
        """Sends `call` and yields its reply once the headers are there.

        Leaving the block before the body was read to its end closes the connection at once.
        Raises ApiError for everything that can go wrong on the way.
        """
        if "aiohttp" not in sys.modules:
            # A tenth of a second, and others have something to say meanwhile.
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
        """Status, headers and whole body, for answers that are not streamed."""
        async with self.open(call, timeouts) as reply:
            return reply.status, reply.headers, await reply.read(MAX_BODY)

    async def get_session(self, url: str) -> "aiohttp.ClientSession":
        """The session for a URL. What is on this machine is never reached through a proxy."""
        direct = is_loopback(url)
        kind = direct, url.lower().startswith("https:")
        if kind not in self._sessions:
            import aiohttp

            # Reading all certificates takes as long as a turn may, so only who needs them pays,
            # and nobody waits. A proxy may need them too.
            tls = await asyncio.to_thread(create_tls_context) if kind != (True, False) else True
            if kind in self._sessions:  # somebody else was faster
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

    One timer watches all reads of a body: it looks when it fires, not before. A timer for each
    read would cost as much as reading a small chunk does.
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
        """What has arrived, empty at the end. Raises ApiError past the deadline."""
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
        """Nothing more is wanted. A body that ends at once leaves its connection to the next
        request; one that does not is closed."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while await self.read_piece():
                    pass

    def extend_deadline(self) -> None:
        """A token arrived: the next one has its time from now."""
        self.deadline = self._loop.time() + self._timeouts.between
        if self.deadline < self._due:  # the first token has more time than those after it
            self._watch.cancel()
            self._schedule_deadline_check(self.deadline)

    async def read(self, limit: int = MAX_ERROR_BODY) -> bytes:
        """The body, or the first `limit` bytes of it."""
        body = bytearray()
        while len(body) < limit and (piece := await self.read_piece()):
            body += piece
        return bytes(body[:limit])

    def close(self) -> None:
        """Closes the connection, or hands it back to the pool when the body was read."""
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
    """The system's certificates, or the bundle the environment names."""
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
    """What went wrong below HTTP, in a sentence."""
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
        # It quotes what it could not read, of any length.
        said = " ".join(error.message.split())[:MAX_QUOTED]
        return ApiError(ErrorKind.PROTOCOL, f"{where} does not answer in HTTP: {said}")
    return ApiError(
        ErrorKind.CONNECTION, f"the connection to {where} failed: {describe_cause(error)}"
    )


def describe_cause(error: Exception) -> str:
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
