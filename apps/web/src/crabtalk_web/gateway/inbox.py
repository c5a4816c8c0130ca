"""Inbox: what devices say in a session, each message looked at once and in order.

A message that comes by the socket counts only when it is the next one; else all that is missing is
fetched. The cursor moves over what was looked at, and is in the journal together with what came
of it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from crabtalk_web.stream import File, SessionBody, Text, UserBody, decode_body

from .backoff import Backoff
from .entries import Inbound, Read
from .errors import RelayAwayError, RelayRefusedError
from .identity import Identity
from .journal import Journal
from .outbox import SENT_FROM
from .relay_http import RelayHttp

# Files that may wait for the text they belong to.
MOST_FILES = 20
# Live messages that may wait to be looked at; more are fetched when their time has come.
MOST_LIVE = 1000
# Messages that may wait for the daemon.
MOST_WAITING = 1000
LOOK_EVERY = 0.5

log = logging.getLogger(__name__)


class Inbox:
    def __init__(
        self,
        identity: Identity,
        journal: Journal,
        relay: RelayHttp,
        wake: Callable[[], None],
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._wake = wake
        self._live: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._must_fetch = True
        self.is_open = asyncio.Event()
        self.lost: Callable[[], None] = self.is_open.clear  # the relay does not know the session

    def hear(self, message: Any) -> None:
        """By the socket."""
        if isinstance(message, dict) and len(self._live) < MOST_LIVE:
            self._live.append(message)
        else:
            self._must_fetch = True
        self._news.set()

    def fetch(self) -> None:
        """Something may have come that nobody told us of."""
        self._must_fetch = True
        self._news.set()

    async def catch_up(self) -> None:
        """All that was said by now is in the journal. Raises what the relay raises."""
        await self._fetch()
        await self._journal.flush()

    async def work(self) -> None:
        """Until cancelled. What is not in the journal by then is looked at again."""
        backoff = Backoff()
        while True:
            await self.is_open.wait()
            self._news.clear()
            live, self._live = self._live, []
            for message in live:
                self._take_live(message)
            if self._is_full:
                await asyncio.sleep(LOOK_EVERY)
                continue
            if not self._must_fetch:
                await self._news.wait()
                continue
            try:
                await self._fetch()
                backoff.reset()
            except (RelayAwayError, RelayRefusedError) as error:
                log.info("cannot fetch messages: %s", error)
                if isinstance(error, RelayRefusedError) and error.status == 404:
                    self.lost()
                await backoff.wait()

    @property
    def _is_full(self) -> bool:
        """Whether enough waits for the daemon: the rest waits at the relay."""
        return len(self._journal.book.waiting) >= MOST_WAITING

    def heard_of(self, latest: Sequence[dict[str, Any]]) -> int:
        """How far a gateway has read that said the last of these messages, the latest first."""
        for message in latest:
            body, seq = self._opened(message), message.get("seq")
            if isinstance(body, SessionBody) and not is_of_a_person(body) and isinstance(seq, int):
                return seq
        return 0

    def _take_live(self, message: dict[str, Any]) -> None:
        seq = message.get("seq")
        if seq == self._journal.book.cursor + 1 and not self._is_full:
            self._take(message, seq)
        elif not isinstance(seq, int) or seq > self._journal.book.cursor:
            self._must_fetch = True

    async def _fetch(self) -> None:
        self._must_fetch = False
        try:
            has_more = True
            while has_more and not self._is_full:
                session, cursor = self._journal.book.session, self._journal.book.cursor
                messages, has_more = await self._relay.after(session, cursor)
                if self._journal.book.session != session:
                    return
                for message in messages:
                    seq = message.get("seq")
                    if isinstance(seq, int) and seq > self._journal.book.cursor:
                        self._take(message, seq)
                has_more = has_more and self._journal.book.cursor > cursor
            self._must_fetch = self._must_fetch or self._is_full
        except BaseException:
            self._must_fetch = True
            raise

    def _take(self, message: dict[str, Any], seq: int) -> None:
        body = self._opened(message)
        files = self._journal.book.files
        match body:
            case UserBody():
                text, guest = body.content.text, ""
                self._read(seq, Inbound(seq, text, files, guest) if text.strip() or files else None)
            case SessionBody(content=envelope) if is_of_a_person(body):
                match envelope.ev:
                    case Text(text=text):
                        self._read(seq, Inbound(seq, text, files) if text.strip() else None)
                    case File():
                        self._journal.note(Read(seq, (*files, envelope)[-MOST_FILES:]))
                    case _:
                        self._journal.note(Read(seq, files))
            case _:
                # Our own words, another gateway's, or something that nobody here understands.
                self._journal.note(Read(seq, files))

    def _read(self, seq: int, inbound: Inbound | None) -> None:
        if inbound is None:
            self._journal.note(Read(seq, self._journal.book.files))
            return
        self._journal.note(Read(seq, (), with_guest(inbound)))
        self._wake()

    def _opened(self, message: dict[str, Any]) -> Any:
        content = message.get("content")
        sealed = content.get("c") if isinstance(content, dict) else None
        plain = self._identity.sealer.open_bytes(sealed) if isinstance(sealed, str) else None
        return decode_body(plain) if plain else None


def is_of_a_person(body: SessionBody) -> bool:
    """What a gateway repeats of what was said elsewhere is not said again."""
    sent_from = getattr(body.meta, "sent_from", "")
    return body.content.role == "user" and sent_from != SENT_FROM


def with_guest(inbound: Inbound) -> Inbound:
    """`@name words` has that agent speak; whether there is one is for the daemon to say."""
    first, _, rest = inbound.text.partition(" ")
    if len(first) < 2 or not first.startswith("@") or not rest.strip():
        return inbound
    return Inbound(inbound.seq, rest.strip(), inbound.files, first[1:])
