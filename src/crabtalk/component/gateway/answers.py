"""Answers: ours to people, and those of people to what agents ask. Each is given once."""

import logging

from crabtalk.client import ServerError

from .desk import Desk
from .entries import Answering, Ask, Asking, Done, Item, Unasked
from .errors import NOT_FOUND, is_away
from .forms import Form, read_payload
from .posting import is_shown
from .reply import Reply
from .service import Blocked, Rich, ServiceError
from .turn import Turn

log = logging.getLogger(__name__)


async def answer(desk: Desk, item: Item, text: Rich) -> bool:
    """Says something of our own. Raises Blocked."""
    if item.text is None:
        desk.journal.note(Answering(item.id, text))
    reply = Reply(desk.journal, desk.service, item, late_after=desk.bounds.late_after)
    try:
        await reply.close(text)
    except Blocked:
        raise
    except ServiceError as error:
        log.warning("an answer was not taken: %s", error)
    await desk.journal.keep(Done(item.id))
    return True


async def press(desk: Desk, turn: Turn | None, item: Item) -> bool:
    """A button. One that is of no question that waits does nothing. False for one whose question
    may still have to be asked again."""
    if turn is not None and turn.may_ask:
        return False
    form = turn.form if turn is not None else None
    if turn is not None and form is not None and is_being_sent(turn, form):
        return False  # pressed before the journal has that the message arrived
    if (
        turn is not None
        and form is not None
        and may_answer(desk, turn, form, item)
        and is_pressed(form, item.update.press)
    ):
        desk.journal.note(turn.writing.filled(form))
        try:
            await give(desk, turn, form, item)
        except Exception as error:
            if not is_away(error):
                raise
            return False
    await desk.journal.keep(Done(item.id))
    return True


def is_pressed(form: Form, payload: str) -> bool:
    return read_payload(payload)[0] >= 0 and (form.is_complete or form.press(payload))


def may_answer(desk: Desk, turn: Turn, form: Form, item: Item) -> bool:
    """Whether this person may answer the question being asked, if that is an approval: only what
    the chat has seen as a whole, and only who may approve. A button that looks like ours is not
    enough: a program of theirs can press any."""
    if not form.is_approval:
        return True
    filled = turn.item.forms.get(form.ask)
    is_asked = filled is not None and is_shown(filled) and filled.asked == form.current
    return (is_asked or form.is_complete) and desk.bindings.may_approve(item.update)


def is_being_sent(turn: Turn, form: Form) -> bool:
    """Whether the approval being asked is on its way to the chat."""
    filled = turn.item.forms.get(form.ask)
    return (
        form.is_approval
        and not form.is_complete
        and filled is not None
        and filled.asked == form.current
        and not filled.message
    )


def is_reply(desk: Desk, turn: Turn, item: Item) -> bool:
    """Whether words answer what the agent asks. Others are said into the turn."""
    form = turn.form
    if form is None or item.update.attachments:
        return False
    return form.is_answer(item.update.text) and may_answer(desk, turn, form, item)


async def say(desk: Desk, turn: Turn, item: Item) -> bool:
    """Words, where an agent asks. False when nobody asks any more; raises what the client does."""
    form = turn.form
    assert form is not None  # noqa: S101 - looked at by who calls
    form.say(item.update.text)
    desk.journal.note(turn.writing.filled(form))
    if not await give(desk, turn, form, item):
        desk.journal.note(Unasked(item.id))
        return False
    await desk.journal.keep(Done(item.id))
    return True


async def give(desk: Desk, turn: Turn, form: Form, item: Item) -> bool:
    """Hands the form in, if it is complete. False when nobody waits for it any more."""
    if not form.is_complete:
        return True
    ask = Ask(kind="answer", agent=turn.agent, sender=turn.sender, text=form.reply(), ask=form.ask)
    await desk.journal.keep(Asking(item.id, ask))
    was_asked = await reply_to_ask(desk, ask)
    turn.forget(form)
    return was_asked


async def reply_to_ask(desk: Desk, ask: Ask) -> bool:
    """False when somebody else was first, or nobody asks any more."""
    try:
        await desk.link.client.reply_to_ask(ask.agent, ask.text, sender=ask.sender, ask_id=ask.ask)
    except ServerError as error:
        if error.code != NOT_FOUND:
            raise
        return False
    return True
