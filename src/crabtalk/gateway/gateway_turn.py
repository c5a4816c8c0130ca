"""A turn: one update that an agent answers, from the journal to the last message of the answer.

One task talks to the daemon and never waits for the chat service, so that a slow service loses no
stream; another task, TurnView, writes to the chat. The turn has a key and is detached: it goes on
when this process dies. The next process sends the request again with the same key and follows the
same run from its first event. The journal has what the chat was sent of it.
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
    """`changed` is called when the turn may have become ready for another message."""

    def __init__(
        self,
        context: GatewayContext,
        item: PendingUpdate,
        text: str,
        guest: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self.item = item
        self._text = text
        self._guest = item.ask.guest if item.ask is not None else guest
        self._on_change = changed
        self.sender = item.ask.sender if item.ask is not None else context.sender_for(item.update)
        self.agent = item.ask.agent if item.ask is not None else context.agent_for(item.update)
        self.view = TurnView(context, item, self.sender, self._guest)
        self._talk_task: asyncio.Future[str] | None = None
        self._is_stopped = False
        self.form: ChatForm | None = None
        self._files_to_send: list[tuple[str, str]] = []  # ids of send_file calls, and their paths
        self._repeated_asks: set[str] = set()  # questions that this stream has brought
        self.has_begun = False  # the daemon has sent StreamStart, and the stream goes on
        self._was_cut_off = False  # the daemon went away during the run

    @property
    def may_have_been_sent(self) -> bool:
        """Whether the daemon may have received the request."""
        return self.item.ask is not None

    @property
    def awaits_repeated_question(self) -> bool:
        """Whether a question from before a restart has yet to be repeated by the stream."""
        return self.form is None and any(
            progress.is_open and ask not in self._repeated_asks
            for ask, progress in self.item.forms.items()
        )

    async def run(self) -> None:
        """Run until the answer is delivered and the update done. Cancelled, the journal has the
        state it reached."""
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
        """Stop a turn that was not sent to the daemon. Others have to be killed at the daemon."""
        self._is_stopped = not self.may_have_been_sent
        if self._talk_task is not None and self._is_stopped:
            self._talk_task.cancel()

    async def _kill_run(self) -> None:
        """Kill the run, because its output has no reader any more."""
        with suppress(Exception):
            await self._context.daemon.client.kill(self.agent, sender=self.sender)

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    async def _talk_to_daemon(self) -> str:
        """Run until the turn is over. Returns a note for the end of the answer, or an error."""
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
        """Send the request. With the key of an earlier try, the daemon goes on with that run."""
        await self._context.daemon.check_version()
        if not self.may_have_been_sent:
            await self._record_request()
        await notify_available(self._context, self.item.update.chat)
        return await self._follow_stream()

    async def _record_request(self) -> None:
        """Record the request in the journal before it is sent: one key, one text."""
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
        request = self.item.ask
        assert request is not None  # noqa: S101 - it was just recorded
        directory = await self._context.files.prepare_directory(request.sender)
        stream = self._context.daemon.client.stream(
            request.agent,
            request.text,
            sender=request.sender,
            guest=request.guest or None,
            cwd=str(directory),
            detach=True,
            key=request.key,
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
        view = self.view
        match event:
            case wire.StreamStart():
                self._begin_stream()
            case wire.TextStartEvent():
                view.begin_paragraph()
            case wire.StreamChunk():
                view.add_text(event.content)
            case wire.ToolStartEvent():
                view.set_running_calls(
                    {call.id: (call.name, call.arguments) for call in event.calls}
                )
                if not event.early:
                    view.close_part()
            case wire.ToolResultEvent():
                name, arguments = view.running_calls.pop(event.call_id, ("", ""))
                if event.is_error:
                    view.mark_call_failed(event.call_id)
                elif is_send_file(name):
                    self._files_to_send.append((event.call_id, parse_path(arguments)))
            case wire.AskUserEvent():
                self._show_question(event)
            case wire.ToolsCompleteEvent():
                self._send_files()
                view.set_running_calls({})
                self._close_form()
            case wire.UserSteeredEvent():
                view.close_above()
            case _:
                pass

    def _send_files(self) -> None:
        """Send the files once the results of their calls are on disk. If the daemon dies before
        that, it has the calls as interrupted, and their files must not be sent."""
        for call, path in self._files_to_send:
            self.view.queue_file(call, path)
        self._files_to_send.clear()

    def _begin_stream(self) -> None:
        """The stream starts with the first event of the run. It repeats all questions, answered
        ones too."""
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
        progress = self.item.forms.get(event.ask_id)
        if progress is not None and not progress.is_open:
            return  # it was answered
        self.form = ChatForm.from_event(event)
        if progress is not None:
            restore_form(self.form, progress.answers, progress.settled)
        self.view.show_form(self.form)
        self._on_change()

    def _close_form(self) -> None:
        """The agent no longer waits for an answer, no matter who gave one."""
        if self.form is not None:
            self.view.show_form(self.form, is_open=False)
            self.forget_form(self.form)
            self._on_change()

    def forget_form(self, form: ChatForm) -> None:
        """The form is answered, or the agent no longer waits for it."""
        self._record_form_closed(form.ask)
        self.form = None

    def _record_form_closed(self, ask: str) -> None:
        progress = self.item.forms.get(ask)
        if progress is not None and progress.is_open:
            closed = msgspec.structs.replace(progress, is_open=False)
            self._context.journal.append(FormUpdated(self.item.id, ask, closed))

    def _close_all_forms(self) -> None:
        """The run is over: close all forms, also those that a stream from the log omits."""
        self._close_form()
        for ask in list(self.item.forms):
            self._record_form_closed(ask)


def describe_end(end: wire.StreamEnd, *, was_cut_off: bool = False) -> str:
    """A note on how the run ended, or empty. A daemon that stops cancels its runs."""
    if end.error:
        return f"⚠️ {end.error}"
    if was_cut_off and end.stop_reason == wire.STOP_REASON_CANCELLED:
        return INTERRUPTED_NOTE
    if end.stop_reason == wire.STOP_REASON_NO_ACTION:
        return NO_ANSWER
    return STOP_NOTES.get(end.stop_reason, "")


def is_for_chat(event: wire.AskUserEvent) -> bool:
    """Whether this chat may see the question. Approvals for the owner are in the event stream of
    every conversation; the person whose run asks neither sees nor answers them."""
    approvals = [question.approval for question in event.questions if question.HasField("approval")]
    return not approvals or (
        bool(event.ask_id) and not any(approval.for_owner for approval in approvals)
    )


def is_send_file(name: str) -> bool:
    """Whether the tool sends a file. Tools of MCP servers are called `server__send_file`."""
    return name == SEND_FILE_TOOL or name.endswith(f"__{SEND_FILE_TOOL}")


def parse_path(arguments: str) -> str:
    try:
        document = json.loads(arguments or "{}")
    except ValueError:
        return ""
    path = document.get("path") if isinstance(document, dict) else None
    return path if isinstance(path, str) else ""


async def append_files(context: GatewayContext, update: Update, words: str, sender: str) -> str:
    """The message as the agent reads it, followed by the paths of its attachments.

    Waits as long as the service needs to deliver them.
    """
    backoff = Backoff()
    while True:
        try:
            files = await context.files.fetch_attachments(sender, update)
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
