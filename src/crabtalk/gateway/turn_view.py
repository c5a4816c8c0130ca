"""What a chat sees of one turn while it runs. It knows nothing of the daemon.

Actions are queued and run in order. Between actions, the current message grows as often as the
service allows.
"""

import asyncio
import json
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from .chat_forms import ChatForm
from .chat_service import ChatServiceError
from .gateway_context import GatewayContext
from .journal_records import FormProgress, FormUpdated, PendingUpdate
from .outgoing_messages import OutgoingMessages
from .streamed_reply import StreamedReply, count_characters, get_loop_time, take_characters

NO_ANSWER = "(no answer)"
# Characters of a turn's text that are stored for display; the conversation has all of it.
MAX_TEXT = 1024 * 1024
MAX_STATUS = 120
MAX_LABEL = 48
# Not listed as a call, because the question itself is shown.
ASK_USER_TOOL = "ask_user"
# Signs in front of calls that wait, that were carried out, and that failed.
WAITING_SIGN, DONE_SIGN, FAILED_SIGN = "⏳", "✓", "✗"


@dataclass(frozen=True, slots=True)
class CloseTextAction:
    """The text so far is complete; later text goes into a new message."""

    count: int  # characters that are no space
    status: str


@dataclass(frozen=True, slots=True)
class ShowFormAction:
    """A form has changed."""

    form: ChatForm
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class SendFileAction:
    call: str
    path: str


@dataclass(frozen=True, slots=True)
class EndTurnAction:
    note: str


ViewAction: TypeAlias = CloseTextAction | ShowFormAction | SendFileAction | EndTurnAction


class TurnView:
    """`guest` is the name of the speaker, if it is not the conversation's own agent."""

    def __init__(
        self, context: GatewayContext, item: PendingUpdate, sender: str, guest: str = ""
    ) -> None:
        self._context = context
        self._item = item
        self._sender = sender
        lead = f"**{guest}:** " if guest else ""
        self._reply = StreamedReply(
            context.journal, context.service, item, lead=lead, late_after=context.bounds.late_after
        )
        self._outgoing = OutgoingMessages(context, item)
        self._text = ""
        self._earlier_text = ""  # text of an earlier stream of the same run
        self._needs_paragraph = False  # the next text begins a paragraph
        self._actions: deque[ViewAction] = deque()
        self._changed = asyncio.Event()
        self._first_edit_at = 0.0  # by the loop's clock: nothing is shown earlier
        self.running_calls: dict[str, tuple[str, str]] = {}  # by call id: name and arguments
        self._call_labels: dict[str, str] = {}  # of the calls that run, or ran last
        self._failed_calls: set[str] = set()  # among `_call_labels`
        self.is_asking = False

    # ── Called by the turn ──────────────────────────────────────────────────────────────────

    def restart(self) -> None:
        """The stream starts again with the run's first event. Shown text stays shown, and queued
        actions stay queued: running them twice changes nothing."""
        self._earlier_text = self._full_text()
        self._text = ""
        self._needs_paragraph = False
        self.set_running_calls({})

    def _full_text(self) -> str:
        """The text so far. If the daemon died during the run, the chat may have been shown more
        text than the daemon's log has."""
        if not self._earlier_text or count_characters(self._text) >= count_characters(
            self._earlier_text
        ):
            self._earlier_text = ""
            return self._text
        return self._earlier_text

    def add_text(self, text: str) -> None:
        if self._needs_paragraph and self._text:
            self._text = f"{self._text.rstrip()}\n\n"
        self._needs_paragraph = False
        if len(self._text) < MAX_TEXT:
            self._text += text
        self._changed.set()

    def begin_paragraph(self) -> None:
        self._needs_paragraph = True

    def set_running_calls(self, calls: dict[str, tuple[str, str]]) -> None:
        self.running_calls = calls
        labels = {
            key: format_call(*call) for key, call in calls.items() if call[0] != ASK_USER_TOOL
        }
        if labels:
            self._call_labels, self._failed_calls = labels, set()
        self._changed.set()

    def mark_call_failed(self, call: str) -> None:
        """Show the call as failed."""
        self._failed_calls.add(call)
        self._changed.set()

    def close_text(self, sign: str = DONE_SIGN) -> None:
        self._queue_action(CloseTextAction(count_characters(self._text), self._render_result(sign)))

    def _render_result(self, sign: str) -> str:
        """One line with the calls that were carried out, and those that failed."""
        groups = (
            (
                sign,
                [
                    label
                    for key, label in self._call_labels.items()
                    if key not in self._failed_calls
                ],
            ),
            (
                FAILED_SIGN,
                [label for key, label in self._call_labels.items() if key in self._failed_calls],
            ),
        )
        lines = (f"{mark} {', '.join(label)}" for mark, label in groups if label)
        return shorten_line(" ".join(lines), MAX_STATUS)

    def close_part(self) -> None:
        """Show the complete part, if the service has no edits and parts are wanted."""
        limits = self._context.service.limits
        if limits.parts and not limits.edits:
            self.close_text()

    def close_above(self) -> None:
        """Let later text begin below what came in between, if anything was shown before it."""
        limits = self._context.service.limits
        if limits.parts or limits.edits:
            self.close_text()

    def queue_file(self, call: str, path: str) -> None:
        if not self._item.files.get(call):
            self.close_above()
            self._queue_action(SendFileAction(call, path))

    def show_form(self, form: ChatForm, *, is_open: bool = True) -> None:
        self.is_asking = is_open and not form.is_complete
        if self.is_asking:
            self.close_text(WAITING_SIGN if form.has_approvals else DONE_SIGN)
        self._queue_action(ShowFormAction(form, is_open))

    def record_form(self, form: ChatForm) -> FormUpdated:
        """The journal record for a form that just got another answer."""
        self.show_form(form)
        before = self._item.forms.get(form.ask) or FormProgress()
        after = msgspec.structs.replace(
            before, answers=form.answers, settled=sorted(form.settled), is_open=True
        )
        return FormUpdated(self._item.id, form.ask, after)

    def finish(self, note: str) -> None:
        self._queue_action(EndTurnAction(note))

    def _queue_action(self, action: ViewAction) -> None:
        self._actions.append(action)
        self._changed.set()

    # ── The task that writes to the chat ────────────────────────────────────────────────────

    async def run(self) -> None:
        """Run until the end is written. Raises ChatBlockedError and RejectedError. Cancelled, the
        journal has the state it reached."""
        # A short answer is complete before its first edit is due: it takes one message.
        self._first_edit_at = get_loop_time() + self._context.service.limits.edit_every
        while True:
            self._changed.clear()
            if self._actions:
                action = self._actions[0]
                await self._run_action(action)
                self._actions.popleft()
                if isinstance(action, EndTurnAction):
                    return
                continue
            pause = await self._show_progress()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _show_progress(self) -> float | None:
        """Show the text so far, if the service takes an edit now. Returns the seconds until the
        next edit is possible; None to wait for a change."""
        if not self._context.service.limits.edits:
            return None
        due = max(self._first_edit_at, self._reply.next_edit_at)
        # One clock reading for both comparisons: an edit that is due between two readings would be
        # seen by neither.
        if (wait := due - get_loop_time()) > 0:
            return wait
        await self._reply.show_progress(self._full_text(), self._render_status())
        later = max(self._first_edit_at, self._reply.next_edit_at)
        return max(0.0, later - get_loop_time()) if later > due else None

    async def _run_action(self, action: ViewAction) -> None:
        match action:
            case CloseTextAction(count=count, status=status):
                await self._reply.finish_text(take_characters(self._full_text(), count), status)
            case ShowFormAction(form=form, is_open=is_open):
                await self._outgoing.show_form(form, is_open=is_open)
            case SendFileAction(call=call, path=path):
                await self._outgoing.send_file(call, path, self._sender)
            case EndTurnAction(note=note):
                if note:
                    self._reply.discard_unknown(self._full_text())
                await self._reply.finish_text(self._final_text(note))

    def _final_text(self, note: str) -> str:
        text = "\n\n".join(filter(None, (self._full_text().rstrip(), note)))
        if not text and not self._item.closed and not self._item.files:
            return NO_ANSWER
        return text

    def _render_status(self) -> str:
        """One line with the running calls, or with those that just failed."""
        if any(name != ASK_USER_TOOL for name, _ in self.running_calls.values()):
            return shorten_line(f"⚙ {', '.join(self._call_labels.values())}", MAX_STATUS)
        return self._render_result(DONE_SIGN) if self._failed_calls else ""

    async def show_typing(self) -> None:
        """Show "is typing" until cancelled; not while a question waits for the person."""
        interval = self._context.service.limits.typing_every
        while interval:
            if not self.is_asking:
                with suppress(ChatServiceError):
                    await self._context.service.send_typing(self._item.update.chat)
            await asyncio.sleep(interval)


def format_call(name: str, arguments: str) -> str:
    """A call in short: `bash(ls)`."""
    try:
        document = json.loads(arguments or "{}")
    except ValueError:
        document = {}
    values = document.values() if isinstance(document, dict) else ()
    first = next((value for value in values if isinstance(value, str)), "")
    if not first:
        return name
    return f"{name}({shorten_line(' '.join(first.split()), MAX_LABEL)})"


def shorten_line(line: str, max_length: int) -> str:
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"
