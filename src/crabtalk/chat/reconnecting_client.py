"""The chat's connection to the daemon: connects, starts a daemon if needed, and reconnects.

Knows nothing of conversations: the session handles a turn whose daemon went away.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeVar

from crabtalk.cli.errors import CommandError, explain_error
from crabtalk.client import Client, ConnectionClosedError, ServerError, connect
from crabtalk.transport import RunFiles, default_home

T = TypeVar("T")
NoticeKind = Literal["info", "hint", "error"]
NoticeCallback = Callable[[str, NoticeKind], None]

# Errors of requests to a daemon that is not there. TimeoutError is an OSError.
CONNECTION_ERRORS = (OSError, ConnectionClosedError)
# Seconds before the chat starts a daemon itself: a service manager may restart it first.
START_DELAY = 1.0
HANG_TIMEOUT = 10.0  # seconds for a daemon process that neither answers nor ends
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
# A request that loses the daemon this often in a row may itself be the cause.
MAX_ATTEMPTS = 5


class ReconnectingClient:
    """One client for the whole chat. `is_away` while no daemon answers it."""

    def __init__(
        self,
        home: Path | None,
        *,
        start: bool,
        notice: NoticeCallback,
        on_change: Callable[[], None],
    ) -> None:
        self.client: Client = connect(
            home=home, client="crabtalk", recover=self._recover_for_client
        )
        self.is_away = False
        self._home = home
        self._run_files = RunFiles.for_home(home or default_home())
        self._may_start = start
        self._notice = notice
        self._on_change = on_change
        self._recovery = asyncio.Lock()
        self._waiting_count = 0  # requests of a person that wait for a daemon; feeds do not count
        self._last_problem = ""  # reported once, however often it occurs

    async def open(self) -> None:
        """Connect. Raises what would end a command: CommandError, OSError and ServerError."""
        await self._ensure_daemon(start=self._may_start)
        await self.client.ping()

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)

    def read_lock_file(self) -> str:
        """Return the pid of the process that serves the home; empty after a clean stop."""
        try:
            return self._run_files.lock_path.read_text()
        except OSError:
            return ""

    async def call_with_recovery(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send an idempotent request, again after each reconnect, and return the answer.

        Waits for a daemon without a deadline. Raises ServerError. Cancelled, it only stops waiting.
        """
        for _ in range(MAX_ATTEMPTS):
            try:
                return await request()
            except CONNECTION_ERRORS:
                await self.recover(wanted=True)
        return await request()

    async def recover(self, *, wanted: bool) -> None:
        """Return when a daemon answers.

        If `wanted` by a person, a daemon that was stopped is started too, else only one that died.
        Cancelled, it only stops looking.
        """
        self._waiting_count += wanted
        try:
            async with self._recovery:
                if await self.is_answering():
                    return
                await self._wait_for_daemon()
        finally:
            self._waiting_count -= wanted

    async def _recover_for_client(self) -> None:
        """Called by the client when the connection is lost amid a message, which it sends again."""
        await self.recover(wanted=True)

    async def _wait_for_daemon(self) -> None:
        self._set_away(True)
        self._last_problem = ""
        self._notice("the daemon went away; looking for it", "info")
        loop = asyncio.get_running_loop()
        since, pause = loop.time(), FIRST_PAUSE
        while not await self.is_answering():
            if (waited := loop.time() - since) >= START_DELAY:
                await self._try_start(waited)
                pause = min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)
        self._set_away(False)
        self._notice("the daemon is back", "info")

    async def _try_start(self, waited: float) -> None:
        if self._run_files.read_daemon_pid() is not None and waited < HANG_TIMEOUT:
            return  # it is starting or stopping
        if self._may_start and not self._waiting_count and not self.read_lock_file():
            self._report_once("the daemon was stopped; what you say next starts it again")
            return
        try:
            await self._ensure_daemon(start=self._may_start)
        except (CommandError, ServerError, *CONNECTION_ERRORS) as error:
            self._report_once(explain_error(error) or str(error))

    def _report_once(self, sentence: str) -> None:
        if sentence != self._last_problem:
            self._last_problem = sentence
            self._notice(sentence, "hint")

    async def is_answering(self) -> bool:
        try:
            await self.client.ping()
        except (ServerError, *CONNECTION_ERRORS):
            return False
        return True

    async def _ensure_daemon(self, *, start: bool) -> None:
        from crabtalk.cli.daemon_startup import ensure_daemon

        loop = asyncio.get_running_loop()

        def say(sentence: str) -> None:
            loop.call_soon_threadsafe(self._notice, sentence, "info")

        # It blocks while it waits for a process, with its own timeout.
        await asyncio.to_thread(ensure_daemon, self._home, start=start, say=say)

    def _set_away(self, is_away: bool) -> None:
        self.is_away = is_away
        self._on_change()
