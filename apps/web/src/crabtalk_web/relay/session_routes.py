"""Routes of sessions: made, listed, ended, deleted, and what is announced of them."""

from aiohttp import web

from . import presence_rows, sessions, shapes
from .accounts import Device, within_quota
from .core import Core
from .errors import invalid, not_found
from .ids import now_ms
from .mailroom import answer, number
from .routing import OpenRoute, Route

NEWEST = 150
CURSOR = "cursor_v1_"
# A session of which nothing was heard for longer is not active, whatever its row says.
RECENT_MS = 15 * 60 * 1000


class SessionRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route | OpenRoute]:
        return [
            Route("POST", "/v1/sessions", self.create),
            Route("GET", "/v1/sessions", self.newest),
            Route("GET", "/v2/sessions", self.page),
            Route("GET", "/v2/sessions/active", self.active),
            Route("POST", "/v1/sessions/{id}/archive", self.archive),
            Route("DELETE", "/v1/sessions/{id}", self.delete),
            Route("POST", "/v1/sessions/{id}/push-event", self.push_event),
        ]

    async def create(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.NewSession) as new:
            if len(new.metadata) > self._core.limits.metadata:
                raise invalid("body/metadata", f"has at most {self._core.limits.metadata} bytes")
            session, update = await self._core.database.write(
                within_quota,
                self._core.limits,
                sessions.create,
                caller.account,
                new.tag,
                new.metadata,
                new.data_encryption_key,
                self._core.limits.account_sessions,
            )
        self._core.presence.welcome("sessions", caller.account, session["id"])
        if update:
            told = {name: value for name, value in session.items() if name != "lastMessage"}
            self._core.hub.update(caller.account, update, {"t": "new-session", **told})
        return answer({"session": session})

    async def newest(self, request: web.Request, caller: Device) -> web.Response:
        found = await self._core.database.read(sessions.newest, caller.account, NEWEST)
        return answer({"sessions": found})

    async def page(self, request: web.Request, caller: Device) -> web.Response:
        cursor = request.query.get("cursor")
        if cursor is not None and not cursor.startswith(CURSOR):
            raise invalid("querystring/cursor", "must be the nextCursor of an answer")
        before = None if cursor is None else cursor.removeprefix(CURSOR)
        since = number(request, "changedSince", 0, 2**53, 0)
        limit = number(request, "limit", 1, 200, 50)
        found, has_more = await self._core.database.read(
            sessions.page, caller.account, before, since, limit
        )
        following = f"{CURSOR}{found[-1]['id']}" if has_more else None
        return answer({"sessions": found, "nextCursor": following, "hasNext": has_more})

    async def active(self, request: web.Request, caller: Device) -> web.Response:
        limit = number(request, "limit", 1, 500, 150)
        since = now_ms() - RECENT_MS
        found = await self._core.database.read(sessions.active, caller.account, since, limit)
        return answer({"sessions": found})

    async def archive(self, request: web.Request, caller: Device) -> web.Response:
        session = request.match_info["id"]
        if not await self._core.presence.ended("sessions", caller.account, session):
            raise not_found("Session")
        return answer({"success": True})

    async def delete(self, request: web.Request, caller: Device) -> web.Response:
        session = request.match_info["id"]
        names, update = await self._core.database.write(sessions.delete, caller.account, session)
        self._core.presence.forget("sessions", caller.account, session)
        self._core.hub.update(caller.account, update, {"t": "delete-session", "sid": session})
        await self._core.remove_blobs(names)
        return answer({"success": True})

    async def push_event(self, request: web.Request, caller: Device) -> web.Response:
        """Passed on to devices that are connected. This relay asks no push service of anybody's."""
        session = request.match_info["id"]
        async with self._core.mailroom.parsed(request, shapes.PushEvent) as event:
            is_owned = await self._core.database.read(
                presence_rows.is_owned, "sessions", caller.account, session
            )
            if not is_owned:
                raise not_found("Session")
            told = {
                "type": "session-event",
                "sessionId": session,
                "kind": event.kind,
                "title": event.title,
                "body": event.body,
                "timestamp": now_ms(),
            }
            self._core.hub.ephemeral(caller.account, told)
        is_watched = self._core.hub.is_watched(caller.account)
        return answer({"success": True, "result": "suppressed" if is_watched else "no_tokens"})
