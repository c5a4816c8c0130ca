"""Posting: messages beside the answer itself, sent once as well: forms, files, notices."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from .backoff import Backoff
from .chat_forms import ChatForm
from .chat_service import (
    Button,
    Chat,
    DeliveryUnknownError,
    Markdown,
    MessageTooLongError,
    RejectedError,
    RetryLaterError,
)
from .errors import GatewayError
from .gateway_context import GatewayContext
from .journal_records import (
    AvailabilityNotified,
    FileSendUpdated,
    FormProgress,
    FormUpdated,
    PendingUpdate,
)
from .message_splitter import MIN_LIMIT, cut_piece
from .streamed_reply import SENT_AGAIN_MARK

DAEMON_AWAY_NOTICE = (
    "The agent daemon cannot be reached. Your message is kept, and answered when it is back."
)
DAEMON_BACK_NOTICE = "The agent daemon is back."
APPROVAL_NOT_SHOWN = (
    "A call waits for your approval, and it cannot be shown here. Answer it in the terminal or on "
    "the web page, or /stop."
)
# The id of a message that the service did not take.
REJECTED_MESSAGE_ID = "refused"

log = logging.getLogger(__name__)


class OutgoingMessages:
    """For one update's answer."""

    def __init__(self, desk: GatewayContext, item: PendingUpdate) -> None:
        self._context = desk
        self._item = item
        self._shown_questions: dict[str, int | None] = {}  # the question each form shows

    async def show_form(self, form: ChatForm, *, is_open: bool = True) -> None:
        """Shows a form as it is now. Raises Blocked; a form that is refused is only logged."""
        if form.has_approvals:
            await self._show_approval(form, is_open=is_open)
            return
        service = self._context.service
        filled = self._item.forms.get(form.ask)
        message = filled.message if filled is not None else ""
        text = form.render_text(has_buttons=service.limits.buttons, is_open=is_open)
        buttons = form.build_buttons() if service.limits.buttons and is_open else []
        chat = self._item.update.chat
        if message and service.limits.edits:
            shown = fit_to_limit(text, self._context)
            await retry_until_done(lambda: service.edit(chat, message, shown, buttons=buttons))
            return
        # Without changes, another message: for another question, and for that alone.
        if message and (
            not is_open
            or self._shown_questions.get(form.ask, form.current_number) == form.current_number
        ):
            return
        is_unsure = filled is not None and not message
        await self._context.journal.append_and_flush(
            FormUpdated(
                self._item.id,
                form.ask,
                FormProgress("", form.answers, sorted(form.settled), is_open),
            )
        )

        async def send(is_marked: bool) -> str:
            marked = f"{SENT_AGAIN_MARK}\n\n{text}" if is_marked else text
            return await service.send(chat, fit_to_limit(marked, self._context), buttons=buttons)

        sent = await send_once(send, is_unsure=is_unsure)
        self._shown_questions[form.ask] = form.current_number
        latest = self._item.forms.get(form.ask) or FormProgress()
        kept = FormProgress(sent, form.answers, sorted(form.settled), latest.is_open)
        await self._context.journal.append_and_flush(FormUpdated(self._item.id, form.ask, kept))

    # ── Approvals ───────────────────────────────────────────────────────────────────────────

    async def _show_approval(self, form: ChatForm, *, is_open: bool) -> None:
        """Each approval has messages of its own. When it is answered, or nobody waits for it any
        more, its last message loses the buttons and says what was answered."""
        filled = self._item.forms.get(form.ask) or FormProgress()
        is_known = is_form_shown(filled) and filled.asked >= 0  # earlier releases did not say which
        if is_known and (not is_open or filled.asked != form.current_number):
            await self._close_approval(form, filled)
        if not is_open or form.current_number is None:
            return
        if filled.asked != form.current_number or not filled.message:
            is_unsure = filled.asked == form.current_number
            await self._send_approval(form, form.current_number, is_unsure=is_unsure)
        elif is_known and not form.is_asking_approval:
            await self._update_options(form, form.current_number, filled)

    async def _send_approval(self, form: ChatForm, number: int, *, is_unsure: bool) -> None:
        service, chat = self._context.service, self._item.update.chat
        has_buttons = service.limits.buttons
        hint = form.render_approval_hint(number, has_buttons=has_buttons)
        pages = form.render_approval_pages(number, service.limits.text, service.measure, end=hint)
        await self._record_approval(form, number, "")
        sent = ""
        for place, page in enumerate(pages, 1):
            buttons = form.build_buttons() if has_buttons and place == len(pages) else []

            async def send(
                is_marked: bool, page: str = page, buttons: Sequence[Button] = buttons
            ) -> str:
                shown = f"{SENT_AGAIN_MARK}\n{page}" if is_marked else page
                return await service.send(chat, shown, buttons=buttons, is_literal=True)

            sent = await send_once(send, is_unsure=is_unsure)
            if sent == REJECTED_MESSAGE_ID:
                break
        # With the message, answers are taken from now on: all of the call is in the chat.
        await self._record_approval(form, number, sent)
        if sent == REJECTED_MESSAGE_ID:
            await send_notice(self._context, chat, APPROVAL_NOT_SHOWN)

    async def _record_approval(self, form: ChatForm, number: int, message: str) -> None:
        latest = self._item.forms.get(form.ask) or FormProgress()
        filled = FormProgress(message, form.answers, sorted(form.settled), latest.is_open, number)
        await self._context.journal.append_and_flush(FormUpdated(self._item.id, form.ask, filled))

    async def _update_options(self, form: ChatForm, number: int, filled: FormProgress) -> None:
        """Shows which options of a question among approvals were pressed so far."""
        service, chat = self._context.service, self._item.update.chat
        if not (service.limits.edits and service.limits.buttons):
            return
        hint = form.render_approval_hint(number, has_buttons=True)
        pages = form.render_approval_pages(number, service.limits.text, service.measure, end=hint)
        await retry_until_done(
            lambda: service.edit(
                chat, filled.message, pages[-1], buttons=form.build_buttons(), is_literal=True
            )
        )

    async def _close_approval(self, form: ChatForm, filled: FormProgress) -> None:
        service, chat = self._context.service, self._item.update.chat
        if not service.limits.edits:
            return
        outcome = form.render_approval_outcome(filled.asked)
        pages = form.render_approval_pages(
            filled.asked, service.limits.text, service.measure, end=outcome
        )
        await retry_until_done(
            lambda: service.edit(chat, filled.message, pages[-1], is_literal=True)
        )

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def send_file(self, call: str, path: str, sender: str) -> None:
        """Sends a file of the agent's. Raises Blocked."""
        desk, item = self._context, self._item
        if item.files.get(call):
            return
        is_unsure = call in item.files
        await desk.journal.append_and_flush(FileSendUpdated(item.id, call))
        chat = item.update.chat
        try:
            found = await asyncio.to_thread(desk.files.resolve_outgoing, sender, path)
        except GatewayError as error:
            await send_notice(desk, chat, f"⚠️ {error}")
        else:

            async def send(is_marked: bool) -> str:
                return await upload_file(desk, chat, found, is_marked=is_marked)

            await send_once(send, is_unsure=is_unsure)
        await desk.journal.append_and_flush(FileSendUpdated(item.id, call, is_sent=True))


def is_form_shown(filled: FormProgress) -> bool:
    """Whether the question is in the chat, all of it."""
    return filled.message not in ("", REJECTED_MESSAGE_ID)


async def upload_file(desk: GatewayContext, chat: Chat, path: Path, *, is_marked: bool) -> str:
    try:
        return await desk.service.upload(chat, path, SENT_AGAIN_MARK if is_marked else "")
    except (RejectedError, MessageTooLongError) as error:
        await send_notice(desk, chat, f"⚠️ {path.name} was not taken: {error}")
        return REJECTED_MESSAGE_ID


async def send_notice(desk: GatewayContext, chat: Chat, text: Markdown) -> None:
    """Says something on the side, once: it is tried again only where it surely did not arrive.
    Raises Blocked."""
    backoff = Backoff()
    while True:
        try:
            await desk.service.send(chat, fit_to_limit(text, desk))
            return
        except RetryLaterError as error:
            await backoff.wait(error.seconds)
        except (DeliveryUnknownError, RejectedError, MessageTooLongError) as error:
            log.info("a notice was not sent: %s", error)
            return


async def send_once(send: Callable[[bool], Awaitable[str]], *, is_unsure: bool) -> str:
    """Sends, as often as it takes, with a mark where it may have arrived before."""
    backoff = Backoff()
    while True:
        try:
            return await send(is_unsure)
        except RetryLaterError as error:
            await backoff.wait(error.seconds)
        except DeliveryUnknownError:
            is_unsure = True
            await backoff.wait()
        except (RejectedError, MessageTooLongError) as error:
            log.warning("a message was not taken: %s", error)
            return REJECTED_MESSAGE_ID


async def retry_until_done(work: Callable[[], Awaitable[None]]) -> None:
    """What does no harm twice, until it is done."""
    backoff = Backoff()
    while True:
        try:
            await work()
            return
        except RetryLaterError as error:
            await backoff.wait(error.seconds)
        except DeliveryUnknownError:
            await backoff.wait()
        except (RejectedError, MessageTooLongError) as error:
            log.warning("a message was not changed: %s", error)
            return


def fit_to_limit(text: str, desk: GatewayContext) -> str:
    """Cut to what the service takes in one message."""
    service = desk.service
    if service.measure(text) <= service.limits.text:
        return text
    room = max(MIN_LIMIT, service.limits.text - service.measure("…"))
    return f"{cut_piece(text, room, service.measure).text}…"


async def wait_for_daemon(desk: GatewayContext, chat: Chat) -> None:
    """Until it is back. Who waits is told once that it is away, and once that it is back.

    The journal has that they are told before they are: who is killed in between tells them
    nothing, rather than the same twice.
    """
    waiting = asyncio.ensure_future(desk.daemon.wait_until_available())
    try:
        await asyncio.wait([waiting], timeout=desk.bounds.notice_after)
        if not desk.journal.state.get_chat(chat.id).is_told_away:
            await notify_unavailable(desk, chat, waiting)
        await waiting
    finally:
        waiting.cancel()
    await notify_available(desk, chat)


async def notify_unavailable(
    desk: GatewayContext, chat: Chat, waiting: asyncio.Future[None]
) -> None:
    """Unless the daemon is back before the service takes it."""
    backoff = Backoff()
    while not waiting.done():
        await desk.journal.append_and_flush(AvailabilityNotified(chat.id, is_away=True))
        try:
            await desk.service.send(chat, fit_to_limit(DAEMON_AWAY_NOTICE, desk))
            return
        except RetryLaterError as error:
            desk.journal.append(AvailabilityNotified(chat.id, is_away=False))
            pause = asyncio.ensure_future(backoff.wait(error.seconds))
            try:
                await asyncio.wait([waiting, pause], return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
        except (DeliveryUnknownError, RejectedError, MessageTooLongError) as error:
            log.info("a notice was not sent: %s", error)
            return


async def notify_available(desk: GatewayContext, chat: Chat) -> None:
    if desk.journal.state.get_chat(chat.id).is_told_away:
        await desk.journal.append_and_flush(AvailabilityNotified(chat.id, is_away=False))
        await send_notice(desk, chat, DAEMON_BACK_NOTICE)
