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

from crabtalk.client import CannotConnectError, Client, ServerError, UnexpectedReplyError
from crabtalk.protocol import FrameError, wire
from crabtalk_tui.approval_text import summarize_ask
from crabtalk_tui.complaints import CommandError, complaint, is_too_long
from crabtalk_tui.options import NO_MODES

from .candidates import Catalogue
from .conversation import Conversation
from .following import Follower
from .prices import Spending
from .questions import Question, Questions
from .reach import AWAY, Kind, Reach
from .turn import Said, Turn

__all__ = ["FAILURES", "Kind", "Listener", "Said", "Session", "State"]

State = Literal["ready", "running", "compacting", "away"]

DEFAULT_AGENT = "crab"
HISTORY = 200  # messages a chat opens with
# Approvals of other people's runs that are announced; more are only counted. A stranger could fill
# the screen otherwise.
ANNOUNCED = 3
KEEPS_MODE = "the turn that runs keeps its mode, {mode}; Esc stops it"
BEHIND = "a turn that began elsewhere goes on in this conversation; yours comes after it"
CUT = "the daemon went away amid the turn; what was said is kept. “go on” has it finished"
UNKNOWN = (
    "the daemon went away; /history tells whether it has your message, which is back in the input"
)
FULL = "more was said than the model reads: /compact folds it, /new begins afresh"
FAILURES = (CommandError, ServerError, UnexpectedReplyError, FrameError, OSError)


class Listener(Protocol):
    """Who is told. Called on the loop; must not block it."""

    def streamed(self, event: wire.StreamEvent) -> None:
        """An event of the turn that `say` began. The last one has `end`, whatever happens."""
        ...

    def followed(self, event: wire.AgentEventMsg) -> None:
        """What happens in runs that a turn of the chat set off, and to its own tools."""
        ...

    def noticed(self, text: str, kind: Kind) -> None: ...

    def changed(self) -> None:
        """State, questions, catalogue, spending or agent are not what they were."""
        ...


class Session:
    """Use it as `async with Session(...) as session`. Entering finds or starts the daemon, and
    raises what a command would end with."""

    conversation: Conversation

    def __init__(
        self,
        listener: Listener,
        *,
        home: Path | None = None,
        agent: str = "",
        sender: str = "",
        start: bool = True,
        spending: Spending | None = None,
        mode: str = "",
    ) -> None:
        """`mode` holds for the turns of this session, until somebody sets another."""
        self.catalogue = Catalogue()
        self.spending = spending or Spending()
        self._listener = listener
        self._reach = Reach(home, start=start, notice=listener.noticed, changed=listener.changed)
        self._follower = Follower(
            self._reach,
            followed=self._follow,
            changed=listener.changed,
            returned=self._refresh_soon,
            requested=self._announce_approval,
            mode_changed=self._note_mode,
        )
        self._turn_to(agent, sender)
        self.mode = mode  # empty while it is not known
        self._own_mode = mode  # sent with each turn
        self._known_mode = mode  # the last one that holds, as far as the daemon has said
        self._mode_changes = asyncio.Lock()
        self._turn: Turn | None = None
        self._saying: asyncio.Task[Said] | None = None
        self._is_compacting = False
        self._background: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Session":
        try:
            await self._reach.open()
            await self._choose_agent()
        except BaseException:
            await self._reach.close()
            raise
        self._in_background(self._follower.follow())
        self._refresh_soon()
        return self

    async def __aexit__(self, *_: object) -> None:
        """A turn that runs is cancelled by the daemon; what was said stays."""
        tasks: list[asyncio.Task[Any]] = [*self._background]
        if self._saying is not None:
            tasks.append(self._saying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reach.close()

    # ── What is so ──────────────────────────────────────────────────────────────────────────

    @property
    def client(self) -> Client:
        return self._reach.client

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
        return self.catalogue.model_of(self.agent)

    @property
    def context_limit(self) -> int:
        """Tokens that model reads at once; 0 where that is not known."""
        return self.catalogue.limit_of(self.agent)

    @property
    def state(self) -> State:
        if self._reach.is_away:
            return "away"
        if self._is_compacting:
            return "compacting"
        return "running" if self._turn is not None else "ready"

    @property
    def is_busy(self) -> bool:
        """Whether there is something to stop."""
        return self._turn is not None or self._is_compacting

    @property
    def questions(self) -> Questions:
        """That wait for an answer, from turns of the chat and from those before it."""
        return self._follower.questions

    @property
    def approvals(self) -> Questions:
        """That wait for the owner, in runs of other people."""
        return self._follower.approvals

    @property
    def happened(self) -> Sequence[str]:
        """What agents did lately, any of them, a line each."""
        return tuple(self._follower.happened)

    async def history(self, limit: int = HISTORY) -> list[wire.ConversationMessage]:
        """The last messages, oldest first."""
        return await self._reach.call(lambda: self.conversation.last(limit))

    # ── Acting ──────────────────────────────────────────────────────────────────────────────

    async def say(self, text: str, *, guest: str = "", tool_choice: str = "") -> Said:
        """Runs a turn and returns when it is over, one at a time. Raises nothing a daemon can be
        the cause of. Cancelled, the turn is cancelled at the daemon too."""
        if self._turn is not None:
            raise RuntimeError("a turn runs already; steer it")
        # A change that the daemon has not confirmed yet goes with the turn: it must not run in a
        # mode other than the one that is shown.
        mode = self.mode if self.mode != self._known_mode else self._own_mode
        turn = self._turn = Turn(text, guest, tool_choice, mode)
        self._listener.changed()
        self._saying = asyncio.ensure_future(self._carry_out(turn))
        try:
            said = await self._saying
        except asyncio.CancelledError:
            if not turn.given_up:
                raise
            if turn.run_id and not turn.has_begun and self._reach.is_away:
                sentence = "the daemon may have kept it; /history tells when it is back"
                self._listener.noticed(sentence, "hint")
            said = Said(None, turn.unheard())
        except FAILURES as error:
            self._complain(error)
            said = Said(None, turn.unheard())
        finally:
            self._turn = self._saying = None
            self._follower.settled(turn.run_id)
            self._listener.changed()
        if said.end is None:
            # Whoever shows the turn hears that it is over, also when the daemon cannot say so.
            self._listener.streamed(wire.StreamEvent(end=turn.cut_end(self.agent)))
        elif is_too_long(said.end.error):
            self._listener.noticed(FULL, "hint")
        self._refresh_soon()
        return said

    async def steer(self, text: str) -> bool:
        """Says something into the turn that runs. False when none takes it: say it instead."""
        turn = self._turn
        if turn is None:
            return False
        try:
            await self.client.steer_session(self.agent, text, sender=self.sender)
        except AWAY:
            if self._turn is not turn:
                return False
            turn.steers.append(text)  # they come back to the input with the end of the turn
        except FAILURES as error:
            if not is_missing(error):
                self._complain(error)
            return False
        return True

    async def stop(self) -> None:
        """Cancels what runs, or the wait for a daemon. What was complete stays."""
        if self._turn is not None and self._saying is not None and self._is_waiting(self._turn):
            self._turn.given_up = True
            self._saying.cancel()
        elif self.is_busy:
            try:
                await self.client.kill(self.agent, sender=self.sender)
            except FAILURES as error:
                self._complain(error)

    def _is_waiting(self, turn: Turn) -> bool:
        """For a daemon, or behind a run of somebody else's: which is what a kill would end."""
        is_behind = not turn.has_begun and bool(self._follower.others)
        return self._reach.is_away or not turn.run_id or is_behind

    async def reply(self, ask_id: str, answers: Mapping[str, str] | str) -> bool:
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
        except FAILURES as error:
            if not is_missing(error):
                self._complain(error)
                return False
            self._listener.noticed("nobody waits for that answer any more", "error")
        self.questions.answered(ask_id)
        self.approvals.answered(ask_id)
        self._listener.changed()
        return True

    async def load_mode(self) -> wire.ModeInfo:
        """Asks for the conversation's mode. Raises CommandError and ServerError."""
        async with self._mode_changes:
            return await self._request_mode(None)

    def set_mode(self, mode: str) -> Coroutine[Any, Any, None]:
        """Sets the conversation's mode; empty goes back to the agent's.

        It is shown at once, so that a second press of a key goes on from it. What is awaited raises
        CommandError and ServerError, and the mode is what it was then. Cancelled, it may have been
        set.
        """
        self.mode = mode or self.mode
        self._listener.changed()
        return self._send_mode(mode)

    async def _send_mode(self, mode: str) -> None:
        async with self._mode_changes:
            if mode and self.mode != mode:
                return  # a later key press wants another one
            try:
                await self._request_mode(mode)
            except FAILURES:
                self.mode = self._known_mode
                raise
            finally:
                self._listener.changed()
            self._warn_of_kept_mode()

    async def compact(self, *, fresh: bool = False) -> str:
        """Folds the history away and returns its summary; `fresh` closes it without one.

        Raises CommandError and ServerError. `stop` ends it, and nothing has changed then.
        """
        self._must_be_idle()
        self._is_compacting = True
        self._listener.changed()
        try:
            return await self.client.compact(self.agent, sender=self.sender, fresh=fresh)
        finally:
            self._is_compacting = False
            self._listener.changed()

    async def switch(self, agent: str) -> None:
        """To the conversation with another agent. Raises CommandError and ServerError."""
        self._must_be_idle()
        await self.client.get_agent(agent)
        self._turn_to(agent, self.sender)
        self.mode = self._known_mode = self._own_mode
        self._refresh_soon()
        self._listener.changed()

    async def refresh(self) -> None:
        """Asks what there is to be named. Raises what requests do."""
        agents, skills = await asyncio.gather(self.client.list_agents(), self.client.list_skills())
        self.catalogue = self.catalogue.with_agents(agents, skills)
        self._listener.changed()
        self.catalogue = self.catalogue.with_models(await self.client.list_models())
        self._listener.changed()
        if not self._own_mode:
            with suppress(CommandError, ServerError):  # the status line shows no mode then
                await self.load_mode()
            self._listener.changed()

    # ── A turn, and what cuts it ────────────────────────────────────────────────────────────

    async def _carry_out(self, turn: Turn) -> Said:
        while True:
            try:
                end = await turn.stream(self.client, self.conversation, self._hear)
                return Said(end, await self._unsent(turn, end))
            except CannotConnectError:  # it was not sent
                await self._reach.recover(wanted=True)
            except ServerError as error:
                self._complain(error)
                return Said(None, turn.unheard())
            except AWAY:
                self._listener.noticed(CUT if turn.has_begun else UNKNOWN, "hint")
                return Said(None, turn.unheard())

    async def _unsent(self, turn: Turn, end: wire.StreamEnd) -> str:
        """What is not in the conversation, as after a turn that failed before it could be kept."""
        if not end.error:
            return turn.unsent(is_kept=True)
        is_kept = await self._reach.call(lambda: turn.is_kept(self.client, self.conversation))
        return turn.unsent(is_kept=is_kept)

    def _hear(self, turn: Turn, name: str, event: wire.StreamEvent) -> None:
        match name:
            case "start":
                if event.start.mode and not turn.guest and not self._mode_changes.locked():
                    self.mode = self._known_mode = event.start.mode
                self._follower.begin(turn.run_id)
                if self._follower.others:
                    self._listener.noticed(BEHIND, "info")
            case "ask_user":
                self._follower.asked(Question(self.agent, self.sender, turn.run_id, event.ask_user))
            case "tools_complete":
                self._follower.settled(turn.run_id)
            case "end":
                self.spending.add(event.end)
        self._listener.streamed(event)

    def _follow(self, event: wire.AgentEventMsg) -> None:
        if event.kind == wire.DONE and event.HasField("usage"):
            self.spending.add_delegated(event.model, event.usage)
        self._listener.followed(event)

    def _announce_approval(self, question: Question) -> None:
        if len(self.approvals) <= ANNOUNCED:
            self._listener.noticed(f"{summarize_ask(question.ask)}; review with /approvals", "hint")

    def _note_mode(self, mode: str) -> None:
        """It was changed, here or by another client. The event may be late, and tell of a change
        that another one has followed since: so the daemon is asked."""
        if mode != self.mode:
            self._in_background(self._check_mode())

    async def _check_mode(self) -> None:
        before, conversation = self.mode, self.conversation
        with suppress(*FAILURES):
            async with self._mode_changes:
                if self.mode != before or self.conversation is not conversation:
                    return  # changed here meanwhile
                info = await self._request_mode(None)
            if self.conversation is not conversation:
                return
            if self.mode == before != info.mode:  # a mode of this session held until now
                self.mode = self._known_mode = info.mode
                self._own_mode = ""
            if self.mode == info.mode != before:
                self._listener.noticed(f"another client set the mode to {self.mode}", "info")
                self._warn_of_kept_mode()
                self._listener.changed()

    def _warn_of_kept_mode(self) -> None:
        """A turn that was sent with a mode of its own does not follow the conversation's."""
        if self._turn is not None and self._turn.mode not in ("", self.mode):
            self._listener.noticed(KEEPS_MODE.format(mode=self._turn.mode), "hint")

    async def _request_mode(self, mode: str | None) -> wire.ModeInfo:
        before, conversation = self.mode, self.conversation
        try:
            info = await self.client.set_mode(self.agent, mode, sender=self.sender or None)
        except ServerError as error:
            if error.code == 501:
                raise CommandError(NO_MODES) from None
            raise
        if self.conversation is not conversation:
            return info  # the chat has turned to another agent meanwhile
        if mode is not None:
            self._own_mode = ""
        self._known_mode = self._own_mode or info.mode
        if self.mode == before:  # else a key was pressed meanwhile
            self.mode = self._known_mode
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
            self._turn_to(DEFAULT_AGENT if DEFAULT_AGENT in names else names[0], self.sender)

    def _turn_to(self, agent: str, sender: str) -> None:
        self.conversation = Conversation(self.client, agent, sender)
        self._follower.turn_to(self.conversation)

    def _must_be_idle(self) -> None:
        if self.is_busy:
            raise CommandError("a turn runs; stop it first, with Esc")

    async def _refreshed(self) -> None:
        with suppress(*FAILURES):  # nobody waits for it, and an old one is better than none
            await self.refresh()

    def _refresh_soon(self) -> None:
        self._in_background(self._refreshed())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _complain(self, error: Exception) -> None:
        self._listener.noticed(complaint(error) or str(error), "error")


def is_missing(error: Exception) -> bool:
    """Whether what a request was about is not there."""
    return isinstance(error, ServerError) and error.code == 404
