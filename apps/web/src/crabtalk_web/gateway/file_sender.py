"""Sending: files of agents, from the journal to the relay. What is due there is sent, and once.

A file is noted as due together with the end of the call that sends it, and as sent together with
its envelope; in between it may be uploaded twice, and what nobody refers to a relay throws away.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from .backoff import RetryBackoff
from .conversation_journal import ConversationJournal
from .envelope_writer import EnvelopeWriter
from .errors import RelayRefusedError, RelayUnavailableError, WebGatewayError
from .file_transfer import FileTransfer
from .journal_entries import OutgoingFile

log = logging.getLogger(__name__)


class FileSender:
    def __init__(
        self, journal: ConversationJournal, files: FileTransfer, teller: EnvelopeWriter
    ) -> None:
        self._journal = journal
        self._files = files
        self._writer = teller
        self._wakeup = asyncio.Event()
        self.is_open = asyncio.Event()  # the session exists at the relay
        self.on_session_lost: Callable[[], None] = (
            self.is_open.clear
        )  # the relay does not know the session

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        """Until cancelled. What is under way by then is due again."""
        backoff = RetryBackoff()
        while True:
            await self.is_open.wait()
            self._wakeup.clear()
            file = self._journal.state.due_file
            if file is None:
                await self._wakeup.wait()
                continue
            try:
                await self._send(file)
                backoff.reset()
            except (RelayUnavailableError, RelayRefusedError, OSError) as error:
                log.info("a file waits: %s", error)
                if isinstance(error, RelayRefusedError) and error.status == 404:
                    self.on_session_lost()
                await backoff.wait()

    async def _send(self, file: OutgoingFile) -> None:
        book = self._journal.state
        session = book.session
        await self._journal.flush()
        try:
            event = await self._files.upload_file(Path(file.path))
        except RelayUnavailableError:
            raise
        except Exception as error:
            if isinstance(error, RelayRefusedError) and (error.is_temporary or error.status == 404):
                raise
            if not isinstance(error, WebGatewayError | RelayRefusedError):
                log.exception("a file cannot be sent")
            # It is given up: one that can never be sent must not keep back the others.
            self._writer.write_notice(f"**Error:** {error}", file)
            return
        if (book.session, book.outgoing_files.get(file.key)) == (session, file):
            self._writer.write_file(event, file)
