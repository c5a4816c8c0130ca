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

from .desk import Desk
from .entries import Filled, Formed, Item
from .forms import Form
from .posting import Posting
from .reply import Reply, characters, now, take_characters
from .service import ServiceError

NO_ANSWER = "(no answer)"
# Of the text of one turn that is kept for showing; the conversation has all of it.
MOST_TEXT = 1024 * 1024
STATUS = 120
LABEL = 48
# The question itself is shown.
ASK_USER = "ask_user"
# Before calls that were not carried out yet, that were, and that failed.
WAITING, DONE, FAILED = "⏳", "✓", "✗"


@dataclass(frozen=True, slots=True)
class Close:
    """What was said so far is complete; what follows is said below it."""

    count: int  # characters that are no space
    status: str


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


class Writing:
    """`guest` is who speaks, where it is not the conversation's own agent."""

    def __init__(self, desk: Desk, item: Item, sender: str, guest: str = "") -> None:
        self._desk = desk
        self._item = item
        self._sender = sender
        lead = f"**{guest}:** " if guest else ""
        self._reply = Reply(
            desk.journal, desk.service, item, lead=lead, late_after=desk.bounds.late_after
        )
        self._posting = Posting(desk, item)
        self._text = ""
        self._earlier = ""  # what an earlier stream of the same run had said
        self._is_apart = False  # the next words begin a paragraph
        self._deeds: deque[Deed] = deque()
        self._news = asyncio.Event()
        self._first = 0.0  # by the loop's clock: nothing is shown earlier
        self.calls: dict[str, tuple[str, str]] = {}  # running: name and arguments
        self._labels: dict[str, str] = {}  # of those that run, or ran last
        self._failed: set[str] = set()  # of these calls
        self.is_asking = False

    # ── What there is to write ──────────────────────────────────────────────────────────────

    def begin_again(self) -> None:
        """The run is told from its first event on. What was shown of it stays, and so does what is
        queued: doing it a second time changes nothing."""
        self._earlier = self._whole_text()
        self._text = ""
        self._is_apart = False
        self.run_calls({})

    def _whole_text(self) -> str:
        """The text so far. A run that the daemon's death cut off may have shown more than the log
        has of it."""
        if not self._earlier or characters(self._text) >= characters(self._earlier):
            self._earlier = ""
            return self._text
        return self._earlier

    def add(self, words: str) -> None:
        if self._is_apart and self._text:
            self._text = f"{self._text.rstrip()}\n\n"
        self._is_apart = False
        if len(self._text) < MOST_TEXT:
            self._text += words
        self._news.set()

    def begin_paragraph(self) -> None:
        self._is_apart = True

    def run_calls(self, calls: dict[str, tuple[str, str]]) -> None:
        self.calls = calls
        labels = {key: label(*call) for key, call in calls.items() if call[0] != ASK_USER}
        if labels:
            self._labels, self._failed = labels, set()
        self._news.set()

    def fail_call(self, call: str) -> None:
        """A call failed: its result says so itself."""
        self._failed.add(call)
        self._news.set()

    def close(self, sign: str = DONE) -> None:
        self._do(Close(characters(self._text), self._result(sign)))

    def _result(self, sign: str) -> str:
        """One line of what was done, and of what failed."""
        groups = (
            (sign, [shown for key, shown in self._labels.items() if key not in self._failed]),
            (FAILED, [shown for key, shown in self._labels.items() if key in self._failed]),
        )
        lines = (f"{mark} {', '.join(shown)}" for mark, shown in groups if shown)
        return shortened(" ".join(lines), STATUS)

    def close_part(self) -> None:
        """What is complete is shown: where nothing grows, and parts are wanted."""
        limits = self._desk.service.limits
        if limits.parts and not limits.edits:
            self.close()

    def close_above(self) -> None:
        """What follows is said below what came in between: where anything was shown before it."""
        limits = self._desk.service.limits
        if limits.parts or limits.edits:
            self.close()

    def send_file(self, call: str, path: str) -> None:
        if not self._item.files.get(call):
            self.close_above()
            self._do(SendFile(call, path))

    def show(self, form: Form, *, is_open: bool = True) -> None:
        self.is_asking = is_open and not form.is_complete
        if self.is_asking:
            self.close(WAITING if form.is_approval else DONE)
        self._do(Show(form, is_open))

    def filled(self, form: Form) -> Formed:
        """What to note of a form that somebody has just filled in a little more."""
        self.show(form)
        before = self._item.forms.get(form.ask) or Filled()
        after = msgspec.structs.replace(
            before, answers=form.answers, settled=sorted(form.settled), is_open=True
        )
        return Formed(self._item.id, form.ask, after)

    def end(self, note: str) -> None:
        self._do(End(note))

    def _do(self, deed: Deed) -> None:
        self._deeds.append(deed)
        self._news.set()

    # ── Writing it ──────────────────────────────────────────────────────────────────────────

    async def work(self) -> None:
        """Until the end is written. Raises Blocked and Refused. Cancelled, what is in the journal
        goes on from there."""
        # Short answers are over before their first words have to be shown.
        self._first = now() + self._desk.service.limits.edit_every
        while True:
            self._news.clear()
            if self._deeds:
                deed = self._deeds[0]
                await self._carry_out(deed)
                self._deeds.popleft()
                if isinstance(deed, End):
                    return
                continue
            pause = await self._grow()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()

    async def _grow(self) -> float | None:
        """Shows how far it is, if the service takes that now. Seconds until there is more to be
        done without any news; None for never."""
        if not self._desk.service.limits.edits:
            return None
        due = max(self._first, self._reply.not_before)
        # The clock is looked at once: what is due between two looks would be seen by neither.
        if (wait := due - now()) > 0:
            return wait
        await self._reply.show(self._whole_text(), self._status())
        later = max(self._first, self._reply.not_before)
        return max(0.0, later - now()) if later > due else None

    async def _carry_out(self, deed: Deed) -> None:
        match deed:
            case Close(count=count, status=status):
                await self._reply.close(take_characters(self._whole_text(), count), status)
            case Show(form=form, is_open=is_open):
                await self._posting.form(form, is_open=is_open)
            case SendFile(call=call, path=path):
                await self._posting.file(call, path, self._sender)
            case End(note=note):
                if note:
                    self._reply.forget_unknown(self._whole_text())
                await self._reply.close(self._whole(note))

    def _whole(self, note: str) -> str:
        text = "\n\n".join(filter(None, (self._whole_text().rstrip(), note)))
        if not text and not self._item.closed and not self._item.files:
            return NO_ANSWER
        return text

    def _status(self) -> str:
        """One line of what it is doing, or of what has just failed."""
        if any(name != ASK_USER for name, _ in self.calls.values()):
            return shortened(f"⚙ {', '.join(self._labels.values())}", STATUS)
        return self._result(DONE) if self._failed else ""

    async def typing(self) -> None:
        """Until cancelled. Whoever is asked something waits for nobody."""
        every = self._desk.service.limits.typing_every
        while every:
            if not self.is_asking:
                with suppress(ServiceError):
                    await self._desk.service.typing(self._item.update.chat)
            await asyncio.sleep(every)


def label(name: str, arguments: str) -> str:
    """A call in a word or two: `bash(ls)`."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        given = {}
    words = given.values() if isinstance(given, dict) else ()
    first = next((one for one in words if isinstance(one, str)), "")
    if not first:
        return name
    return f"{name}({shortened(' '.join(first.split()), LABEL)})"


def shortened(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
