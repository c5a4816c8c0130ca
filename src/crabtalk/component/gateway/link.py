"""Link: the daemon, which may be away. Who needs it waits here, together, until it is back."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire

from .backoff import Backoff
from .errors import NOT_FOUND, is_away

# No agent can have this name. A turn for such a guest waits for those before it in the
# conversation, and ends without a word being kept: when it is over, so are they.
NOBODY = ":"
PAGE = 500

log = logging.getLogger(__name__)


class Link:
    def __init__(self, client: Client, *, longest: float = 15.0) -> None:
        self.client = client
        self._longest = longest
        self._asking: asyncio.Task[None] | None = None

    async def back(self) -> None:
        """Until the daemon answers. Cancelled, others go on waiting."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        backoff = Backoff(longest=self._longest)
        while True:
            # First a pause, also for one that answers and has no room.
            await backoff.wait()
            try:
                await self.client.ping()
                return
            except Exception as error:
                if not is_away(error) and not isinstance(error, TimeoutError):
                    raise
                log.info("the daemon is away: %s", error)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        await self.client.__aexit__(None, None, None)

    # ── What became of a turn ───────────────────────────────────────────────────────────────

    async def count(self, agent: str, sender: str) -> int:
        """How many messages a conversation has."""
        try:
            page = await self.client.list_messages(agent, sender=sender, limit=1)
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return 0
        return page.total

    async def messages(
        self, agent: str, sender: str, offset: int
    ) -> Sequence[wire.ConversationMessage]:
        """All from an offset on."""
        found: list[wire.ConversationMessage] = []
        following: int | None = offset
        while following is not None:
            try:
                page = await self.client.list_messages(
                    agent, sender=sender, offset=following, limit=PAGE
                )
            except ServerError as error:
                if error.code != NOT_FOUND:
                    raise
                break
            found += page.messages
            has_more = page.HasField("next_offset") and page.next_offset > following
            following = page.next_offset if has_more else None
        return found

    async def archives(self, agent: str, sender: str) -> Sequence[wire.ArchiveInfo]:
        """Of a conversation, oldest first."""
        try:
            return (await self.client.list_archives(agent, sender=sender)).archives
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return ()

    async def over(self, agent: str, sender: str) -> None:
        """Until nothing runs or waits in a conversation of all that was sent before."""
        stream = self.client.stream(agent, "?", sender=sender, guest=NOBODY)
        try:
            async with aclosing(stream) as events:
                async for _ in events:
                    pass
        except ServerError as error:
            if error.code != NOT_FOUND:  # an agent that is gone runs nothing
                raise
