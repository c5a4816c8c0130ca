"""Inbox: what devices say in a session, each message looked at once and in order.

A message that comes by the socket counts only when it is the next one; else all that is missing is
fetched. The cursor moves over what was looked at, and is in the journal together with what came
of it.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from crabtalk_web.sealing import from_base64, to_base64
from crabtalk_web.stream import (
    AnyBody,
    EnvelopeError,
    File,
    SessionBody,
    Text,
    UserBody,
    derived_id,
    read_body,
    read_chain,
)
from crabtalk_web.stream.plain import parsed

from .backoff import Backoff
from .entries import Inbound, Read
from .errors import RelayAwayError, RelayRefusedError
from .identity import Identity
from .journal import Journal
from .outbox import SENT_FROM
from .refusals import Refusals
from .relay_http import RelayHttp
from .replay import CLIENT_NAME, Mark, Memory

# Files that may wait for the text they belong to.
MOST_FILES = 20
# Live messages that may wait to be looked at; more are fetched when their time has come.
MOST_LIVE = 1000
# Messages that may wait for the daemon.
MOST_WAITING = 1000
LOOK_EVERY = 0.5
# Of what a sender calls a message, so much is remembered.
LOCAL_ID = 64
# How far back it is looked which messages were acted on, where the journal does not say.
MOST_LEARNED = 5000

log = logging.getLogger(__name__)


class Inbox:
    def __init__(
        self,
        identity: Identity,
        journal: Journal,
        relay: RelayHttp,
        wake: Callable[[], None],
        refusals: Refusals,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._relay = relay
        self._wake = wake
        self._refusals = refusals
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
            body, seq = self._opened(message)[0], message.get("seq")
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
        body, mark = self._opened(message)
        files = self._journal.book.files
        if body is None or mark is None:
            # Our own words, another gateway's, or something that nobody here understands.
            self._journal.note(Read(seq, files))
        elif self._is_taken(body, mark, seq):
            self._act_on(body, mark, seq)

    def _is_taken(self, body: AnyBody, mark: Mark, seq: int) -> bool:
        """False for a message that is not to be acted on, which people are told."""
        book = self._journal.book
        memory = book.memory or Memory()
        reason = memory.judge(mark, book.session)
        if reason is None:
            return True
        if reason == "repeat" and memory.is_same(mark):
            self._journal.note(Read(seq, book.files))  # sent again by somebody who was not sure
            return False
        # First: a line that is said twice after a crash is better than one that got lost.
        self._refusals.tell(mark, reason, text_of(body))
        refused = msgspec.structs.replace(mark, reason=reason)
        self._journal.note(Read(seq, book.files, mark=refused))
        return False

    def _act_on(self, body: AnyBody, mark: Mark, seq: int) -> None:
        files = self._journal.book.files
        match body:
            case UserBody():
                text = body.content.text
                is_empty = not text.strip() and not files
                key = self._key_of(mark)
                self._read(seq, None if is_empty else Inbound(seq, text, files, key=key), mark)
            case SessionBody(content=envelope):
                match envelope.ev:
                    case Text(text=text):
                        key = self._key_of(mark)
                        inbound = Inbound(seq, text, files, key=key) if text.strip() else None
                        self._read(seq, inbound, mark)
                    case File():
                        kept = (*files, envelope)[-MOST_FILES:]
                        self._journal.note(Read(seq, kept, mark=mark))
                    case _:
                        self._journal.note(Read(seq, files, mark=mark))

    def _key_of(self, mark: Mark) -> str:
        """The same for a message however often a relay delivers it, and whatever became of the
        journal: of its session and its sealed bytes."""
        return f"{key_prefix(self._journal.book.session)}{mark.hash}"

    def _read(self, seq: int, inbound: Inbound | None, mark: Mark) -> None:
        if inbound is None:
            self._journal.note(Read(seq, self._journal.book.files, mark=mark))
            return
        self._journal.note(Read(seq, (), with_guest(inbound), mark))
        self._wake()

    async def learn(self, session: str, cursor: int) -> None:
        """Remembers the messages up to `cursor` as acted on, for a journal that knows nothing of
        them. Noted, not flushed. Raises what the relay raises; nothing is noted then."""
        marks: list[Mark] = []
        before, count = cursor + 1, 0
        while before > 1 and count < MOST_LEARNED:
            page = await self._relay.before(session, before)
            for message in page:
                body, mark = self._opened(message)
                if body is not None and mark is not None:
                    marks.append(mark)
            numbers = [seq for one in page if isinstance(seq := one.get("seq"), int)]
            lowest = min(numbers, default=0)
            if not 0 < lowest < before:
                break
            before, count = lowest, count + len(page)
        memory = Memory()
        memory.learn(reversed(marks), session)
        book = self._journal.book
        self._journal.note(Read(book.cursor, book.files, learned=memory.state()))

    def _opened(self, message: dict[str, Any]) -> tuple[AnyBody | None, Mark | None]:
        """The body, and what is remembered of it if a person said it."""
        content = message.get("content")
        sealed = content.get("c") if isinstance(content, dict) else None
        plain = self._identity.sealer.open_bytes(sealed) if isinstance(sealed, str) else None
        if not plain or not isinstance(sealed, str):
            return None, None
        try:
            value = parsed(plain)
            body = read_body(value)
        except EnvelopeError:
            return None, None
        if not isinstance(body, UserBody) and not (
            isinstance(body, SessionBody) and is_of_a_person(body)
        ):
            return body, None
        local = message.get("localId")
        client = "" if (chain := read_chain(value)) is not None else client_of(body)
        local = local[:LOCAL_ID] if isinstance(local, str) else ""
        return body, Mark(hash_of(sealed), local, chain, client)


def key_prefix(session: str) -> str:
    """What the keys of all messages begin with that devices say in a session."""
    name = session if len(session.encode()) <= LOCAL_ID else derived_id(session)
    return f"web:{name}:"


def hash_of(sealed: str) -> str:
    """Of the bytes: one that looks at the text could be shown the same bytes in another one."""
    return to_base64(hashlib.sha256(from_base64(sealed) or b"").digest())


def client_of(body: UserBody | SessionBody) -> str:
    name = getattr(body.meta, "sent_from", "") or "an app"
    return " ".join(str(name).split())[:CLIENT_NAME]


def text_of(body: AnyBody) -> str:
    match body:
        case UserBody():
            return body.content.text
        case SessionBody(content=envelope) if isinstance(envelope.ev, Text):
            return envelope.ev.text
    return ""


def is_of_a_person(body: SessionBody) -> bool:
    """What a gateway repeats of what was said elsewhere is not said again."""
    sent_from = getattr(body.meta, "sent_from", "")
    return body.content.role == "user" and sent_from != SENT_FROM


def with_guest(inbound: Inbound) -> Inbound:
    """`@name words` has that agent speak; whether there is one is for the daemon to say."""
    first, _, rest = inbound.text.partition(" ")
    if len(first) < 2 or not first.startswith("@") or not rest.strip():
        return inbound
    return Inbound(inbound.seq, rest.strip(), inbound.files, first[1:], inbound.key)
