"""Watches whether the daemon is available. All tasks that need it wait for one shared poll."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire

from .backoff import Backoff
from .errors import DAEMON_UNAVAILABLE_ERRORS, NOT_FOUND, GatewayError, is_daemon_unavailable

# The features of a daemon that a gateway needs.
REQUIRED_FEATURES = frozenset({"keys", "attach"})
DAEMON_TOO_OLD = (
    "this gateway needs a daemon of the same version: the one that runs cannot tell messages that "
    "come again; upgrade it and start it again"
)

log = logging.getLogger(__name__)


class DaemonMonitor:
    def __init__(self, client: Client, *, longest: float = 15.0) -> None:
        self.client = client
        self._max_delay = longest
        self._poll_task: asyncio.Task[None] | None = None

    async def wait_until_available(self) -> None:
        """Wait until the daemon answers. Cancelled, the other waiters go on waiting."""
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.ensure_future(self._poll_daemon())
        await asyncio.shield(self._poll_task)

    async def _poll_daemon(self) -> None:
        backoff = Backoff(longest=self._max_delay)
        while True:
            # The pause comes first, because a daemon that answers may still have no room.
            await backoff.wait()
            try:
                await self.client.ping()
                return
            except Exception as error:
                if not is_daemon_unavailable(error) and not isinstance(error, TimeoutError):
                    raise
                log.info("the daemon is away: %s", error)

    async def check_version(self) -> None:
        """Raises GatewayError for a daemon that ignores keys, and the errors of the client."""
        if not set((await self.client.hello()).features) >= REQUIRED_FEATURES:
            raise GatewayError(DAEMON_TOO_OLD)

    async def watch_version(self) -> None:
        """Check the version of the first daemon that answers. Raises GatewayError."""
        while True:
            try:
                await self.check_version()
                return
            except (ServerError, TimeoutError, *DAEMON_UNAVAILABLE_ERRORS) as error:
                log.info("the daemon's version is not known yet: %s", error)
            await self.wait_until_available()

    async def close(self) -> None:
        if self._poll_task is not None:
            self._poll_task.cancel()
        await self.client.__aexit__(None, None, None)

    # ── Compactions ─────────────────────────────────────────────────────────────────────────

    async def list_archives(self, agent: str, sender: str) -> Sequence[wire.ArchiveInfo]:
        """The archives of a conversation, oldest first."""
        try:
            return (await self.client.list_archives(agent, sender=sender)).archives
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return ()

    async def find_archive(self, agent: str, sender: str, count: int) -> wire.ArchiveInfo | None:
        """The archive that a compaction made when there were `count` before it. Waits while
        anything runs in the conversation; returns None if the compaction did not take place."""
        while True:
            is_running = await self._follow_run(agent, sender)
            archives = await self.list_archives(agent, sender)
            if len(archives) > count:
                return archives[count]
            if not is_running:
                return None

    async def _follow_run(self, agent: str, sender: str) -> bool:
        """Wait for the end of the run in flight. False when there is none."""
        try:
            async with aclosing(self.client.attach(agent, sender=sender)) as events:
                async for _ in events:
                    pass
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True
