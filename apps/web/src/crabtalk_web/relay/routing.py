"""Routes: method, path and handler. Most handlers get the authenticated device."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from aiohttp import web

from .accounts import AccountDevice
from .authentication import Authenticator

RequestHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
DeviceHandler: TypeAlias = Callable[[web.Request, AccountDevice], Awaitable[web.StreamResponse]]


class AuthenticatedRoute(NamedTuple):
    """Requires a token."""

    method: str
    path: str
    handler: DeviceHandler


class PublicRoute(NamedTuple):
    """Needs no token."""

    method: str
    path: str
    handler: RequestHandler


def authenticate_first(authenticator: Authenticator, handler: DeviceHandler) -> RequestHandler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, await authenticator.authenticate(request))

    return handle
