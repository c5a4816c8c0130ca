"""Membership: registers this daemon with those that share a database, and sends heartbeats.

A heartbeat renews the daemon's leases, notices lost leases and changes by other daemons, and closes
what dead daemons left open.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import msgspec

from crabtalk.storage.errors import StorageError
from crabtalk.storage.records import Pair

from .column_encoding import decode_column
from .database import PostgresDatabase
from .turn_claims import TurnClaims

log = logging.getLogger(__name__)

# Heartbeats per lease duration: two may fail before a lease expires.
BEATS_PER_LEASE = 3
# Leases of dead daemons to close in one heartbeat.
MAX_DEAD_PER_BEAT = 50
# How long rows of dead daemons are kept, to show them to people.
KEEP_DEAD_FOR = "1 hour"

JOIN = """
INSERT INTO daemons AS d (id, name, version, expires_at, runs)
VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4), 0)
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
"""
HEARTBEAT = """
WITH me AS (
    UPDATE daemons SET expires_at = clock_timestamp() + make_interval(secs => $2), runs = $3
    WHERE id = $1 RETURNING id
), ours AS (
    UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => $2)
    WHERE owner = $1 AND fence = ANY($4::bigint[]) RETURNING fence
)
SELECT EXISTS (SELECT FROM me) AS is_member,
    (SELECT coalesce(array_agg(fence), '{}') FROM ours) AS fences,
    (SELECT coalesce(array_agg(key || ' ' || id), '{}') FROM tickets WHERE daemon = $1) AS tickets,
    (SELECT array_agg(what || ' ' || number ORDER BY what) FROM revisions) AS revisions
"""
# statement_timestamp() is constant within a statement; with clock_timestamp() no index is used.
DEAD_LEASES = """
SELECT key, agent, sender FROM leases WHERE expires_at <= statement_timestamp()
ORDER BY expires_at LIMIT $1
"""
DELETE_DEAD = (
    "\nDELETE FROM daemons WHERE expires_at < statement_timestamp() "
    f"- interval '{KEEP_DEAD_FOR}' RETURNING id\n"
)
DELETE_MAIL = "DELETE FROM mail WHERE recipient = $1"
LEAVE = """
WITH unread AS (DELETE FROM mail WHERE recipient = $1)
DELETE FROM daemons WHERE id = $1
"""
LIST_DAEMONS = """
SELECT d.id, d.name, d.version, d.runs,
    extract(epoch FROM clock_timestamp() - d.started_at)::float8 AS age,
    extract(epoch FROM d.expires_at - clock_timestamp())::float8 AS left_seconds
FROM daemons d ORDER BY d.started_at, d.id
"""


class MemberInfo(msgspec.Struct, frozen=True):
    """A daemon as the others see it in the database."""

    id: UUID
    name: str
    version: str
    runs: int  # turns it runs
    age: float  # seconds since it started
    is_alive: bool


class Membership:
    def __init__(
        self,
        database: PostgresDatabase,
        claims: TurnClaims,
        name: str,
        version: str,
        seconds: float,
    ) -> None:
        self._database = database
        self._claims = claims
        self._name = name
        self._version = version
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        claims.rejoin = self._rejoin
        self._revisions: dict[str, int] = {}
        self.is_heartbeat_failing = False  # the last heartbeat failed
        # Called with the kind that another daemon changed.
        self.on_change: Callable[[str], None] = lambda kind: None
        self.on_rejoin: Callable[[], None] = lambda: None  # called after the others had removed us
        self.count_runs: Callable[[], int] = lambda: len(claims)
        # Recovers accepted messages of dead daemons whose turns had not begun.
        self.recover: Callable[[], None] = lambda: None

    async def join(self) -> None:
        """Raises StorageError."""
        await self._register()
        await self._send_heartbeat()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run_heartbeat())

    async def _run_heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / BEATS_PER_LEASE)
            try:
                await self._send_heartbeat()
                await self._close_dead_leases()
                self.recover()
                self.is_heartbeat_failing = False
            except StorageError as error:
                if not self.is_heartbeat_failing:
                    log.warning("this daemon cannot say that it lives: %s", error)
                self.is_heartbeat_failing = True
            except Exception:
                log.exception("a heartbeat failed")

    async def _send_heartbeat(self) -> None:
        leases = self._claims.granted_leases
        fences = [lease.fence for lease in leases]
        rows = await self._database.change_on_reserved(
            HEARTBEAT, self._claims.daemon, self._seconds, self.count_runs(), fences
        )
        row = rows[0]
        if not row["is_member"]:
            await self._rejoin()
        self._claims.apply_renewal(leases, set(row["fences"]))
        tickets = [parse_numbered(text) for text in row["tickets"]]
        for key, ticket in self._claims.find_stray_tickets(tickets):
            await self._claims.drop_ticket(key, ticket)
        for text in row["revisions"]:
            self.note_revision(*parse_numbered(text))

    async def _rejoin(self) -> None:
        """Register again after the others have removed this daemon's row."""
        await self._register()
        self.on_rejoin()

    async def _register(self) -> None:
        await self._database.change(
            JOIN, self._claims.daemon, self._name, self._version, self._seconds
        )

    def note_revision(self, kind: str, number: int) -> None:
        """Note the revision of a kind of data, and report it if it is new."""
        known = self._revisions.get(kind)
        self._revisions[kind] = max(number, known or 0)
        if known is not None and number > known:
            self.on_change(kind)

    async def _close_dead_leases(self) -> None:
        """Close the expired leases and delete old daemons. Each is handled by one daemon only."""
        for row in await self._database.fetch(DEAD_LEASES, MAX_DEAD_PER_BEAT):
            pair = Pair(decode_column(row["agent"]), decode_column(row["sender"]))
            await self._claims.close_dead_lease(row["key"], pair)
        for row in await self._database.change(DELETE_DEAD):
            await self._database.change(DELETE_MAIL, row["id"])

    async def list_members(self) -> list[MemberInfo]:
        """All daemons, including those that died recently."""
        return [
            MemberInfo(
                row["id"],
                row["name"],
                row["version"],
                row["runs"],
                row["age"],
                row["left_seconds"] > 0,
            )
            for row in await self._database.fetch(LIST_DAEMONS)
        ]

    async def close(self) -> None:
        """Leave, so that other daemons do not wait for the lease to expire."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            with suppress(StorageError):
                await self._database.change(LEAVE, self._claims.daemon)


def parse_numbered(text: str) -> tuple[str, int]:
    word, _, number = text.partition(" ")
    return word, int(number)
