"""Talk: what a person says and what becomes of it, without a terminal.

Words go to a command, into the turn that runs, or become a turn of their own; what happens goes to
the transcript. Turns that cannot begin yet wait in line.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from crabtalk.component.command import one_line
from crabtalk.protocol import wire
from crabtalk_tui.complaints import complaint
from crabtalk_tui.options import next_mode

from . import commands
from .commands import Called, Saying
from .form import Form
from .look import Look
from .questions import Question
from .reach import Kind
from .session import FAILURES, Session
from .settings import Settings
from .status import State, Status
from .transcript import Transcript

MOST_WAITING = 16  # turns
LABEL = 40  # characters of a task


class Face(Protocol):
    """Where it is shown."""

    def changed(self) -> None:
        """There is something to draw. Called often: drawing can wait a moment."""
        ...

    def unsent(self, text: str) -> None:
        """The agent never heard this. It belongs back where it was written."""
        ...

    def leave(self) -> None: ...

    def review_approvals(self) -> None:
        """Put the approvals that wait for the owner, one after the other."""
        ...


class Talk:
    """A Listener of its session. Use it as `async with talk:`."""

    def __init__(
        self,
        face: Face,
        look: Look,
        settings: Settings,
        *,
        home: Path | None,
        agent: str | None,
        sender: str,
        start: bool,
        mode: str = "",
        has_keys: bool = True,
    ) -> None:
        """`has_keys` says whether single keys do something where it is shown."""
        self.transcript = Transcript(look, has_keys=has_keys)
        self.steering: list[str] = []  # said into the turn, and not read yet
        self.waiting: deque[Saying] = deque()
        self.is_stopping = False
        self.session = Session(
            self,
            home=home,
            agent=agent or settings.agent,
            sender=sender or settings.sender,
            start=start,
            spending=settings.spending(),
            mode=mode,
        )
        self._face = face
        self._settings = settings
        self._since = 0.0  # the turn or the command that runs
        self._worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Talk":
        await self.session.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """A turn that runs is cancelled; what was said stays."""
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.session.__aexit__(None, None, None)

    # ── Saying ──────────────────────────────────────────────────────────────────────────────

    @property
    def is_busy(self) -> bool:
        """Whether there is something to stop."""
        return self._worker is not None or self.session.is_busy

    def say(self, text: str) -> None:
        """Whatever was typed."""
        match commands.read(text, self.session.catalogue):
            case Called() as called:
                self.transcript.begin(text, agent=self.session.agent)
                self._in_background(self._command(called))
            case Saying(guest="") if self._worker is not None:
                self.steering.append(text)
                self._in_background(self._steer(text))
            case Saying() as saying:
                self.enqueue(saying)
        self._face.changed()

    def enqueue(self, saying: Saying) -> None:
        """A turn of its own, after those that were asked for before."""
        if self._worker is None:
            self._since = time.monotonic()
            self._worker = self._in_background(self._take_turns(saying))
        elif len(self.waiting) < MOST_WAITING:
            self.waiting.append(saying)
        else:
            self.noticed(f"{MOST_WAITING} messages wait already; it is back in the input", "error")
            self._face.unsent(saying.text)

    async def stop(self) -> None:
        """What runs, not what waits after it."""
        if not self.is_busy:
            return
        self.is_stopping = True
        self._face.changed()
        await self.session.stop()

    def stop_soon(self) -> None:
        self._in_background(self.stop())

    async def answer(self, form: Form) -> None:
        question = self.session.approvals.get(form.ask_id)
        if await self.session.reply(form.ask_id, form.answers):
            self.transcript.answered()
            if question is not None:
                given = ", ".join(f"{header} {answer}" for header, answer in form.summary)
                self.noticed(f"answered for {question.sender}: {given}", "info")
        self._face.changed()

    def answer_soon(self, form: Form) -> asyncio.Task[None]:
        return self._in_background(self.answer(form))

    def cycle_mode(self) -> None:
        """Sets the next permission mode, as a key does."""
        change = self.session.set_mode(next_mode(self.session.mode))
        self._in_background(self._await_change(change))

    async def _await_change(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except FAILURES as error:
            self.noticed(complaint(error) or str(error), "error")

    async def finished(self) -> None:
        """When nothing runs and nothing waits. Cancelled, it only stops waiting."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _take_turns(self, saying: Saying | None) -> None:
        try:
            while saying is not None:
                await self._take_turn(saying)
                saying = self.waiting.popleft() if self.waiting else None
        finally:
            self._worker = None
            self._face.changed()

    async def _take_turn(self, saying: Saying) -> None:
        self._since = time.monotonic()
        agent = self.session.agent
        self.transcript.begin(saying.text, agent=agent, guest=saying.guest or None)
        self._face.changed()
        try:
            said = await self.session.say(
                saying.text, guest=saying.guest, tool_choice=saying.tool_choice
            )
        finally:
            self.steering.clear()
            self.is_stopping = False
        if said.unsent:
            self._face.unsent(said.unsent)

    async def _steer(self, text: str) -> None:
        if not await self.session.steer(text):
            # The turn ended meanwhile, or cannot be spoken into: it is the next one.
            if text in self.steering:
                self.steering.remove(text)
            self.enqueue(Saying(text))
            self._face.changed()

    async def _command(self, called: Called) -> None:
        if not self.is_busy:
            self._since = time.monotonic()
        reply = await commands.run(called, self.session)
        if not self.is_busy:
            self.is_stopping = False
        if reply.is_fresh:
            self.transcript.usage = None
        if reply.messages:
            self.transcript.history(reply.messages)
        if reply.markdown:
            self.transcript.show(reply.markdown)
        if reply.notice:
            self.transcript.notice(reply.notice, reply.kind)
        if reply.saying is not None:
            self.enqueue(reply.saying)
        self._face.changed()
        if reply.reviews:
            self._face.review_approvals()
        if reply.leaves:
            self._face.leave()

    # ── What happens ────────────────────────────────────────────────────────────────────────

    def streamed(self, event: wire.StreamEvent) -> None:
        if event.HasField("user_steered") and event.user_steered.content in self.steering:
            self.steering.remove(event.user_steered.content)
        self.transcript.feed(event, time.monotonic())
        self._face.changed()

    def followed(self, event: wire.AgentEventMsg) -> None:
        self.transcript.follow(event, time.monotonic())
        self._face.changed()

    def noticed(self, text: str, kind: Kind) -> None:
        self.transcript.notice(text, kind)
        self._face.changed()

    def changed(self) -> None:
        self._face.changed()

    # ── What is so ──────────────────────────────────────────────────────────────────────────

    def status(self, hint: str = "", *, is_filling: bool = False) -> Status:
        """`is_filling`: a form is open, and nobody needs to be told. Esc is the form's then."""
        session, usage = self.session, self.transcript.usage
        spending = session.spending
        return Status(
            agent=session.agent,
            model=session.model,
            context=usage.usage.prompt_tokens if usage is not None else 0,
            compact_at=self._settings.compact_at,
            limit=session.context_limit,
            cost=spending.shown(spending.total.cost) if spending.prices else "",
            state=self._state(is_filling=is_filling),
            seconds=time.monotonic() - self._since,
            waiting=len(self.waiting),
            hint=hint,
            stops="Ctrl+C" if is_filling else "Esc",
            mode=session.mode,
            approvals=len(session.approvals),
        )

    def asker(self, question: Question) -> str:
        """Who else than the agent one talks to, and at which task."""
        if self.session.conversation.is_of(question.agent, question.sender):
            return ""
        name = question.agent.partition(":")[0]
        task = one_line(self.transcript.task_of(question.run_id), LABEL)
        return f"{name} ({task})" if task else name

    def _state(self, *, is_filling: bool) -> State:
        if self.session.state == "away":
            return "away"
        if self.is_stopping:
            return "stopping"
        if len(self.session.questions) and not is_filling:
            return "asking"
        if self.session.state == "compacting":
            return "compacting"
        return "running" if self.is_busy else "ready"

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
