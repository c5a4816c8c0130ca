"""Outbox: envelopes from the journal to the relay, the oldest first, until it has them.

An envelope's id is its local id there, so one that is sent twice is kept once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from crabtalk_web.stream import Envelope, encode_body

from .backoff import Backoff
from .book import weight
from .entries import Sent
from .errors import RelayAwayError, RelayRefusedError
from .identity import Identity
from .journal import Journal
from .relay_http import AT_ONCE, RelayHttp

# What one request carries at most, before it is sealed; one envelope may be larger.
BATCH_BYTES = 4 * 1024 * 1024
# By this a gateway knows what came from a gateway.
FROM = b',"meta":{"sentFrom":"crabtalk"}}'
SENT_FROM = "crabtalk"

log = logging.getLogger(__name__)


class Outbox:
    def __init__(
        self, identity: Identity, journal: Journal, relay: RelayHttp, *, is_compat: bool = False
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._is_compat = is_compat
        self._news = asyncio.Event()
        self.is_open = asyncio.Event()  # the session exists at the relay
        self.problem = ""
        self._at_once = AT_ONCE
        self.sent: Callable[[], None] = self.wake
        self.lost: Callable[[], None] = self.is_open.clear  # the relay does not know the session

    def wake(self) -> None:
        self._news.set()

    async def work(self) -> None:
        """Until cancelled. What the relay has by then and we do not know of is sent again."""
        backoff = Backoff()
        while True:
            await self.is_open.wait()
            self._news.clear()
            if not self._journal.book.unsent:
                await self._news.wait()
                continue
            try:
                await self._send()
                backoff.reset()
            except RelayAwayError as error:
                self._say(str(error))
                await backoff.wait()
            except RelayRefusedError as error:
                self._say(str(error))
                if error.status == 404:
                    self.lost()
                if error.status in (400, 413):
                    self._put_aside()
                else:
                    await backoff.wait()
            except OSError as error:
                self._say(f"the journal cannot be written: {error.strerror}; make room")
                await backoff.wait()

    def _put_aside(self) -> None:
        """An envelope that the relay will never take must not keep back the others."""
        if self._at_once > 1:
            self._at_once = 1  # to find out which
        else:
            log.error("the relay does not take an envelope, which is left out")
            self._journal.note(Sent(1))

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s; envelopes wait in the journal", problem)
        self.problem = problem

    async def _send(self) -> None:
        book = self._journal.book
        session, batch = book.session, first_of(book.unsent, self._at_once)
        await self._journal.flush()
        messages = await asyncio.to_thread(self._sealed, batch)
        await self._relay.append(session, messages)
        if self._journal.book.session == session:
            self._journal.note(Sent(len(batch)))
            self.sent()
        self.problem = ""
        self._at_once = min(2 * self._at_once, AT_ONCE)

    def _sealed(self, batch: Sequence[Envelope]) -> list[dict[str, str]]:
        seal = self._identity.sealer.seal_bytes
        return [
            {
                "content": seal(encode_body(each, is_compat=self._is_compat)[:-1] + FROM),
                "localId": each.id,
            }
            for each in batch
        ]


def first_of(unsent: Sequence[Envelope], most: int) -> list[Envelope]:
    batch: list[Envelope] = []
    room = BATCH_BYTES
    for envelope in unsent:
        room -= weight(envelope)
        if batch and (room < 0 or len(batch) == most):
            break
        batch.append(envelope)
    return batch
