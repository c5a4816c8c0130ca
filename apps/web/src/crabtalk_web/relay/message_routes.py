"""Routes of messages: one transaction and one round of telling for each batch."""

import sqlite3
from typing import Any

from aiohttp import web

from . import messages, sessions, shapes
from .accounts import Device, within_quota
from .core import Core
from .errors import invalid
from .mailroom import answer, number
from .messages import LAST, Draft
from .routing import OpenRoute, Route
from .socket import Socket

NEWEST = 150


class MessageRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route | OpenRoute]:
        return [
            Route("POST", "/v3/sessions/{id}/messages", self.append),
            Route("GET", "/v3/sessions/{id}/messages", self.page),
            Route("GET", "/v1/sessions/{id}/messages", self.newest),
        ]

    async def append(self, request: web.Request, caller: Device) -> web.Response:
        async with self._core.mailroom.parsed(request, shapes.NewMessages) as new:
            if len(new.messages) > self._core.limits.batch:
                most = self._core.limits.batch
                raise invalid("body/messages", f"must have at most {most} messages")
            drafts = [Draft(each.content, each.local_id) for each in new.messages]
            rows = await append(self._core, caller.account, request.match_info["id"], drafts)
        return answer({"messages": [messages.receipt(row) for row in rows]})

    async def page(self, request: web.Request, caller: Device) -> web.Response:
        if "after_seq" in request.query and "before_seq" in request.query:
            raise invalid("querystring", "must have after_seq or before_seq, not both")
        limit = number(request, "limit", 1, self._core.limits.page, 100)
        after = number(request, "after_seq", 0, LAST, 0)
        before = number(request, "before_seq", 1, LAST, 0)
        found, has_more = await self._core.database.read(
            one_page, caller.account, request.match_info["id"], after, before, limit
        )
        return answer({"messages": found, "hasMore": has_more})

    async def newest(self, request: web.Request, caller: Device) -> web.Response:
        found, _ = await self._core.database.read(
            one_page, caller.account, request.match_info["id"], 0, LAST, NEWEST
        )
        return answer({"messages": found})


async def append(
    core: Core, account: str, session: str, drafts: list[Draft], skip: Socket | None = None
) -> list[dict[str, Any]]:
    """Kept, then told to everybody but `skip`. Nothing comes between the two, so that all are told
    in the order of the session."""
    appended = await core.database.write(
        within_quota, core.limits, messages.append, account, session, drafts
    )
    for at, message in enumerate(appended.new):
        body = {"t": "new-message", "sid": session, "message": message}
        core.hub.update(account, appended.first_update + at, body, session=session, skip=skip)
    return appended.rows


def one_page(
    db: sqlite3.Connection, account: str, session: str, after: int, before: int, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    number_ = sessions.number_of(db, account, session)
    if before:
        return messages.before(db, number_, before, limit)
    return messages.after(db, number_, after, limit)
