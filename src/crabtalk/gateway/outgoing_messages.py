"""Messages beside the answer itself, each sent once: forms, approvals, files and notices."""

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
# Stored instead of a message id, if the service rejected the message.
REJECTED_MESSAGE_ID = "refused"

log = logging.getLogger(__name__)


class OutgoingMessages:
    """The forms and files of one update's answer."""

    def __init__(self, context: GatewayContext, item: PendingUpdate) -> None:
        self._context = context
        self._item = item
        self._shown_questions: dict[str, int | None] = {}  # by form: the question it shows

    async def show_form(self, form: ChatForm, *, is_open: bool = True) -> None:
        """Show a form as it is now. Raises ChatBlockedError; a rejected form is only logged."""
        if form.has_approvals:
            await self._show_approval(form, is_open=is_open)
            return
        service = self._context.service
        stored = self._item.forms.get(form.ask)
        message = stored.message if stored is not None else ""
        text = form.render_text(has_buttons=service.limits.buttons, is_open=is_open)
        buttons = form.build_buttons() if service.limits.buttons and is_open else []
        chat = self._item.update.chat
        if message and service.limits.edits:
            fitted = fit_to_limit(text, self._context)
            await retry_until_done(lambda: service.edit(chat, message, fitted, buttons=buttons))
            return
        # Without edits, only another question needs another message.
        if message and (
            not is_open
            or self._shown_questions.get(form.ask, form.current_number) == form.current_number
        ):
            return
        is_unsure = stored is not None and not message
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
        progress = FormProgress(sent, form.answers, sorted(form.settled), latest.is_open)
        await self._context.journal.append_and_flush(FormUpdated(self._item.id, form.ask, progress))

    # ── Approvals ───────────────────────────────────────────────────────────────────────────

    async def _show_approval(self, form: ChatForm, *, is_open: bool) -> None:
        """Each approval has messages of its own. When it is answered or closed, its last message
        loses the buttons and says what was answered."""
        progress = self._item.forms.get(form.ask) or FormProgress()
        # Earlier releases did not store which question the message shows.
        is_known = is_form_shown(progress) and progress.asked >= 0
        if is_known and (not is_open or progress.asked != form.current_number):
            await self._close_approval(form, progress)
        if not is_open or form.current_number is None:
            return
        if progress.asked != form.current_number or not progress.message:
            is_unsure = progress.asked == form.current_number
            await self._send_approval(form, form.current_number, is_unsure=is_unsure)
        elif is_known and not form.is_asking_approval:
            await self._update_options(form, form.current_number, progress)

    async def _send_approval(self, form: ChatForm, number: int, *, is_unsure: bool) -> None:
        service, chat = self._context.service, self._item.update.chat
        has_buttons = service.limits.buttons
        hint = form.render_approval_hint(number, has_buttons=has_buttons)
        pages = form.render_approval_pages(number, service.limits.text, service.measure, end=hint)
        await self._record_approval(form, number, "")
        sent = ""
        for page_number, page in enumerate(pages, 1):
            buttons = form.build_buttons() if has_buttons and page_number == len(pages) else []

            async def send(
                is_marked: bool, page: str = page, buttons: Sequence[Button] = buttons
            ) -> str:
                marked = f"{SENT_AGAIN_MARK}\n{page}" if is_marked else page
                return await service.send(chat, marked, buttons=buttons, is_literal=True)

            sent = await send_once(send, is_unsure=is_unsure)
            if sent == REJECTED_MESSAGE_ID:
                break
        # Recording the message id opens the approval for answers: the chat has all of the call now.
        await self._record_approval(form, number, sent)
        if sent == REJECTED_MESSAGE_ID:
            await send_notice(self._context, chat, APPROVAL_NOT_SHOWN)

    async def _record_approval(self, form: ChatForm, number: int, message: str) -> None:
        latest = self._item.forms.get(form.ask) or FormProgress()
        progress = FormProgress(message, form.answers, sorted(form.settled), latest.is_open, number)
        await self._context.journal.append_and_flush(FormUpdated(self._item.id, form.ask, progress))

    async def _update_options(self, form: ChatForm, number: int, progress: FormProgress) -> None:
        """Show which options of a question among approvals are chosen so far."""
        service, chat = self._context.service, self._item.update.chat
        if not (service.limits.edits and service.limits.buttons):
            return
        hint = form.render_approval_hint(number, has_buttons=True)
        pages = form.render_approval_pages(number, service.limits.text, service.measure, end=hint)
        await retry_until_done(
            lambda: service.edit(
                chat, progress.message, pages[-1], buttons=form.build_buttons(), is_literal=True
            )
        )

    async def _close_approval(self, form: ChatForm, progress: FormProgress) -> None:
        service, chat = self._context.service, self._item.update.chat
        if not service.limits.edits:
            return
        outcome = form.render_approval_outcome(progress.asked)
        pages = form.render_approval_pages(
            progress.asked, service.limits.text, service.measure, end=outcome
        )
        await retry_until_done(
            lambda: service.edit(chat, progress.message, pages[-1], is_literal=True)
        )

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def send_file(self, call: str, path: str, sender: str) -> None:
        """Send a file of the agent's. Raises ChatBlockedError."""
        context, item = self._context, self._item
        if item.files.get(call):
            return
        is_unsure = call in item.files
        await context.journal.append_and_flush(FileSendUpdated(item.id, call))
        chat = item.update.chat
        try:
            file = await asyncio.to_thread(context.files.resolve_outgoing, sender, path)
        except GatewayError as error:
            await send_notice(context, chat, f"⚠️ {error}")
        else:

            async def send(is_marked: bool) -> str:
                return await upload_file(context, chat, file, is_marked=is_marked)

            await send_once(send, is_unsure=is_unsure)
        await context.journal.append_and_flush(FileSendUpdated(item.id, call, is_sent=True))


def is_form_shown(progress: FormProgress) -> bool:
    """Whether the whole question is in the chat."""
    return progress.message not in ("", REJECTED_MESSAGE_ID)


async def upload_file(context: GatewayContext, chat: Chat, path: Path, *, is_marked: bool) -> str:
    try:
        return await context.service.upload(chat, path, SENT_AGAIN_MARK if is_marked else "")
    except (RejectedError, MessageTooLongError) as error:
        await send_notice(context, chat, f"⚠️ {path.name} was not taken: {error}")
        return REJECTED_MESSAGE_ID


async def send_notice(context: GatewayContext, chat: Chat, text: Markdown) -> None:
    """Send a message beside the answer, once: it is retried only if it certainly did not arrive.
    Raises ChatBlockedError."""
    backoff = Backoff()
    while True:
        try:
            await context.service.send(chat, fit_to_limit(text, context))
            return
        except RetryLaterError as error:
            await backoff.wait(error.seconds)
        except (DeliveryUnknownError, RejectedError, MessageTooLongError) as error:
            log.info("a notice was not sent: %s", error)
            return


async def send_once(send: Callable[[bool], Awaitable[str]], *, is_unsure: bool) -> str:
    """Send with as many retries as it takes. A message that may have arrived before is marked."""
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
    """Retry work that can be repeated without harm, until it is done or rejected."""
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


def fit_to_limit(text: str, context: GatewayContext) -> str:
    """Cut a text to what the service takes in one message."""
    service = context.service
    if service.measure(text) <= service.limits.text:
        return text
    room = max(MIN_LIMIT, service.limits.text - service.measure("…"))
    return f"{cut_piece(text, room, service.measure).text}…"


async def wait_for_daemon(context: GatewayContext, chat: Chat) -> None:
    """Wait until the daemon is back. The chat is told once that it is away, and once that it is
    back.

    The journal records each notice before it is sent: a crash in between loses a notice rather
    than sending it twice.
    """
    wait_task = asyncio.ensure_future(context.daemon.wait_until_available())
    try:
        await asyncio.wait([wait_task], timeout=context.bounds.notice_after)
        if not context.journal.state.get_chat(chat.id).is_told_away:
            await notify_unavailable(context, chat, wait_task)
        await wait_task
    finally:
        wait_task.cancel()
    await notify_available(context, chat)


async def notify_unavailable(
    context: GatewayContext, chat: Chat, wait_task: asyncio.Future[None]
) -> None:
    """Send the notice, unless the daemon is back before the service takes it."""
    backoff = Backoff()
    while not wait_task.done():
        await context.journal.append_and_flush(AvailabilityNotified(chat.id, is_away=True))
        try:
            await context.service.send(chat, fit_to_limit(DAEMON_AWAY_NOTICE, context))
            return
        except RetryLaterError as error:
            context.journal.append(AvailabilityNotified(chat.id, is_away=False))
            pause = asyncio.ensure_future(backoff.wait(error.seconds))
            try:
                await asyncio.wait([wait_task, pause], return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
        except (DeliveryUnknownError, RejectedError, MessageTooLongError) as error:
            log.info("a notice was not sent: %s", error)
            return


async def notify_available(context: GatewayContext, chat: Chat) -> None:
    if context.journal.state.get_chat(chat.id).is_told_away:
        await context.journal.append_and_flush(AvailabilityNotified(chat.id, is_away=False))
        await send_notice(context, chat, DAEMON_BACK_NOTICE)
