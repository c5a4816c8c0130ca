"""One conversation of the chat with the daemon: runs, steers and stops turns, answers questions.

It knows no terminal: events go to a SessionListener, on the loop, in order. It reconnects to a
daemon that goes away. Each message has a key, so the client can send it again or follow its turn,
and no message is lost or runs twice.
"""

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from crabtalk.cli.approval_text import summarize_ask
from crabtalk.cli.errors import CommandError, explain_error, is_context_overflow
from crabtalk.cli.options import MODES_UNSUPPORTED
from crabtalk.client import CannotConnectError, Client, ServerError, UnexpectedReplyError
from crabtalk.protocol import FrameError, wire

from .completion import NameCatalogue
from .conversation_reader import ConversationReader
from .feed_follower import ChatFeedFollower
from .pending_questions import ChatQuestion, ChatQuestions
from .prices import Spending
from .reconnecting_client import CONNECTION_ERRORS, NoticeKind, ReconnectingClient
from .turn import StreamedTurn, TurnResult

__all__ = [
    "REQUEST_ERRORS",
    "ChatSession",
    "NoticeKind",
    "SessionListener",
    "SessionState",
    "TurnResult",
]

SessionState = Literal["ready", "running", "compacting", "away"]

DEFAULT_AGENT = "crab"
HISTORY_MESSAGES = 200
# Approvals of other people's runs announced at a time; more are only counted, because a stranger
# could fill the screen otherwise.
MAX_ANNOUNCED = 3
MODE_KEPT_NOTICE = "the turn that runs keeps its mode, {mode}; Esc stops it"
BUSY_NOTICE = "a turn that began elsewhere goes on in this conversation; yours comes after it"
INTERRUPTED_NOTICE = (
    "the daemon went away amid the turn; what was said is kept. “go on” has it finished"
)
UNCONFIRMED_NOTICE = (
    "the daemon went away; /history tells whether it has your message, which is back in the input"
)
CONTEXT_FULL_NOTICE = "more was said than the model reads: /compact folds it, /new begins afresh"
REQUEST_ERRORS = (CommandError, ServerError, UnexpectedReplyError, FrameError, OSError)


class SessionListener(Protocol):
    """Gets what happens in a session. Called on the loop; must not block it."""

    def on_stream_event(self, event: wire.StreamEvent) -> None:
        """Handle an event of the running turn. The last one has `end`, whatever happens."""
        ...

    def on_feed_event(self, event: wire.AgentEventMsg) -> None:
        """Handle an event of a run that a turn of the chat started, or of the turn's own tools."""
        ...

    def show_notice(self, text: str, kind: NoticeKind) -> None: ...

    def on_change(self) -> None:
        """Handle a change of state, questions, catalogue, spending or agent."""
        ...


class ChatSession:
    """Use it as `async with ChatSession(...) as session`.

    Entering connects to the daemon or starts it. It raises the errors that end a command, such as
    CommandError.
    """

    conversation: ConversationReader

    def __init__(
        self,
        listener: SessionListener,
        *,
        home: Path | None = None,
        agent: str = "",
        sender: str = "",
        start: bool = True,
        spending: Spending | None = None,
        mode: str = "",
    ) -> None:
        """`mode` is the mode of this session's turns until another mode is set."""
        self.catalogue = NameCatalogue()
        self.spending = spending or Spending()
        self._listener = listener
        self._daemon = ReconnectingClient(
            home, start=start, notice=listener.show_notice, on_change=listener.on_change
        )
        self._follower = ChatFeedFollower(
            self._daemon,
            on_feed_event=self._handle_feed_event,
            on_change=listener.on_change,
            on_return=self._refresh_soon,
            on_approval=self._announce_approval,
            on_mode_change=self._handle_mode_change,
        )
        self._set_conversation(agent, sender)
        self.mode = mode  # empty while it is not known
        self._session_mode = mode  # sent with each turn
        self._confirmed_mode = mode  # the last mode the daemon has confirmed
        self._mode_lock = asyncio.Lock()
        self._turn: StreamedTurn | None = None
        self._turn_task: asyncio.Task[TurnResult] | None = None
        self._is_compacting = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "ChatSession":
        try:
            await self._daemon.open()
            await self._choose_agent()
        except BaseException:
            await self._daemon.close()
            raise
        self._start_task(self._follower.follow_feed())
        self._refresh_soon()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect. The daemon cancels a running turn; its messages stay."""
        tasks: list[asyncio.Task[Any]] = [*self._tasks]
        if self._turn_task is not None:
            tasks.append(self._turn_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._daemon.close()

    # ── State ───────────────────────────────────────────────────────────────────────────────

    @property
    def client(self) -> Client:
        return self._daemon.client

    @property
    def agent(self) -> str:
        return self.conversation.agent

    @property
    def sender(self) -> str:
        """The sender; empty for the daemon's default."""
        return self.conversation.sender

    @property
    def model(self) -> str:
        """The model that answers next: the agent's own, else the active one."""
        return self.catalogue.get_model(self.agent)

    @property
    def context_limit(self) -> int:
        """The model's context in tokens; 0 if not known."""
        return self.catalogue.get_context_limit(self.agent)

    @property
    def state(self) -> SessionState:
        if self._daemon.is_away:
            return "away"
        if self._is_compacting:
            return "compacting"
        return "running" if self._turn is not None else "ready"

    @property
    def is_busy(self) -> bool:
        """Whether there is something to stop."""
        return self._turn is not None or self._is_compacting

    @property
    def questions(self) -> ChatQuestions:
        """Questions that wait for an answer, from the chat's turns and from earlier ones."""
        return self._follower.questions

    @property
    def approvals(self) -> ChatQuestions:
        """Approvals that wait for the owner, in runs of other people."""
        return self._follower.approvals

    @property
    def recent_events(self) -> Sequence[str]:
        """Recent events of all agents, one line each."""
        return tuple(self._follower.recent_events)

    async def load_history(self, limit: int = HISTORY_MESSAGES) -> list[wire.ConversationMessage]:
        """Load the last messages, oldest first."""
        return await self._daemon.call_with_recovery(lambda: self.conversation.load_last(limit))

    # ── Acting ──────────────────────────────────────────────────────────────────────────────

    async def run_turn(self, text: str, *, guest: str = "", tool_choice: str = "") -> TurnResult:
        """Run a turn and return when it is over. Only one turn runs at a time.

        Errors of the daemon are reported to the listener, not raised. Cancelled, the turn is
        cancelled at the daemon too.
        """
        if self._turn is not None:
            raise RuntimeError("a turn runs already; steer it")
        # A mode change that the daemon has not confirmed yet is sent with the turn, which must not
        # run in a mode other than the one shown.
        mode = self.mode if self.mode != self._confirmed_mode else self._session_mode
        turn = self._turn = StreamedTurn(text, guest, tool_choice, mode)
        self._listener.on_change()
        self._turn_task = asyncio.ensure_future(self._stream_turn(turn))
        try:
            result = await self._turn_task
        except asyncio.CancelledError:
            if not turn.is_given_up:
                raise
            if turn.run_id and not turn.has_begun and self._daemon.is_away:
                sentence = "the daemon may have kept it; /history tells when it is back"
                self._listener.show_notice(sentence, "hint")
            result = TurnResult(None, turn.get_unsent_text())
        except REQUEST_ERRORS as error:
            self._report_error(error)
            result = TurnResult(None, turn.get_unsent_text())
        finally:
            self._turn = self._turn_task = None
            self._follower.settle_run(turn.run_id)
            self._listener.on_change()
        if result.end is None:
            # The listener gets an end also when the daemon sent none.
            self._listener.on_stream_event(wire.StreamEvent(end=turn.make_missing_end(self.agent)))
        elif is_context_overflow(result.end.error):
            self._listener.show_notice(CONTEXT_FULL_NOTICE, "hint")
        self._refresh_soon()
        return result

    async def steer(self, text: str) -> bool:
        """Send a text into the running turn. Returns False if no turn takes it."""
        turn = self._turn
        if turn is None:
            return False
        try:
            await self.client.steer_session(self.agent, text, sender=self.sender)
        except CONNECTION_ERRORS:
            if self._turn is not turn:
                return False
            turn.unsent_steers.append(text)  # returned to the input at the end of the turn
        except REQUEST_ERRORS as error:
            if not is_not_found(error):
                self._report_error(error)
            return False
        return True

    async def stop(self) -> None:
        """Cancel what runs, or the wait for a daemon. Completed messages stay."""
        if (
            self._turn is not None
            and self._turn_task is not None
            and self._is_turn_waiting(self._turn)
        ):
            self._turn.is_given_up = True
            self._turn_task.cancel()
        elif self.is_busy:
            try:
                await self.client.kill(self.agent, sender=self.sender)
            except REQUEST_ERRORS as error:
                self._report_error(error)

    def _is_turn_waiting(self, turn: StreamedTurn) -> bool:
        """Whether the turn waits for a daemon, or for another client's run.

        A kill would end that other run.
        """
        is_behind = not turn.has_begun and bool(self._follower.other_runs)
        return self._daemon.is_away or not turn.run_id or is_behind

    async def answer_question(self, ask_id: str, answers: Mapping[str, str] | str) -> bool:
        """Answer an ask, with a map from question text to answer, or with plain text.

        Returns False if the answer was not taken and may be tried again.
        """
        question = self.questions.get(ask_id) or self.approvals.get(ask_id)
        as_owner = question is not None and question.needs_owner
        agent, sender = (question.agent, question.sender) if question else (self.agent, self.sender)
        text = answers if isinstance(answers, str) else json.dumps(answers, ensure_ascii=False)
        try:
            await self.client.reply_to_ask(
                agent, text, sender=sender, ask_id=ask_id or None, as_owner=as_owner or None
            )
        except REQUEST_ERRORS as error:
            if not is_not_found(error):
                self._report_error(error)
                return False
            self._listener.show_notice("no run waits for that answer any more", "error")
        self.questions.remove_question(ask_id)
        self.approvals.remove_question(ask_id)
        self._listener.on_change()
        return True

    async def load_mode(self) -> wire.ModeInfo:
        """Request the conversation's mode. Raises CommandError and ServerError."""
        async with self._mode_lock:
            return await self._request_mode(None)

    def set_mode(self, mode: str) -> Coroutine[Any, Any, None]:
        """Set the conversation's mode; empty goes back to the agent's.

        `mode` changes at once, so that a second key press continues from it. Awaiting the result
        raises CommandError and ServerError; the mode is then the old one. Cancelled, the daemon may
        have set it.
        """
        self.mode = mode or self.mode
        self._listener.on_change()
        return self._send_mode(mode)

    async def _send_mode(self, mode: str) -> None:
        async with self._mode_lock:
            if mode and self.mode != mode:
                return  # a later key press wants another one
            try:
                await self._request_mode(mode)
            except REQUEST_ERRORS:
                self.mode = self._confirmed_mode
                raise
            finally:
                self._listener.on_change()
            self._warn_of_kept_mode()

    async def compact(self, *, fresh: bool = False) -> str:
        """Compact the history and return its summary; `fresh` archives it without one.

        Raises CommandError and ServerError. `stop` ends it; then nothing has changed.
        """
        self._require_idle()
        self._is_compacting = True
        self._listener.on_change()
        try:
            return await self.client.compact(self.agent, sender=self.sender, fresh=fresh)
        finally:
            self._is_compacting = False
            self._listener.on_change()

    async def switch_agent(self, agent: str) -> None:
        """Switch to the conversation with another agent. Raises CommandError and ServerError."""
        self._require_idle()
        await self.client.get_agent(agent)
        self._set_conversation(agent, self.sender)
        self.mode = self._confirmed_mode = self._session_mode
        self._refresh_soon()
        self._listener.on_change()

    async def refresh_catalogue(self) -> None:
        """Request the names of agents, skills and models. Raises what requests raise."""
        agents, skills = await asyncio.gather(self.client.list_agents(), self.client.list_skills())
        self.catalogue = self.catalogue.with_agents(agents, skills)
        self._listener.on_change()
        self.catalogue = self.catalogue.with_models(await self.client.list_models())
        self._listener.on_change()
        if not self._session_mode:
            with suppress(CommandError, ServerError):  # the status line shows no mode then
                await self.load_mode()
            self._listener.on_change()

    # ── The running turn ────────────────────────────────────────────────────────────────────

    async def _stream_turn(self, turn: StreamedTurn) -> TurnResult:
        while True:
            try:
                end = await turn.stream(self.client, self.conversation, self._handle_turn_event)
                return TurnResult(end, await self._find_unsent_text(turn, end))
            except CannotConnectError:  # it was not sent
                await self._daemon.recover(wanted=True)
            except ServerError as error:
                self._report_error(error)
                return TurnResult(None, turn.get_unsent_text())
            except CONNECTION_ERRORS:
                self._listener.show_notice(
                    INTERRUPTED_NOTICE if turn.has_begun else UNCONFIRMED_NOTICE, "hint"
                )
                return TurnResult(None, turn.get_unsent_text())

    async def _find_unsent_text(self, turn: StreamedTurn, end: wire.StreamEnd) -> str:
        """Return text that is not in the conversation, as of a turn that failed before storage."""
        if not end.error:
            return turn.join_unsent_text(is_stored=True)
        is_stored = await self._daemon.call_with_recovery(
            lambda: turn.is_stored(self.client, self.conversation)
        )
        return turn.join_unsent_text(is_stored=is_stored)

    def _handle_turn_event(self, turn: StreamedTurn, name: str, event: wire.StreamEvent) -> None:
        match name:
            case "start":
                if event.start.mode and not turn.guest and not self._mode_lock.locked():
                    self.mode = self._confirmed_mode = event.start.mode
                self._follower.add_own_run(turn.run_id)
                if self._follower.other_runs:
                    self._listener.show_notice(BUSY_NOTICE, "info")
            case "ask_user":
                self._follower.add_question(
                    ChatQuestion(self.agent, self.sender, turn.run_id, event.ask_user)
                )
            case "tools_complete":
                self._follower.settle_run(turn.run_id)
            case "end":
                self.spending.add_turn(event.end)
        self._listener.on_stream_event(event)

    def _handle_feed_event(self, event: wire.AgentEventMsg) -> None:
        if event.kind == wire.DONE and event.HasField("usage"):
            self.spending.add_delegated(event.model, event.usage)
        self._listener.on_feed_event(event)

    def _announce_approval(self, question: ChatQuestion) -> None:
        if len(self.approvals) <= MAX_ANNOUNCED:
            self._listener.show_notice(
                f"{summarize_ask(question.ask)}; review with /approvals", "hint"
            )

    def _handle_mode_change(self, mode: str) -> None:
        """Check a mode change, made here or by another client.

        The event may be late and outdated by another change, so the daemon is asked.
        """
        if mode != self.mode:
            self._start_task(self._check_mode())

    async def _check_mode(self) -> None:
        before, conversation = self.mode, self.conversation
        with suppress(*REQUEST_ERRORS):
            async with self._mode_lock:
                if self.mode != before or self.conversation is not conversation:
                    return  # changed here meanwhile
                info = await self._request_mode(None)
            if self.conversation is not conversation:
                return
            if self.mode == before != info.mode:  # a mode of this session held until now
                self.mode = self._confirmed_mode = info.mode
                self._session_mode = ""
            if self.mode == info.mode != before:
                self._listener.show_notice(f"another client set the mode to {self.mode}", "info")
                self._warn_of_kept_mode()
                self._listener.on_change()

    def _warn_of_kept_mode(self) -> None:
        """Tell the person that a turn sent with its own mode does not follow the new one."""
        if self._turn is not None and self._turn.mode not in ("", self.mode):
            self._listener.show_notice(MODE_KEPT_NOTICE.format(mode=self._turn.mode), "hint")

    async def _request_mode(self, mode: str | None) -> wire.ModeInfo:
        before, conversation = self.mode, self.conversation
        try:
            info = await self.client.set_mode(self.agent, mode, sender=self.sender or None)
        except ServerError as error:
            if error.code == 501:
                raise CommandError(MODES_UNSUPPORTED) from None
            raise
        if self.conversation is not conversation:
            return info  # the chat has switched to another agent meanwhile
        if mode is not None:
            self._session_mode = ""
        self._confirmed_mode = self._session_mode or info.mode
        if self.mode == before:  # else a key was pressed meanwhile
            self.mode = self._confirmed_mode
        return info

    # ── Agents and background tasks ─────────────────────────────────────────────────────────

    async def _choose_agent(self) -> None:
        """Choose the named agent, else `crab`, else the first one."""
        agents = await self.client.list_agents()
        self.catalogue = self.catalogue.with_agents(agents, wire.SkillList())
        names = [agent.name for agent in agents.agents]
        if not names:
            raise CommandError("there are no agents; `crabtalk agents create crab` makes one")
        if self.agent and self.agent not in names:
            known = ", ".join(names[:20])
            raise CommandError(f"no agent is called {self.agent!r}; there are: {known}")
        if not self.agent:
            self._set_conversation(
                DEFAULT_AGENT if DEFAULT_AGENT in names else names[0], self.sender
            )

    def _set_conversation(self, agent: str, sender: str) -> None:
        self.conversation = ConversationReader(self.client, agent, sender)
        self._follower.set_conversation(self.conversation)

    def _require_idle(self) -> None:
        if self.is_busy:
            raise CommandError("a turn runs; stop it first, with Esc")

    async def _refresh_quietly(self) -> None:
        with suppress(*REQUEST_ERRORS):  # it runs in the background; the old catalogue stays usable
            await self.refresh_catalogue()

    def _refresh_soon(self) -> None:
        self._start_task(self._refresh_quietly())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report_error(self, error: Exception) -> None:
        self._listener.show_notice(explain_error(error) or str(error), "error")


def is_not_found(error: Exception) -> bool:
    """Whether a request failed because its object does not exist."""
    return isinstance(error, ServerError) and error.code == 404
