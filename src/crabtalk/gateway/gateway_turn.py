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
from .chat_forms import ChatForm, restore_form
from .chat_service import (
    ChatBlockedError,
    ChatServiceError,
    DeliveryUnknownError,
    RetryLaterError,
    Update,
)
from .errors import BUSY, GatewayError, is_daemon_unavailable
from .gateway_context import GatewayContext, format_for_agent
from .journal_records import (
    DaemonRequest,
    FormUpdated,
    PendingUpdate,
    RequestStarted,
    UpdateHandled,
)
from .outgoing_messages import notify_available, wait_for_daemon
from .turn_view import NO_ANSWER, TurnView

SEND_FILE_TOOL = "send_file"
INTERRUPTED_NOTE = "(The daemon stopped while it worked on this. Write something, and it goes on.)"
STOPPED_NOTE = "(stopped)"
STOP_NOTES = {
    wire.STOP_REASON_CANCELLED: STOPPED_NOTE,
    wire.STOP_REASON_MAX_ITERATIONS: "(stopped: it took as many steps as it may)",
    wire.STOP_REASON_LENGTH: "(cut off: the model's limit is reached)",
}

log = logging.getLogger(__name__)


class GatewayTurn:
    """`changed` is called when what can be said into the turn may have changed."""

    def __init__(
        self,
        desk: GatewayContext,
        item: PendingUpdate,
        text: str,
        guest: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = desk
        self.item = item
        self._text = text
        self._guest = item.ask.guest if item.ask is not None else guest
        self._on_change = changed
        self.sender = item.ask.sender if item.ask is not None else desk.sender_for(item.update)
        self.agent = item.ask.agent if item.ask is not None else desk.agent_for(item.update)
        self.view = TurnView(desk, item, self.sender, self._guest)
        self._talk_task: asyncio.Future[str] | None = None
        self._is_stopped = False
        self.form: ChatForm | None = None
        self._files_to_send: list[tuple[str, str]] = []  # calls that send one, and its path
        self._repeated_asks: set[str] = set()  # questions that this stream has brought
        self.has_begun = False  # the daemon has said so, and the stream goes on
        self._was_cut_off = False  # the daemon went away in the middle of it

    @property
    def may_have_been_sent(self) -> bool:
        """Whether the daemon may have been told."""
        return self.item.ask is not None

    @property
    def awaits_repeated_question(self) -> bool:
        """Whether there is a question from before a restart that the stream has yet to repeat."""
        return self.form is None and any(
            filled.is_open and ask not in self._repeated_asks
            for ask, filled in self.item.forms.items()
        )

    async def run(self) -> None:
        """Until the answer is with its person, and the update done. Cancelled, the journal knows
        how far it was."""
        talking = self._talk_task = asyncio.ensure_future(self._talk_to_daemon())
        writing = asyncio.ensure_future(self.view.run())
        tasks = (talking, writing, asyncio.ensure_future(self.view.show_typing()))
        if self._is_stopped:
            talking.cancel()
        try:
            await asyncio.wait((talking, writing), return_when=asyncio.FIRST_COMPLETED)
            if talking.done():
                self.view.finish(STOPPED_NOTE if talking.cancelled() else talking.result())
            await writing
        except ChatBlockedError as error:
            log.info("a chat does not want us any more: %s", error)
            await self._kill_run()
        except ChatServiceError as error:
            log.warning("an answer was not taken: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._context.journal.append_and_flush(UpdateHandled(self.item.id))

    def stop(self) -> None:
        """Before the daemon was told. Afterwards it is the daemon that stops it."""
        self._is_stopped = not self.may_have_been_sent
        if self._talk_task is not None and self._is_stopped:
            self._talk_task.cancel()

    async def _kill_run(self) -> None:
        """Nobody reads what it would still say."""
        with suppress(Exception):
            await self._context.daemon.client.kill(self.agent, sender=self.sender)

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    async def _talk_to_daemon(self) -> str:
        """Until the turn is over: what is to be said at its end."""
        while True:
            try:
                async with self._context.turn_slots:
                    return await self._attempt()
            except GatewayError as error:
                log.error("a message is not answered: %s", error)  # noqa: TRY400
                return f"⚠️ {error}"
            except ServerError as error:
                if error.code != BUSY:
                    return f"⚠️ {error.message}"
            except Exception as error:
                if not is_daemon_unavailable(error):
                    raise
            self._was_cut_off = self._was_cut_off or self.has_begun
            self.has_begun = False
            self.view.set_running_calls({})
            await wait_for_daemon(self._context, self.item.update.chat)

    async def _attempt(self) -> str:
        """Says it, or says it again with the same key and follows the run that it has already."""
        await self._context.daemon.check_version()
        if not self.may_have_been_sent:
            await self._record_request()
        await notify_available(self._context, self.item.update.chat)
        return await self._follow_stream()

    async def _record_request(self) -> None:
        """Writes what is about to be said into the journal: with one key it is always the same."""
        update = self.item.update
        ask = DaemonRequest(
            kind="turn",
            agent=self.agent,
            sender=self.sender,
            text=await append_files(self._context, update, self._text, self.sender),
            guest=self._guest,
            key=self._context.message_key(update),
        )
        await self._context.journal.append_and_flush(RequestStarted(self.item.id, ask))

    async def _follow_stream(self) -> str:
        ask = self.item.ask
        assert ask is not None  # noqa: S101 - it was just noted
        directory = await self._context.files.prepare_directory(ask.sender)
        stream = self._context.daemon.client.stream(
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
                    self._close_all_forms()
                    return describe_end(event, was_cut_off=self._was_cut_off)
                self._handle_event(event)
        raise ConnectionError("the stream ended without an end")

    def _handle_event(self, event: Event) -> None:
        writing = self.view
        match event:
            case wire.StreamStart():
                self._begin_stream()
            case wire.TextStartEvent():
                writing.begin_paragraph()
            case wire.StreamChunk():
                writing.add_text(event.content)
            case wire.ToolStartEvent():
                writing.set_running_calls(
                    {call.id: (call.name, call.arguments) for call in event.calls}
                )
                if not event.early:
                    writing.close_part()
            case wire.ToolResultEvent():
                name, arguments = writing.running_calls.pop(event.call_id, ("", ""))
                if event.is_error:
                    writing.mark_call_failed(event.call_id)
                elif is_send_file(name):
                    self._files_to_send.append((event.call_id, parse_path(arguments)))
            case wire.AskUserEvent():
                self._show_question(event)
            case wire.ToolsCompleteEvent():
                self._send_files()
                writing.set_running_calls({})
                self._close_form()
            case wire.UserSteeredEvent():
                writing.close_above()
            case _:
                pass

    def _send_files(self) -> None:
        """Now that the results of their calls are on disk: a daemon that dies before that has the
        calls as interrupted, and their files are not sent."""
        for call, path in self._files_to_send:
            self.view.queue_file(call, path)
        self._files_to_send.clear()

    def _begin_stream(self) -> None:
        """What follows is all of the run. Questions in it are repeated, those that were answered
        as well."""
        self.has_begun = True
        self.form = None
        self._repeated_asks.clear()
        self._files_to_send.clear()
        self.view.restart()
        self._on_change()

    def _show_question(self, event: wire.AskUserEvent) -> None:
        if not is_for_chat(event):
            return
        self._repeated_asks.add(event.ask_id)
        if self.form is not None and self.form.ask == event.ask_id:
            return
        filled = self.item.forms.get(event.ask_id)
        if filled is not None and not filled.is_open:
            return  # it was answered
        self.form = ChatForm.from_event(event)
        if filled is not None:
            restore_form(self.form, filled.answers, filled.settled)
        self.view.show_form(self.form)
        self._on_change()

    def _close_form(self) -> None:
        """Nobody waits for an answer any more, whoever gave one."""
        if self.form is not None:
            self.view.show_form(self.form, is_open=False)
            self.forget_form(self.form)
            self._on_change()

    def forget_form(self, form: ChatForm) -> None:
        """It is answered, or nobody waits for it any more."""
        self._record_form_closed(form.ask)
        self.form = None

    def _record_form_closed(self, ask: str) -> None:
        filled = self.item.forms.get(ask)
        if filled is not None and filled.is_open:
            closed = msgspec.structs.replace(filled, is_open=False)
            self._context.journal.append(FormUpdated(self.item.id, ask, closed))

    def _close_all_forms(self) -> None:
        """The run is over: also those are closed that a stream from the log does not repeat."""
        self._close_form()
        for ask in list(self.item.forms):
            self._record_form_closed(ask)


def describe_end(end: wire.StreamEnd, *, was_cut_off: bool = False) -> str:
    """What is to be said of how it ended, if anything. A daemon that stops cancels its runs."""
    if end.error:
        return f"⚠️ {end.error}"
    if was_cut_off and end.stop_reason == wire.STOP_REASON_CANCELLED:
        return INTERRUPTED_NOTE
    if end.stop_reason == wire.STOP_REASON_NO_ACTION:
        return NO_ANSWER
    return STOP_NOTES.get(end.stop_reason, "")


def is_for_chat(event: wire.AskUserEvent) -> bool:
    """Whether this chat may see the question. Approvals for the owner are on the feed of every
    conversation, and are neither shown to the person whose run asks nor answered by them."""
    approvals = [one.approval for one in event.questions if one.HasField("approval")]
    return not approvals or (
        bool(event.ask_id) and not any(approval.for_owner for approval in approvals)
    )


def is_send_file(name: str) -> bool:
    """Also as a tool of a server is called: `server__send_file`."""
    return name == SEND_FILE_TOOL or name.endswith(f"__{SEND_FILE_TOOL}")


def parse_path(arguments: str) -> str:
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return ""
    path = found.get("path") if isinstance(found, dict) else None
    return path if isinstance(path, str) else ""


async def append_files(desk: GatewayContext, update: Update, words: str, sender: str) -> str:
    """What somebody said, as the agent reads it, with where the files are that came along.

    Takes as long as the service needs to give them.
    """
    backoff = Backoff()
    while True:
        try:
            files = await desk.files.fetch_attachments(sender, update)
            break
        except RetryLaterError as error:
            await backoff.wait(error.seconds)
        except DeliveryUnknownError:
            await backoff.wait()
        except ChatServiceError as error:
            log.warning("the files of a message cannot be had: %s", error)
            files = ["- (they could not be fetched)"]
            break
    text = format_for_agent(update, words or ("See these files." if files else ""))
    return "\n".join((f"{text}\n\nFiles:", *files)) if files else text
