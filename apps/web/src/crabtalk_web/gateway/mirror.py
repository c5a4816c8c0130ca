"""Mirror: one conversation as its session shows it. What happens there is told here, in its order.

It hears the daemon's feed, whoever began the turn. When something was not heard, because the feed
was too fast, or the daemon or this process away, it is behind: then it has what is missing told
from the conversation's own messages, and goes on with the feed where those end.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from crabtalk.client import Client
from crabtalk_web.adapter import Ask, Heard
from crabtalk_web.adapter.happenings import Asked, Began, Compacted, Ended

from .book import Book
from .catching_up import Archive, Message, at, is_complete, made, turns, untold
from .errors import AWAY
from .identity import Identity
from .past import Past, before
from .teller import Teller, now_ms

# Happenings that may wait to be told; one more, and it is behind.
MOST_WAITING = 16_384
# Seconds: for what a feed has on its way; between two looks at a daemon that is at work; without a
# word until what was said so far is shown.
ON_ITS_WAY = 1.5
LOOK_EVERY = 0.5
SILENCE = 2.0

log = logging.getLogger(__name__)


class Mirror:
    def __init__(
        self,
        identity: Identity,
        teller: Teller,
        *,
        backfill: int = 1000,
        most_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.identity = identity
        self.teller = teller
        self._backfill = backfill
        self._most_bytes = most_bytes
        self._waiting: deque[Heard] = deque()
        self._news = asyncio.Event()
        self._client: Client | None = None
        self._since = 0  # what began later than this is on the feed, or will be
        self.is_behind = True
        self._gap = 0  # how often it fell behind
        self._past = Past(identity)
        self.cleared: Callable[[], None] = self.wake  # the conversation is another now

    @property
    def book(self) -> Book:
        return self.teller.book

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open, or may be."""
        return self.teller.is_busy or self.is_behind

    @property
    def is_thinking(self) -> bool:
        return self.teller.is_busy

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self.teller.asks

    # ── From outside ────────────────────────────────────────────────────────────────────────

    def follow(self, client: Client, since: int) -> None:
        """A feed begins. What happened before `since` is to be found in the messages."""
        self._client = client
        self._since = since
        self._fall_behind()

    def leave(self) -> None:
        """The daemon is away."""
        self._client = None
        self._fall_behind()

    def hear(self, heard: Heard) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._since = heard.at
            self._fall_behind()
        self._waiting.append(heard)
        self._news.set()

    def miss(self, since: int) -> None:
        """Something got lost, of this conversation or of another."""
        self._since = since
        self._fall_behind()

    def wake(self) -> None:
        """There may be room again."""
        self._news.set()

    def begin(self, *, anew: bool) -> None:
        """There is a session now; anew, it is another, and its book is empty."""
        if anew:
            self._fall_behind()
        self._news.set()

    async def audit(self, client: Client, patience: float) -> None:
        """Looks for messages that nobody told us of, which have been there for so many seconds."""
        gap = self._gap
        is_cleared = await self._is_cleared(client)
        messages = await self._past.messages(client, self.book.position)
        if is_cleared and gap == self._gap:
            self.miss(now_ms())
        if self.is_busy or gap != self._gap or not messages:
            return
        left = untold(messages, self.book.position, self.book.through)
        if not left:
            self.teller.note((), run="", position=messages[-1].id + 1)
        elif now_ms() - at(left[0]) > patience * 1000:
            log.warning("%s has messages that nobody told us of", self.identity.agent)
            self.miss(now_ms())

    async def work(self) -> None:
        """Until cancelled. All that was noted stays noted then."""
        while True:
            self._news.clear()
            if self._client is None or not self.book.session or self._is_full:
                await self._pause(SILENCE)
                continue
            try:
                if self.is_behind:
                    await self._catch_up(self._client)
                else:
                    await self._go_on(self._client)
            except AWAY as error:
                log.info("cannot ask for the messages of %s: %s", self.identity.agent, error)
                await self._pause(SILENCE)

    @property
    def _is_full(self) -> bool:
        """Whether enough waits for the relay. The rest waits here, or in the conversation."""
        return self.book.unsent_bytes > self._most_bytes

    async def _go_on(self, client: Client) -> None:
        while self._waiting and not self.is_behind and not self._is_full:
            self.teller.tell(self._waiting.popleft())
        if not self.book.born and (self.book.run or self.book.through):
            await self._is_cleared(client)  # so that it is known from now on
        if not self.teller.is_busy and not self._waiting:
            await self._news.wait()
            return
        if self._waiting or await self._pause(SILENCE) or not self.teller.is_busy:
            return
        self.teller.idle(now_ms())
        gap = self._gap
        # A feed says that something got lost with the next element, and there may never be one.
        if not (await client.get_stats()).runs and not self._waiting and gap == self._gap:
            self.miss(now_ms())

    async def _pause(self, seconds: float) -> bool:
        """False when nothing has come until then."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    # ── Behind ──────────────────────────────────────────────────────────────────────────────

    def _fall_behind(self) -> None:
        self.is_behind = True
        self._gap += 1
        self._waiting.clear()
        self.teller.begin_again()
        self._news.set()

    async def _catch_up(self, client: Client) -> None:
        """Raises what the client raises; it is then still behind. Cancelled, the same."""
        while self.is_behind:
            self._news.clear()
            gap = self._gap
            if await self._is_cleared(client):
                if gap == self._gap and client is self._client:
                    self._give_up()
                    await self._pause(SILENCE)
                return
            first = next(filter(is_beginning, self._waiting), None)
            messages = await self._messages(client)
            archives = await self._past.archives(client)
            if client is not self._client:
                return
            if gap != self._gap:
                continue  # more got lost meanwhile, and these messages may be too old to have it
            if first is None and any(map(is_beginning, self._waiting)):
                continue  # what it begins with may not be among these messages
            if first is not None:
                messages = before(messages, first.at)
            found = turns(untold(messages, self.book.position, self.book.through))
            if first is None and found and self._is_coming(found[-1][0]):
                await self._pause(0.1)  # it began after the feed did, and will be heard there
                continue
            begin = messages[0].id if messages else self.book.position
            # By number: in the millisecond in which it is folded the next turn may begin.
            folded = [one for one in archives if one.end_id >= begin]
            for turn in found:
                self._tell_archives(one for one in folded if one.end_id <= turn[0].id)
                if turn is not found[-1]:
                    self.teller.tell_whole(turn)
                elif first is not None:
                    self.teller.tell_whole(turn, self._end())
            if first is not None or not found or await self._tell_last(client, found[-1]):
                self._tell_archives(one for one in folded if first is None or made(one) < first.at)
                self._go_live(messages[-1].id + 1 if messages and first is None else 0)
            else:
                await self._pause(LOOK_EVERY)

    def _is_coming(self, message: Message) -> bool:
        is_young = now_ms() - at(message) < ON_ITS_WAY * 1000
        return message.role == "user" and at(message) >= self._since and is_young

    def _end(self) -> Heard | None:
        """That of the run of which the feed has the rest, if it is there."""
        for heard in self._waiting:
            if is_beginning(heard):
                return None
            if heard.parent is None and isinstance(heard.what, Ended):
                return heard
        return None

    def _tell_archives(self, archives: Iterable[Archive]) -> None:
        """Those that are not told. Later ones are on the feed."""
        for one in archives:
            if self.book.through < made(one) < self._since:
                self.teller.tell_archive(made(one), one.title)

    def _go_live(self, position: int) -> None:
        """What is left of runs that are told is passed over."""
        if position > self.book.position and not self.book.run:
            self.teller.note((), run="", position=position)
        while self._waiting and not is_beginning(self._waiting[0]):
            heard = self._waiting.popleft()
            if isinstance(heard.what, Compacted):
                self.teller.tell(heard)
        self.is_behind = False
        self.teller.changed()

    async def _tell_last(self, client: Client, turn: Sequence[Message]) -> bool:
        """The last turn there is, which may go on. True once it is told to its end."""
        gap = self._gap
        if (end := self._end()) is not None:
            # All of a turn is among the messages by the time its end is heard.
            messages = await self._messages(client)
            if gap != self._gap:
                return False
            known = [m for m in messages if m.id >= turn[0].id and at(m) <= end.at]
            self.teller.tell_whole((turns(known) or [list(turn)])[0], end)
            while self._waiting.popleft() is not end:
                pass
            return True
        if not self._is_heard() and await self._is_over(client, turn):
            if self._is_heard():
                return False
            self.teller.tell_whole(turn)
            return True
        if gap != self._gap:
            return False
        run = self.teller.tell_so_far(turn)
        for heard in [h for h in self._waiting if isinstance(h.what, Asked)]:
            self.teller.tell_ask(heard, run)
        if self._end() is None:
            self._waiting.clear()
        return False

    async def _is_over(self, client: Client, turn: Sequence[Message]) -> bool:
        gap = self._gap
        if not is_complete(turn) and (await client.get_stats()).runs:
            return False
        return gap == self._gap

    def _is_heard(self) -> bool:
        """Whether the feed has anything of a run that goes on."""
        return any(heard.parent is None for heard in self._waiting)

    async def _is_cleared(self, client: Client) -> bool:
        """Whether the conversation that was told of is gone; there may be another in its place."""
        first = await self._past.first(client)
        born = self.book.born
        if first and not born:
            await self.teller.keep_born(first)
        return bool(born) and first != born

    def _give_up(self) -> None:
        """What is said from now on belongs to another session."""
        if self.teller.is_busy:
            self.teller.lose()
        self.cleared()

    async def _messages(self, client: Client) -> list[Message]:
        """All from the first one on that may be untold."""
        book = self.book
        offset = book.position
        if not offset and not book.through and not book.run:
            offset = await self._past.last(client, self._backfill)
        return await self._past.messages(client, offset)


def is_beginning(heard: Heard) -> bool:
    return heard.parent is None and isinstance(heard.what, Began)
