"""Sending: files of agents, from the journal to the relay. What is due there is sent, and once.

A file is noted as due together with the end of the call that sends it, and as sent together with
its envelope; in between it may be uploaded twice, and what nobody refers to a relay throws away.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from .backoff import Backoff
from .entries import Outgoing
from .errors import GatewayError, RelayAwayError, RelayRefusedError
from .files import Files
from .journal import Journal
from .teller import Teller

log = logging.getLogger(__name__)


class Sending:
    def __init__(self, journal: Journal, files: Files, teller: Teller) -> None:
        self._journal = journal
        self._files = files
        self._teller = teller
        self._news = asyncio.Event()
        self.is_open = asyncio.Event()  # the session exists at the relay
        self.lost: Callable[[], None] = self.is_open.clear  # the relay does not know the session

    def wake(self) -> None:
        self._news.set()

    async def work(self) -> None:
        """Until cancelled. What is under way by then is due again."""
        backoff = Backoff()
        while True:
            await self.is_open.wait()
            self._news.clear()
            file = self._journal.book.due
            if file is None:
                await self._news.wait()
                continue
            try:
                await self._send(file)
                backoff.reset()
            except (RelayAwayError, RelayRefusedError, OSError) as error:
                log.info("a file waits: %s", error)
                if isinstance(error, RelayRefusedError) and error.status == 404:
                    self.lost()
                await backoff.wait()

    async def _send(self, file: Outgoing) -> None:
        book = self._journal.book
        session = book.session
        await self._journal.flush()
        try:
            event = await self._files.send(Path(file.path))
        except RelayAwayError:
            raise
        except Exception as error:
            if isinstance(error, RelayRefusedError) and (error.is_passing or error.status == 404):
                raise
            if not isinstance(error, GatewayError | RelayRefusedError):
                log.exception("a file cannot be sent")
            # It is given up: one that can never be sent must not keep back the others.
            self._teller.say(f"**Error:** {error}", file)
            return
        if (book.session, book.sending.get(file.key)) == (session, file):
            self._teller.attach(event, file)
