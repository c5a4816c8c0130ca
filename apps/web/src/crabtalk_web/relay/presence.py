"""Presence: which sessions and machines are online, according to their heartbeats.

Heartbeats are forwarded at once and stored rarely, so a crash loses seconds of them.
"""

import asyncio
from collections import OrderedDict
from typing import Any

from . import presence_rows as rows
from .database import RelayDatabase
from .ids import now_ms
from .limits import RelayLimits
from .socket_hub import SocketHub

# A record's time is stored when it has changed by this much, in milliseconds.
WRITE_AFTER = 30_000
OWNERSHIP_CACHED_FOR = 30.0
# Late heartbeats of a process that is ending must not make the session active again.
IGNORED_FOR = 60.0
MAX_REMEMBERED = 10_000

RecordKey = tuple[rows.RecordKind, str, str]


class PresenceTracker:
    def __init__(self, database: RelayDatabase, hub: SocketHub, limits: RelayLimits) -> None:
        self._database = database
        self._hub = hub
        self._limits = limits
        self._ownership: OrderedDict[RecordKey, tuple[float, bool]] = OrderedDict()
        self._written: OrderedDict[RecordKey, int] = OrderedDict()
        self._unwritten: dict[RecordKey, int] = {}
        self._ignored_until: dict[RecordKey, float] = {}

    async def record_heartbeat(
        self,
        kind: rows.RecordKind,
        account: str,
        record: str,
        at: float,
        *,
        is_thinking: bool = False,
    ) -> None:
        key, now = (kind, account, record), now_ms()
        if at < now - self._limits.skew * 1000 or self._is_ignored(key):
            return
        if not await self._is_owned(key):
            return
        active_at = min(int(at), now)
        if active_at - self._written.get(key, 0) > WRITE_AFTER:
            self._unwritten[key] = active_at
        self._announce(key, active_at, is_active=True, is_thinking=is_thinking)

    async def mark_ended(self, kind: rows.RecordKind, account: str, record: str) -> bool:
        """Return False if the account has no such record. Heartbeats in transit are ignored."""
        key = (kind, account, record)
        at = await self._database.write(rows.set_inactive, kind, account, record)
        if at is None:
            return False
        self._ignored_until[key] = self._time() + IGNORED_FOR
        self._unwritten.pop(key, None)
        self._written.pop(key, None)
        self._announce(key, at, is_active=False)
        return True

    def forget(self, kind: rows.RecordKind, account: str, record: str) -> None:
        """The record was deleted."""
        key = (kind, account, record)
        self._ignored_until[key] = self._time() + IGNORED_FOR
        for cache in (self._unwritten, self._written, self._ownership):
            cache.pop(key, None)

    def mark_begun(self, kind: rows.RecordKind, account: str, record: str) -> None:
        """The record is in use again, so that its heartbeats count."""
        self._ignored_until.pop((kind, account, record), None)
        self._ownership.pop((kind, account, record), None)

    async def flush(self) -> None:
        unwritten, self._unwritten = self._unwritten, {}
        if unwritten:
            seen = [(kind, record, at) for (kind, _, record), at in unwritten.items()]
            await self._database.write(rows.set_active, seen)
            self._written.update(unwritten)
        drop_oldest(self._written)

    async def expire_inactive(self) -> None:
        before = now_ms() - round(self._limits.inactivity * 1000)
        kinds: tuple[rows.RecordKind, ...] = ("sessions", "machines")
        for kind in kinds:
            for account, record, at in await self._database.write(
                rows.expire_records, kind, before
            ):
                self._written.pop((kind, account, record), None)
                self._announce((kind, account, record), at, is_active=False)
        now = self._time()
        self._ignored_until = {
            key: until for key, until in self._ignored_until.items() if until > now
        }

    def _announce(
        self, key: RecordKey, at: int, *, is_active: bool, is_thinking: bool = False
    ) -> None:
        kind, account, record = key
        body: dict[str, Any] = {"id": record, "active": is_active, "activeAt": at}
        if kind == "sessions":
            body = {"type": "activity", **body, "thinking": is_thinking}
        else:
            body = {"type": "machine-activity", **body}
        self._hub.send_ephemeral(account, body)

    def _is_ignored(self, key: RecordKey) -> bool:
        return self._ignored_until.get(key, 0) > self._time()

    async def _is_owned(self, key: RecordKey) -> bool:
        cached = self._ownership.get(key)
        if cached is not None and cached[0] > self._time():
            return cached[1]
        is_owned = await self._database.read(rows.is_owned, *key)
        self._ownership[key] = (self._time() + OWNERSHIP_CACHED_FOR, is_owned)
        drop_oldest(self._ownership)
        return is_owned

    def _time(self) -> float:
        return asyncio.get_running_loop().time()


def drop_oldest(cache: OrderedDict[Any, Any]) -> None:
    while len(cache) > MAX_REMEMBERED:
        cache.popitem(last=False)
