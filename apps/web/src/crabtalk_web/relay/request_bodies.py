"""Reads request bodies and builds JSON responses.

The bodies of all unanswered requests share one limit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from .errors import RelayError, build_invalid_error
from .limits import RelayLimits

T = TypeVar("T")
CHUNK = 64 * 1024


class BodyReader:
    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._inbound = 0

    @asynccontextmanager
    async def read_body(
        self, request: web.Request, shape: type[T], most: int = 0
    ) -> AsyncIterator[T]:
        """Parse the body as `shape`. It counts against the limit until the context is left."""
        most = most or self._limits.body
        if (request.content_length or 0) > most:
            raise build_too_large_error(most)
        data = bytearray()
        try:
            await self._receive(request, data, most)
            yield decode_body(bytes(data) or b"{}", shape)
        finally:
            self._inbound -= len(data)

    async def _receive(self, request: web.Request, data: bytearray, most: int) -> None:
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                async for piece in request.content.iter_chunked(CHUNK):
                    self._reserve(len(piece))
                    data += piece
                    if len(data) > most:
                        raise build_too_large_error(most)
        except TimeoutError:
            raise RelayError(408, "the request took too long to arrive; send it again") from None

    def _reserve(self, size: int) -> None:
        if self._inbound + size > self._limits.inbound:
            raise RelayError(503, "too much is being sent at once; try again in a moment")
        self._inbound += size


def decode_body(data: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$")
        path = where.rstrip("`").replace(".", "/").replace("[", "/").replace("]", "")
        raise build_invalid_error(f"body{path}", reason) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise build_invalid_error("body", "is not JSON") from None


def build_json_response(value: Any, status: int = 200) -> web.Response:
    """Bytes are encoded as base64."""
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json")


def read_query_number(request: web.Request, name: str, least: int, most: int, default: int) -> int:
    """Read a number from the query string. Raises RelayError 400."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= most):
        raise build_invalid_error(
            f"querystring/{name}", f"must be a whole number from {least} to {most}"
        )
    return int(text)


def build_too_large_error(most: int) -> RelayError:
    return RelayError(413, f"a request of this kind has at most {most} bytes; send less at once")
