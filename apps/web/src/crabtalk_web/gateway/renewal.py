"""Renewal: a conversation goes on in another session, with another tag and another key.

The old session has all that belongs to it by then, is put away for good, and says which one goes
on: so a gateway that has lost its journal finds the way as well.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .credentials import Credentials
from .entries import Renewed
from .errors import GatewayError, RelayAwayError
from .identity import Identity, identity_of
from .inbox import Inbox
from .journal import Journal
from .mirror import Mirror
from .relay_http import RelayHttp
from .upkeep import Upkeep

# How long what is on its way may take to be at the relay. Seconds.
SETTLE_WITHIN = 10.0
# Where a session says which generation goes on, and which session that is.
GENERATION, SUCCESSOR = "continuedAs", "continuedBy"


class Renewal:
    """`take_leave` says goodbye at the relay's socket."""

    def __init__(
        self,
        identity: Identity,
        journal: Journal,
        relay: RelayHttp,
        credentials: Credentials,
        mirror: Mirror,
        inbox: Inbox,
        upkeep: Upkeep,
        take_leave: Callable[[], Awaitable[None]],
    ) -> None:
        self.is_done = asyncio.Event()
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._credentials = credentials
        self._mirror = mirror
        self._inbox = inbox
        self._upkeep = upkeep
        self._take_leave = take_leave
        self._lock = asyncio.Lock()
        self._sent = asyncio.Event()

    def has_sent(self) -> None:
        """Something is at the relay."""
        self._sent.set()

    async def clear(self) -> None:
        """The conversation was cleared: what is said from now on is another. Raises as below."""
        if not self._lock.locked():
            await self.carry_out(is_cleared=True)

    async def carry_out(self, *, is_cleared: bool = False) -> str:
        """The id of the session that goes on. Raises GatewayError, RelayAwayError and
        RelayRefusedError; then the old one does. Cancelled, one of the two."""
        async with self._lock:
            if self.is_done.is_set() or not self._journal.book.session:
                raise GatewayError("another session is about to begin; try again")
            if self._mirror.is_thinking:
                raise GatewayError("the agent is at work; stop it, or wait, and try again")
            await self._settle()
            generation = self._identity.generation + 1
            successor = await self._made(generation)
            await self._put_away({GENERATION: generation, SUCCESSOR: successor})
            await self._go_on_as(generation, is_cleared=is_cleared)
            return successor

    async def _put_away(self, told: dict[str, Any]) -> None:
        self._upkeep.is_archived = True
        try:
            await self._tell(told)
            await self._inbox.catch_up()
            await self._take_leave()
        except BaseException:
            self._upkeep.is_archived = False
            self._upkeep.wake()
            raise

    async def _tell(self, told: dict[str, Any]) -> None:
        if not await self._upkeep.tell(**told):
            raise RelayAwayError("the relay does not take the session's metadata; try again")

    async def follow(self, metadata: dict[str, Any]) -> bool:
        """Whether a session says that another goes on, of which the journal knows nothing."""
        following = metadata.get(GENERATION)
        if self._journal.book.session or not isinstance(following, int):
            return False
        if following <= self._identity.generation:
            return False
        await self._go_on_as(following)
        return True

    async def _settle(self) -> None:
        """Until the session has all that belongs to it."""
        book = self._journal.book
        try:
            async with asyncio.timeout(SETTLE_WITHIN):
                while book.unsent or book.due is not None:
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            raise GatewayError("something waits to be sent still; try again later") from None

    async def _made(self, generation: int) -> str:
        """A session of that generation: there is one before the old one is put away."""
        identity = self._identity
        following = identity_of(self._credentials, identity.agent, identity.sender, generation)
        sealed = following.sealer.seal({**self._upkeep.metadata(), "lifecycleState": "running"})
        session = await self._relay.session(following.tag, sealed, following.data_key)
        return str(session["id"])

    async def _go_on_as(self, generation: int, *, is_cleared: bool = False) -> None:
        identity = self._identity
        self._journal.note(Renewed(identity.agent, identity.sender, generation, is_cleared))
        await self._journal.flush()
        self.is_done.set()
