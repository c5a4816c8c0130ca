"""The reply to one update, in as many messages as it takes, each sent once.

Before a message is sent, the journal records that it is being sent; afterwards, its id. If the
process died or the connection broke while a message was being sent, it may have arrived: it is sent
again with a mark that says so. Edits can be repeated without harm, and need no such care.
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
# An answer that had to wait for the service longer than these seconds is marked as late.
LATE_AFTER_SECONDS = 60.0
# Share of the service's limit. If a message this short is too long, its length is not the problem.
MIN_LIMIT_SHARE = 0.05


class StreamedReply:
    """`lead` is put before the first words: the name of a guest."""

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
        self._is_status_only = False  # the growing message has only the status line
        self._unreachable_since = 0.0  # 0: the service can be reached
        self._is_late = False
        self.next_edit_at = 0.0  # by the loop's clock: the service wants no edit earlier
        self.backoff = Backoff()

    async def show_progress(self, text: Markdown, status: str) -> None:
        """Show the text so far and a status line. Only for services that can edit messages.

        If the service does not take it now, a later call shows more. Raises ChatBlockedError and
        RejectedError.
        """
        rest, fence = self._split_remaining(text)
        while self._is_too_long(render_whole(rest, fence)):
            await self._finish_message(rest, fence)
            rest, fence = self._split_remaining(text)
        rendered = self._add_prefix(render_whole(rest, fence))
        if status and not self._is_too_long(f"{rendered}\n\n{status}"):
            rendered = f"{rendered}\n\n{status}".strip()
        if not rendered or rendered == self._shown_text or get_loop_time() < self.next_edit_at:
            return
        try:
            await self._send_or_edit(rendered)
            self._is_status_only = not rest.strip()
            self._mark_reached()
        except RetryLaterError as error:
            self.next_edit_at = get_loop_time() + error.seconds
        except (
            DeliveryUnknownError,
            MessageTooLongError,
        ):  # a text that is too long is split when it is finished
            self.next_edit_at = get_loop_time() + 1.0

    async def finish_text(self, text: Markdown, status: str = "") -> None:
        """Put the text so far into finished messages. Later text goes into new messages.

        A message that has only a status line is finished with `status`. Waits as long as the
        service needs. Raises ChatBlockedError and RejectedError. Cancelled, the journal has the
        state it reached.
        """
        rest, fence = self._split_remaining(text)
        while rest.strip():
            await self._finish_message(rest, fence)
            rest, fence = self._split_remaining(text)
        if self._item.message and self._is_status_only and status:
            await self._finish_message(status, "", count=False)

    def discard_unknown(self, text: Markdown) -> None:
        """Count delivered characters from the end of this text. A daemon that was killed may have
        sent more text than it knows now; new text would be taken for a part of that."""
        known = count_characters(text)
        if self._item.closed > known:
            self._journal.append(TextDelivered(self._item.id, known))
            self._shown_text = ""

    async def _finish_message(self, rest: str, fence: str, *, count: bool = True) -> None:
        """Finish one message with the first part of the rest. `count` adds it to `closed`."""
        share = 1.0
        while True:
            await asyncio.sleep(max(0.0, self.next_edit_at - get_loop_time()))
            piece = cut_piece(rest, int(self._text_limit * share), self._service.measure, fence)
            characters = count_characters(rest[: piece.taken]) if count else 0
            closed = TextDelivered(self._item.id, self._item.closed + characters)
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
        """Edit the growing message, or send a new one. With `closed`, the message is final. The
        journal records that together with the message id, because after a crash a message that
        cannot be edited could not be continued."""
        item, chat = self._item, self._item.update.chat
        if item.message:
            try:
                if text != self._shown_text or self._is_late:  # else it has this text already
                    await self._service.edit(chat, item.message, self._add_marks(text))
                self._shown_text = text
                self._journal.append(*closed)
                return
            except RejectedError:  # it is gone: send its text in a new message
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

    # ── Text that is still to be sent ───────────────────────────────────────────────────────

    def _split_remaining(self, text: str) -> tuple[str, str]:
        """The text that is in no finished message, and the code block in which it begins."""
        closed = take_characters(text, self._item.closed)
        rest = text[len(closed) :].lstrip(" \t") if closed else text
        return rest, find_open_fence(closed)

    def _is_too_long(self, text: str) -> bool:
        return self._service.measure(text) > self._text_limit

    @property
    def _text_limit(self) -> int:
        empty_message = self._add_marks(self._add_prefix(""))
        return max(MIN_LIMIT, self._service.limits.text - self._service.measure(empty_message))

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
    """The beginning of a text that has `count` characters, spaces not counted."""
    position = 0
    while count > 0 and position < len(text):
        count -= not text[position].isspace()
        position += 1
    return text[:position]


def get_loop_time() -> float:
    return asyncio.get_running_loop().time()
