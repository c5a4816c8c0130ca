"""A server somewhere else, in the host: streamable HTTP with a static header, or with OAuth."""

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
    """A server answered with more than anybody wants to read."""


@asynccontextmanager
async def open_http_transport(
    url: str,
    auth: str,
    tokens: Path | None,
    ask: Callable[[str], None],
    refused: Callable[[int], None],
    over: Callable[[], None],
) -> AsyncIterator[Any]:
    """A transport of the SDK's. `ask` is told an address a person must open, when it comes to
    that; with a header of its own, a server is not asked for another way in. `refused` is told
    the status of each answer that is none, `over` is told when nothing more will be heard: the
    SDK keeps both to itself."""

    async def hear(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            refused(response.status_code)
        limit_response_size(response)

    async with AsyncExitStack() as stack:
        authorization: httpx2.Auth | None = None
        if tokens is not None and not auth:
            flow = stack.enter_context(OAuthFlow(url, tokens, ask))
            authorization = flow.create_provider()
        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                headers={"Authorization": auth} if auth else None,
                auth=authorization,
                # Answers take as long as their tools; whoever waits for one has a deadline.
                timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=None, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
                event_hooks={"response": [hear]},
                trust_env=not is_loopback(url),  # no proxy leads to this machine
            )
        )
        heard, said = await stack.enter_async_context(
            streamable_http_client(url, http_client=client, max_sse_event_size=LARGEST_ANSWER)
        )
        yield EndNotifyingStream(heard, over), said


class EndNotifyingStream:
    """What a server says, with word of its end."""

    def __init__(self, stream: Any, over: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = over

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
    """Answers in one piece are read to their end by the SDK, however long; streams it bounds."""
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
