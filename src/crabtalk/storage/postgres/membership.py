"""Members: this daemon among those that share a database. It says that it lives, hears whether its
leases are still its own, sees to what dead ones left, and learns that something was changed."""

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

# Beats in the time a lease lasts: two may be lost.
BEATS_PER_LEASE = 3
# Leases of dead daemons seen to in one beat.
MAX_DEAD_PER_BEAT = 50
# How long what dead daemons left is kept, for people to see.
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
# By a clock that stands still meanwhile: no index is used for one that goes on.
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
    """A daemon, as the others see it."""

    id: UUID
    name: str
    version: str
    runs: int  # turns it has
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
        self.is_heartbeat_failing = False  # the last beat failed
        self.on_change: Callable[[str], None] = lambda what: None  # is told what others changed
        self.on_rejoin: Callable[[], None] = lambda: None  # is told that the others forgot us
        self.count_runs: Callable[[], int] = lambda: len(claims)
        # Looks after accepted texts of dead daemons, whose turns nobody had.
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
                log.exception("a beat failed")

    async def _send_heartbeat(self) -> None:
        asked = self._claims.granted_leases
        fences = [lease.fence for lease in asked]
        rows = await self._database.change_on_reserved(
            HEARTBEAT, self._claims.daemon, self._seconds, self.count_runs(), fences
        )
        row = rows[0]
        if not row["is_member"]:
            await self._rejoin()
        self._claims.apply_renewal(asked, set(row["fences"]))
        tickets = [parse_numbered(text) for text in row["tickets"]]
        for key, ticket in self._claims.find_stray_tickets(tickets):
            await self._claims.drop_ticket(key, ticket)
        for text in row["revisions"]:
            self.note_revision(*parse_numbered(text))

    async def _rejoin(self) -> None:
        """Away for so long that the others have forgotten it."""
        await self._register()
        self.on_rejoin()

    async def _register(self) -> None:
        await self._database.change(
            JOIN, self._claims.daemon, self._name, self._version, self._seconds
        )

    def note_revision(self, what: str, number: int) -> None:
        """That something was changed so often by now."""
        known = self._revisions.get(what)
        self._revisions[what] = max(number, known or 0)
        if known is not None and number > known:
            self.on_change(what)

    async def _close_dead_leases(self) -> None:
        """Sees to what the dead left, each of it once: whoever comes first."""
        for row in await self._database.fetch(DEAD_LEASES, MAX_DEAD_PER_BEAT):
            pair = Pair(decode_column(row["agent"]), decode_column(row["sender"]))
            await self._claims.close_dead_lease(row["key"], pair)
        for row in await self._database.change(DELETE_DEAD):
            await self._database.change(DELETE_MAIL, row["id"])

    async def list_members(self) -> list[MemberInfo]:
        """All there are, and those that died lately."""
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
        """Leaves, so that nobody waits for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            with suppress(StorageError):
                await self._database.change(LEAVE, self._claims.daemon)


def parse_numbered(text: str) -> tuple[str, int]:
    word, _, number = text.partition(" ")
    return word, int(number)
