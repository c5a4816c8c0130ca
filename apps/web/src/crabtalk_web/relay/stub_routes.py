"""Routes that clients expect and that return nothing here: feed, friends, vendor tokens.

Usage is not stored, because it is the private business of the agents' owners.
"""

from aiohttp import web

from . import request_types
from .accounts import AccountDevice
from .context import RelayContext
from .request_bodies import build_json_response
from .routing import AuthenticatedRoute, PublicRoute

BANNER = "crabtalk relay: it keeps what it cannot read.\n"


class StubRoutes:
    def __init__(self, context: RelayContext) -> None:
        self._context = context

    def routes(self) -> list[AuthenticatedRoute | PublicRoute]:
        return [
            PublicRoute("GET", "/health", self.health),
            PublicRoute("POST", "/v1/version", self.version),
            AuthenticatedRoute("POST", "/v1/usage/query", self.usage),
            AuthenticatedRoute("GET", "/v1/feed", self.feed),
            AuthenticatedRoute("GET", "/v1/friends", self.friends),
            AuthenticatedRoute("GET", "/v1/friends/requests", self.friend_requests),
            AuthenticatedRoute("GET", "/v1/user/search", self.users),
            AuthenticatedRoute("GET", "/v1/connect/tokens", self.list_connect_tokens),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return build_json_response({"status": "ok"})

    async def version(self, request: web.Request) -> web.Response:
        return build_json_response({"updateUrl": None, "update_required": False})

    async def usage(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(
            request, request_types.IgnoredBody, self._context.limits.strangers_body
        ):
            return build_json_response({"usage": [], "groupBy": "day", "totalReports": 0})

    async def feed(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return build_json_response({"items": [], "hasMore": False})

    async def friends(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return build_json_response({"friends": []})

    async def friend_requests(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return build_json_response({"requests": []})

    async def users(self, request: web.Request, caller: AccountDevice) -> web.Response:
        return build_json_response({"users": []})

    async def list_connect_tokens(
        self, request: web.Request, caller: AccountDevice
    ) -> web.Response:
        return build_json_response({"tokens": {}})
