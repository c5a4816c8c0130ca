"""Sends files of agents from the journal to the relay, each one once.

A file becomes due in the same journal entry as the end of its call, and done in the same entry as
its envelope. In between it may be uploaded twice; the relay deletes uploads that no message refers
to.
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
        self, journal: ConversationJournal, files: FileTransfer, writer: EnvelopeWriter
    ) -> None:
        self._journal = journal
        self._files = files
        self._writer = writer
        self._wakeup = asyncio.Event()
        self.is_open = asyncio.Event()  # the session exists at the relay
        self.on_session_lost: Callable[[], None] = (
            self.is_open.clear
        )  # the relay does not know the session

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        """Run until cancelled. A file in progress is then still due."""
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
        state = self._journal.state
        session = state.session
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
            # Give up: a file that can never be sent must not block the others.
            self._writer.write_notice(f"**Error:** {error}", file)
            return
        if (state.session, state.outgoing_files.get(file.key)) == (session, file):
            self._writer.write_file(event, file)
