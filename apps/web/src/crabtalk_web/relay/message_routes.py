"""Routes for messages: one transaction and one broadcast for each batch."""

import sqlite3
from typing import Any

from aiohttp import web

from . import messages, request_types, sessions
from .accounts import AccountDevice, run_within_quota
from .client_socket import ClientSocket
from .context import RelayContext
from .errors import build_invalid_error
from .messages import LAST_SEQ, MessageDraft
from .request_bodies import build_json_response, read_query_number
from .routing import AuthenticatedRoute, PublicRoute

NEWEST_COUNT = 150


class MessageRoutes:
    def __init__(self, context: RelayContext) -> None:
        self._context = context

    def routes(self) -> list[AuthenticatedRoute | PublicRoute]:
        return [
            AuthenticatedRoute("POST", "/v3/sessions/{id}/messages", self.append_messages),
            AuthenticatedRoute("GET", "/v3/sessions/{id}/messages", self.list_page),
            AuthenticatedRoute("GET", "/v1/sessions/{id}/messages", self.list_newest),
        ]

    async def append_messages(self, request: web.Request, caller: AccountDevice) -> web.Response:
        async with self._context.body_reader.read_body(request, request_types.NewMessages) as new:
            if len(new.messages) > self._context.limits.batch:
                most = self._context.limits.batch
                raise build_invalid_error("body/messages", f"must have at most {most} messages")
            drafts = [MessageDraft(message.content, message.local_id) for message in new.messages]
            rows = await append_and_announce(
                self._context, caller.account, request.match_info["id"], drafts
            )
        return build_json_response({"messages": [messages.drop_content(row) for row in rows]})

    async def list_page(self, request: web.Request, caller: AccountDevice) -> web.Response:
        if "after_seq" in request.query and "before_seq" in request.query:
            raise build_invalid_error("querystring", "must have after_seq or before_seq, not both")
        limit = read_query_number(request, "limit", 1, self._context.limits.page, 100)
        after = read_query_number(request, "after_seq", 0, LAST_SEQ, 0)
        before = read_query_number(request, "before_seq", 1, LAST_SEQ, 0)
        rows, has_more = await self._context.database.read(
            read_message_page, caller.account, request.match_info["id"], after, before, limit
        )
        return build_json_response({"messages": rows, "hasMore": has_more})

    async def list_newest(self, request: web.Request, caller: AccountDevice) -> web.Response:
        rows, _ = await self._context.database.read(
            read_message_page, caller.account, request.match_info["id"], 0, LAST_SEQ, NEWEST_COUNT
        )
        return build_json_response({"messages": rows})


async def append_and_announce(
    context: RelayContext,
    account: str,
    session: str,
    drafts: list[MessageDraft],
    skip: ClientSocket | None = None,
) -> list[dict[str, Any]]:
    """Store messages, then send them to all sockets but `skip`. Nothing runs between the two, so
    that all sockets get them in the order of the session."""
    appended = await context.database.write(
        run_within_quota, context.limits, messages.append_messages, account, session, drafts
    )
    for at, message in enumerate(appended.new):
        body = {"t": "new-message", "sid": session, "message": message}
        context.hub.send_update(
            account, appended.first_update + at, body, session=session, skip=skip
        )
    return appended.rows


def read_message_page(
    db: sqlite3.Connection, account: str, session: str, after: int, before: int, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    number = sessions.find_session_number(db, account, session)
    if before:
        return messages.list_before(db, number, before, limit)
    return messages.list_after(db, number, after, limit)
