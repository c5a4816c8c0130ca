"""Renews a session: the conversation continues in another session, with another tag and key.

The old session gets all its messages, is archived for good, and names its successor, so that a
gateway without its journal finds the way as well.
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

# Seconds that pending envelopes and files may take to reach the relay.
SETTLE_WITHIN = 10.0
# The metadata keys for the successor's generation and session id.
GENERATION_KEY, SUCCESSOR_KEY = "continuedAs", "continuedBy"


class SessionRenewal:
    """`unregister_session` unregisters the session at the relay's socket."""

    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        relay: RelayHttp,
        credentials: RelayCredentials,
        follower: LogFollower,
        inbox: Inbox,
        publisher: SessionPublisher,
        unregister_session: Callable[[], Awaitable[None]],
    ) -> None:
        self.is_done = asyncio.Event()
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._credentials = credentials
        self._follower = follower
        self._inbox = inbox
        self._publisher = publisher
        self._unregister_session = unregister_session
        self._lock = asyncio.Lock()
        self._sent = asyncio.Event()

    def on_sent(self) -> None:
        """Envelopes have reached the relay."""
        self._sent.set()

    async def renew_cleared(self) -> None:
        """Renew after the conversation was cleared: later messages belong to a new conversation.
        Raises what `renew` raises."""
        if not self._lock.locked():
            await self.renew(is_cleared=True)

    async def renew(self, *, is_cleared: bool = False) -> str:
        """Return the id of the new session. Raises WebGatewayError, RelayUnavailableError and
        RelayRefusedError; the old session then continues. After cancellation, either of the two
        does."""
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

    async def _archive_old_session(self, metadata: dict[str, Any]) -> None:
        self._publisher.is_archived = True
        try:
            await self._publish_metadata(metadata)
            await self._inbox.catch_up()
            await self._unregister_session()
        except BaseException:
            self._publisher.is_archived = False
            self._publisher.wake()
            raise

    async def _publish_metadata(self, metadata: dict[str, Any]) -> None:
        if not await self._publisher.publish_metadata(**metadata):
            raise RelayUnavailableError("the relay does not take the session's metadata; try again")

    async def follow_successor(self, metadata: dict[str, Any]) -> bool:
        """Return whether the session names a successor that the journal does not know, and continue
        with it."""
        generation = metadata.get(GENERATION_KEY)
        if self._journal.state.session or not isinstance(generation, int):
            return False
        if generation <= self._identity.generation:
            return False
        await self._continue_as(generation)
        return True

    async def _wait_until_sent(self) -> None:
        """Wait until the session has all its envelopes and files."""
        state = self._journal.state
        try:
            async with asyncio.timeout(SETTLE_WITHIN):
                while state.unsent_envelopes or state.due_file is not None:
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            raise WebGatewayError("something waits to be sent still; try again later") from None

    async def _create_successor(self, generation: int) -> str:
        """Create the session of that generation, before the old one is archived."""
        identity = self._identity
        successor = derive_identity(self._credentials, identity.agent, identity.sender, generation)
        sealed = successor.sealer.seal(
            {**self._publisher.build_metadata(), "lifecycleState": "running"}
        )
        session = await self._relay.open_session(successor.tag, sealed, successor.data_key)
        return str(session["id"])

    async def _continue_as(self, generation: int, *, is_cleared: bool = False) -> None:
        identity = self._identity
        self._journal.append(
            SessionRenewed(identity.agent, identity.sender, generation, is_cleared)
        )
        await self._journal.flush()
        self.is_done.set()
