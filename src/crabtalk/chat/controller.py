"""The logic of the chat between its session and its interface, without a terminal.

A typed text runs a command, steers the running turn, or becomes a turn of its own. Events go to the
transcript. Turns that cannot begin yet wait in a queue.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from crabtalk.cli.errors import explain_error
from crabtalk.cli.options import get_next_mode
from crabtalk.protocol import wire
from crabtalk.service.command_line import to_one_line

from . import commands
from .commands import CommandCall, QueuedTurn
from .form import TerminalForm
from .pending_questions import ChatQuestion
from .reconnecting_client import NoticeKind
from .session import REQUEST_ERRORS, ChatSession
from .settings import TerminalSettings
from .status_line import StatusLine, StatusState
from .theme import Theme
from .transcript import ChatTranscript

MAX_QUEUED = 16  # turns
MAX_TASK_LABEL = 40  # characters of a task


class ChatInterface(Protocol):
    """What shows the chat: a full terminal or plain lines."""

    def schedule_redraw(self) -> None:
        """There is something to draw. Called often: drawing can wait a moment."""
        ...

    def restore_unsent(self, text: str) -> None:
        """Put a text that was not sent back into the input."""
        ...

    def leave_chat(self) -> None: ...

    def review_approvals(self) -> None:
        """Open the approvals that wait for the owner, one after the other."""
        ...


class ChatController:
    """The SessionListener of the chat's session. Use it as `async with controller:`."""

    def __init__(
        self,
        interface: ChatInterface,
        theme: Theme,
        settings: TerminalSettings,
        *,
        home: Path | None,
        agent: str | None,
        sender: str,
        start: bool,
        mode: str = "",
        has_keys: bool = True,
    ) -> None:
        """`has_keys`: whether the interface reacts to single keys."""
        self.transcript = ChatTranscript(theme, has_keys=has_keys)
        self.pending_steers: list[str] = []  # steers that the turn has not read yet
        self.queued_turns: deque[QueuedTurn] = deque()
        self.is_stopping = False
        self.session = ChatSession(
            self,
            home=home,
            agent=agent or settings.agent,
            sender=sender or settings.sender,
            start=start,
            spending=settings.create_spending(),
            mode=mode,
        )
        self._interface = interface
        self._settings = settings
        self._busy_since = 0.0  # when the running turn or command began
        self._worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "ChatController":
        await self.session.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel a running turn. Its messages stay in the conversation."""
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.session.__aexit__(None, None, None)

    # ── Input ───────────────────────────────────────────────────────────────────────────────

    @property
    def is_busy(self) -> bool:
        """Whether there is something to stop."""
        return self._worker is not None or self.session.is_busy

    def submit_text(self, text: str) -> None:
        """Handle a typed text: a command, a steer, or a new turn."""
        match commands.parse_input(text, self.session.catalogue):
            case CommandCall() as call:
                self.transcript.add_message(text, agent=self.session.agent)
                self._start_task(self._run_command(call))
            case QueuedTurn(guest="") if self._worker is not None:
                self.pending_steers.append(text)
                self._start_task(self._steer(text))
            case QueuedTurn() as turn:
                self.enqueue_turn(turn)
        self._interface.schedule_redraw()

    def enqueue_turn(self, turn: QueuedTurn) -> None:
        """Run a turn after those that already wait."""
        if self._worker is None:
            self._busy_since = time.monotonic()
            self._worker = self._start_task(self._run_turns(turn))
        elif len(self.queued_turns) < MAX_QUEUED:
            self.queued_turns.append(turn)
        else:
            self.show_notice(
                f"{MAX_QUEUED} messages wait already; it is back in the input", "error"
            )
            self._interface.restore_unsent(turn.text)

    async def stop(self) -> None:
        """Stop what runs now. Queued turns stay in the queue."""
        if not self.is_busy:
            return
        self.is_stopping = True
        self._interface.schedule_redraw()
        await self.session.stop()

    def stop_in_background(self) -> None:
        self._start_task(self.stop())

    async def send_answer(self, form: TerminalForm) -> None:
        question = self.session.approvals.get(form.ask_id)
        if await self.session.answer_question(form.ask_id, form.answers):
            self.transcript.clear_question()
            if question is not None:
                answers = ", ".join(f"{header} {answer}" for header, answer in form.summary)
                self.show_notice(f"answered for {question.sender}: {answers}", "info")
        self._interface.schedule_redraw()

    def send_answer_in_background(self, form: TerminalForm) -> asyncio.Task[None]:
        return self._start_task(self.send_answer(form))

    def cycle_mode(self) -> None:
        """Set the next permission mode."""
        change = self.session.set_mode(get_next_mode(self.session.mode))
        self._start_task(self._await_change(change))

    async def _await_change(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
        except REQUEST_ERRORS as error:
            self.show_notice(explain_error(error) or str(error), "error")

    async def wait_until_idle(self) -> None:
        """Return when nothing runs and nothing waits. Cancelled, it only stops waiting."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run_turns(self, turn: QueuedTurn | None) -> None:
        try:
            while turn is not None:
                await self._run_turn(turn)
                turn = self.queued_turns.popleft() if self.queued_turns else None
        finally:
            self._worker = None
            self._interface.schedule_redraw()

    async def _run_turn(self, turn: QueuedTurn) -> None:
        self._busy_since = time.monotonic()
        agent = self.session.agent
        self.transcript.add_message(turn.text, agent=agent, guest=turn.guest or None)
        self._interface.schedule_redraw()
        try:
            result = await self.session.run_turn(
                turn.text, guest=turn.guest, tool_choice=turn.tool_choice
            )
        finally:
            self.pending_steers.clear()
            self.is_stopping = False
        if result.unsent_text:
            self._interface.restore_unsent(result.unsent_text)

    async def _steer(self, text: str) -> None:
        if not await self.session.steer(text):
            # The turn ended meanwhile, or cannot be steered: the text becomes the next turn.
            if text in self.pending_steers:
                self.pending_steers.remove(text)
            self.enqueue_turn(QueuedTurn(text))
            self._interface.schedule_redraw()

    async def _run_command(self, call: CommandCall) -> None:
        if not self.is_busy:
            self._busy_since = time.monotonic()
        reply = await commands.run_command(call, self.session)
        if not self.is_busy:
            self.is_stopping = False
        if reply.resets_usage:
            self.transcript.usage = None
        if reply.messages:
            self.transcript.add_history(reply.messages)
        if reply.markdown:
            self.transcript.add_markdown(reply.markdown)
        if reply.notice:
            self.transcript.add_notice(reply.notice, reply.kind)
        if reply.turn is not None:
            self.enqueue_turn(reply.turn)
        self._interface.schedule_redraw()
        if reply.reviews_approvals:
            self._interface.review_approvals()
        if reply.leaves_chat:
            self._interface.leave_chat()

    # ── SessionListener ─────────────────────────────────────────────────────────────────────

    def on_stream_event(self, event: wire.StreamEvent) -> None:
        if event.HasField("user_steered") and event.user_steered.content in self.pending_steers:
            self.pending_steers.remove(event.user_steered.content)
        self.transcript.handle_event(event, time.monotonic())
        self._interface.schedule_redraw()

    def on_feed_event(self, event: wire.AgentEventMsg) -> None:
        self.transcript.handle_feed_event(event, time.monotonic())
        self._interface.schedule_redraw()

    def show_notice(self, text: str, kind: NoticeKind) -> None:
        self.transcript.add_notice(text, kind)
        self._interface.schedule_redraw()

    def on_change(self) -> None:
        self._interface.schedule_redraw()

    # ── State ───────────────────────────────────────────────────────────────────────────────

    def build_status(self, hint: str = "", *, is_filling: bool = False) -> StatusLine:
        """`is_filling`: a form is open, so the line does not announce questions, and Esc is the
        form's."""
        session, usage = self.session, self.transcript.usage
        spending = session.spending
        return StatusLine(
            agent=session.agent,
            model=session.model,
            context=usage.usage.prompt_tokens if usage is not None else 0,
            compact_at=self._settings.compact_at,
            limit=session.context_limit,
            cost=spending.format_cost(spending.total.cost) if spending.prices else "",
            state=self._get_state(is_filling=is_filling),
            seconds=time.monotonic() - self._busy_since,
            waiting=len(self.queued_turns),
            hint=hint,
            stops="Ctrl+C" if is_filling else "Esc",
            mode=session.mode,
            approvals=len(session.approvals),
        )

    def describe_asker(self, question: ChatQuestion) -> str:
        """Name the asker and its task; empty if it is the chat's own agent."""
        if self.session.conversation.matches(question.agent, question.sender):
            return ""
        name = question.agent.partition(":")[0]
        task = to_one_line(self.transcript.find_task(question.run_id), MAX_TASK_LABEL)
        return f"{name} ({task})" if task else name

    def _get_state(self, *, is_filling: bool) -> StatusState:
        if self.session.state == "away":
            return "away"
        if self.is_stopping:
            return "stopping"
        if len(self.session.questions) and not is_filling:
            return "asking"
        if self.session.state == "compacting":
            return "compacting"
        return "running" if self.is_busy else "ready"

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
