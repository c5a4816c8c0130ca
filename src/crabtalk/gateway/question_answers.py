"""Sends the gateway's own answers, and people's answers to an agent's questions. Each once."""

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


async def send_answer(context: GatewayContext, item: PendingUpdate, text: Markdown) -> bool:
    """Answer an update with a text of the gateway's own. Raises ChatBlockedError."""
    if item.text is None:
        context.journal.append(AnswerPrepared(item.id, text))
    reply = StreamedReply(
        context.journal, context.service, item, late_after=context.bounds.late_after
    )
    try:
        await reply.finish_text(text)
    except ChatBlockedError:
        raise
    except ChatServiceError as error:
        log.warning("an answer was not taken: %s", error)
    await context.journal.append_and_flush(UpdateHandled(item.id))
    return True


async def handle_button(
    context: GatewayContext, turn: GatewayTurn | None, item: PendingUpdate
) -> bool:
    """Handle a button press. A button without an open question does nothing. False if its
    question may still have to be repeated."""
    if turn is not None and turn.awaits_repeated_question:
        return False
    form = turn.form if turn is not None else None
    if turn is not None and form is not None and is_approval_being_sent(turn, form):
        return False  # pressed before the journal recorded that the message arrived
    if (
        turn is not None
        and form is not None
        and may_answer(context, turn, form, item)
        and apply_button(form, item.update.press)
    ):
        context.journal.append(turn.view.record_form(form))
        try:
            await submit_form(context, turn, form, item)
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            return False
    await context.journal.append_and_flush(UpdateHandled(item.id))
    return True


def apply_button(form: ChatForm, payload: str) -> bool:
    return parse_payload(payload)[0] >= 0 and (form.is_complete or form.press_button(payload))


def may_answer(
    context: GatewayContext, turn: GatewayTurn, form: ChatForm, item: PendingUpdate
) -> bool:
    """Whether this person may answer the current question. An approval can be answered only when
    the chat has been shown all of it, and only by a person who may approve. A button with our
    payload proves nothing: a client program can press any."""
    if not form.has_approvals:
        return True
    progress = turn.item.forms.get(form.ask)
    is_asked = (
        progress is not None and is_form_shown(progress) and progress.asked == form.current_number
    )
    return (is_asked or form.is_complete) and context.bindings.may_approve(item.update)


def is_approval_being_sent(turn: GatewayTurn, form: ChatForm) -> bool:
    """Whether the current approval is being sent to the chat."""
    progress = turn.item.forms.get(form.ask)
    return (
        form.has_approvals
        and not form.is_complete
        and progress is not None
        and progress.asked == form.current_number
        and not progress.message
    )


def is_form_answer(context: GatewayContext, turn: GatewayTurn, item: PendingUpdate) -> bool:
    """Whether the text answers the agent's question. Other text steers the turn."""
    form = turn.form
    if form is None or item.update.attachments:
        return False
    return form.accepts_text(item.update.text) and may_answer(context, turn, form, item)


async def answer_with_text(context: GatewayContext, turn: GatewayTurn, item: PendingUpdate) -> bool:
    """Answer the agent's question. False if it is closed; raises what the client raises."""
    form = turn.form
    assert form is not None  # noqa: S101 - the caller has checked it
    form.answer_text(item.update.text)
    context.journal.append(turn.view.record_form(form))
    if not await submit_form(context, turn, form, item):
        context.journal.append(RequestNotSent(item.id))
        return False
    await context.journal.append_and_flush(UpdateHandled(item.id))
    return True


async def submit_form(
    context: GatewayContext, turn: GatewayTurn, form: ChatForm, item: PendingUpdate
) -> bool:
    """Send the form to the daemon, if it is complete. False if the agent waits no longer."""
    if not form.is_complete:
        return True
    ask = DaemonRequest(
        kind="answer", agent=turn.agent, sender=turn.sender, text=form.build_reply(), ask=form.ask
    )
    await context.journal.append_and_flush(RequestStarted(item.id, ask))
    was_asked = await reply_to_ask(context, ask)
    turn.forget_form(form)
    return was_asked


async def reply_to_ask(context: GatewayContext, ask: DaemonRequest) -> bool:
    """False if another answer was first, or the question is closed."""
    try:
        await context.daemon.client.reply_to_ask(
            ask.agent, ask.text, sender=ask.sender, ask_id=ask.ask
        )
    except ServerError as error:
        if error.code != NOT_FOUND:
            raise
        return False
    return True
