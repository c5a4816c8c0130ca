"""Session: one conversation of the chat with the daemon. Says, steers, stops, answers.

It knows no terminal: what happens goes to a Listener, on the loop, in order. A daemon that goes
away is found again. Each message has a key, so the client sends it again or follows its turn, and
nothing that was said is lost or runs twice.
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
HISTORY_MESSAGES = 200  # messages a chat opens with
# Approvals of other people's runs that are announced; more are only counted. A stranger could fill
# the screen otherwise.
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
    """Who is told. Called on the loop; must not block it."""

    def on_stream_event(self, event: wire.StreamEvent) -> None:
        """An event of the turn that `say` began. The last one has `end`, whatever happens."""
        ...

    def on_feed_event(self, event: wire.AgentEventMsg) -> None:
        """What happens in runs that a turn of the chat set off, and to its own tools."""
        ...

    def show_notice(self, text: str, kind: NoticeKind) -> None: ...

    def on_change(self) -> None:
        """State, questions, catalogue, spending or agent are not what they were."""
        ...


class ChatSession:
    """Use it as `async with Session(...) as session`. Entering finds or starts the daemon, and
    raises what a command would end with."""

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
        """`mode` holds for the turns of this session, until somebody sets another."""
        self.catalogue = NameCatalogue()
        self.spending = spending or Spending()
        self._listener = listener
        self._daemon = ReconnectingClient(
            home, start=start, notice=listener.show_notice, changed=listener.on_change
        )
        self._follower = ChatFeedFollower(
            self._daemon,
            followed=self._handle_feed_event,
            changed=listener.on_change,
            returned=self._refresh_soon,
            requested=self._announce_approval,
            mode_changed=self._handle_mode_change,
        )
        self._set_conversation(agent, sender)
        self.mode = mode  # empty while it is not known
        self._session_mode = mode  # sent with each turn
        self._confirmed_mode = mode  # the last one that holds, as far as the daemon has said
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
        """A turn that runs is cancelled by the daemon; what was said stays."""
        tasks: list[asyncio.Task[Any]] = [*self._tasks]
        if self._turn_task is not None:
            tasks.append(self._turn_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._daemon.close()

    # ── What is so ──────────────────────────────────────────────────────────────────────────

    @property
    def client(self) -> Client:
        return self._daemon.client

    @property
    def agent(self) -> str:
        return self.conversation.agent

    @property
    def sender(self) -> str:
        """Empty for the daemon's own name for a person."""
        return self.conversation.sender

    @property
    def model(self) -> str:
        """That answers next: the agent's own, else the active one."""
        return self.catalogue.get_model(self.agent)

    @property
    def context_limit(self) -> int:
        """Tokens that model reads at once; 0 where that is not known."""
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
        """That wait for an answer, from turns of the chat and from those before it."""
        return self._follower.questions

    @property
    def approvals(self) -> ChatQuestions:
        """That wait for the owner, in runs of other people."""
        return self._follower.approvals

    @property
    def recent_events(self) -> Sequence[str]:
        """What agents did lately, any of them, a line each."""
        return tuple(self._follower.recent_events)

    async def load_history(self, limit: int = HISTORY_MESSAGES) -> list[wire.ConversationMessage]:
        """The last messages, oldest first."""
        return await self._daemon.call_with_recovery(lambda: self.conversation.load_last(limit))

    # ── Acting ──────────────────────────────────────────────────────────────────────────────

    async def run_turn(self, text: str, *, guest: str = "", tool_choice: str = "") -> TurnResult:
        """Runs a turn and returns when it is over, one at a time. Raises nothing a daemon can be
        the cause of. Cancelled, the turn is cancelled at the daemon too."""
        if self._turn is not None:
            raise RuntimeError("a turn runs already; steer it")
        # A change that the daemon has not confirmed yet goes with the turn: it must not run in a
        # mode other than the one that is shown.
        mode = self.mode if self.mode != self._confirmed_mode else self._session_mode
        turn = self._turn = StreamedTurn(text, guest, tool_choice, mode)
        self._listener.on_change()
        self._turn_task = asyncio.ensure_future(self._stream_turn(turn))
        try:
            said = await self._turn_task
        except asyncio.CancelledError:
            if not turn.is_given_up:
                raise
            if turn.run_id and not turn.has_begun and self._daemon.is_away:
                sentence = "the daemon may have kept it; /history tells when it is back"
                self._listener.show_notice(sentence, "hint")
            said = TurnResult(None, turn.get_unsent_text())
        except REQUEST_ERRORS as error:
            self._report_error(error)
            said = TurnResult(None, turn.get_unsent_text())
        finally:
            self._turn = self._turn_task = None
            self._follower.settle_run(turn.run_id)
            self._listener.on_change()
        if said.end is None:
            # Whoever shows the turn hears that it is over, also when the daemon cannot say so.
            self._listener.on_stream_event(wire.StreamEvent(end=turn.make_missing_end(self.agent)))
        elif is_context_overflow(said.end.error):
            self._listener.show_notice(CONTEXT_FULL_NOTICE, "hint")
        self._refresh_soon()
        return said

    async def steer(self, text: str) -> bool:
        """Says something into the turn that runs. False when none takes it: say it instead."""
        turn = self._turn
        if turn is None:
            return False
        try:
            await self.client.steer_session(self.agent, text, sender=self.sender)
        except CONNECTION_ERRORS:
            if self._turn is not turn:
                return False
            turn.unsent_steers.append(text)  # they come back to the input with the end of the turn
        except REQUEST_ERRORS as error:
            if not is_not_found(error):
                self._report_error(error)
            return False
        return True

    async def stop(self) -> None:
        """Cancels what runs, or the wait for a daemon. What was complete stays."""
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
        """For a daemon, or behind a run of somebody else's: which is what a kill would end."""
        is_behind = not turn.has_begun and bool(self._follower.other_runs)
        return self._daemon.is_away or not turn.run_id or is_behind

    async def answer_question(self, ask_id: str, answers: Mapping[str, str] | str) -> bool:
        """Answers a question: from the text of each to what was chosen, or in plain words. False
        when it was not taken, and may be tried again."""
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
            self._listener.show_notice("nobody waits for that answer any more", "error")
        self.questions.remove_question(ask_id)
        self.approvals.remove_question(ask_id)
        self._listener.on_change()
        return True

    async def load_mode(self) -> wire.ModeInfo:
        """Asks for the conversation's mode. Raises CommandError and ServerError."""
        async with self._mode_lock:
            return await self._request_mode(None)

    def set_mode(self, mode: str) -> Coroutine[Any, Any, None]:
        """Sets the conversation's mode; empty goes back to the agent's.

        It is shown at once, so that a second press of a key goes on from it. What is awaited raises
        CommandError and ServerError, and the mode is what it was then. Cancelled, it may have been
        set.
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
        """Folds the history away and returns its summary; `fresh` closes it without one.

        Raises CommandError and ServerError. `stop` ends it, and nothing has changed then.
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
        """To the conversation with another agent. Raises CommandError and ServerError."""
        self._require_idle()
        await self.client.get_agent(agent)
        self._set_conversation(agent, self.sender)
        self.mode = self._confirmed_mode = self._session_mode
        self._refresh_soon()
        self._listener.on_change()

    async def refresh_catalogue(self) -> None:
        """Asks what there is to be named. Raises what requests do."""
        agents, skills = await asyncio.gather(self.client.list_agents(), self.client.list_skills())
        self.catalogue = self.catalogue.with_agents(agents, skills)
        self._listener.on_change()
        self.catalogue = self.catalogue.with_models(await self.client.list_models())
        self._listener.on_change()
        if not self._session_mode:
            with suppress(CommandError, ServerError):  # the status line shows no mode then
                await self.load_mode()
            self._listener.on_change()

    # ── A turn, and what cuts it ────────────────────────────────────────────────────────────

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
        """What is not in the conversation, as after a turn that failed before it could be kept."""
        if not end.error:
            return turn.join_unsent_text(is_kept=True)
        is_kept = await self._daemon.call_with_recovery(
            lambda: turn.is_stored(self.client, self.conversation)
        )
        return turn.join_unsent_text(is_kept=is_kept)

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
        """It was changed, here or by another client. The event may be late, and tell of a change
        that another one has followed since: so the daemon is asked."""
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
        """A turn that was sent with a mode of its own does not follow the conversation's."""
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
            return info  # the chat has turned to another agent meanwhile
        if mode is not None:
            self._session_mode = ""
        self._confirmed_mode = self._session_mode or info.mode
        if self.mode == before:  # else a key was pressed meanwhile
            self.mode = self._confirmed_mode
        return info

    # ── Beside the turns ────────────────────────────────────────────────────────────────────

    async def _choose_agent(self) -> None:
        """The one that was named, else `crab`, else the first there is."""
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
        with suppress(*REQUEST_ERRORS):  # nobody waits for it, and an old one is better than none
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
    """Whether what a request was about is not there."""
    return isinstance(error, ServerError) and error.code == 404
