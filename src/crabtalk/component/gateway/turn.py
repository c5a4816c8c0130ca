"""Turn: one update that an agent answers, from the journal to the last message of the answer.

One task talks to the daemon and never waits for the chat service, so that no stream is lost to a
slow one; another, Writing, tells the chat. The turn is detached, so it goes on when this process
dies; the next one finds out what became of it, from the conversation itself.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress

import msgspec

from crabtalk.client import ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire

from .backoff import Backoff
from .desk import Desk, spoken
from .entries import Ask, Asking, Done, Formed, Item, Unasked
from .errors import BUSY, is_away
from .forms import Form, restored
from .posting import tell_back, wait_for_daemon
from .service import Away, Blocked, ServiceError, TryLater, Update
from .told import Told, is_send_file, path_in, told
from .writing import NO_ANSWER, Writing

INTERRUPTED = "(The daemon stopped while it worked on this. Write something, and it goes on.)"
STOPPED = "(stopped)"
NOTES = {
    wire.STOP_REASON_CANCELLED: STOPPED,
    wire.STOP_REASON_MAX_ITERATIONS: "(stopped: it took as many steps as it may)",
    wire.STOP_REASON_LENGTH: "(cut off: the model's limit is reached)",
}

log = logging.getLogger(__name__)


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
        self._words = text
        self._before = item.ask  # as an earlier process was about to say it
        self._guest = item.ask.guest if item.ask is not None else guest
        self._changed = changed
        self.sender = item.ask.sender if item.ask is not None else desk.sender(item.update)
        self.agent = item.ask.agent if item.ask is not None else desk.agent(item.update)
        self.writing = Writing(desk, item, self.sender, self._guest)
        self._talking: asyncio.Future[str] | None = None
        self._is_stopped = False
        self._is_settling = False
        self.form: Form | None = None
        self.has_begun = False  # the daemon has said so

    @property
    def is_said(self) -> bool:
        """Whether the daemon was told, so that more can be said into it."""
        return self.item.ask is not None

    @property
    def may_ask(self) -> bool:
        """Whether there is a question from before a restart that the daemon has yet to repeat."""
        is_open = any(filled.is_open for filled in self.item.forms.values())
        return self._is_settling and self.form is None and is_open

    async def run(self) -> None:
        """Until the answer is with its person, and the update done. Cancelled, the journal knows
        how far it was."""
        talking = self._talking = asyncio.ensure_future(self._talk())
        writing = asyncio.ensure_future(self.writing.work())
        tasks = (talking, writing, asyncio.ensure_future(self.writing.typing()))
        if self._is_stopped:
            talking.cancel()
        try:
            await asyncio.wait((talking, writing), return_when=asyncio.FIRST_COMPLETED)
            if talking.done():
                self.writing.end(STOPPED if talking.cancelled() else talking.result())
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
        self._is_stopped = not self.is_said
        if self._talking is not None and self._is_stopped:
            self._talking.cancel()

    async def _kill(self) -> None:
        """Nobody reads what it would still say."""
        with suppress(Exception):
            await self._desk.link.client.kill(self.agent, sender=self.sender)

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    async def _talk(self) -> str:
        """Until the turn is over: what is to be said at its end."""
        while True:
            try:
                async with self._desk.turns:
                    return await self._attempt()
            except ServerError as error:
                if error.code != BUSY:
                    return f"⚠️ {error.message}"
            except Exception as error:
                if not is_away(error):
                    raise
            self.writing.run_calls({})
            await wait_for_daemon(self._desk, self.item.update.chat)

    async def _attempt(self) -> str:
        if self.is_said:  # perhaps
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
        text = self._before.text if self._before is not None else await self._text()
        offset = await self._desk.link.count(self.agent, self.sender)
        ask = Ask(
            kind="turn",
            agent=self.agent,
            sender=self.sender,
            text=text,
            guest=self._guest,
            offset=offset,
        )
        await self._desk.journal.keep(Asking(self.item.id, ask))
        self._before = ask

    async def _text(self) -> str:
        return await with_files(self._desk, self.item.update, self._words, self.sender)

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
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    if isinstance(event, wire.StreamEnd):
                        self._settled()
                        return ending(event)
                    self._hear(event)
        except ServerError as error:
            if not self.has_begun and error.code == BUSY:
                self._desk.journal.note(Unasked(self.item.id))
            raise
        raise ConnectionError("the stream ended without an end")

    def _hear(self, event: Event) -> None:
        writing = self.writing
        match event:
            case wire.StreamStart():
                self.has_begun = True
                self._changed()
            case wire.TextStartEvent():
                writing.begin_paragraph()
            case wire.StreamChunk():
                writing.add(event.content)
            case wire.ToolStartEvent():
                writing.run_calls({call.id: (call.name, call.arguments) for call in event.calls})
                if not event.early:
                    writing.close_part()
            case wire.ToolResultEvent():
                name, arguments = writing.calls.pop(event.call_id, ("", ""))
                if is_send_file(name) and not event.is_error:
                    writing.send_file(event.call_id, path_in(arguments))
            case wire.AskUserEvent():
                self._asked(event)
            case wire.ToolsCompleteEvent():
                writing.run_calls({})
                self._settled()
            case wire.UserSteeredEvent():
                writing.close_above()
            case _:
                pass

    def _asked(self, event: wire.AskUserEvent) -> None:
        if not is_for_chat(event):
            return
        if self.form is not None and self.form.ask == event.ask_id:
            return
        self.form = Form.of(event)
        filled = self.item.forms.get(event.ask_id)
        if filled is not None:
            restored(self.form, filled.answers, filled.settled)
        self.writing.show(self.form)
        self._changed()

    def _settled(self) -> None:
        """Nobody waits for an answer any more, whoever gave one."""
        if self.form is not None:
            self.writing.show(self.form, is_open=False)
            self.forget(self.form)
            self._changed()

    def forget(self, form: Form) -> None:
        """It is answered, or nobody waits for it any more."""
        filled = self.item.forms.get(form.ask)
        if filled is not None:
            closed = msgspec.structs.replace(filled, is_open=False)
            self._desk.journal.note(Formed(self.item.id, form.ask, closed))
        self.form = None

    # ── What became of it ───────────────────────────────────────────────────────────────────

    async def _settle(self) -> Told:
        """What a turn came to that was not watched to its end, when it is at its end."""
        ask = self.item.ask
        assert ask is not None  # noqa: S101 - only what was asked is unsure
        watching = asyncio.ensure_future(self._watch(ask))
        self.has_begun = self._is_settling = True
        try:
            await self._desk.link.over(ask.agent, ask.sender)
        finally:
            self._is_settling = False
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
        self.writing.replace(found.text)
        for call, path in found.files:
            self.writing.send_file(call, path)
        return "" if found.is_complete else INTERRUPTED


def ending(end: wire.StreamEnd) -> str:
    """What is to be said of how it ended, if anything."""
    if end.error:
        return f"⚠️ {end.error}"
    if end.stop_reason == wire.STOP_REASON_NO_ACTION:
        return NO_ANSWER
    return NOTES.get(end.stop_reason, "")


def is_for_chat(event: wire.AskUserEvent) -> bool:
    """Whether this chat may see the question. Approvals for the owner are on the feed of every
    conversation, and are neither shown to the person whose run asks nor answered by them."""
    approvals = [one.approval for one in event.questions if one.HasField("approval")]
    return not approvals or (
        bool(event.ask_id) and not any(approval.for_owner for approval in approvals)
    )


async def with_files(desk: Desk, update: Update, words: str, sender: str) -> str:
    """What somebody said, as the agent reads it, with where the files are that came along.

    Takes as long as the service needs to give them.
    """
    backoff = Backoff()
    while True:
        try:
            files = await desk.files.fetch(sender, update)
            break
        except TryLater as error:
            await backoff.wait(error.seconds)
        except Away:
            await backoff.wait()
        except ServiceError as error:
            log.warning("the files of a message cannot be had: %s", error)
            files = ["- (they could not be fetched)"]
            break
    text = spoken(update, words or ("See these files." if files else ""))
    return "\n".join((f"{text}\n\nFiles:", *files)) if files else text
