"""Link: the daemon, which may be away. Who needs it waits here, together, until it is back."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire

from .backoff import Backoff
from .errors import DAEMON_AWAY, NOT_FOUND, GatewayError, is_away

# The features of a daemon that this library cannot do without.
FEATURES = frozenset({"keys", "attach"})
OLD_DAEMON = (
    "this gateway needs a daemon of the same version: the one that runs cannot tell messages that "
    "come again; upgrade it and start it again"
)

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

    async def check_version(self) -> None:
        """Raises GatewayError for a daemon that ignores keys, and what the client raises."""
        if not set((await self.client.hello()).features) >= FEATURES:
            raise GatewayError(OLD_DAEMON)

    async def watch_version(self) -> None:
        """Checks the first daemon that answers. Raises GatewayError."""
        while True:
            try:
                await self.check_version()
                return
            except (ServerError, TimeoutError, *DAEMON_AWAY) as error:
                log.info("the daemon's version is not known yet: %s", error)
            await self.back()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        await self.client.__aexit__(None, None, None)

    # ── Compactions ─────────────────────────────────────────────────────────────────────────

    async def archives(self, agent: str, sender: str) -> Sequence[wire.ArchiveInfo]:
        """Of a conversation, oldest first."""
        try:
            return (await self.client.list_archives(agent, sender=sender)).archives
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return ()

    async def find_archive(self, agent: str, sender: str, count: int) -> wire.ArchiveInfo | None:
        """The archive that a compaction made when there were `count` before it. Waits while
        anything runs in the conversation; None when the compaction did not take place."""
        while True:
            is_running = await self._follow_run(agent, sender)
            archives = await self.archives(agent, sender)
            if len(archives) > count:
                return archives[count]
            if not is_running:
                return None

    async def _follow_run(self, agent: str, sender: str) -> bool:
        """Until the run in flight is over. False when there is none."""
        try:
            async with aclosing(self.client.attach(agent, sender=sender)) as events:
                async for _ in events:
                    pass
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True
