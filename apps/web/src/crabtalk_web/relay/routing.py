"""Routing: a route is a method, a path and who answers it; most of them know who asks."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from aiohttp import web

from .accounts import AccountDevice
from .authentication import Authenticator

RequestHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
DeviceHandler: TypeAlias = Callable[[web.Request, AccountDevice], Awaitable[web.StreamResponse]]


class AuthenticatedRoute(NamedTuple):
    """For those who have shown a token."""

    method: str
    path: str
    handler: DeviceHandler


class PublicRoute(NamedTuple):
    """For anybody."""

    method: str
    path: str
    handler: RequestHandler


def authenticate_first(doorman: Authenticator, handler: DeviceHandler) -> RequestHandler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, await doorman.authenticate(request))

    return handle
