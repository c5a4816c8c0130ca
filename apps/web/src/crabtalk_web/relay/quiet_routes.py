"""Routes that clients ask for and that have nothing to say here: no feed, no friends, no vendors.

Usage is not kept: how much somebody's agents work is nobody's business but theirs.
"""

from aiohttp import web

from . import shapes
from .accounts import Device
from .core import Core
from .mailroom import answer
from .routing import OpenRoute, Route

BANNER = "crabtalk relay: it keeps what it cannot read.\n"


class QuietRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route | OpenRoute]:
        return [
            OpenRoute("GET", "/health", self.health),
            OpenRoute("POST", "/v1/version", self.version),
            Route("POST", "/v1/usage/query", self.usage),
            Route("GET", "/v1/feed", self.feed),
            Route("GET", "/v1/friends", self.friends),
            Route("GET", "/v1/friends/requests", self.friend_requests),
            Route("GET", "/v1/user/search", self.users),
            Route("GET", "/v1/connect/tokens", self.connected),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return answer({"status": "ok"})

    async def version(self, request: web.Request) -> web.Response:
        return answer({"updateUrl": None, "update_required": False})

    async def usage(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(
            request, shapes.Nothing, self._core.limits.strangers_body
        ):
            return answer({"usage": [], "groupBy": "day", "totalReports": 0})

    async def feed(self, request: web.Request, caller: Device) -> web.Response:
        return answer({"items": [], "hasMore": False})

    async def friends(self, request: web.Request, caller: Device) -> web.Response:
        return answer({"friends": []})

    async def friend_requests(self, request: web.Request, caller: Device) -> web.Response:
        return answer({"requests": []})

    async def users(self, request: web.Request, caller: Device) -> web.Response:
        return answer({"users": []})

    async def connected(self, request: web.Request, caller: Device) -> web.Response:
        return answer({"tokens": {}})
