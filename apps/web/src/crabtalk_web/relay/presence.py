"""Presence: which sessions and machines are alive, as their heartbeats say.

Heartbeats are passed on at once and written seldom: a crash forgets seconds of them.
"""

import asyncio
from collections import OrderedDict
from typing import Any

from . import presence_rows as rows
from .database import Database
from .hub import Hub
from .ids import now_ms
from .limits import Limits

# A record's time is written when it has moved by this much, in milliseconds.
WORTH_WRITING = 30_000
KNOWN_FOR = 30.0
# What still comes from a process that is ending must not wake the session up again.
DEAF_FOR = 60.0
REMEMBERED = 10_000

Key = tuple[rows.Kind, str, str]


class Presence:
    def __init__(self, database: Database, hub: Hub, limits: Limits) -> None:
        self._database = database
        self._hub = hub
        self._limits = limits
        self._owned: OrderedDict[Key, tuple[float, bool]] = OrderedDict()
        self._written: OrderedDict[Key, int] = OrderedDict()
        self._unwritten: dict[Key, int] = {}
        self._deaf: dict[Key, float] = {}

    async def alive(
        self, kind: rows.Kind, account: str, record: str, at: float, *, is_thinking: bool = False
    ) -> None:
        key, now = (kind, account, record), now_ms()
        if at < now - self._limits.skew * 1000 or self._is_deaf(key):
            return
        if not await self._is_owned(key):
            return
        active_at = min(int(at), now)
        if active_at - self._written.get(key, 0) > WORTH_WRITING:
            self._unwritten[key] = active_at
        self._tell(key, active_at, is_active=True, is_thinking=is_thinking)

    async def ended(self, kind: rows.Kind, account: str, record: str) -> bool:
        """False when the account has no such record. Heartbeats under way are ignored."""
        key = (kind, account, record)
        at = await self._database.write(rows.set_inactive, kind, account, record)
        if at is None:
            return False
        self._deaf[key] = self._time() + DEAF_FOR
        self._unwritten.pop(key, None)
        self._written.pop(key, None)
        self._tell(key, at, is_active=False)
        return True

    def forget(self, kind: rows.Kind, account: str, record: str) -> None:
        """It is deleted."""
        key = (kind, account, record)
        self._deaf[key] = self._time() + DEAF_FOR
        for kept in (self._unwritten, self._written, self._owned):
            kept.pop(key, None)

    def welcome(self, kind: rows.Kind, account: str, record: str) -> None:
        """Whoever ended it has begun it anew."""
        self._deaf.pop((kind, account, record), None)
        self._owned.pop((kind, account, record), None)

    async def flush(self) -> None:
        unwritten, self._unwritten = self._unwritten, {}
        if unwritten:
            seen = [(kind, record, at) for (kind, _, record), at in unwritten.items()]
            await self._database.write(rows.set_active, seen)
            self._written.update(unwritten)
        shorten(self._written)

    async def sweep(self) -> None:
        before = now_ms() - round(self._limits.inactivity * 1000)
        kinds: tuple[rows.Kind, ...] = ("sessions", "machines")
        for kind in kinds:
            for account, record, at in await self._database.write(rows.expire, kind, before):
                self._written.pop((kind, account, record), None)
                self._tell((kind, account, record), at, is_active=False)
        now = self._time()
        self._deaf = {key: until for key, until in self._deaf.items() if until > now}

    def _tell(self, key: Key, at: int, *, is_active: bool, is_thinking: bool = False) -> None:
        kind, account, record = key
        body: dict[str, Any] = {"id": record, "active": is_active, "activeAt": at}
        if kind == "sessions":
            body = {"type": "activity", **body, "thinking": is_thinking}
        else:
            body = {"type": "machine-activity", **body}
        self._hub.ephemeral(account, body)

    def _is_deaf(self, key: Key) -> bool:
        return self._deaf.get(key, 0) > self._time()

    async def _is_owned(self, key: Key) -> bool:
        known = self._owned.get(key)
        if known is not None and known[0] > self._time():
            return known[1]
        is_owned = await self._database.read(rows.is_owned, *key)
        self._owned[key] = (self._time() + KNOWN_FOR, is_owned)
        shorten(self._owned)
        return is_owned

    def _time(self) -> float:
        return asyncio.get_running_loop().time()


def shorten(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)
