"""Lane: the updates of one chat, one after another in the order they came.

While a turn runs, what comes in goes into it: an answer to its question, a word to steer it by, or
/stop, which waits for nobody. What cannot go into a turn waits for its end.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress

from crabtalk.client import ServerError

from .backoff import Backoff
from .commands import (
    HELP,
    QUICK,
    Command,
    agent_names,
    describe_agents,
    fold,
    guest_in,
    is_skill,
    name_it,
    parse,
    search,
)
from .desk import Desk, spoken
from .entries import Answering, Ask, Asking, Chose, Closed, Done, Item, Unasked
from .errors import BUSY, is_away
from .forms import read_payload
from .posting import wait_for_daemon
from .reply import Reply
from .service import Away, Blocked, ServiceError, TryLater
from .told import times_said
from .turn import Turn

# Seconds until something is said again into a turn that was not ready for it.
SOON = 0.25
NOT_FOUND = 404
CUT_OFF = "A restart cut this off. If the conversation is not folded yet, send /compact again."
NOTHING = "Nothing is going on."
FAILED = "⚠️ Something is wrong in this program; its log has the details."

log = logging.getLogger(__name__)


class Lane:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._queue: deque[Item] = deque()
        self._news = asyncio.Event()
        self._turn: Turn | None = None
        self._running: asyncio.Future[None] | None = None
        self._is_early = False  # something was refused that the turn may take in a moment

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Item) -> None:
        self._queue.append(item)
        self._news.set()

    async def work(self) -> None:
        """Until nothing is left to do. Cancelled, the journal knows what is."""
        try:
            while self._queue or self._turn is not None:
                self._news.clear()
                self._is_early = False
                self._look()
                if not await self._step():
                    await self._wait()
        finally:
            if self._turn is not None and self._running is not None:
                self._running.cancel()
                await asyncio.wait([self._running])
                if self._turn.item.id in self._desk.journal.book.items:
                    self._queue.appendleft(self._turn.item)
                self._turn = self._running = None

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON if self._is_early else None):
                await self._news.wait()

    def _look(self) -> None:
        """Whether the turn is over."""
        if self._running is not None and self._running.done():
            error = self._running.exception()
            if error is not None and self._turn is not None:
                self._fail(self._turn.item, error)
            self._turn = self._running = None

    def _fail(self, item: Item, error: BaseException) -> None:
        log.error("an update could not be answered", exc_info=error)
        if item.id not in self._desk.journal.book.items:
            return
        if item.text is None:
            self._desk.journal.note(
                Unasked(item.id), Closed(item.id, 0), Answering(item.id, FAILED)
            )
            self._queue.appendleft(item)
        else:
            self._desk.journal.note(Done(item.id))

    async def _step(self) -> bool:
        """One update, if one can be dealt with now."""
        for item in list(self._queue):
            if not self._queue or (item is not self._queue[0] and not is_urgent(item)):
                continue
            try:
                is_done = await self._handle(item)
            except Blocked as error:
                log.info("a chat does not want us any more: %s", error)
                await self._desk.journal.keep(Done(item.id))
                is_done = True
            except Exception as error:
                self._queue.remove(item)
                self._fail(item, error)
                return True
            if is_done:
                with suppress(ValueError):
                    self._queue.remove(item)
                return True
        return False

    async def _handle(self, item: Item) -> bool:
        """False for what has to wait."""
        if item.text is not None:
            return await self._answer(item, item.text)
        update = item.update
        if update.press:
            return await self._press(item)
        if item.ask is not None:
            return await self._unsure(item, item.ask)
        command = parse(update.text)
        if command is not None and command.name == "stop":
            return await self._stop(item)
        if command is not None and command.name in QUICK:
            return await self._quick(item, command)
        if self._turn is not None:
            return await self._during(self._turn, item, command)
        return await self._alone(item, command)

    # ── Nothing is going on ─────────────────────────────────────────────────────────────────

    async def _alone(self, item: Item, command: Command | None) -> bool:
        update = item.update
        text, guest = update.text, ""
        called = guest_in(text)
        try:
            client = self._desk.link.client
            if called is not None and called.name in await agent_names(client):
                text, guest = called.rest, called.name
            elif command is not None and command.name == "guest":
                named = guest_in(f"@{command.rest}")
                if named is None:
                    return await self._answer(item, "Say who, and what: /guest NAME WORDS")
                if named.name not in await agent_names(client):
                    return await self._answer(item, f"There is no agent {named.name}; see /agents")
                text, guest = named.rest, named.name
            elif command is not None and not (
                command.name not in ("agent", "new", "compact")
                and await is_skill(client, command.name)
            ):
                return await self._answer(item, await self._command(item, command))
        except ServerError as error:
            if not is_away(error):
                return await self._answer(item, f"⚠️ {error.message}")
            return await self._later(item)
        except Exception as error:
            if not is_away(error):
                raise
            return await self._later(item)
        self._begin(item, text, guest)
        return True

    def _begin(self, item: Item, text: str, guest: str = "") -> None:
        self._turn = Turn(self._desk, item, text, guest, self._news.set)
        self._running = asyncio.ensure_future(self._turn.run())
        self._running.add_done_callback(lambda _: self._news.set())

    async def _unsure(self, item: Item, ask: Ask) -> bool:
        """What a crash, or the daemon's, cut off. What was said is in the conversation."""
        if ask.kind == "turn" and self._turn is None:
            self._begin(item, item.update.text)
            return True
        if self._turn is not None and ask.kind != "answer":
            return False
        journal = self._desk.journal
        try:
            match ask.kind:
                case "compact":
                    return await self._answer(item, CUT_OFF)
                case "answer":  # which counts once, however often it is given
                    await self._reply_to_ask(ask)
                    await journal.keep(Done(item.id))
                    return True
                case _:
                    link = self._desk.link
                    await link.over(ask.agent, ask.sender)
                    messages = await link.messages(ask.agent, ask.sender, ask.offset)
        except Exception as error:
            if not is_away(error):
                raise
            return await self._later(item)
        if times_said(messages, ask.text) > ask.nth:
            await journal.keep(Done(item.id))
            return True
        journal.note(Unasked(item.id))
        self._news.set()
        return False

    async def _later(self, item: Item) -> bool:
        """When the daemon is back."""
        await wait_for_daemon(self._desk, item.update.chat)
        self._news.set()
        return False

    # ── While a turn runs ───────────────────────────────────────────────────────────────────

    async def _during(self, turn: Turn, item: Item, command: Command | None) -> bool:
        if command is not None or guest_in(item.update.text) is not None:
            return False
        if not turn.is_said:
            return False
        if turn.form is not None and not item.update.attachments:
            return await self._say_to_form(turn, item)
        return await self._steer(turn, item)

    async def _steer(self, turn: Turn, item: Item) -> bool:
        asked = turn.item.ask
        assert asked is not None  # noqa: S101 - the turn is said
        journal = self._desk.journal
        text = await self._text(item, asked.sender)
        ask = Ask(
            kind="steer",
            agent=asked.agent,
            sender=asked.sender,
            text=text,
            offset=asked.offset,
            nth=turn.item.steers.get(text, 0),
            turn=turn.item.id,
        )
        await journal.keep(Asking(item.id, ask))
        try:
            await self._desk.link.client.steer_session(ask.agent, text, sender=ask.sender)
        except ServerError as error:
            if error.code not in (NOT_FOUND, BUSY):
                raise
            journal.note(Unasked(item.id))
            self._is_early = True
            return False
        except Exception as error:
            if not is_away(error):
                raise
            return False  # unsure: it is looked for when the turn is over
        await journal.keep(Done(item.id))
        return True

    async def _text(self, item: Item, sender: str) -> str:
        text = spoken(item.update, item.update.text)
        if not item.update.attachments:
            return text
        backoff = Backoff()
        while True:
            try:
                files = await self._desk.files.fetch(sender, item.update)
                return "\n".join((f"{text}\n\nFiles:", *files)).strip()
            except TryLater as error:
                await backoff.wait(error.seconds)
            except Away:
                await backoff.wait()
            except ServiceError:
                return text

    # ── Questions ───────────────────────────────────────────────────────────────────────────

    async def _press(self, item: Item) -> bool:
        turn = self._turn
        form = turn.form if turn is not None else None
        is_ours = read_payload(item.update.press)[0] >= 0
        if (
            turn is None
            or form is None
            or not is_ours
            or not (form.is_complete or form.press(item.update.press))
        ):
            await self._desk.journal.keep(Done(item.id))
            return True
        self._desk.journal.note(turn.filled(form))
        return await self._filled(turn, item)

    async def _say_to_form(self, turn: Turn, item: Item) -> bool:
        assert turn.form is not None  # noqa: S101 - looked at by who calls
        turn.form.say(item.update.text)
        self._desk.journal.note(turn.filled(turn.form))
        return await self._filled(turn, item)

    async def _filled(self, turn: Turn, item: Item) -> bool:
        form, journal = turn.form, self._desk.journal
        if form is not None and form.is_complete:
            ask = Ask(
                kind="answer",
                agent=turn.agent,
                sender=turn.sender,
                text=form.reply(),
                ask=form.ask,
            )
            await journal.keep(Asking(item.id, ask))
            try:
                was_asked = await self._reply_to_ask(ask)
            except Exception as error:
                if not is_away(error):
                    raise
                return False
            turn.form = None
            if not was_asked and not item.update.press:  # then these are words like any others
                journal.note(Unasked(item.id))
                self._news.set()
                return False
        await journal.keep(Done(item.id))
        return True

    async def _reply_to_ask(self, ask: Ask) -> bool:
        """False when somebody else was first, or nobody asks any more."""
        try:
            await self._desk.link.client.reply_to_ask(
                ask.agent, ask.text, sender=ask.sender, ask_id=ask.ask
            )
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True

    # ── Commands ────────────────────────────────────────────────────────────────────────────

    async def _stop(self, item: Item) -> bool:
        turn = self._turn
        if turn is None:
            return await self._answer(item, NOTHING)
        turn.stop()
        try:
            await self._desk.link.client.kill(turn.agent, sender=turn.sender)
        except Exception as error:
            if not is_away(error):
                raise
            log.info("the daemon is away, and has stopped by that: %s", error)
        else:
            if turn.is_said and not turn.has_begun:
                self._is_early = True
                return False  # it may have come before what it is to stop
        await self._desk.journal.keep(Done(item.id))
        return True

    async def _quick(self, item: Item, command: Command) -> bool:
        try:
            text = await self._command(item, command)
        except ServerError as error:
            text = f"⚠️ {error.message}"
        except Exception as error:
            if not is_away(error):
                raise
            text = f"⚠️ {error}"
        return await self._answer(item, text)

    async def _command(self, item: Item, command: Command) -> str:
        update, client = item.update, self._desk.link.client
        agent, sender = self._desk.agent(update.chat), self._desk.sender(update)
        match command.name:
            case "start" | "help":
                return HELP
            case "agents":
                return await describe_agents(client, agent)
            case "search":
                return await search(client, agent, sender, command.rest)
            case "title":
                return await name_it(client, agent, sender, command.rest)
            case "agent":
                return await self._choose(item, agent, command.rest)
            case "new":
                return await fold(client, agent, sender, fresh=True)
            case "compact":
                ask = Ask(kind="compact", agent=agent, sender=sender, text="")
                await self._desk.journal.keep(Asking(item.id, ask))
                return await fold(client, agent, sender, fresh=False)
            case _:
                return f"There is no command or skill /{command.name}; see /help"

    async def _choose(self, item: Item, current: str, name: str) -> str:
        if not name:
            return f"You are talking to {current}. /agent NAME changes that; /agents lists them."
        if name not in await agent_names(self._desk.link.client):
            return f"There is no agent {name}; see /agents"
        chosen = "" if name == self._desk.settings.agent else name
        self._desk.journal.note(Chose(item.update.chat.id, chosen))
        return f"You are talking to {name} now."

    async def _answer(self, item: Item, text: str) -> bool:
        """Says something of our own. Raises Blocked."""
        desk = self._desk
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


def is_urgent(item: Item) -> bool:
    """What does not wait behind others."""
    if item.update.press:
        return True
    command = parse(item.update.text)
    return command is not None and command.name == "stop"
