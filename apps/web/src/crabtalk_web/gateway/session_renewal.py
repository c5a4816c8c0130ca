"""Renewal: a conversation goes on in another session, with another tag and another key.

The old session has all that belongs to it by then, is put away for good, and says which one goes
on: so a gateway that has lost its journal finds the way as well.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .conversation_journal import ConversationJournal
from .credentials import RelayCredentials
from .errors import RelayUnavailableError, WebGatewayError
from .inbox import Inbox
from .journal_entries import SessionRenewed
from .log_follower import LogFollower
from .relay_http import RelayHttp
from .session_identity import SessionIdentity, derive_identity
from .session_publisher import SessionPublisher

# How long what is on its way may take to be at the relay. Seconds.
SETTLE_WITHIN = 10.0
# Where a session says which generation goes on, and which session that is.
GENERATION_KEY, SUCCESSOR_KEY = "continuedAs", "continuedBy"


class SessionRenewal:
    """`take_leave` says goodbye at the relay's socket."""

    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        relay: RelayHttp,
        credentials: RelayCredentials,
        mirror: LogFollower,
        inbox: Inbox,
        upkeep: SessionPublisher,
        take_leave: Callable[[], Awaitable[None]],
    ) -> None:
        self.is_done = asyncio.Event()
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._credentials = credentials
        self._follower = mirror
        self._inbox = inbox
        self._publisher = upkeep
        self._unregister_session = take_leave
        self._lock = asyncio.Lock()
        self._sent = asyncio.Event()

    def on_sent(self) -> None:
        """Something is at the relay."""
        self._sent.set()

    async def renew_cleared(self) -> None:
        """The conversation was cleared: what is said from now on is another. Raises as below."""
        if not self._lock.locked():
            await self.renew(is_cleared=True)

    async def renew(self, *, is_cleared: bool = False) -> str:
        """The id of the session that goes on. Raises GatewayError, RelayAwayError and
        RelayRefusedError; then the old one does. Cancelled, one of the two."""
        async with self._lock:
            if self.is_done.is_set() or not self._journal.state.session:
                raise WebGatewayError("another session is about to begin; try again")
            if self._follower.is_turn_open:
                raise WebGatewayError("the agent is at work; stop it, or wait, and try again")
            await self._wait_until_sent()
            generation = self._identity.generation + 1
            successor = await self._create_successor(generation)
            await self._archive_old_session({GENERATION_KEY: generation, SUCCESSOR_KEY: successor})
            await self._continue_as(generation, is_cleared=is_cleared)
            return successor

    async def _archive_old_session(self, told: dict[str, Any]) -> None:
        self._publisher.is_archived = True
        try:
            await self._publish_metadata(told)
            await self._inbox.catch_up()
            await self._unregister_session()
        except BaseException:
            self._publisher.is_archived = False
            self._publisher.wake()
            raise

    async def _publish_metadata(self, told: dict[str, Any]) -> None:
        if not await self._publisher.publish_metadata(**told):
            raise RelayUnavailableError("the relay does not take the session's metadata; try again")

    async def follow_successor(self, metadata: dict[str, Any]) -> bool:
        """Whether a session says that another goes on, of which the journal knows nothing."""
        following = metadata.get(GENERATION_KEY)
        if self._journal.state.session or not isinstance(following, int):
            return False
        if following <= self._identity.generation:
            return False
        await self._continue_as(following)
        return True

    async def _wait_until_sent(self) -> None:
        """Until the session has all that belongs to it."""
        book = self._journal.state
        try:
            async with asyncio.timeout(SETTLE_WITHIN):
                while book.unsent_envelopes or book.due_file is not None:
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            raise WebGatewayError("something waits to be sent still; try again later") from None

    async def _create_successor(self, generation: int) -> str:
        """A session of that generation: there is one before the old one is put away."""
        identity = self._identity
        following = derive_identity(self._credentials, identity.agent, identity.sender, generation)
        sealed = following.sealer.seal(
            {**self._publisher.build_metadata(), "lifecycleState": "running"}
        )
        session = await self._relay.open_session(following.tag, sealed, following.data_key)
        return str(session["id"])

    async def _continue_as(self, generation: int, *, is_cleared: bool = False) -> None:
        identity = self._identity
        self._journal.append(
            SessionRenewed(identity.agent, identity.sender, generation, is_cleared)
        )
        await self._journal.flush()
        self.is_done.set()
