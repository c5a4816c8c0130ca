"""Reply: what a chat is told because of one update, in as many messages as it takes, each once.

Before a message leaves, the journal has it as being sent; with its id, as sent. One that was being
sent when the process died, or the service broke off, may have arrived: it is sent again, and says
so. Changing a message does no harm twice, and needs no such care.
"""

import asyncio
import time

from .backoff import Backoff
from .chat_service import (
    ChatService,
    ChatServiceError,
    DeliveryUnknownError,
    Markdown,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
)
from .journal import GatewayJournal
from .journal_records import PendingUpdate, SendCompleted, SendFailed, SendStarted, TextDelivered
from .message_splitter import MIN_LIMIT, cut_piece, find_open_fence, render_piece

SENT_AGAIN_MARK = "(sent again after a restart; you may have it twice)"
LATE_MARK = "(late: {name} could not be reached for a while)"
# Seconds after which an answer that had to wait for the service says so.
LATE_AFTER_SECONDS = 60.0
# Of the service's own limit: below this share of it, length is not what is wrong.
MIN_LIMIT_SHARE = 0.05


class StreamedReply:
    """`lead` stands before the first words: the name of a guest."""

    def __init__(
        self,
        journal: GatewayJournal,
        service: ChatService,
        item: PendingUpdate,
        *,
        lead: str = "",
        late_after: float = LATE_AFTER_SECONDS,
    ) -> None:
        self._journal = journal
        self._service = service
        self._item = item
        self._prefix = lead
        self._late_after = late_after
        self._shown_text = ""
        self._is_status_only = False  # the message that grows only says what is going on
        self._unreachable_since = 0.0  # the service has been out of reach
        self._is_late = False
        self.next_edit_at = 0.0  # by the loop's clock: the service wants no change earlier
        self.backoff = Backoff()

    async def show_progress(self, text: Markdown, status: str) -> None:
        """The text so far, with a line of what is going on. Only where messages can be changed.

        What the service does not take now is taken later, with more. Raises Blocked and Refused.
        """
        rest, fence = self._split_remaining(text)
        while self._is_too_long(render_whole(rest, fence)):
            await self._finish_message(rest, fence)
            rest, fence = self._split_remaining(text)
        shown = self._add_prefix(render_whole(rest, fence))
        if status and not self._is_too_long(f"{shown}\n\n{status}"):
            shown = f"{shown}\n\n{status}".strip()
        if not shown or shown == self._shown_text or get_loop_time() < self.next_edit_at:
            return
        try:
            await self._send_or_edit(shown)
            self._is_status_only = not rest.strip()
            self._mark_reached()
        except RetryLaterError as error:
            self.next_edit_at = get_loop_time() + error.seconds
        except (
            DeliveryUnknownError,
            MessageTooLongError,
        ):  # what is too long after all is cut when it is finished
            self.next_edit_at = get_loop_time() + 1.0

    async def finish_text(self, text: Markdown, status: str = "") -> None:
        """The text so far is in messages that are finished. What follows is in others.

        One that only said what is going on says `status` from now on. Takes as long as the service
        needs to take it. Raises Blocked and Refused. Cancelled, what is in the journal goes on from
        there.
        """
        rest, fence = self._split_remaining(text)
        while rest.strip():
            await self._finish_message(rest, fence)
            rest, fence = self._split_remaining(text)
        if self._item.message and self._is_status_only and status:
            await self._finish_message(status, "", count=False)

    def discard_unknown(self, text: Markdown) -> None:
        """Counts from the end of this text on. A daemon that was killed may have had more of it
        sent than is known now, and what is said next would pass for a part of that."""
        known = count_characters(text)
        if self._item.closed > known:
            self._journal.append(TextDelivered(self._item.id, known))
            self._shown_text = ""

    async def _finish_message(self, rest: str, fence: str, *, count: bool = True) -> None:
        """One message of the rest, for good. Only what is to `count` is said by that."""
        share = 1.0
        while True:
            await asyncio.sleep(max(0.0, self.next_edit_at - get_loop_time()))
            piece = cut_piece(rest, int(self._text_limit * share), self._service.measure, fence)
            said = count_characters(rest[: piece.taken]) if count else 0
            closed = TextDelivered(self._item.id, self._item.closed + said)
            try:
                await self._send_or_edit(self._add_prefix(piece.text), closed)
                break
            except MessageTooLongError:
                share *= 0.75
                if share < MIN_LIMIT_SHARE:
                    raise RejectedError("the service finds every message too long") from None
            except RetryLaterError as error:
                self._mark_unreachable()
                await self.backoff.wait(error.seconds)
            except DeliveryUnknownError:
                self._mark_unreachable()
                await self.backoff.wait()
        self._mark_reached()
        self._shown_text = ""
        self._is_status_only = False

    async def _send_or_edit(self, text: Markdown, *closed: TextDelivered) -> None:
        """In the message there is, or in a new one. With `closed` nothing will change it again,
        which is in the journal together with its being sent: after a crash nobody knows how to go
        on with a message that cannot be changed."""
        item, chat = self._item, self._item.update.chat
        if item.message:
            try:
                if text != self._shown_text or self._is_late:  # else it says so already
                    await self._service.edit(chat, item.message, self._add_marks(text))
                self._shown_text = text
                self._journal.append(*closed)
                return
            except RejectedError:  # it is gone: what it said is said in another
                self._journal.append(TextDelivered(item.id, item.closed))
        was_unsure, marked = item.is_sending, self._add_marks(text)
        if not was_unsure:
            await self._journal.append_and_flush(SendStarted(item.id))
        reply_to = item.update.message_id if chat.is_group and not item.closed else ""
        try:
            message = await self._service.send(chat, marked, reply_to=reply_to)
        except DeliveryUnknownError:
            raise
        except ChatServiceError:
            if not was_unsure:
                self._journal.append(SendFailed(item.id))
            raise
        await self._journal.append_and_flush(SendCompleted(item.id, message, was_unsure), *closed)
        self._shown_text = text

    # ── What there is to say ────────────────────────────────────────────────────────────────

    def _split_remaining(self, text: str) -> tuple[str, str]:
        """What is in no finished message, and the code block in which it begins."""
        closed = take_characters(text, self._item.closed)
        rest = text[len(closed) :].lstrip(" \t") if closed else text
        return rest, find_open_fence(closed)

    def _is_too_long(self, text: str) -> bool:
        return self._service.measure(text) > self._text_limit

    @property
    def _text_limit(self) -> int:
        around = self._add_marks(self._add_prefix(""))
        return max(MIN_LIMIT, self._service.limits.text - self._service.measure(around))

    def _add_prefix(self, text: str) -> str:
        return text if self._item.closed else f"{self._prefix}{text}"

    def _add_marks(self, text: str) -> str:
        marks = [SENT_AGAIN_MARK] if self._item.is_sending or self._item.is_marked else []
        if self._is_late:
            marks.append(LATE_MARK.format(name=self._service.name))
        return "\n\n".join([*marks, text])

    def _mark_unreachable(self) -> None:
        self._unreachable_since = self._unreachable_since or time.monotonic()
        self._is_late = time.monotonic() - self._unreachable_since > self._late_after

    def _mark_reached(self) -> None:
        self._unreachable_since = 0.0
        self._is_late = False
        self.backoff.reset()
        self.next_edit_at = get_loop_time() + self._service.limits.edit_every


def render_whole(rest: str, fence: str) -> str:
    return render_piece(rest, len(rest), fence).text


def count_characters(text: str) -> int:
    return sum(not character.isspace() for character in text)


def take_characters(text: str, count: int) -> str:
    """The beginning of a text with so many characters that are no space."""
    place = 0
    while count > 0 and place < len(text):
        count -= not text[place].isspace()
        place += 1
    return text[:place]


def get_loop_time() -> float:
    return asyncio.get_running_loop().time()
