"""Turn: one update that an agent answers, from the journal to the last message of the answer.

Two tasks: one talks to the daemon and never waits for the chat service, so that no stream is lost
to a slow one; the other writes to the chat what has come so far. The turn is detached, so it goes
on when this process dies; the next one finds out what became of it, from the conversation itself.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TypeAlias

from crabtalk.client import ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire

from .backoff import Backoff
from .desk import Desk, spoken
from .entries import Ask, Asking, Done, Filled, Formed, Item, Unasked
from .errors import BUSY, is_away
from .forms import Form, restored
from .posting import Posting, tell_back, wait_for_daemon
from .reply import Reply, characters
from .service import Away, Blocked, ServiceError, TryLater
from .told import Told, is_send_file, path_in, told

INTERRUPTED = "(The daemon stopped while it worked on this. Write something, and it goes on.)"
NO_ANSWER = "(no answer)"
STOPPED = "(stopped)"
NOTES = {
    wire.STOP_REASON_CANCELLED: STOPPED,
    wire.STOP_REASON_MAX_ITERATIONS: "(stopped: it took as many steps as it may)",
    wire.STOP_REASON_LENGTH: "(cut off: the model's limit is reached)",
}
# Of the text of one turn that is kept for showing; the conversation has all of it.
MOST_TEXT = 1024 * 1024
STATUS = 120
LABEL = 48

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Close:
    """What was said so far is complete; what follows is said below it."""

    length: int


@dataclass(frozen=True, slots=True)
class Show:
    """A form has changed."""

    form: Form
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class SendFile:
    call: str
    path: str


@dataclass(frozen=True, slots=True)
class End:
    note: str


Deed: TypeAlias = Close | Show | SendFile | End


class Turn:
    """`changed` is called when what can be said into the turn may have changed."""

    def __init__(
        self,
        desk: Desk,
        item: Item,
        text: str,
        guest: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._desk = desk
        self.item = item
        self._said = text
        self._guest = item.ask.guest if item.ask is not None else guest
        self._changed = changed
        lead = f"**{self._guest}:** " if self._guest else ""
        self._reply = Reply(
            desk.journal, desk.service, item, lead=lead, late_after=desk.bounds.late_after
        )
        self._posting = Posting(desk, item)
        self._text = ""
        self._is_apart = False  # the next words begin a paragraph
        self._calls: dict[str, tuple[str, str]] = {}  # running: name and arguments
        self._deeds: deque[Deed] = deque()
        self._news = asyncio.Event()
        self._talking: asyncio.Future[str] | None = None
        self.form: Form | None = None
        self.has_begun = False  # the daemon has said so

    @property
    def sender(self) -> str:
        return self.item.ask.sender if self.item.ask else self._desk.sender(self.item.update)

    @property
    def agent(self) -> str:
        return self.item.ask.agent if self.item.ask else self._desk.agent(self.item.update.chat)

    @property
    def is_said(self) -> bool:
        """Whether the daemon was told, so that more can be said into it."""
        return self.item.ask is not None

    async def run(self) -> None:
        """Until the answer is with its person, and the update done. Cancelled, the journal knows
        how far it was."""
        talking = self._talking = asyncio.ensure_future(self._talk())
        typing = asyncio.ensure_future(self._type())
        writing = asyncio.ensure_future(self._write())
        tasks = (talking, typing, writing)
        try:
            await asyncio.wait((talking, writing), return_when=asyncio.FIRST_COMPLETED)
            if talking.done():
                self._do(End(STOPPED if talking.cancelled() else talking.result()))
            await writing
        except Blocked as error:
            log.info("a chat does not want us any more: %s", error)
            await self._kill()
        except ServiceError as error:
            log.warning("an answer was not taken: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._desk.journal.keep(Done(self.item.id))

    def stop(self) -> None:
        """Before the daemon was told. Afterwards it is the daemon that stops it."""
        if self._talking is not None and not self.is_said:
            self._talking.cancel()

    async def _kill(self) -> None:
        """Nobody reads what it would still say."""
        with suppress(Exception):
            await self._desk.link.client.kill(self.agent, sender=self.sender)

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    async def _talk(self) -> str:
        """Until the turn is over: what is to be said at its end."""
        is_unsure = self.item.ask is not None
        while True:
            try:
                async with self._desk.turns:
                    return await self._attempt(is_unsure)
            except (ServerError, TimeoutError) as error:
                if isinstance(error, ServerError) and error.code != BUSY:
                    return f"⚠️ {error.message}"
            except Exception as error:
                if not is_away(error):
                    raise
            self._calls = {}
            await wait_for_daemon(self._desk, self.item.update.chat)
            is_unsure = self.item.ask is not None

    async def _attempt(self, is_unsure: bool) -> str:
        if is_unsure:
            found = await self._settle()
            await tell_back(self._desk, self.item.update.chat)
            if found.was_said:
                return self._tell(found)
            self._desk.journal.note(Unasked(self.item.id))
        await self._ask()
        await tell_back(self._desk, self.item.update.chat)
        return await self._follow()

    async def _ask(self) -> None:
        """Before the daemon is told, the journal is."""
        desk, update = self._desk, self.item.update
        sender, agent = desk.sender(update), desk.agent(update.chat)
        files = await self._fetch(sender)
        text = spoken(update, self._said or ("See these files." if files else ""))
        if files:
            text = "\n".join((f"{text}\n\nFiles:", *files))
        offset = await desk.link.count(agent, sender)
        ask = Ask(
            kind="turn", agent=agent, sender=sender, text=text, guest=self._guest, offset=offset
        )
        await desk.journal.keep(Asking(self.item.id, ask))

    async def _fetch(self, sender: str) -> list[str]:
        backoff = Backoff()
        while True:
            try:
                return await self._desk.files.fetch(sender, self.item.update)
            except TryLater as error:
                await backoff.wait(error.seconds)
            except Away:
                await backoff.wait()
            except ServiceError as error:
                log.warning("the files of a message cannot be had: %s", error)
                return []

    async def _follow(self) -> str:
        ask = self.item.ask
        assert ask is not None  # noqa: S101 - it was just noted
        directory = await self._desk.files.prepare(ask.sender)
        stream = self._desk.link.client.stream(
            ask.agent,
            ask.text,
            sender=ask.sender,
            guest=ask.guest or None,
            cwd=str(directory),
            detach=True,
        )
        has_begun = False
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    has_begun = True
                    if isinstance(event, wire.StreamEnd):
                        return ending(event)
                    self._hear(event)
        except ServerError as error:
            if not has_begun and error.code == BUSY:
                self._desk.journal.note(Unasked(self.item.id))
            raise
        raise ConnectionError("the stream ended without an end")

    def _hear(self, event: Event) -> None:
        match event:
            case wire.StreamStart():
                self.has_begun = True
                self._changed()
            case wire.TextStartEvent():
                self._is_apart = True
            case wire.StreamChunk():
                self._add(event.content)
            case wire.ToolStartEvent() if event.early:
                self._calls = {call.id: (call.name, "") for call in event.calls}
            case wire.ToolStartEvent():
                self._calls = {call.id: (call.name, call.arguments) for call in event.calls}
                if not self._desk.service.limits.edits:
                    self._do(Close(len(self._text)))
            case wire.ToolResultEvent():
                self._returned(event)
            case wire.AskUserEvent():
                self._asked(event)
            case wire.ToolsCompleteEvent():
                self._calls = {}
                self._settled()
            case wire.UserSteeredEvent():
                self._do(Close(len(self._text)))
            case _:
                return
        self._news.set()

    def _add(self, words: str) -> None:
        if self._is_apart and self._text:
            self._text = f"{self._text.rstrip()}\n\n"
        self._is_apart = False
        if len(self._text) < MOST_TEXT:
            self._text += words

    def _returned(self, event: wire.ToolResultEvent) -> None:
        name, arguments = self._calls.pop(event.call_id, ("", ""))
        if is_send_file(name) and not event.is_error:
            self._do(Close(len(self._text)))
            self._do(SendFile(event.call_id, path_in(arguments)))

    def _asked(self, event: wire.AskUserEvent) -> None:
        if self.form is not None and self.form.ask == event.ask_id:
            return
        self.form = Form.of(event)
        filled = self.item.forms.get(event.ask_id)
        if filled is not None:
            restored(self.form, filled.answers, filled.settled)
        self._do(Close(len(self._text)))
        self._do(Show(self.form))
        self._changed()

    def _settled(self) -> None:
        """Nobody waits for an answer any more, whoever gave one."""
        if self.form is not None:
            self._do(Show(self.form, is_open=False))
            self.form = None
            self._changed()

    # ── What became of it ───────────────────────────────────────────────────────────────────

    async def _settle(self) -> Told:
        """What a turn came to that was not watched to its end, when it is at its end."""
        ask = self.item.ask
        assert ask is not None  # noqa: S101 - unsure is only what was asked
        watching = asyncio.ensure_future(self._watch(ask))
        self.has_begun = True
        try:
            await self._desk.link.over(ask.agent, ask.sender)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        self._settled()
        return told(await self._desk.link.messages(ask.agent, ask.sender, ask.offset))

    async def _watch(self, ask: Ask) -> None:
        """What is asked meanwhile."""
        feed = self._desk.link.client.subscribe_events(
            agent=ask.agent, sender=ask.sender, all_kinds=True
        )
        with suppress(Exception):  # whoever waits for the turn finds out what is wrong
            async with aclosing(feed) as events:
                async for event in events:
                    if event.kind == wire.ASK_USER:
                        self._asked(event.ask)
                    elif event.kind in (wire.TOOLS_COMPLETE, wire.DONE):
                        self._settled()

    def _tell(self, found: Told) -> str:
        if characters(found.text) > characters(self._text):
            self._text = found.text
        for call, path in found.files:
            if not self.item.files.get(call):
                self._do(SendFile(call, path))
        return "" if found.is_complete else INTERRUPTED

    # ── The chat ────────────────────────────────────────────────────────────────────────────

    def _do(self, deed: Deed) -> None:
        self._deeds.append(deed)
        self._news.set()

    def filled(self, form: Form) -> Formed:
        """What to note of a form that somebody has just filled in a little more."""
        self._do(Show(form))
        before = self.item.forms.get(form.ask) or Filled()
        return Formed(
            self.item.id, form.ask, Filled(before.message, form.answers, sorted(form.settled))
        )

    async def _write(self) -> None:
        """Until the end is written. Raises Blocked and Refused."""
        limits = self._desk.service.limits
        loop = asyncio.get_running_loop()
        # Short answers are over before their first words have to be shown.
        self._reply.not_before = loop.time() + (limits.edit_every if limits.edits else 0.0)
        while True:
            self._news.clear()
            if self._deeds:
                deed = self._deeds[0]
                await self._carry_out(deed)
                self._deeds.popleft()
                if isinstance(deed, End):
                    return
                continue
            if limits.edits and loop.time() >= self._reply.not_before:
                await self._reply.show(self._text, self._status())
            pause = self._reply.not_before - loop.time() if limits.edits else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause if pause is not None and pause > 0 else None):
                    await self._news.wait()

    async def _carry_out(self, deed: Deed) -> None:
        match deed:
            case Close(length=length):
                await self._reply.close(self._text[:length])
            case Show(form=form, is_open=is_open):
                await self._posting.form(form, is_open=is_open)
            case SendFile(call=call, path=path):
                await self._posting.file(call, path, self.sender)
            case End(note=note):
                self._reply.not_before = min(self._reply.not_before, self._soonest)
                await self._reply.close(self._whole(note))

    @property
    def _soonest(self) -> float:
        """When the end may be written: at once, unless there is a message to change first."""
        loop = asyncio.get_running_loop()
        return self._reply.not_before if self.item.message else loop.time()

    def _whole(self, note: str) -> str:
        text = "\n\n".join(filter(None, (self._text.rstrip(), note)))
        if not text and not self.item.closed and not self.item.files:
            return NO_ANSWER
        return text

    def _status(self) -> str:
        """One line of what it is doing."""
        if not self._calls:
            return ""
        labels = ", ".join(label(name, arguments) for name, arguments in self._calls.values())
        return f"⚙ {labels if len(labels) <= STATUS else labels[: STATUS - 1] + '…'}"

    async def _type(self) -> None:
        every = self._desk.service.limits.typing_every
        while every:
            with suppress(ServiceError):
                await self._desk.service.typing(self.item.update.chat)
            await asyncio.sleep(every)


def ending(end: wire.StreamEnd) -> str:
    """What is to be said of how it ended, if anything."""
    if end.error:
        return f"⚠️ {end.error}"
    if end.stop_reason == wire.STOP_REASON_NO_ACTION:
        return NO_ANSWER
    return NOTES.get(end.stop_reason, "")


def label(name: str, arguments: str) -> str:
    """A call in a word or two: `bash(ls)`."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        given = {}
    values = (
        [one for one in given.values() if isinstance(one, str)] if isinstance(given, dict) else []
    )
    if not values:
        return name
    line = " ".join(values[0].split())
    return f"{name}({line if len(line) <= LABEL else line[: LABEL - 1] + '…'})"
