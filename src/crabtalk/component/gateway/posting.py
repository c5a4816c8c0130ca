"""Posting: messages beside the answer itself, sent once as well: forms, files, notices."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from .backoff import Backoff
from .desk import Desk
from .entries import Filed, Filled, Formed, Item, Noticed
from .errors import GatewayError
from .forms import Form
from .reply import SENT_AGAIN
from .service import Away, Button, Chat, Refused, Rich, TooLong, TryLater
from .splitting import LEAST, cut

AWAY = "The agent daemon cannot be reached. Your message is kept, and answered when it is back."
BACK = "The agent daemon is back."
NOT_SHOWN = (
    "A call waits for your approval, and it cannot be shown here. Answer it in the terminal or on "
    "the web page, or /stop."
)
# The id of a message that the service did not take.
REFUSED = "refused"

log = logging.getLogger(__name__)


class Posting:
    """For one update's answer."""

    def __init__(self, desk: Desk, item: Item) -> None:
        self._desk = desk
        self._item = item
        self._asked: dict[str, int | None] = {}  # the question each form shows

    async def form(self, form: Form, *, is_open: bool = True) -> None:
        """Shows a form as it is now. Raises Blocked; a form that is refused is only logged."""
        if form.is_approval:
            await self._show_approval(form, is_open=is_open)
            return
        service = self._desk.service
        filled = self._item.forms.get(form.ask)
        message = filled.message if filled is not None else ""
        text = form.text(has_buttons=service.limits.buttons, is_open=is_open)
        buttons = form.buttons() if service.limits.buttons and is_open else []
        chat = self._item.update.chat
        if message and service.limits.edits:
            shown = fitted(text, self._desk)
            await patiently(lambda: service.edit(chat, message, shown, buttons=buttons))
            return
        # Without changes, another message: for another question, and for that alone.
        if message and (not is_open or self._asked.get(form.ask, form.current) == form.current):
            return
        is_unsure = filled is not None and not message
        await self._desk.journal.keep(
            Formed(self._item.id, form.ask, Filled("", form.answers, sorted(form.settled), is_open))
        )

        async def send(is_marked: bool) -> str:
            marked = f"{SENT_AGAIN}\n\n{text}" if is_marked else text
            return await service.send(chat, fitted(marked, self._desk), buttons=buttons)

        sent = await once(send, is_unsure=is_unsure)
        self._asked[form.ask] = form.current
        latest = self._item.forms.get(form.ask) or Filled()
        kept = Filled(sent, form.answers, sorted(form.settled), latest.is_open)
        await self._desk.journal.keep(Formed(self._item.id, form.ask, kept))

    # ── Approvals ───────────────────────────────────────────────────────────────────────────

    async def _show_approval(self, form: Form, *, is_open: bool) -> None:
        """Each approval has messages of its own. When it is answered, or nobody waits for it any
        more, its last message loses the buttons and says what was answered."""
        filled = self._item.forms.get(form.ask) or Filled()
        is_known = is_shown(filled) and filled.asked >= 0  # earlier releases did not say which
        if is_known and (not is_open or filled.asked != form.current):
            await self._close_approval(form, filled)
        if not is_open or form.current is None:
            return
        if filled.asked != form.current or not filled.message:
            is_unsure = filled.asked == form.current
            await self._send_approval(form, form.current, is_unsure=is_unsure)
        elif is_known and not form.is_asking_approval:
            await self._mark_options(form, form.current, filled)

    async def _send_approval(self, form: Form, number: int, *, is_unsure: bool) -> None:
        service, chat = self._desk.service, self._item.update.chat
        has_buttons = service.limits.buttons
        hint = form.approval_hint(number, has_buttons=has_buttons)
        pages = form.approval_pages(number, service.limits.text, service.measure, end=hint)
        await self._keep_approval(form, number, "")
        sent = ""
        for place, page in enumerate(pages, 1):
            buttons = form.buttons() if has_buttons and place == len(pages) else []

            async def send(
                is_marked: bool, page: str = page, buttons: Sequence[Button] = buttons
            ) -> str:
                shown = f"{SENT_AGAIN}\n{page}" if is_marked else page
                return await service.send(chat, shown, buttons=buttons, is_literal=True)

            sent = await once(send, is_unsure=is_unsure)
            if sent == REFUSED:
                break
        # With the message, answers are taken from now on: all of the call is in the chat.
        await self._keep_approval(form, number, sent)
        if sent == REFUSED:
            await notice(self._desk, chat, NOT_SHOWN)

    async def _keep_approval(self, form: Form, number: int, message: str) -> None:
        latest = self._item.forms.get(form.ask) or Filled()
        filled = Filled(message, form.answers, sorted(form.settled), latest.is_open, number)
        await self._desk.journal.keep(Formed(self._item.id, form.ask, filled))

    async def _mark_options(self, form: Form, number: int, filled: Filled) -> None:
        """Shows which options of a question among approvals were pressed so far."""
        service, chat = self._desk.service, self._item.update.chat
        if not (service.limits.edits and service.limits.buttons):
            return
        hint = form.approval_hint(number, has_buttons=True)
        pages = form.approval_pages(number, service.limits.text, service.measure, end=hint)
        await patiently(
            lambda: service.edit(
                chat, filled.message, pages[-1], buttons=form.buttons(), is_literal=True
            )
        )

    async def _close_approval(self, form: Form, filled: Filled) -> None:
        service, chat = self._desk.service, self._item.update.chat
        if not service.limits.edits:
            return
        outcome = form.approval_outcome(filled.asked)
        pages = form.approval_pages(filled.asked, service.limits.text, service.measure, end=outcome)
        await patiently(lambda: service.edit(chat, filled.message, pages[-1], is_literal=True))

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def file(self, call: str, path: str, sender: str) -> None:
        """Sends a file of the agent's. Raises Blocked."""
        desk, item = self._desk, self._item
        if item.files.get(call):
            return
        is_unsure = call in item.files
        await desk.journal.keep(Filed(item.id, call))
        chat = item.update.chat
        try:
            found = await asyncio.to_thread(desk.files.outgoing, sender, path)
        except GatewayError as error:
            await notice(desk, chat, f"⚠️ {error}")
        else:

            async def send(is_marked: bool) -> str:
                return await upload(desk, chat, found, is_marked=is_marked)

            await once(send, is_unsure=is_unsure)
        await desk.journal.keep(Filed(item.id, call, is_sent=True))


def is_shown(filled: Filled) -> bool:
    """Whether the question is in the chat, all of it."""
    return filled.message not in ("", REFUSED)


async def upload(desk: Desk, chat: Chat, path: Path, *, is_marked: bool) -> str:
    try:
        return await desk.service.upload(chat, path, SENT_AGAIN if is_marked else "")
    except (Refused, TooLong) as error:
        await notice(desk, chat, f"⚠️ {path.name} was not taken: {error}")
        return REFUSED


async def notice(desk: Desk, chat: Chat, text: Rich) -> None:
    """Says something on the side, once: it is tried again only where it surely did not arrive.
    Raises Blocked."""
    backoff = Backoff()
    while True:
        try:
            await desk.service.send(chat, fitted(text, desk))
            return
        except TryLater as error:
            await backoff.wait(error.seconds)
        except (Away, Refused, TooLong) as error:
            log.info("a notice was not sent: %s", error)
            return


async def once(send: Callable[[bool], Awaitable[str]], *, is_unsure: bool) -> str:
    """Sends, as often as it takes, with a mark where it may have arrived before."""
    backoff = Backoff()
    while True:
        try:
            return await send(is_unsure)
        except TryLater as error:
            await backoff.wait(error.seconds)
        except Away:
            is_unsure = True
            await backoff.wait()
        except (Refused, TooLong) as error:
            log.warning("a message was not taken: %s", error)
            return REFUSED


async def patiently(work: Callable[[], Awaitable[None]]) -> None:
    """What does no harm twice, until it is done."""
    backoff = Backoff()
    while True:
        try:
            await work()
            return
        except TryLater as error:
            await backoff.wait(error.seconds)
        except Away:
            await backoff.wait()
        except (Refused, TooLong) as error:
            log.warning("a message was not changed: %s", error)
            return


def fitted(text: str, desk: Desk) -> str:
    """Cut to what the service takes in one message."""
    service = desk.service
    if service.measure(text) <= service.limits.text:
        return text
    room = max(LEAST, service.limits.text - service.measure("…"))
    return f"{cut(text, room, service.measure).text}…"


async def wait_for_daemon(desk: Desk, chat: Chat) -> None:
    """Until it is back. Who waits is told once that it is away, and once that it is back.

    The journal has that they are told before they are: who is killed in between tells them
    nothing, rather than the same twice.
    """
    waiting = asyncio.ensure_future(desk.link.back())
    try:
        await asyncio.wait([waiting], timeout=desk.bounds.notice_after)
        if not desk.journal.book.chat(chat.id).is_told_away:
            await tell_away(desk, chat, waiting)
        await waiting
    finally:
        waiting.cancel()
    await tell_back(desk, chat)


async def tell_away(desk: Desk, chat: Chat, waiting: asyncio.Future[None]) -> None:
    """Unless the daemon is back before the service takes it."""
    backoff = Backoff()
    while not waiting.done():
        await desk.journal.keep(Noticed(chat.id, is_away=True))
        try:
            await desk.service.send(chat, fitted(AWAY, desk))
            return
        except TryLater as error:
            desk.journal.note(Noticed(chat.id, is_away=False))
            pause = asyncio.ensure_future(backoff.wait(error.seconds))
            try:
                await asyncio.wait([waiting, pause], return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
        except (Away, Refused, TooLong) as error:
            log.info("a notice was not sent: %s", error)
            return


async def tell_back(desk: Desk, chat: Chat) -> None:
    if desk.journal.book.chat(chat.id).is_told_away:
        await desk.journal.keep(Noticed(chat.id, is_away=False))
        await notice(desk, chat, BACK)
