"""Turn: one update that an agent answers, from the journal to the last message of the answer.

One task talks to the daemon and never waits for the chat service, so that no stream is lost to a
slow one; another, Writing, tells the chat. The turn has a key and is detached: it goes on when this
process dies, and the next process says it again with the same key and follows the same run from its
first event. The journal has what the chat was sent of it.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress

import msgspec

from crabtalk.client import ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire

from .backoff import Backoff
from .desk import Desk, spoken
from .entries import Ask, Asking, Done, Formed, Item
from .errors import BUSY, GatewayError, is_away
from .forms import Form, restored
from .posting import tell_back, wait_for_daemon
from .service import Away, Blocked, ServiceError, TryLater, Update
from .writing import NO_ANSWER, Writing

SEND_FILE = "send_file"
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
        self._guest = item.ask.guest if item.ask is not None else guest
        self._changed = changed
        self.sender = item.ask.sender if item.ask is not None else desk.sender(item.update)
        self.agent = item.ask.agent if item.ask is not None else desk.agent(item.update)
        self.writing = Writing(desk, item, self.sender, self._guest)
        self._talking: asyncio.Future[str] | None = None
        self._is_stopped = False
        self.form: Form | None = None
        self._files: list[tuple[str, str]] = []  # calls that send one, and its path
        self._asked: set[str] = set()  # questions that this stream has brought
        self.has_begun = False  # the daemon has said so, and the stream goes on
        self._was_cut_off = False  # the daemon went away in the middle of it

    @property
    def is_said(self) -> bool:
        """Whether the daemon may have been told."""
        return self.item.ask is not None

    @property
    def may_ask(self) -> bool:
        """Whether there is a question from before a restart that the stream has yet to repeat."""
        return self.form is None and any(
            filled.is_open and ask not in self._asked for ask, filled in self.item.forms.items()
        )

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
            except GatewayError as error:
                log.error("a message is not answered: %s", error)  # noqa: TRY400
                return f"⚠️ {error}"
            except ServerError as error:
                if error.code != BUSY:
                    return f"⚠️ {error.message}"
            except Exception as error:
                if not is_away(error):
                    raise
            self._was_cut_off = self._was_cut_off or self.has_begun
            self.has_begun = False
            self.writing.run_calls({})
            await wait_for_daemon(self._desk, self.item.update.chat)

    async def _attempt(self) -> str:
        """Says it, or says it again with the same key and follows the run that it has already."""
        await self._desk.link.check_version()
        if not self.is_said:
            await self._note_ask()
        await tell_back(self._desk, self.item.update.chat)
        return await self._follow()

    async def _note_ask(self) -> None:
        """Writes what is about to be said into the journal: with one key it is always the same."""
        update = self.item.update
        ask = Ask(
            kind="turn",
            agent=self.agent,
            sender=self.sender,
            text=await with_files(self._desk, update, self._words, self.sender),
            guest=self._guest,
            key=self._desk.key(update),
        )
        await self._desk.journal.keep(Asking(self.item.id, ask))

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
            key=ask.key,
        )
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, wire.StreamEnd):
                    self._send_files()
                    self._close_forms()
                    return ending(event, was_cut_off=self._was_cut_off)
                self._hear(event)
        raise ConnectionError("the stream ended without an end")

    def _hear(self, event: Event) -> None:
        writing = self.writing
        match event:
            case wire.StreamStart():
                self._begin()
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
                if event.is_error:
                    writing.fail_call(event.call_id)
                elif is_send_file(name):
                    self._files.append((event.call_id, path_in(arguments)))
            case wire.AskUserEvent():
                self._ask(event)
            case wire.ToolsCompleteEvent():
                self._send_files()
                writing.run_calls({})
                self._close_form()
            case wire.UserSteeredEvent():
                writing.close_above()
            case _:
                pass

    def _send_files(self) -> None:
        """Now that the results of their calls are on disk: a daemon that dies before that has the
        calls as interrupted, and their files are not sent."""
        for call, path in self._files:
            self.writing.send_file(call, path)
        self._files.clear()

    def _begin(self) -> None:
        """What follows is all of the run. Questions in it are repeated, those that were answered
        as well."""
        self.has_begun = True
        self.form = None
        self._asked.clear()
        self._files.clear()
        self.writing.begin_again()
        self._changed()

    def _ask(self, event: wire.AskUserEvent) -> None:
        if not is_for_chat(event):
            return
        self._asked.add(event.ask_id)
        if self.form is not None and self.form.ask == event.ask_id:
            return
        filled = self.item.forms.get(event.ask_id)
        if filled is not None and not filled.is_open:
            return  # it was answered
        self.form = Form.of(event)
        if filled is not None:
            restored(self.form, filled.answers, filled.settled)
        self.writing.show(self.form)
        self._changed()

    def _close_form(self) -> None:
        """Nobody waits for an answer any more, whoever gave one."""
        if self.form is not None:
            self.writing.show(self.form, is_open=False)
            self.forget(self.form)
            self._changed()

    def forget(self, form: Form) -> None:
        """It is answered, or nobody waits for it any more."""
        self._note_closed(form.ask)
        self.form = None

    def _note_closed(self, ask: str) -> None:
        filled = self.item.forms.get(ask)
        if filled is not None and filled.is_open:
            closed = msgspec.structs.replace(filled, is_open=False)
            self._desk.journal.note(Formed(self.item.id, ask, closed))

    def _close_forms(self) -> None:
        """The run is over: also those are closed that a stream from the log does not repeat."""
        self._close_form()
        for ask in list(self.item.forms):
            self._note_closed(ask)


def ending(end: wire.StreamEnd, *, was_cut_off: bool = False) -> str:
    """What is to be said of how it ended, if anything. A daemon that stops cancels its runs."""
    if end.error:
        return f"⚠️ {end.error}"
    if was_cut_off and end.stop_reason == wire.STOP_REASON_CANCELLED:
        return INTERRUPTED
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


def is_send_file(name: str) -> bool:
    """Also as a tool of a server is called: `server__send_file`."""
    return name == SEND_FILE or name.endswith(f"__{SEND_FILE}")


def path_in(arguments: str) -> str:
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return ""
    path = found.get("path") if isinstance(found, dict) else None
    return path if isinstance(path, str) else ""


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
