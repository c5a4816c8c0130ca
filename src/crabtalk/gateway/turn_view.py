"""Writing: what a chat sees of one turn as it goes on. It knows nothing of the daemon.

What is to be done is queued, and done in that order; in between the message grows, as often as the
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
# Of the text of one turn that is kept for showing; the conversation has all of it.
MAX_TEXT = 1024 * 1024
MAX_STATUS = 120
MAX_LABEL = 48
# The question itself is shown.
ASK_USER_TOOL = "ask_user"
# Before calls that were not carried out yet, that were, and that failed.
WAITING_SIGN, DONE_SIGN, FAILED_SIGN = "⏳", "✓", "✗"


@dataclass(frozen=True, slots=True)
class CloseTextAction:
    """What was said so far is complete; what follows is said below it."""

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
    """`guest` is who speaks, where it is not the conversation's own agent."""

    def __init__(
        self, desk: GatewayContext, item: PendingUpdate, sender: str, guest: str = ""
    ) -> None:
        self._context = desk
        self._item = item
        self._sender = sender
        lead = f"**{guest}:** " if guest else ""
        self._reply = StreamedReply(
            desk.journal, desk.service, item, lead=lead, late_after=desk.bounds.late_after
        )
        self._outgoing = OutgoingMessages(desk, item)
        self._text = ""
        self._earlier_text = ""  # what an earlier stream of the same run had said
        self._needs_paragraph = False  # the next words begin a paragraph
        self._actions: deque[ViewAction] = deque()
        self._changed = asyncio.Event()
        self._first_edit_at = 0.0  # by the loop's clock: nothing is shown earlier
        self.running_calls: dict[str, tuple[str, str]] = {}  # running: name and arguments
        self._call_labels: dict[str, str] = {}  # of those that run, or ran last
        self._failed_calls: set[str] = set()  # of these calls
        self.is_asking = False

    # ── What there is to write ──────────────────────────────────────────────────────────────

    def restart(self) -> None:
        """The run is told from its first event on. What was shown of it stays, and so does what is
        queued: doing it a second time changes nothing."""
        self._earlier_text = self._full_text()
        self._text = ""
        self._needs_paragraph = False
        self.set_running_calls({})

    def _full_text(self) -> str:
        """The text so far. A run that the daemon's death cut off may have shown more than the log
        has of it."""
        if not self._earlier_text or count_characters(self._text) >= count_characters(
            self._earlier_text
        ):
            self._earlier_text = ""
            return self._text
        return self._earlier_text

    def add_text(self, words: str) -> None:
        if self._needs_paragraph and self._text:
            self._text = f"{self._text.rstrip()}\n\n"
        self._needs_paragraph = False
        if len(self._text) < MAX_TEXT:
            self._text += words
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
        """A call failed: its result says so itself."""
        self._failed_calls.add(call)
        self._changed.set()

    def close_text(self, sign: str = DONE_SIGN) -> None:
        self._queue_action(CloseTextAction(count_characters(self._text), self._render_result(sign)))

    def _render_result(self, sign: str) -> str:
        """One line of what was done, and of what failed."""
        groups = (
            (
                sign,
                [
                    shown
                    for key, shown in self._call_labels.items()
                    if key not in self._failed_calls
                ],
            ),
            (
                FAILED_SIGN,
                [shown for key, shown in self._call_labels.items() if key in self._failed_calls],
            ),
        )
        lines = (f"{mark} {', '.join(shown)}" for mark, shown in groups if shown)
        return shorten_line(" ".join(lines), MAX_STATUS)

    def close_part(self) -> None:
        """What is complete is shown: where nothing grows, and parts are wanted."""
        limits = self._context.service.limits
        if limits.parts and not limits.edits:
            self.close_text()

    def close_above(self) -> None:
        """What follows is said below what came in between: where anything was shown before it."""
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
        """What to note of a form that somebody has just filled in a little more."""
        self.show_form(form)
        before = self._item.forms.get(form.ask) or FormProgress()
        after = msgspec.structs.replace(
            before, answers=form.answers, settled=sorted(form.settled), is_open=True
        )
        return FormUpdated(self._item.id, form.ask, after)

    def finish(self, note: str) -> None:
        self._queue_action(EndTurnAction(note))

    def _queue_action(self, deed: ViewAction) -> None:
        self._actions.append(deed)
        self._changed.set()

    # ── Writing it ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until the end is written. Raises Blocked and Refused. Cancelled, what is in the journal
        goes on from there."""
        # Short answers are over before their first words have to be shown.
        self._first_edit_at = get_loop_time() + self._context.service.limits.edit_every
        while True:
            self._changed.clear()
            if self._actions:
                deed = self._actions[0]
                await self._run_action(deed)
                self._actions.popleft()
                if isinstance(deed, EndTurnAction):
                    return
                continue
            pause = await self._show_progress()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _show_progress(self) -> float | None:
        """Shows how far it is, if the service takes that now. Seconds until there is more to be
        done without any news; None for never."""
        if not self._context.service.limits.edits:
            return None
        due = max(self._first_edit_at, self._reply.next_edit_at)
        # The clock is looked at once: what is due between two looks would be seen by neither.
        if (wait := due - get_loop_time()) > 0:
            return wait
        await self._reply.show_progress(self._full_text(), self._render_status())
        later = max(self._first_edit_at, self._reply.next_edit_at)
        return max(0.0, later - get_loop_time()) if later > due else None

    async def _run_action(self, deed: ViewAction) -> None:
        match deed:
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
        """One line of what it is doing, or of what has just failed."""
        if any(name != ASK_USER_TOOL for name, _ in self.running_calls.values()):
            return shorten_line(f"⚙ {', '.join(self._call_labels.values())}", MAX_STATUS)
        return self._render_result(DONE_SIGN) if self._failed_calls else ""

    async def show_typing(self) -> None:
        """Until cancelled. Whoever is asked something waits for nobody."""
        every = self._context.service.limits.typing_every
        while every:
            if not self.is_asking:
                with suppress(ChatServiceError):
                    await self._context.service.send_typing(self._item.update.chat)
            await asyncio.sleep(every)


def format_call(name: str, arguments: str) -> str:
    """A call in a word or two: `bash(ls)`."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        given = {}
    words = given.values() if isinstance(given, dict) else ()
    first = next((one for one in words if isinstance(one, str)), "")
    if not first:
        return name
    return f"{name}({shorten_line(' '.join(first.split()), MAX_LABEL)})"


def shorten_line(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
