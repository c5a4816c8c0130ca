"""TurnClaims: one turn at a time in a conversation across all daemons, in order of arrival.

The owner of a turn has a lease: a row with an owner, an expiry and a fence, a number that is never
used twice. It is renewed while its daemon is alive; any daemon may take over an expired one. Every
append names its fence, so a daemon that was suspended beyond its lease cannot append anything.
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

# Seconds between polls of a waiting claim, because notices may be lost.
POLL_SECONDS = 1.0
# Stores the end of a run, under the lease of the turn's new owner: a run that a dead daemon left
# open, or one of ours with a failed write.
CloseRun = Callable[["TurnLease", str], Awaitable[None]]

ENTER = "SELECT * FROM crabtalk_enter($1, $2, $3, $4, $5, $6, $7, $8, $9)"
LEAVE = "SELECT crabtalk_leave($1, $2, $3, $4)"
FENCE_OFF = """
UPDATE leases SET fence = crabtalk_fence() WHERE key = $1 AND fence = $2 RETURNING fence
"""
# Ignores the queue: the turn is over, and only needs to be closed.
TAKE_OVER = """
UPDATE leases SET owner = $2, fence = crabtalk_fence(),
    expires_at = clock_timestamp() + make_interval(secs => $3)
FROM (SELECT run AS dead_run, key AS of FROM leases
      WHERE key = $1 AND expires_at <= clock_timestamp() FOR UPDATE) AS old
WHERE key = old.of
RETURNING fence, dead_run
"""
# After the previous run was closed, the lease belongs to the new run.
INHERIT = """
UPDATE leases SET run = $3,
    since = coalesce((SELECT last_seq FROM conversations WHERE key = $1), 0)
WHERE key = $1 AND fence = $2
"""


class TurnLease(msgspec.Struct, eq=False):
    """Our ownership of a conversation's turn."""

    pair: Pair
    key: str
    fence: int
    version: ConversationVersion = None
    is_lost: bool = False
    has_failed_writes: bool = False  # a write failed, or its outcome is unknown


class TurnClaims:
    """The claims of one daemon. `ensure_open` is awaited first; `close_run` closes a run that a
    dead daemon left open."""

    def __init__(
        self,
        database: PostgresDatabase,
        daemon: UUID,
        channel: str,
        seconds: float,
        *,
        ensure_open: Callable[[], Awaitable[None]],
        close_run: CloseRun,
    ) -> None:
        self.database = database
        self.daemon = daemon
        self.channel = channel
        self.seconds = seconds
        self._ensure_open = ensure_open
        self._close_run = close_run
        self._granted: dict[str, TurnLease] = {}  # leases to renew, by key
        self._held: dict[str, TurnLease] = {}  # those of a turn that is running
        self._last_tasks: dict[str, asyncio.Task[None]] = {}  # last entry or release by key
        self._waiting: dict[str, set[PostgresTurnClaim]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Called when a turn was taken over.
        self.on_lost: Callable[[Pair], None] = lambda pair: None
        self.rejoin: Callable[[], Awaitable[None]] = ensure_open  # called when our row was removed

    def claim_turn(self, pair: Pair, run: str = "", *, first: bool = False) -> "PostgresTurnClaim":
        """Queue for the turn at once; claims of this daemon are in the order of calls."""
        return PostgresTurnClaim(self, pair, run, first)

    def get_held(self, pair: Pair) -> TurnLease | None:
        return self._held.get(make_pair_key(pair))

    def __len__(self) -> int:
        return len(self._held)

    def wake(self, key: str) -> None:
        """Wake the waiting claims of a conversation, because its turn may be free."""
        for claim in self._waiting.get(key, ()):
            claim.wake_event.set()

    @property
    def granted_leases(self) -> list[TurnLease]:
        """All leases that a heartbeat must renew."""
        return list(self._granted.values())

    def apply_renewal(self, leases: Collection[TurnLease], renewed_fences: Collection[int]) -> None:
        """Handle a heartbeat's result: of `leases`, those with `renewed_fences` are still ours."""
        for lease in leases:
            # It may have been released meanwhile, and another one acquired.
            if lease.fence in renewed_fences or not self._stop_renewing(lease):
                continue
            lease.is_lost = True
            log.warning(
                "the turn of %.80s with %.80s was taken over: this daemon was away too long",
                *lease.pair,
            )
            if self._held.get(lease.key) is lease:
                self.on_lost(lease.pair)

    def find_stray_tickets(self, tickets: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """The tickets in the database, by key, that no claim here has: the answer that gave them
        out was lost, or they could not be released."""
        return [
            (key, number)
            for key, number in tickets
            if key not in self._last_tasks
            and all(claim.ticket != number for claim in self._waiting.get(key, ()))
        ]

    async def drop_ticket(self, key: str, ticket: int) -> None:
        await self.database.change(LEAVE, key, None, ticket, self.channel)

    async def close_dead_lease(self, key: str, pair: Pair) -> None:
        """Close the run of an expired lease, and release the lease."""
        if key in self._last_tasks or key in self._granted:
            return  # it is our own, and only late
        rows = await self.database.change(TAKE_OVER, key, self.daemon, self.seconds)
        if not rows:
            return  # another daemon was faster
        lease = TurnLease(pair, key, rows[0]["fence"])
        # If this fails, the lease expires again, and some daemon closes the run then.
        with suppress(FencedError):
            await self._close_run(lease, rows[0]["dead_run"])
            await self.database.change(LEAVE, key, lease.fence, None, self.channel)
            log.warning("a daemon died in a turn of %.80s with %.80s; it is closed", *pair)

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    # ── Called by claims ────────────────────────────────────────────────────────────────────

    def run_in_order(self, key: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        """Run `work` after all earlier work for this key."""
        previous = self._last_tasks.get(key)

        async def in_order() -> None:
            if previous is not None:
                await asyncio.wait([previous])
            await work()

        task = asyncio.ensure_future(in_order())
        self._last_tasks[key] = task
        self._tasks.add(task)

        def on_done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._last_tasks.get(key) is task:
                del self._last_tasks[key]
            if not task.cancelled():
                task.exception()  # raised in the caller; no warning at exit

        task.add_done_callback(on_done)
        return task

    async def enter(self, claim: "PostgresTurnClaim", *, is_next: bool = False) -> None:
        """Get the turn or a ticket for it. `is_next`: it is the first claim of this daemon."""
        await self._ensure_open()
        if is_next and await self._take_from_sibling(claim):
            return
        row = await self._enter(claim)
        if row["fence"] is None and row["ticket"] is None:
            await self.rejoin()
            row = await self._enter(claim)
        claim.ticket = row["ticket"]
        if row["fence"] is not None:
            claim.ticket = None
            version = (row["conversation"], row["last_seq"]) if row["conversation"] else None
            await self._grant(claim, TurnLease(claim.pair, claim.key, row["fence"], version), row)
        if claim.first and not is_next:
            self.wake(claim.key)  # the first claim in our own queue may get the turn instead

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
                await self._close_run(lease, row["dead_run"])
                await self.database.change(INHERIT, lease.key, lease.fence, claim.run)
        except BaseException:
            # Without renewal the lease expires, and its next owner closes that run.
            self._stop_renewing(lease)
            raise
        claim.lease = lease

    async def _take_from_sibling(self, claim: "PostgresTurnClaim") -> bool:
        """Take the lease or the best ticket of another claim of this daemon: the order of this
        daemon's own queue may differ from the order of the tickets."""
        others = [sibling for sibling in self._waiting.get(claim.key, ()) if sibling is not claim]
        for other in others:
            if (lease := other.lease) is not None and not lease.is_lost:
                other.lease, other.ticket, other.first = None, claim.ticket, claim.first
                claim.lease, claim.ticket = lease, None
                await self.database.change(INHERIT, lease.key, lease.fence, claim.run)
                return True
        if claim.ticket is not None:
            best = min(
                (sibling for sibling in (claim, *others) if sibling.ticket is not None),
                key=PostgresTurnClaim.queue_position,
            )
            claim.ticket, best.ticket = best.ticket, claim.ticket
            claim.first, best.first = best.first, claim.first
        return False

    def add_waiting(self, claim: "PostgresTurnClaim") -> None:
        """Wake the claim when its turn may be free, even while it is entering."""
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
                await self._close_run(lease, claim.run)
            fence = lease.fence if lease is not None else None
            await self.database.change(LEAVE, claim.key, fence, claim.ticket, self.channel)
        except StorageError as error:
            # Without renewal the lease expires, and its run is closed then; the next heartbeat
            # finds a ticket that no claim has.
            log.warning("a turn could not be given back; it expires by itself: %s", error)

    async def _fence_off(self, lease: TurnLease) -> None:
        """Change the fence, so that our pending writes are either stored by now or refused."""
        for row in await self.database.change(FENCE_OFF, lease.key, lease.fence):
            lease.fence = row["fence"]

    def forget(self, claim: "PostgresTurnClaim") -> None:
        if claim.lease is not None and self._held.get(claim.key) is claim.lease:
            del self._held[claim.key]
        self._remove_waiting(claim)


class PostgresTurnClaim:
    """A turn's place in the queue of all daemons. Release it, whether it was reached or not."""

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
        """Position in the queue of all daemons, for a claim with a ticket."""
        return not self.first, self.ticket or 0

    @property
    def held_lease(self) -> TurnLease:
        """The lease, after `acquire`. Raises FencedError before."""
        if self.lease is None:
            raise FencedError("it is not this one's turn")
        return self.lease

    async def is_free(self) -> bool:
        """Whether the turn was free at once. Cancellation is as in `acquire`."""
        await self._wait_entered()
        return self.lease is not None

    async def acquire(self) -> ConversationVersion:
        """Wait for the turn. Returns the version of the conversation.

        Raises StorageError. To be called when it is the first claim in its daemon's queue.
        """
        await self._wait_entered()
        self._enter_task.result()
        while self.lease is None or self.lease.is_lost:
            self.lease = None
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self.wake_event.wait()
            self.wake_event.clear()
            # A separate task: if it were cancelled, we would not know whether we have the turn.
            entering = self._claims.run_in_order(
                self.key, lambda: self._claims.enter(self, is_next=True)
            )
            await asyncio.wait([entering])
            try:
                entering.result()
            except StorageUnavailableError as error:
                # The ticket stays valid, and the database may be back before the caller gives up.
                log.info("waiting for a turn: %s", error)
        self._claims.mark_held(self, self.lease)
        return self.lease.version

    async def _wait_entered(self) -> None:
        """Wait until it is known whether the turn is free.

        If it is cancelled meanwhile, it still waits for the answer. If it then has the turn, the
        turn begins, as if it was cancelled later, and its message is stored.
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
        """Release the turn in the background. Returns the version of the conversation."""
        if not self._has_left:
            self._has_left = True
            self._claims.forget(self)
            self._claims.run_in_order(self.key, lambda: self._claims.release(self))
        return self.lease.version if self.lease is not None else None
