"""Mirror: one conversation as its session shows it. What happens there is noted as envelopes here.

It hears the daemon's feed, whoever began the turn. When something was not heard, because the feed
was too fast, or the daemon or this process away, it is behind: then it tells what is missing from
the conversation's own messages, and goes on with the feed where those end.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from crabtalk.client import Client
from crabtalk_web.adapter import Adapter, Ask, Heard
from crabtalk_web.adapter.happenings import Asked, Began, Compacted, Ended, Steered
from crabtalk_web.stream import Envelope, EnvelopeError, File, encode

from .book import Book, Said
from .catching_up import Message, at, ending, is_complete, rest_of, run_of, turns, untold
from .errors import AWAY
from .identity import Identity
from .journal import Journal
from .past import Past, before

# Happenings that may wait to be told; one more, and it is behind.
MOST_WAITING = 16_384
# Seconds: for what a feed has on its way; between two looks at a daemon that is at work; without a
# word until what was said so far is shown.
ON_ITS_WAY = 1.5
LOOK_EVERY = 0.5
SILENCE = 2.0
UNSEEN = "The end of this turn was not seen; what became of it is in the conversation."

log = logging.getLogger(__name__)

Changed = Callable[[Sequence[Envelope]], None]


class Mirror:
    def __init__(
        self,
        identity: Identity,
        journal: Journal,
        changed: Changed,
        *,
        is_compat: bool = False,
        backfill: int = 1000,
        most_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.identity = identity
        self._journal = journal
        self._changed = changed
        self._is_compat = is_compat
        self._backfill = backfill
        self._most_bytes = most_bytes
        self._waiting: deque[Heard] = deque()
        self._news = asyncio.Event()
        self._client: Client | None = None
        self._since = 0  # what began later than this is on the feed, or will be
        self.is_behind = True
        self._gap = 0  # how often it fell behind
        self.heard: Callable[[Heard], None] | None = None
        self._past = Past(identity)
        self._adapter = self._new_adapter()

    @property
    def book(self) -> Book:
        return self._journal.book

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open, or may be."""
        return self._adapter.is_busy or self.is_behind

    @property
    def is_thinking(self) -> bool:
        return self._adapter.is_busy

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self._adapter.asks

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

    def know(self, text: str) -> None:
        """Devices have this text already."""
        self._adapter.know(text)

    def kill(self) -> None:
        self._adapter.kill()

    def lose(self) -> None:
        """The daemon has been away for so long that nobody should wait for the turn."""
        self._note(self._adapter.lose(now_ms()), run=self.book.run)

    def note(self, text: str) -> None:
        self._note(self._adapter.note(text, now_ms()), run=self.book.run)

    def attach(self, file: File, run: str = "") -> None:
        self._note(self._adapter.attach(file, now_ms(), run=run), run=self.book.run)

    def answered(self, ask: str) -> None:
        self._note(self._adapter.answer(ask, now_ms()), run=self.book.run)

    def begin(self, *, anew: bool) -> None:
        """There is a session now; anew, it is another, and its book is empty."""
        if anew:
            self._fall_behind()
        self._news.set()

    async def audit(self, client: Client, patience: float) -> None:
        """Looks for messages that nobody told us of, which have been there for so many seconds."""
        gap = self._gap
        messages = await self._past.messages(client, self.book.position)
        if self.is_busy or gap != self._gap or not messages:
            return
        left = untold(messages, self.book.position, self.book.through)
        if not left:
            self._note((), run="", position=messages[-1].id + 1)
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
            self._tell(self._waiting.popleft())
        if self._waiting or await self._pause(SILENCE) or not self._adapter.is_busy:
            return
        self._note(self._adapter.idle(now_ms()), run=self.book.run)
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

    # ── As it happens ───────────────────────────────────────────────────────────────────────

    def _tell(self, heard: Heard) -> None:
        """What the feed has, in its order."""
        if self.heard is not None:
            self.heard(heard)
        envelopes = self._adapter.hear(msgspec.structs.replace(heard, missed=0))
        if isinstance(heard.what, Compacted):
            self._note(envelopes, run=self.book.run, through=0 if self.book.run else heard.at)
        elif heard.parent is not None:
            self._note(envelopes, run=self.book.run)
        elif isinstance(heard.what, Ended):
            self._note(envelopes, run="", through=heard.at)
        else:
            self._note(envelopes, run=heard.run, seen=self._seen(heard))

    def _seen(self, heard: Heard) -> str:
        match heard.what:
            case Began(said=text) | Steered(text=text) if text in self.book.unseen:
                return text
            case _:
                return ""

    def _note(
        self,
        envelopes: Sequence[Envelope],
        *,
        run: str,
        position: int = 0,
        through: int = 0,
        seen: str = "",
    ) -> None:
        fine = tuple(envelope for envelope in envelopes if self._is_fine(envelope))
        if fine or run != self.book.run or position or through or seen:
            self._journal.note(Said(fine, run, position, through, seen))
        self._changed(fine)

    def _is_fine(self, envelope: Envelope) -> bool:
        try:
            encode(envelope, any_name=self._is_compat)
        except EnvelopeError as error:
            log.error("an envelope cannot be sent and is left out: %s", error)  # noqa: TRY400
            return False
        return True

    # ── Behind ──────────────────────────────────────────────────────────────────────────────

    def _fall_behind(self) -> None:
        self.is_behind = True
        self._gap += 1
        self._waiting.clear()
        self._adapter = self._new_adapter()
        self._news.set()

    def _new_adapter(self) -> Adapter:
        """Knows what was noted, and no more: what was heard and not noted will be told again."""
        adapter = Adapter(
            self.identity.tag, is_compat=self._is_compat, history=tuple(self.book.recent)
        )
        for text in self.book.unseen:
            adapter.know(text)
        return adapter

    async def _catch_up(self, client: Client) -> None:
        """Raises what the client raises; it is then still behind. Cancelled, the same."""
        while self.is_behind:
            self._news.clear()
            gap = self._gap
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
            folded = [one for one in archives if messages and one[0] >= at(messages[0])]
            for turn in found:
                self._tell_archives(folded, at(turn[0]))
                if turn is not found[-1]:
                    self._tell_whole(turn)
                elif first is not None:
                    self._tell_whole(turn, self._end())
            if first is not None or not found or await self._tell_last(client, found[-1]):
                self._tell_archives(folded, first.at if first is not None else self._since)
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

    def _tell_archives(self, archives: Sequence[tuple[int, str]], until: int) -> None:
        """Those made before that time, and not told. Later ones are on the feed."""
        for made, title in archives:
            if self.book.through < made < min(until, self._since):
                heard = Heard(run=f"archive:{made}", what=Compacted(title), at=made)
                self._note(self._adapter.hear(heard), run=self.book.run, through=made)

    def _go_live(self, position: int) -> None:
        """What is left of runs that are told is passed over."""
        if position > self.book.position and not self.book.run:
            self._note((), run="", position=position)
        while self._waiting and not is_beginning(self._waiting[0]):
            heard = self._waiting.popleft()
            if isinstance(heard.what, Compacted):
                self._tell(heard)
        self.is_behind = False

    def _tell_whole(self, turn: Sequence[Message], end: Heard | None = None) -> None:
        """A turn that is over. Without `end`, what it says itself of its end is all there is."""
        run = self._tell_so_far(turn)
        if end is None and (what := ending(turn)) is not None:
            end = Heard(run=run, what=what, at=at(turn[-1]))
        if end is None:
            envelopes = self._adapter.lose(at(turn[-1]), UNSEEN)
        else:
            envelopes = self._adapter.hear(msgspec.structs.replace(end, run=run, missed=0))
        through = end.at if end is not None else 0
        self._note(envelopes, run="", position=turn[-1].id + 1, through=through)

    async def _tell_last(self, client: Client, turn: Sequence[Message]) -> bool:
        """The last turn there is, which may go on. True once it is told to its end."""
        gap = self._gap
        if (end := self._end()) is not None:
            # All of a turn is among the messages by the time its end is heard.
            messages = await self._messages(client)
            if gap != self._gap:
                return False
            known = [m for m in messages if m.id >= turn[0].id and at(m) <= end.at]
            self._tell_whole((turns(known) or [list(turn)])[0], end)
            while self._waiting.popleft() is not end:
                pass
            return True
        if not self._is_heard() and await self._is_over(client, turn):
            if self._is_heard():
                return False
            self._tell_whole(turn)
            return True
        if gap != self._gap:
            return False
        run = self._tell_so_far(turn)
        for heard in [h for h in self._waiting if isinstance(h.what, Asked)]:
            own = heard if heard.parent is not None else msgspec.structs.replace(heard, run=run)
            self._note(self._adapter.hear(own), run=run)
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

    def _tell_so_far(self, turn: Sequence[Message]) -> str:
        """Whatever of a turn is not told yet. The name its run goes by."""
        is_going_on = bool(self.book.run)
        run = self.book.run or run_of(turn[0])
        told = tuple(self.book.of_run) if is_going_on else ()
        for heard in rest_of(turn, run, told, self.identity.agent, self.identity.sender):
            heard = self._known(heard)
            self._note(self._adapter.hear(heard), run=run, seen=self._seen(heard))
        self._note(self._adapter.idle(at(turn[-1])), run=run)
        return run

    def _known(self, heard: Heard) -> Heard:
        """A message has a skill in place of its name; devices have the text with the name."""
        match heard.what:
            case Began(said=said) if said.endswith("</skill>"):
                for text in self.book.unseen:
                    if text.startswith("/") and text not in said:
                        return msgspec.structs.replace(heard, what=Began(text))
        return heard

    async def _messages(self, client: Client) -> list[Message]:
        """All from the first one on that may be untold."""
        book = self.book
        offset = book.position
        if not offset and not book.through and not book.run:
            offset = await self._past.last(client, self._backfill)
        return await self._past.messages(client, offset)


def is_beginning(heard: Heard) -> bool:
    return heard.parent is None and isinstance(heard.what, Began)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
