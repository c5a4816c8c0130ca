"""Routing: a route is a method, a path and who answers it; most of them know who asks."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from aiohttp import web

from .accounts import Device
from .doorman import Doorman

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
OwnHandler: TypeAlias = Callable[[web.Request, Device], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    """For those who have shown a token."""

    method: str
    path: str
    handler: OwnHandler


class OpenRoute(NamedTuple):
    """For anybody."""

    method: str
    path: str
    handler: Handler


def guarded(doorman: Doorman, handler: OwnHandler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, await doorman.caller(request))

    return handle
