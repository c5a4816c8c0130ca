"""Reply: what a chat is told because of one update, in as many messages as it takes, each once.

Before a message leaves, the journal has it as being sent; with its id, as sent. One that was being
sent when the process died, or the service broke off, may have arrived: it is sent again, and says
so. Changing a message does no harm twice, and needs no such care.
"""

import asyncio
import time

from .backoff import Backoff
from .entries import Closed, Item, Sending, Sent, Unsent
from .journal import Journal
from .service import Away, Refused, Rich, Service, ServiceError, TooLong, TryLater
from .splitting import LEAST, cut, dressed, fence_after

SENT_AGAIN = "(sent again after a restart; you may have it twice)"
LATE = "(late: {name} could not be reached for a while)"
# Seconds after which an answer that had to wait for the service says so.
LATE_AFTER = 60.0
# Of the service's own limit: below this share of it, length is not what is wrong.
SMALLEST = 0.05


class Reply:
    """`lead` stands before the first words: the name of a guest."""

    def __init__(
        self,
        journal: Journal,
        service: Service,
        item: Item,
        *,
        lead: str = "",
        late_after: float = LATE_AFTER,
    ) -> None:
        self._journal = journal
        self._service = service
        self._item = item
        self._lead = lead
        self._late_after = late_after
        self._shown = ""
        self._is_bare = False  # the message that grows only says what is going on
        self._since = 0.0  # the service has been out of reach
        self._is_late = False
        self.not_before = 0.0  # by the loop's clock: the service wants no change earlier
        self.backoff = Backoff()

    async def show(self, text: Rich, status: str) -> None:
        """The text so far, with a line of what is going on. Only where messages can be changed.

        What the service does not take now is taken later, with more. Raises Blocked and Refused.
        """
        rest, fence = self._rest(text)
        while self._is_long(whole(rest, fence)):
            await self._finish(rest, fence)
            rest, fence = self._rest(text)
        shown = self._with_lead(whole(rest, fence))
        if status and not self._is_long(f"{shown}\n\n{status}"):
            shown = f"{shown}\n\n{status}".strip()
        if not shown or shown == self._shown or now() < self.not_before:
            return
        try:
            await self._put(shown)
            self._is_bare = not rest.strip()
            self._reached()
        except TryLater as error:
            self.not_before = now() + error.seconds
        except (Away, TooLong):  # what is too long after all is cut when it is finished
            self.not_before = now() + 1.0

    async def close(self, text: Rich, status: str = "") -> None:
        """The text so far is in messages that are finished. What follows is in others.

        One that only said what is going on says `status` from now on. Takes as long as the service
        needs to take it. Raises Blocked and Refused. Cancelled, what is in the journal goes on from
        there.
        """
        rest, fence = self._rest(text)
        while rest.strip():
            await self._finish(rest, fence)
            rest, fence = self._rest(text)
        if self._item.message and self._is_bare and status:
            await self._finish(status, "", count=False)

    def forget_unknown(self, text: Rich) -> None:
        """Counts from the end of this text on. A daemon that was killed may have had more of it
        sent than is known now, and what is said next would pass for a part of that."""
        known = characters(text)
        if self._item.closed > known:
            self._journal.note(Closed(self._item.id, known))
            self._shown = ""

    async def _finish(self, rest: str, fence: str, *, count: bool = True) -> None:
        """One message of the rest, for good. Only what is to `count` is said by that."""
        share = 1.0
        while True:
            await asyncio.sleep(max(0.0, self.not_before - now()))
            piece = cut(rest, int(self._limit * share), self._service.measure, fence)
            said = characters(rest[: piece.taken]) if count else 0
            closed = Closed(self._item.id, self._item.closed + said)
            try:
                await self._put(self._with_lead(piece.text), closed)
                break
            except TooLong:
                share *= 0.75
                if share < SMALLEST:
                    raise Refused("the service finds every message too long") from None
            except TryLater as error:
                self._out_of_reach()
                await self.backoff.wait(error.seconds)
            except Away:
                self._out_of_reach()
                await self.backoff.wait()
        self._reached()
        self._shown = ""
        self._is_bare = False

    async def _put(self, text: Rich, *closed: Closed) -> None:
        """In the message there is, or in a new one. With `closed` nothing will change it again,
        which is in the journal together with its being sent: after a crash nobody knows how to go
        on with a message that cannot be changed."""
        item, chat = self._item, self._item.update.chat
        if item.message:
            try:
                if text != self._shown or self._is_late:  # else it says so already
                    await self._service.edit(chat, item.message, self._with_marks(text))
                self._shown = text
                self._journal.note(*closed)
                return
            except Refused:  # it is gone: what it said is said in another
                self._journal.note(Closed(item.id, item.closed))
        was_unsure, marked = item.is_sending, self._with_marks(text)
        if not was_unsure:
            await self._journal.keep(Sending(item.id))
        reply_to = item.update.message_id if chat.is_group and not item.closed else ""
        try:
            message = await self._service.send(chat, marked, reply_to=reply_to)
        except Away:
            raise
        except ServiceError:
            if not was_unsure:
                self._journal.note(Unsent(item.id))
            raise
        await self._journal.keep(Sent(item.id, message, was_unsure), *closed)
        self._shown = text

    # ── What there is to say ────────────────────────────────────────────────────────────────

    def _rest(self, text: str) -> tuple[str, str]:
        """What is in no finished message, and the code block in which it begins."""
        closed = take_characters(text, self._item.closed)
        rest = text[len(closed) :].lstrip(" \t") if closed else text
        return rest, fence_after(closed)

    def _is_long(self, text: str) -> bool:
        return self._service.measure(text) > self._limit

    @property
    def _limit(self) -> int:
        around = self._with_marks(self._with_lead(""))
        return max(LEAST, self._service.limits.text - self._service.measure(around))

    def _with_lead(self, text: str) -> str:
        return text if self._item.closed else f"{self._lead}{text}"

    def _with_marks(self, text: str) -> str:
        marks = [SENT_AGAIN] if self._item.is_sending or self._item.is_marked else []
        if self._is_late:
            marks.append(LATE.format(name=self._service.name))
        return "\n\n".join([*marks, text])

    def _out_of_reach(self) -> None:
        self._since = self._since or time.monotonic()
        self._is_late = time.monotonic() - self._since > self._late_after

    def _reached(self) -> None:
        self._since = 0.0
        self._is_late = False
        self.backoff.reset()
        self.not_before = now() + self._service.limits.edit_every


def whole(rest: str, fence: str) -> str:
    return dressed(rest, len(rest), fence).text


def characters(text: str) -> int:
    return sum(not character.isspace() for character in text)


def take_characters(text: str, count: int) -> str:
    """The beginning of a text with so many characters that are no space."""
    place = 0
    while count > 0 and place < len(text):
        count -= not text[place].isspace()
        place += 1
    return text[:place]


def now() -> float:
    return asyncio.get_running_loop().time()
