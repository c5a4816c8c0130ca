"""The outbox: sends envelopes from the journal to the relay, the oldest first.

An envelope's id is its local id at the relay, so the relay stores it once even if it is sent twice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from crabtalk_web.stream import Envelope, encode_body

from .backoff import RetryBackoff
from .conversation_journal import ConversationJournal
from .conversation_state import envelope_size
from .errors import RelayRefusedError, RelayUnavailableError
from .journal_entries import EnvelopesSent
from .relay_http import MAX_MESSAGES, RelayHttp
from .session_identity import SessionIdentity

# Limit of one request before sealing; a single envelope may be larger.
BATCH_BYTES = 4 * 1024 * 1024
# Marks messages that a gateway wrote.
META_SUFFIX = b',"meta":{"sentFrom":"crabtalk"}}'
SENT_FROM = "crabtalk"

log = logging.getLogger(__name__)


class Outbox:
    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        relay: RelayHttp,
        *,
        is_compat: bool = False,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._is_compat = is_compat
        self._wakeup = asyncio.Event()
        self.is_open = asyncio.Event()  # the session exists at the relay
        self.problem = ""
        self._batch_size = MAX_MESSAGES
        self.on_sent: Callable[[], None] = self.wake
        self.on_session_lost: Callable[[], None] = (
            self.is_open.clear
        )  # the relay does not know the session

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        """Run until cancelled. Envelopes whose delivery is not confirmed by then are sent again."""
        backoff = RetryBackoff()
        while True:
            await self.is_open.wait()
            self._wakeup.clear()
            if not self._journal.state.unsent_envelopes:
                await self._wakeup.wait()
                continue
            try:
                await self._send_batch()
                backoff.reset()
            except RelayUnavailableError as error:
                self._set_problem(str(error))
                await backoff.wait()
            except RelayRefusedError as error:
                self._set_problem(str(error))
                if error.status == 404:
                    self.on_session_lost()
                if error.status in (400, 413):
                    self._skip_refused()
                else:
                    await backoff.wait()
            except OSError as error:
                self._set_problem(f"the journal cannot be written: {error.strerror}; make room")
                await backoff.wait()

    def _skip_refused(self) -> None:
        """An envelope that the relay will never accept must not block the others."""
        if self._batch_size > 1:
            self._batch_size = 1  # to find the refused one
        else:
            log.error("the relay does not take an envelope, which is left out")
            self._journal.append(EnvelopesSent(1))

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s; envelopes wait in the journal", problem)
        self.problem = problem

    async def _send_batch(self) -> None:
        state = self._journal.state
        session, batch = state.session, take_batch(state.unsent_envelopes, self._batch_size)
        await self._journal.flush()
        messages = await asyncio.to_thread(self._seal_batch, batch)
        await self._relay.append_messages(session, messages)
        if self._journal.state.session == session:
            self._journal.append(EnvelopesSent(len(batch)))
            self.on_sent()
        self.problem = ""
        self._batch_size = min(2 * self._batch_size, MAX_MESSAGES)

    def _seal_batch(self, batch: Sequence[Envelope]) -> list[dict[str, str]]:
        seal = self._identity.sealer.seal_bytes
        return [
            {
                "content": seal(
                    encode_body(envelope, is_compat=self._is_compat)[:-1] + META_SUFFIX
                ),
                "localId": envelope.id,
            }
            for envelope in batch
        ]


def take_batch(unsent: Sequence[Envelope], most: int) -> list[Envelope]:
    batch: list[Envelope] = []
    room = BATCH_BYTES
    for envelope in unsent:
        room -= envelope_size(envelope)
        if batch and (room < 0 or len(batch) == most):
            break
        batch.append(envelope)
    return batch
