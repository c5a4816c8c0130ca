"""Lane: the updates of one chat, one after another in the order they came.

While a turn runs, what comes in goes into it: an answer to its question, a word to steer it by, or
/stop, which waits for nobody. What cannot go into a turn waits for its end.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress

from crabtalk.client import ServerError

from .answers import answer, is_reply, press, reply_to_ask, say
from .bindings import NOT_ALLOWED, WITHDRAWN
from .commands import NAMES, QUICK, Command, Commands, guest_in, parse
from .desk import Desk
from .entries import Answering, Ask, Asking, Chose, Closed, Done, Item, Unasked
from .errand import Errand
from .errors import NOT_FOUND, is_away
from .posting import notice, wait_for_daemon
from .service import Blocked
from .turn import Turn, with_files

# Seconds until something is said again into a turn that was not ready for it.
SOON = 0.25
NOTHING = "Nothing is going on."
FAILED = "⚠️ Something is wrong in this program; its log has the details."
# What an earlier release was about to say had no key: whether it was said cannot be known.
UPGRADED = (
    "⚠️ This program was upgraded while it worked on your message. "
    "If you have no answer to it, send it again."
)

log = logging.getLogger(__name__)


class Lane:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._commands = Commands(desk)
        self._queue: deque[Item] = deque()
        self._news = asyncio.Event()
        self._item: Item | None = None  # that of what runs: a turn or an errand
        self._running: asyncio.Future[None] | None = None
        self._turn: Turn | None = None
        self._errand: Errand | None = None
        self._stops: dict[str, Item] = {}  # by the /stop: what it is to stop
        self._is_early = False  # something was refused that the turn may take in a moment

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Item) -> None:
        self._queue.append(item)
        self._news.set()

    async def work(self) -> None:
        """Until nothing is left to do. Cancelled, the journal knows what is."""
        try:
            while True:
                self._news.clear()
                self._is_early = False
                self._look()
                if not self._queue and self._running is None:
                    return
                if not await self._step():
                    await self._wait()
        finally:
            await self._leave()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON if self._is_early else None):
                await self._news.wait()

    def _run(self, item: Item, what: Turn | Errand) -> None:
        self._item = item
        self._turn = what if isinstance(what, Turn) else None
        self._errand = what if isinstance(what, Errand) else None
        self._running = asyncio.ensure_future(what.run())
        self._running.add_done_callback(lambda _: self._news.set())

    def _look(self) -> None:
        """Whether what runs is over."""
        if self._running is None or not self._running.done():
            return
        error, item = self._running.exception(), self._item
        self._running = self._turn = self._errand = self._item = None
        if error is not None and item is not None:
            self._fail(item, error)

    async def _leave(self) -> None:
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.wait([self._running])
        if self._item is not None and self._item.id in self._desk.journal.book.items:
            self._queue.appendleft(self._item)
        self._running = self._turn = self._errand = self._item = None

    def _fail(self, item: Item, error: BaseException) -> None:
        if isinstance(error, Blocked):
            log.info("a chat does not want us any more: %s", error)
            self._desk.journal.note(Done(item.id))
            return
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
            if item is not self._queue[0] and not is_urgent(item):
                continue
            try:
                is_done = await self._handle(item)
            except Exception as error:
                self._queue.remove(item)
                self._fail(item, error)
                return True
            if is_done:
                self._queue.remove(item)
                return True
        return False

    async def _handle(self, item: Item) -> bool:
        """False for what has to wait."""
        await self._tell_withdrawn(item)
        if item.text is not None:
            return await answer(self._desk, item, item.text)
        if item.ask is not None:
            return await self._unsure(item, item.ask)
        if item.update.press:
            return await self._press(item)
        command = parse(item.update.text)
        if command is not None and command.name == "stop":
            return await self._stop(item)
        if command is not None and command.name in QUICK:
            return await self._quick(item, command)
        if self._running is None:
            return await self._alone(item, command)
        if self._turn is not None and (command is None or is_answer(self._turn, command)):
            return await self._during(self._turn, item)
        return False

    async def _tell_withdrawn(self, item: Item) -> None:
        """Says once that the agent this chat had chosen is not allowed here any more."""
        agent = self._desk.withdrawn_agent(item.update)
        if not agent:
            return
        await self._desk.journal.keep(Chose(item.update.chat.id, ""))
        answering = self._desk.agent(item.update)
        text = WITHDRAWN.format(name=agent, answering=answering)
        await notice(self._desk, item.update.chat, text)

    # ── Nothing is going on ─────────────────────────────────────────────────────────────────

    async def _alone(self, item: Item, command: Command | None) -> bool:
        try:
            called = await self._guest(item, command)
            if called is not None and not self._commands.is_allowed(item.update, called.name):
                text = NOT_ALLOWED.format(name=called.name)
                return await answer(self._desk, item, text)
            if called is not None:
                self._begin(item, called.rest, called.name)
            elif command is None or await self._is_skill(command):
                self._begin(item, item.update.text)
            else:
                self._run(item, Errand(self._desk, self._commands, item, command))
            return True
        except Exception as error:
            if not is_away(error):
                raise
            return await self._later(item)

    async def _guest(self, item: Item, command: Command | None) -> Command | None:
        """Who is to speak, and about what."""
        if command is not None and command.name == "guest":
            called = guest_in(f"@{command.rest}")
        else:
            called = guest_in(item.update.text)
        return called if called and await self._commands.is_agent(called.name) else None

    async def _is_skill(self, command: Command) -> bool:
        return command.name not in NAMES and await self._commands.is_skill(command.name)

    def _begin(self, item: Item, text: str, guest: str = "") -> None:
        self._run(item, Turn(self._desk, item, text, guest, self._news.set))

    async def _unsure(self, item: Item, ask: Ask) -> bool:
        """Goes on with what a crash, or the daemon's, cut off. What has a key is said again: the
        daemon knows it."""
        if not self._is_time_for(ask):
            return False
        if ask.kind in ("turn", "steer") and not ask.key:
            self._desk.journal.note(Unasked(item.id))
            return await answer(self._desk, item, UPGRADED)
        refused = [
            name
            for name in (ask.agent, ask.guest)
            if name and not self._commands.is_allowed(item.update, name)
        ]
        try:
            if refused and ask.kind == "turn":
                return await self._withdraw(item, ask, refused[0])
            match ask.kind:
                case "turn":
                    self._begin(item, item.update.text)
                    return True
                case "compact":
                    self._run(item, Errand(self._desk, self._commands, item, Command(ask.text)))
                    return True
                case "answer":  # which counts once, however often it is given
                    await reply_to_ask(self._desk, ask)
                    was_said = True
                case "steer":
                    was_said = await self._say_into_run(ask)
        except Exception as error:
            if not is_away(error):
                raise
            if self._running is None:
                return await self._later(item)
            self._is_early = True
            return False
        if was_said:
            await self._desk.journal.keep(Done(item.id))
        else:
            self._desk.journal.note(Unasked(item.id))
            self._news.set()
        return was_said

    async def _withdraw(self, item: Item, ask: Ask, name: str) -> bool:
        """Ends a turn with an agent that this chat may not talk to any more."""
        try:
            await self._desk.link.client.kill(ask.agent, sender=ask.sender)
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
        self._desk.journal.note(Unasked(item.id), Closed(item.id, 0))
        return await answer(self._desk, item, NOT_ALLOWED.format(name=name))

    def _is_time_for(self, ask: Ask) -> bool:
        """Turns and compactions wait for what runs, a steering message for the turn to be back."""
        if ask.kind == "answer" or self._running is None:
            return True
        return ask.kind == "steer" and self._turn is not None and self._turn.has_begun

    async def _say_into_run(self, ask: Ask) -> bool:
        """Steers. True also when that was done before; False when nothing runs that takes it."""
        try:
            await self._desk.link.client.steer_session(
                ask.agent, ask.text, sender=ask.sender, key=ask.key
            )
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True

    async def _later(self, item: Item) -> bool:
        """When the daemon is back."""
        await wait_for_daemon(self._desk, item.update.chat)
        self._news.set()
        return False

    # ── While a turn runs ───────────────────────────────────────────────────────────────────

    async def _press(self, item: Item) -> bool:
        is_done = await press(self._desk, self._turn, item)
        self._is_early = self._is_early or not is_done
        return is_done

    async def _during(self, turn: Turn, item: Item) -> bool:
        if turn.may_ask:
            self._is_early = True
        if turn.may_ask or not turn.has_begun:
            return False
        try:
            if await self._guest(item, None) is not None:
                return False
            if not is_reply(self._desk, turn, item):
                return await self._steer(turn, item)
            is_done = await say(self._desk, turn, item)
        except Exception as error:
            if not is_away(error):
                raise
            self._is_early = True  # what was about to be said is said again, with its key
            return False
        if not is_done:  # nobody asks any more: these are words like any others
            self._news.set()
        return is_done

    async def _steer(self, turn: Turn, item: Item) -> bool:
        asked = turn.item.ask
        assert asked is not None  # noqa: S101 - the turn is said
        journal = self._desk.journal
        text = await with_files(self._desk, item.update, item.update.text, asked.sender)
        ask = Ask(
            kind="steer",
            agent=asked.agent,
            sender=asked.sender,
            text=text,
            key=self._desk.key(item.update),
        )
        await journal.keep(Asking(item.id, ask))
        if not await self._say_into_run(ask):
            journal.note(Unasked(item.id))
            self._is_early = True
            return False
        await journal.keep(Done(item.id))
        return True

    # ── Commands that wait for nobody ───────────────────────────────────────────────────────

    async def _stop(self, item: Item) -> bool:
        what, running = self._turn or self._errand, self._item
        meant = self._stops.setdefault(item.id, running) if running is not None else None
        if what is None or running is None:
            if item.id not in self._stops:
                return await answer(self._desk, item, NOTHING)
        elif running is meant:
            what.stop()
            if await self._is_early_to_kill(what, running):
                self._is_early = True
                return False
        # Else what it was to stop is over, and what runs now came later.
        await self._desk.journal.keep(Done(item.id))
        self._stops.pop(item.id, None)
        return True

    async def _is_early_to_kill(self, what: Turn | Errand, running: Item) -> bool:
        """Has the daemon stop it. True where that may have come before what it is to stop."""
        try:
            await self._desk.link.client.kill(what.agent, sender=self._desk.sender(running.update))
        except Exception as error:
            if not is_away(error):
                raise
            log.info("the daemon is away, and has stopped by that: %s", error)
            # Unless it was not told yet: then it is when it is back, and stopped then.
            return isinstance(what, Turn) and what.is_said and not what.has_begun
        # Of an errand nobody says when it has begun: only that it is over.
        return isinstance(what, Errand) or (what.is_said and not what.has_begun)

    async def _quick(self, item: Item, command: Command) -> bool:
        try:
            text = await self._commands.run(item, command)
        except ServerError as error:
            text = f"⚠️ {error.message}"
        except Exception as error:
            if not is_away(error):
                raise
            text = f"⚠️ {error}"
        return await answer(self._desk, item, text)


def is_answer(turn: Turn, command: Command) -> bool:
    """Where an agent asks for a path, say: what is no command of ours is what it waits for."""
    form = turn.form
    return form is not None and not form.is_asking_approval and command.name not in NAMES


def is_urgent(item: Item) -> bool:
    """What does not wait behind others."""
    if item.update.press:
        return True
    command = parse(item.update.text)
    return command is not None and command.name == "stop"
