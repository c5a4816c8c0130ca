"""Answers: ours to people, and those of people to what agents ask. Each is given once."""

import logging

from crabtalk.client import ServerError

from .chat_forms import ChatForm, parse_payload
from .chat_service import ChatBlockedError, ChatServiceError, Markdown
from .errors import NOT_FOUND, is_daemon_unavailable
from .gateway_context import GatewayContext
from .gateway_turn import GatewayTurn
from .journal_records import (
    AnswerPrepared,
    DaemonRequest,
    PendingUpdate,
    RequestNotSent,
    RequestStarted,
    UpdateHandled,
)
from .outgoing_messages import is_form_shown
from .streamed_reply import StreamedReply

log = logging.getLogger(__name__)


async def send_answer(desk: GatewayContext, item: PendingUpdate, text: Markdown) -> bool:
    """Says something of our own. Raises Blocked."""
    if item.text is None:
        desk.journal.append(AnswerPrepared(item.id, text))
    reply = StreamedReply(desk.journal, desk.service, item, late_after=desk.bounds.late_after)
    try:
        await reply.finish_text(text)
    except ChatBlockedError:
        raise
    except ChatServiceError as error:
        log.warning("an answer was not taken: %s", error)
    await desk.journal.append_and_flush(UpdateHandled(item.id))
    return True


async def handle_button(
    desk: GatewayContext, turn: GatewayTurn | None, item: PendingUpdate
) -> bool:
    """A button. One that is of no question that waits does nothing. False for one whose question
    may still have to be asked again."""
    if turn is not None and turn.awaits_repeated_question:
        return False
    form = turn.form if turn is not None else None
    if turn is not None and form is not None and is_approval_being_sent(turn, form):
        return False  # pressed before the journal has that the message arrived
    if (
        turn is not None
        and form is not None
        and may_answer(desk, turn, form, item)
        and apply_button(form, item.update.press)
    ):
        desk.journal.append(turn.view.record_form(form))
        try:
            await submit_form(desk, turn, form, item)
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            return False
    await desk.journal.append_and_flush(UpdateHandled(item.id))
    return True


def apply_button(form: ChatForm, payload: str) -> bool:
    return parse_payload(payload)[0] >= 0 and (form.is_complete or form.press_button(payload))


def may_answer(
    desk: GatewayContext, turn: GatewayTurn, form: ChatForm, item: PendingUpdate
) -> bool:
    """Whether this person may answer the question being asked, if that is an approval: only what
    the chat has seen as a whole, and only who may approve. A button that looks like ours is not
    enough: a program of theirs can press any."""
    if not form.has_approvals:
        return True
    filled = turn.item.forms.get(form.ask)
    is_asked = filled is not None and is_form_shown(filled) and filled.asked == form.current_number
    return (is_asked or form.is_complete) and desk.bindings.may_approve(item.update)


def is_approval_being_sent(turn: GatewayTurn, form: ChatForm) -> bool:
    """Whether the approval being asked is on its way to the chat."""
    filled = turn.item.forms.get(form.ask)
    return (
        form.has_approvals
        and not form.is_complete
        and filled is not None
        and filled.asked == form.current_number
        and not filled.message
    )


def is_form_answer(desk: GatewayContext, turn: GatewayTurn, item: PendingUpdate) -> bool:
    """Whether words answer what the agent asks. Others are said into the turn."""
    form = turn.form
    if form is None or item.update.attachments:
        return False
    return form.accepts_text(item.update.text) and may_answer(desk, turn, form, item)


async def answer_with_text(desk: GatewayContext, turn: GatewayTurn, item: PendingUpdate) -> bool:
    """Words, where an agent asks. False when nobody asks any more; raises what the client does."""
    form = turn.form
    assert form is not None  # noqa: S101 - looked at by who calls
    form.answer_text(item.update.text)
    desk.journal.append(turn.view.record_form(form))
    if not await submit_form(desk, turn, form, item):
        desk.journal.append(RequestNotSent(item.id))
        return False
    await desk.journal.append_and_flush(UpdateHandled(item.id))
    return True


async def submit_form(
    desk: GatewayContext, turn: GatewayTurn, form: ChatForm, item: PendingUpdate
) -> bool:
    """Hands the form in, if it is complete. False when nobody waits for it any more."""
    if not form.is_complete:
        return True
    ask = DaemonRequest(
        kind="answer", agent=turn.agent, sender=turn.sender, text=form.build_reply(), ask=form.ask
    )
    await desk.journal.append_and_flush(RequestStarted(item.id, ask))
    was_asked = await reply_to_ask(desk, ask)
    turn.forget_form(form)
    return was_asked


async def reply_to_ask(desk: GatewayContext, ask: DaemonRequest) -> bool:
    """False when somebody else was first, or nobody asks any more."""
    try:
        await desk.daemon.client.reply_to_ask(
            ask.agent, ask.text, sender=ask.sender, ask_id=ask.ask
        )
    except ServerError as error:
        if error.code != NOT_FOUND:
            raise
        return False
    return True
