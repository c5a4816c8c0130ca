"""The HTTP transport of the host: streamable HTTP with a static header or OAuth."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.streamable_http import streamable_http_client

from .oauth import OAuthFlow

LARGEST_ANSWER = 16 * 1024 * 1024
CONNECT_TIMEOUT = 15.0  # seconds for a connection, and for sending a request


class AnswerTooLargeError(Exception):
    """A server's answer exceeds LARGEST_ANSWER."""


@asynccontextmanager
async def open_http_transport(
    url: str,
    auth: str,
    tokens: Path | None,
    on_authorization: Callable[[str], None],
    on_error_status: Callable[[int], None],
    on_end: Callable[[], None],
) -> AsyncIterator[Any]:
    """Open a transport for the SDK.

    `on_authorization` gets the URL a person must open; OAuth is not used if `auth` is set. The SDK
    does not report HTTP errors or the end of the stream, so `on_error_status` gets the status of
    each error response, and `on_end` is called when no more messages follow.
    """

    async def handle_response(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_error_status(response.status_code)
        limit_response_size(response)

    async with AsyncExitStack() as stack:
        authorization: httpx2.Auth | None = None
        if tokens is not None and not auth:
            flow = stack.enter_context(OAuthFlow(url, tokens, on_authorization))
            authorization = flow.create_provider()
        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                headers={"Authorization": auth} if auth else None,
                auth=authorization,
                # An answer takes as long as its tool; each call has its own deadline.
                timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=None, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
                event_hooks={"response": [handle_response]},
                trust_env=not is_loopback(url),  # proxies cannot reach this machine's loopback
            )
        )
        incoming, outgoing = await stack.enter_async_context(
            streamable_http_client(url, http_client=client, max_sse_event_size=LARGEST_ANSWER)
        )
        yield EndNotifyingStream(incoming, on_end), outgoing


class EndNotifyingStream:
    """Wraps the SDK's incoming stream and calls `on_end` when it is closed."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        return self._stream.last_context

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> "EndNotifyingStream":
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def __aenter__(self) -> "EndNotifyingStream":
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._on_end()
        await self._stream.aclose()


def limit_response_size(response: httpx2.Response) -> None:
    """Limit the size of a response. Event streams are left alone: the SDK limits those itself."""
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    response.stream = BoundedStream(response.stream)


class BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > LARGEST_ANSWER:
                raise AnswerTooLargeError(f"an answer of more than {LARGEST_ANSWER} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
