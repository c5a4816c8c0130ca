"""Routes for sessions: create, list, archive, delete and notify."""

from aiohttp import web

from . import presence_rows, request_types, sessions
from .accounts import AccountDevice, run_within_quota
from .context import RelayContext
from .errors import build_invalid_error, build_not_found_error
from .ids import now_ms
from .request_bodies import build_json_response, read_query_number
from .routing import AuthenticatedRoute, PublicRoute

NEWEST_COUNT = 150
CURSOR_PREFIX = "cursor_v1_"
# A session without heartbeats for longer is not active, whatever its row says.
RECENT_MS = 15 * 60 * 1000


class SessionRoutes:
    def __init__(self, context: RelayContext) -> None:
        self._context = context

    def routes(self) -> list[AuthenticatedRoute | PublicRoute]:
        return [
            AuthenticatedRoute("POST", "/v1/sessions", self.create),
            AuthenticatedRoute("GET", "/v1/sessions", self.list_newest),
            AuthenticatedRoute("GET", "/v2/sessions", self.list_page),
            AuthenticatedRoute("GET", "/v2/sessions/active", self.list_active),
            AuthenticatedRoute("POST", "/v1/sessions/{id}/archive", self.archive),
            AuthenticatedRoute("DELETE", "/v1/sessions/{id}", self.delete),
            AuthenticatedRoute("POST", "/v1/sessions/{id}/push-event", self.push_event),
        ]

    async def create(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(request, request_types.NewSession) as new:
            if len(new.metadata) > self._context.limits.metadata:
                raise build_invalid_error(
                    "body/metadata", f"has at most {self._context.limits.metadata} bytes"
                )
            session, update = await self._context.database.write(
                run_within_quota,
                self._context.limits,
                sessions.create_session,
                caller.account,
                new.tag,
                new.metadata,
                new.data_encryption_key,
                self._context.limits.account_sessions,
            )
        self._context.presence.mark_begun("sessions", caller.account, session["id"])
        if update:
            announced = {name: value for name, value in session.items() if name != "lastMessage"}
            self._context.hub.send_update(caller.account, update, {"t": "new-session", **announced})
        return build_json_response({"session": session})

    async def list_newest(self, request: web.Request, caller: AccountDevice) -> web.Response:
        rows = await self._context.database.read(sessions.list_newest, caller.account, NEWEST_COUNT)
        return build_json_response({"sessions": rows})

    async def list_page(self, request: web.Request, caller: AccountDevice) -> web.Response:
        cursor = request.query.get("cursor")
        if cursor is not None and not cursor.startswith(CURSOR_PREFIX):
            raise build_invalid_error("querystring/cursor", "must be the nextCursor of an answer")
        before = None if cursor is None else cursor.removeprefix(CURSOR_PREFIX)
        since = read_query_number(request, "changedSince", 0, 2**53, 0)
        limit = read_query_number(request, "limit", 1, 200, 50)
        rows, has_more = await self._context.database.read(
            sessions.list_page, caller.account, before, since, limit
        )
        next_cursor = f"{CURSOR_PREFIX}{rows[-1]['id']}" if has_more else None
        return build_json_response(
            {"sessions": rows, "nextCursor": next_cursor, "hasNext": has_more}
        )

    async def list_active(self, request: web.Request, caller: AccountDevice) -> web.Response:
        limit = read_query_number(request, "limit", 1, 500, 150)
        since = now_ms() - RECENT_MS
        rows = await self._context.database.read(sessions.list_active, caller.account, since, limit)
        return build_json_response({"sessions": rows})

    async def archive(self, request: web.Request, caller: AccountDevice) -> web.Response:
        session = request.match_info["id"]
        if not await self._context.presence.mark_ended("sessions", caller.account, session):
            raise build_not_found_error("Session")
        return build_json_response({"success": True})

    async def delete(self, request: web.Request, caller: AccountDevice) -> web.Response:
        session = request.match_info["id"]
        names, update = await self._context.database.write(
            sessions.delete_session, caller.account, session
        )
        self._context.presence.forget("sessions", caller.account, session)
        self._context.hub.send_update(
            caller.account, update, {"t": "delete-session", "sid": session}
        )
        await self._context.remove_blobs(names)
        return build_json_response({"success": True})

    async def push_event(self, request: web.Request, caller: AccountDevice) -> web.Response:
        """Forward a notice to connected devices. This relay uses no push service."""
        session = request.match_info["id"]
        async with self._context.body_reader.read_body(request, request_types.PushEvent) as event:
            is_owned = await self._context.database.read(
                presence_rows.is_owned, "sessions", caller.account, session
            )
            if not is_owned:
                raise build_not_found_error("Session")
            announced = {
                "type": "session-event",
                "sessionId": session,
                "kind": event.kind,
                "title": event.title,
                "body": event.body,
                "timestamp": now_ms(),
            }
            self._context.hub.send_ephemeral(caller.account, announced)
        is_watched = self._context.hub.is_watched(caller.account)
        return build_json_response(
            {"success": True, "result": "suppressed" if is_watched else "no_tokens"}
        )
