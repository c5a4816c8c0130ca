"""Errand: a command of ours that may take its time, from the journal to its answer. /stop stops it.

What /compact and /new ask for goes on at the daemon when this process dies; the next one waits for
its end, and finds out from the archives of the conversation what came of it.
"""

import asyncio

from crabtalk.client import ServerError

from .answers import answer
from .bindings import NOT_ALLOWED
from .commands import Command, Commands, folded
from .desk import Desk
from .entries import Ask, Item
from .errors import is_away
from .posting import wait_for_daemon
from .turn import STOPPED

NOT_FOLDED = "This was cut off, and nothing has changed. Send /{name} again."


class Errand:
    def __init__(self, desk: Desk, commands: Commands, item: Item, command: Command) -> None:
        self._desk = desk
        self._commands = commands
        self._item = item
        self._command = command
        self._is_stopped = False
        self._waiting: asyncio.Future[None] | None = None  # for the daemon

    @property
    def agent(self) -> str:
        ask = self._item.ask
        return ask.agent if ask is not None else self._desk.agent(self._item.update)

    async def run(self) -> None:
        """Until it is answered. Raises Blocked. Cancelled, the journal knows how far it was."""
        while (text := await self._attempt()) is None:
            if not await self._is_back():
                text = STOPPED
                break
        await answer(self._desk, self._item, text)

    def stop(self) -> None:
        """Without the daemon. What that is doing, it has to be told."""
        self._is_stopped = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _attempt(self) -> str | None:
        """What to answer; None while the daemon is away."""
        ask = self._item.ask
        try:
            if ask is not None and not self._commands.is_allowed(self._item.update, ask.agent):
                return NOT_ALLOWED.format(name=ask.agent)
            if ask is not None:
                return await self._settle(ask)
            return await self._commands.run(self._item, self._command)
        except ServerError as error:
            if is_away(error):
                return None
            return STOPPED if self._is_stopped else f"⚠️ {error.message}"
        except Exception as error:
            if not is_away(error):
                raise
            return None

    async def _settle(self, ask: Ask) -> str:
        """What came of a compaction that was not watched to its end."""
        archive = await self._desk.link.find_archive(ask.agent, ask.sender, ask.offset)
        if archive is not None:
            return folded(ask.text, archive.summary)
        return STOPPED if self._is_stopped else NOT_FOLDED.format(name=ask.text)

    async def _is_back(self) -> bool:
        """False when it was stopped before that."""
        if self._is_stopped:
            return False
        waiting = asyncio.ensure_future(wait_for_daemon(self._desk, self._item.update.chat))
        self._waiting = waiting
        try:
            await asyncio.wait([waiting])
        finally:
            self._waiting = None
            waiting.cancel()
        if waiting.cancelled():
            return False
        waiting.result()
        return True
