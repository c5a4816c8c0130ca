"""Claims: one turn at a time in a conversation, whatever daemon it is in, as they came.

Whoever has the turn has a lease: a row with an owner, an expiry and a fence, a number that is never
given out twice. It is renewed while its daemon lives; one that expired is anybody's. Every append
names its fence, so a daemon that slept through its lease cannot add a word.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec

from crabtalk.storage.errors import FencedError, StorageError, StorageUnavailableError
from crabtalk.storage.records import Pair
from crabtalk.storage.storage import ConversationVersion

from .column_encoding import encode_column, make_pair_key
from .database import PostgresDatabase

log = logging.getLogger(__name__)

# Notices may be lost; whoever waits looks for itself that often, in seconds.
POLL_SECONDS = 1.0
# Closes a run on the record, for whoever has the turn now: one that a dead daemon left open, or one
# of ours of which something could not be kept.
CloseRun = Callable[["TurnLease", str], Awaitable[None]]

ENTER = "SELECT * FROM crabtalk_enter($1, $2, $3, $4, $5, $6, $7, $8, $9)"
LEAVE = "SELECT crabtalk_leave($1, $2, $3, $4)"
FENCE_OFF = """
UPDATE leases SET fence = crabtalk_fence() WHERE key = $1 AND fence = $2 RETURNING fence
"""
# Not by way of the line: the turn is over, and is only to be closed.
TAKE_OVER = """
UPDATE leases SET owner = $2, fence = crabtalk_fence(),
    expires_at = clock_timestamp() + make_interval(secs => $3)
FROM (SELECT run AS dead_run, key AS of FROM leases
      WHERE key = $1 AND expires_at <= clock_timestamp() FOR UPDATE) AS old
WHERE key = old.of
RETURNING fence, dead_run
"""
# The run before is closed; from now on the lease is this one's.
INHERIT = """
UPDATE leases SET run = $3,
    since = coalesce((SELECT last_seq FROM conversations WHERE key = $1), 0)
WHERE key = $1 AND fence = $2
"""


class TurnLease(msgspec.Struct, eq=False):
    """The turn of a conversation, as long as it is ours."""

    pair: Pair
    key: str
    fence: int
    version: ConversationVersion = None
    is_lost: bool = False
    has_failed_writes: bool = False  # something could not be kept, or nobody knows whether it was


class TurnClaims:
    """Those of one daemon. `opening` comes before all else; `closing` is told of a run that a dead
    daemon left open."""

    def __init__(
        self,
        database: PostgresDatabase,
        daemon: UUID,
        channel: str,
        seconds: float,
        *,
        opening: Callable[[], Awaitable[None]],
        closing: CloseRun,
    ) -> None:
        self.database = database
        self.daemon = daemon
        self.channel = channel
        self.seconds = seconds
        self._opening = opening
        self._closing = closing
        self._granted: dict[str, TurnLease] = {}  # what is renewed, by key
        self._held: dict[str, TurnLease] = {}  # of these, what is made use of
        self._last_tasks: dict[str, asyncio.Task[None]] = {}  # who came last to each, or left it
        self._waiting: dict[str, set[PostgresTurnClaim]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_lost: Callable[[Pair], None] = lambda pair: None  # is told that a turn is another's
        self.rejoin: Callable[[], Awaitable[None]] = opening  # when the others have forgotten us

    def claim_turn(self, pair: Pair, run: str = "", *, first: bool = False) -> "PostgresTurnClaim":
        """A place in everybody's line, at once: those of this daemon are in the order of calls."""
        return PostgresTurnClaim(self, pair, run, first)

    def get_held(self, pair: Pair) -> TurnLease | None:
        return self._held.get(make_pair_key(pair))

    def __len__(self) -> int:
        return len(self._held)

    def wake(self, key: str) -> None:
        """The turn of a conversation may be free."""
        for claim in self._waiting.get(key, ()):
            claim.wake_event.set()

    @property
    def granted_leases(self) -> list[TurnLease]:
        """All that is to be renewed."""
        return list(self._granted.values())

    def apply_renewal(self, asked: Collection[TurnLease], ours: Collection[int]) -> None:
        """Of the leases that were asked about, those with these fences are ours."""
        for lease in asked:
            # It may have been given back meanwhile, and another one taken.
            if lease.fence in ours or not self._stop_renewing(lease):
                continue
            lease.is_lost = True
            log.warning(
                "the turn of %.80s with %.80s was taken over: this daemon was away too long",
                *lease.pair,
            )
            if self._held.get(lease.key) is lease:
                self.on_lost(lease.pair)

    def find_stray_tickets(self, tickets: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Of the tickets this daemon has, by key, those that nobody here knows of: their answer
        was lost, or they could not be given back."""
        return [
            (key, number)
            for key, number in tickets
            if key not in self._last_tasks
            and all(claim.ticket != number for claim in self._waiting.get(key, ()))
        ]

    async def drop_ticket(self, key: str, ticket: int) -> None:
        await self.database.change(LEAVE, key, None, ticket, self.channel)

    async def close_dead_lease(self, key: str, pair: Pair) -> None:
        """Closes what the owner of an expired lease left open, and lets the next one have it."""
        if key in self._last_tasks or key in self._granted:
            return  # it is our own, and only late
        rows = await self.database.change(TAKE_OVER, key, self.daemon, self.seconds)
        if not rows:
            return  # somebody else was quicker
        lease = TurnLease(pair, key, rows[0]["fence"])
        # Failing here, it expires once more, and somebody closes it then.
        with suppress(FencedError):
            await self._closing(lease, rows[0]["dead_run"])
            await self.database.change(LEAVE, key, lease.fence, None, self.channel)
            log.warning("a daemon died in a turn of %.80s with %.80s; it is closed", *pair)

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    # ── What a claim does ───────────────────────────────────────────────────────────────────

    def run_in_order(self, key: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        """Does it when all that was to be done for this key before is done."""
        before = self._last_tasks.get(key)

        async def in_order() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work()

        task = asyncio.ensure_future(in_order())
        self._last_tasks[key] = task
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._last_tasks.get(key) is task:
                del self._last_tasks[key]
            if not task.cancelled():
                task.exception()  # who waits for it has it

        task.add_done_callback(over)
        return task

    async def enter(self, claim: "PostgresTurnClaim", *, is_next: bool = False) -> None:
        """Has the turn, or a ticket for it. `is_next`: in its daemon's own line."""
        await self._opening()
        if is_next and await self._take_from_sibling(claim):
            return
        row = await self._enter(claim)
        if row["fence"] is None and row["ticket"] is None:
            await self.rejoin()
            row = await self._enter(claim)
        claim.ticket = row["ticket"]
        if row["fence"] is not None:
            claim.ticket = None
            stamp = (row["conversation"], row["last_seq"]) if row["conversation"] else None
            await self._grant(claim, TurnLease(claim.pair, claim.key, row["fence"], stamp), row)
        if claim.first and not is_next:
            self.wake(claim.key)  # whoever is first in our own line may have it instead

    async def _enter(self, claim: "PostgresTurnClaim") -> Any:
        agent, sender = claim.pair
        own = self._granted.get(claim.key)
        rows = await self.database.change(
            ENTER,
            claim.key,
            encode_column(agent),
            encode_column(sender),
            self.daemon,
            claim.run,
            claim.first,
            claim.ticket,
            self.seconds,
            own.fence if own is not None else None,
        )
        return rows[0]

    def _stop_renewing(self, lease: TurnLease) -> bool:
        is_ours = self._granted.get(lease.key) is lease
        if is_ours:
            del self._granted[lease.key]
        return is_ours

    async def _grant(self, claim: "PostgresTurnClaim", lease: TurnLease, row: Any) -> None:
        self._granted[lease.key] = lease
        try:
            if row["dead_run"] is not None:
                await self._closing(lease, row["dead_run"])
                await self.database.change(INHERIT, lease.key, lease.fence, claim.run)
        except BaseException:
            # Nobody renews it: it expires, and whoever has it next closes that run.
            self._stop_renewing(lease)
            raise
        claim.lease = lease

    async def _take_from_sibling(self, claim: "PostgresTurnClaim") -> bool:
        """What others of this daemon have for this turn is as good: its own line says who has it
        first, and that may be another one than by the tickets."""
        others = [one for one in self._waiting.get(claim.key, ()) if one is not claim]
        for other in others:
            if (lease := other.lease) is not None and not lease.is_lost:
                other.lease, other.ticket, other.first = None, claim.ticket, claim.first
                claim.lease, claim.ticket = lease, None
                await self.database.change(INHERIT, lease.key, lease.fence, claim.run)
                return True
        if claim.ticket is not None:
            best = min(
                (one for one in (claim, *others) if one.ticket is not None),
                key=PostgresTurnClaim.queue_position,
            )
            claim.ticket, best.ticket = best.ticket, claim.ticket
            claim.first, best.first = best.first, claim.first
        return False

    def add_waiting(self, claim: "PostgresTurnClaim") -> None:
        """It is told when its turn may have come, also while it is looking."""
        self._waiting.setdefault(claim.key, set()).add(claim)

    def mark_held(self, claim: "PostgresTurnClaim", lease: TurnLease) -> None:
        self._held[claim.key] = lease
        self._remove_waiting(claim)

    def _remove_waiting(self, claim: "PostgresTurnClaim") -> None:
        waiting = self._waiting.get(claim.key, set())
        waiting.discard(claim)
        if not waiting:
            self._waiting.pop(claim.key, None)

    async def release(self, claim: "PostgresTurnClaim") -> None:
        lease = claim.lease
        if lease is not None:
            self._stop_renewing(lease)
        if lease is None and claim.ticket is None:
            return
        try:
            if lease is not None and lease.has_failed_writes and not lease.is_lost:
                await self._fence_off(lease)
                await self._closing(lease, claim.run)
            fence = lease.fence if lease is not None else None
            await self.database.change(LEAVE, claim.key, fence, claim.ticket, self.channel)
        except StorageError as error:
            # A lease that nobody renews expires, and its run is closed then; a ticket that nobody
            # knows of is found by the next beat.
            log.warning("a turn could not be given back; it expires by itself: %s", error)

    async def _fence_off(self, lease: TurnLease) -> None:
        """Whatever of ours is still on its way to the database is there then, or never will be."""
        for row in await self.database.change(FENCE_OFF, lease.key, lease.fence):
            lease.fence = row["fence"]

    def forget(self, claim: "PostgresTurnClaim") -> None:
        if claim.lease is not None and self._held.get(claim.key) is claim.lease:
            del self._held[claim.key]
        self._remove_waiting(claim)


class PostgresTurnClaim:
    """One turn's place in the line of all daemons. Left, be it reached or not."""

    def __init__(self, claims: TurnClaims, pair: Pair, run: str, first: bool) -> None:
        self.pair = pair
        self.key = make_pair_key(pair)
        self.run = run
        self.first = first
        self.ticket: int | None = None
        self.lease: TurnLease | None = None
        self._claims = claims
        self._has_left = False
        self.wake_event = asyncio.Event()
        claims.add_waiting(self)
        self._enter_task = claims.run_in_order(self.key, lambda: claims.enter(self))

    def queue_position(self) -> tuple[bool, int]:
        """In everybody's line, with a ticket."""
        return not self.first, self.ticket or 0

    @property
    def held_lease(self) -> TurnLease:
        """Once it was reached."""
        if self.lease is None:
            raise FencedError("it is not this one's turn")
        return self.lease

    async def is_free(self) -> bool:
        """Whether its turn came at once. Cancelled, it is as in `reach`."""
        await self._wait_entered()
        return self.lease is not None

    async def acquire(self) -> ConversationVersion:
        """Waits for its turn. Returns which conversation there is, and how far it goes.

        Raises StorageError. Called when it is the first of its daemon's line.
        """
        await self._wait_entered()
        self._enter_task.result()
        while self.lease is None or self.lease.is_lost:
            self.lease = None
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self.wake_event.wait()
            self.wake_event.clear()
            # As a task of its own: cancelled, it would not know whether it has the turn.
            again = self._claims.run_in_order(
                self.key, lambda: self._claims.enter(self, is_next=True)
            )
            await asyncio.wait([again])
            try:
                again.result()
            except StorageUnavailableError as error:
                # The ticket is kept, and the database may be back before anybody gives up.
                log.info("waiting for a turn: %s", error)
        self._claims.mark_held(self, self.lease)
        return self.lease.version

    async def _wait_entered(self) -> None:
        """Until it is known whether the turn is free.

        That takes a moment, so whoever is killed meanwhile waits for it: one that has its turn then
        begins it, as if the kill had come later, and what was said to it is kept.
        """
        try:
            await asyncio.wait([self._enter_task])
        except asyncio.CancelledError:
            await asyncio.wait([self._enter_task])
            task = asyncio.current_task()
            if self.lease is None or task is None:
                raise
            task.cancel()  # again, at its next await

    def release(self) -> ConversationVersion:
        """Gives it back, soon. Returns how far the conversation goes now."""
        if not self._has_left:
            self._has_left = True
            self._claims.forget(self)
            self._claims.run_in_order(self.key, lambda: self._claims.release(self))
        return self.lease.version if self.lease is not None else None
