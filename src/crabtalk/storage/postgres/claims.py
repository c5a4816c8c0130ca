"""Claims: one turn at a time in a conversation, whatever daemon it is in, as they came.

Whoever has the turn has a lease: a row with an owner, an expiry and a fence, a number that is never
given out twice. It is renewed while its daemon lives; one that expired is anybody's. Every append
names its fence, so a daemon that slept through its lease cannot add a word.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from uuid import UUID

import msgspec

from crabtalk.storage.errors import FencedError, StorageError, StorageUnavailableError
from crabtalk.storage.records import Pair
from crabtalk.storage.storage import Stamp

from .database import Database
from .pair import column, key_of

log = logging.getLogger(__name__)

# Notices may be lost; whoever waits looks for itself that often, in seconds.
LOOK = 1.0
# Closes on the record what a dead daemon left open, for whoever has the turn now.
Closing = Callable[["Lease", str], Awaitable[None]]

ENTER = "SELECT * FROM crabtalk_enter($1, $2, $3, $4, $5, $6, $7, $8)"
LEAVE = "SELECT crabtalk_leave($1, $2, $3, $4)"
# Not by way of the line: the turn is over, and is only to be closed.
TAKE_OVER = """
UPDATE leases SET owner = $2, fence = nextval('fences'),
    expires_at = clock_timestamp() + make_interval(secs => $3)
FROM (SELECT run AS dead_run, key AS of FROM leases
      WHERE key = $1 AND expires_at <= clock_timestamp() FOR UPDATE) AS old
WHERE key = old.of
RETURNING fence, dead_run
"""


class Lease(msgspec.Struct, eq=False):
    """The turn of a conversation, as long as it is ours."""

    pair: Pair
    key: str
    fence: int
    stamp: Stamp = None
    is_lost: bool = False


class Claims:
    """Those of one daemon. `opening` comes before all else; `closing` is told of a run that a dead
    daemon left open."""

    def __init__(
        self,
        database: Database,
        daemon: UUID,
        channel: str,
        seconds: float,
        *,
        opening: Callable[[], Awaitable[None]],
        closing: Closing,
    ) -> None:
        self.database = database
        self.daemon = daemon
        self.channel = channel
        self.seconds = seconds
        self._opening = opening
        self._closing = closing
        self._held: dict[str, Lease] = {}
        self._last: dict[str, asyncio.Task[None]] = {}  # who came last to each, or left it
        self._waiting: dict[str, set[Claim]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.lost: Callable[[Pair], None] = lambda pair: None  # is told that a turn is another's

    def claim(self, pair: Pair, run: str = "", *, first: bool = False) -> "Claim":
        """A place in everybody's line, at once: those of this daemon are in the order of calls."""
        return Claim(self, pair, run, first)

    def held(self, pair: Pair) -> Lease | None:
        return self._held.get(key_of(pair))

    def __len__(self) -> int:
        return len(self._held)

    def wake(self, key: str) -> None:
        """The turn of a conversation may be free."""
        for claim in self._waiting.get(key, ()):
            claim.noticed.set()

    def renewed(self, asked: dict[str, int], ours: Collection[int]) -> None:
        """Of the leases that were asked about, by key, these are ours; the others no more."""
        for key, fence in asked.items():
            lease = self._held.get(key)
            # It may have been given back meanwhile, and another one taken.
            if lease is None or lease.fence != fence or lease.is_lost:
                continue
            if fence not in ours:
                lease.is_lost = True
                log.warning(
                    "the turn of %.80s with %.80s was taken over: this daemon was away too long",
                    *lease.pair,
                )
                self.lost(lease.pair)

    @property
    def fences(self) -> dict[str, int]:
        """Of what is held, by key."""
        return {key: lease.fence for key, lease in self._held.items()}

    async def bury(self, key: str, pair: Pair) -> None:
        """Closes what the owner of an expired lease left open, and lets the next one have it."""
        rows = await self.database.change(TAKE_OVER, key, self.daemon, self.seconds)
        if not rows:
            return  # somebody else was quicker
        lease = Lease(pair, key, rows[0]["fence"])
        log.warning("a daemon died in a turn of %.80s with %.80s; it is closed", *pair)
        try:
            await self._closing(lease, rows[0]["dead_run"])
        finally:
            await self.database.change(LEAVE, key, lease.fence, None, self.channel)

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    # ── What a claim does ───────────────────────────────────────────────────────────────────

    def after(self, key: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        """Does it when all that was to be done for this key before is done."""
        before = self._last.get(key)

        async def in_order() -> None:
            if before is not None:
                await asyncio.wait([before])
            await work()

        task = asyncio.ensure_future(in_order())
        self._last[key] = task
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._last.get(key) is task:
                del self._last[key]
            if not task.cancelled():
                task.exception()  # who waits for it has it

        task.add_done_callback(over)
        return task

    async def enter(self, claim: "Claim") -> None:
        """Has the turn, or a ticket for it."""
        await self._opening()
        agent, sender = claim.pair
        rows = await self.database.change(
            ENTER,
            claim.key,
            column(agent),
            column(sender),
            self.daemon,
            claim.run,
            claim.first,
            claim.ticket,
            self.seconds,
        )
        row = rows[0]
        claim.ticket = row["ticket"]
        if row["fence"] is None:
            return
        claim.ticket = None
        stamp = (row["conversation"], row["last_seq"]) if row["conversation"] is not None else None
        lease = Lease(claim.pair, claim.key, row["fence"], stamp)
        claim.lease = lease
        if row["dead_run"] is not None:
            await self._closing(lease, row["dead_run"])

    def expect(self, claim: "Claim") -> None:
        """It is told when its turn may have come, also while it is looking."""
        self._waiting.setdefault(claim.key, set()).add(claim)

    def take(self, claim: "Claim", lease: Lease) -> None:
        self._held[claim.key] = lease
        self._expect_no_more(claim)

    def _expect_no_more(self, claim: "Claim") -> None:
        waiting = self._waiting.get(claim.key, set())
        waiting.discard(claim)
        if not waiting:
            self._waiting.pop(claim.key, None)

    async def release(self, claim: "Claim") -> None:
        lease = claim.lease
        fence = lease.fence if lease is not None else None
        if fence is None and claim.ticket is None:
            return
        try:
            await self.database.change(LEAVE, claim.key, fence, claim.ticket, self.channel)
        except StorageError as error:
            # Nobody renews it, so it expires; the ticket goes with the daemon.
            log.warning("a turn could not be given back; it expires by itself: %s", error)

    def forget(self, claim: "Claim") -> None:
        if claim.lease is not None and self._held.get(claim.key) is claim.lease:
            del self._held[claim.key]
        self._expect_no_more(claim)


class Claim:
    """One turn's place in the line of all daemons. Left, be it reached or not."""

    def __init__(self, claims: Claims, pair: Pair, run: str, first: bool) -> None:
        self.pair = pair
        self.key = key_of(pair)
        self.run = run
        self.first = first
        self.ticket: int | None = None
        self.lease: Lease | None = None
        self._claims = claims
        self._left = False
        self.noticed = asyncio.Event()
        claims.expect(self)
        self._entering = claims.after(self.key, lambda: claims.enter(self))

    @property
    def held(self) -> Lease:
        """Once it was reached."""
        if self.lease is None:
            raise FencedError("it is not this one's turn")
        return self.lease

    async def reach(self) -> Stamp:
        """Waits for its turn. Returns which conversation there is, and how far it goes.

        Raises StorageError. Called when it is the first of its daemon's line.
        """
        await asyncio.wait([self._entering])
        self._entering.result()
        while self.lease is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self.noticed.wait()
            self.noticed.clear()
            # As a task of its own: cancelled, it would not know whether it has the turn.
            again = self._claims.after(self.key, lambda: self._claims.enter(self))
            await asyncio.wait([again])
            try:
                again.result()
            except StorageUnavailableError as error:
                # The ticket is kept, and the database may be back before anybody gives up.
                log.info("waiting for a turn: %s", error)
        self._claims.take(self, self.lease)
        return self.lease.stamp

    def leave(self) -> Stamp:
        """Gives it back, soon. Returns how far the conversation goes now."""
        if not self._left:
            self._left = True
            self._claims.forget(self)
            self._claims.after(self.key, lambda: self._claims.release(self))
        return self.lease.stamp if self.lease is not None else None
