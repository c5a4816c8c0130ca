"""Runtime: the engine. Agents, conversations, runs; storage and a provider behind them.

It opens no socket, starts no process, and knows no protocol. What it needs of the outside world is
Storage, Provider and Env, and all but the first two have defaults.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Collection, Coroutine, Mapping
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar, Unpack

from crabtalk.model import ApiError, Provider
from crabtalk.storage import (
    Agent,
    AgentError,
    Archive,
    Pair,
    Storage,
    StorageError,
    StorageUnavailableError,
    log_name,
)

from .backend import Backend
from .clock import Clock
from .compaction import next_name, summarise, title_of, transcript
from .conversation import Conversation, Place, to_the_end
from .conversations import Conversations
from .errors import (
    BusyError,
    CompactionError,
    NothingInFlightError,
    NothingToCompactError,
    RuntimeRefusalError,
    UnknownAgentError,
    UnknownConversationError,
    UnknownToolError,
)
from .events import Compacted, Done, Event, Started, StopReason
from .hook import Env
from .limits import Limits
from .run import Parent, Run
from .search import SessionIndex
from .turn import Turn

log = logging.getLogger(__name__)

DEFAULT_SENDER = "user"
TITLE_LENGTH = 200
# What a turn may say of tools; anything else is the name of one.
CHOICES = frozenset({"", "auto", "none", "required"})
T = TypeVar("T")


class TurnOptions(TypedDict, total=False):
    """How a turn may differ from a plain one."""

    sender: str  # empty: `user`
    guest: str  # the agent that speaks in the other's place
    cwd: Path | None  # for this run only
    tool_choice: str
    parent: Parent | None
    verbatim: bool  # the content is not looked through for commands
    detached: bool  # the run goes on when its listener leaves
    chain: int  # events that led to it, one after another


class Runtime:
    def __init__(
        self,
        storage: Storage,
        provider: Provider,
        env: Env | None = None,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        index: SessionIndex | None = None,
    ) -> None:
        self.storage = storage
        self.env = env or Env()
        self.limits = limits or Limits()
        self.clock = clock or Clock()
        self.index = index
        kept = index.appended if index is not None else None
        self.conversations = Conversations(storage, self.limits, self.clock, kept)
        self._agents: dict[str, Agent] = {}  # as they were written
        self._made: dict[str, Agent] = {}  # for one task each; nobody can address them by name
        self._built: dict[str, Agent] = {}  # as they run
        self._backend = Backend(provider)
        self._retiring: set[asyncio.Task[None]] = set()
        self._runs: set[Run] = set()
        self._held = 0  # bytes of what was said in them

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    @property
    def agents(self) -> Mapping[str, Agent]:
        """Those that can be addressed, as they were written."""
        return MappingProxyType(self._agents)

    def register(self, agent: Agent) -> None:
        """Adds an agent, or puts another in its place. Runs in flight keep the one they have."""
        built = self.env.hook.on_build_agent(agent)
        self.env.hook.on_register_agent(agent.name, agent)
        self._agents[agent.name] = agent
        # What an agent is told may speak of the others, so all are built anew when next used.
        self._built = {agent.name: built}

    def unregister(self, name: str) -> None:
        if self._agents.pop(name, None) is not None:
            self._built.clear()
            self.env.hook.on_unregister_agent(name)

    def adopt(self, agent: Agent) -> None:
        """An agent for a task: it runs as others do, but is not listed, kept, or reloaded."""
        self.env.hook.on_register_agent(agent.name, agent)
        self._made[agent.name] = agent

    def dismiss(self, name: str) -> None:
        """Its task is over. A run that is still in flight keeps what it has."""
        if self._made.pop(name, None) is not None:
            self._built.pop(name, None)
            self.env.hook.on_unregister_agent(name)

    def written(self, name: str) -> Agent:
        """As it was written. Raises UnknownAgentError."""
        try:
            return self._made.get(name) or self._agents[name]
        except KeyError:
            known = ", ".join(sorted(self._agents)) or "none yet"
            sentence = f"no agent is called {name[:80]!r}; there are: {known[:400]}"
            raise UnknownAgentError(sentence) from None

    async def load_agents(self) -> dict[str, str]:
        """Registers what storage has, and forgets what it no longer has.

        Returns those that cannot be used, by name, with a sentence why. One that was registered
        before it broke stays as it was.
        """
        found, broken = await self.storage.agents()
        self._built.clear()
        for agent in found:
            if self._agents.get(agent.name) == agent:
                continue
            try:
                self.register(agent)
            except AgentError as error:
                broken[agent.name] = str(error)
            except Exception as error:
                log.exception("the agent %s cannot be registered", agent.name)
                broken[agent.name] = str(error)
        for name in self._agents.keys() - {agent.name for agent in found} - broken.keys():
            self.unregister(name)
        return broken

    def agent(self, name: str) -> Agent:
        """As it runs. Raises UnknownAgentError."""
        if (built := self._built.get(name)) is not None:
            return built
        return self._built.setdefault(name, self.env.hook.on_build_agent(self.written(name)))

    # ── The provider ────────────────────────────────────────────────────────────────────────

    @property
    def provider(self) -> Provider:
        return self._backend.provider

    def use(self, provider: Provider) -> None:
        """From now on. Runs in flight finish on the one they have, which is closed after them."""
        old, self._backend = self._backend, Backend(provider)
        task = asyncio.ensure_future(old.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def start(self, agent: str, content: str, **options: Unpack[TurnOptions]) -> Run:
        """Begins a turn, at once: turns of a conversation run in the order of these calls.

        Raises UnknownAgentError, UnknownToolError and BusyError; everything later is in the run's
        Done.
        """
        primary = self.agent(agent)
        choice = options.get("tool_choice", "")
        if choice not in CHOICES and choice not in (names := self._tool_names(primary)):
            sentence = f"{agent} has no tool called {choice[:80]!r} to choose; it has {names}"
            raise UnknownToolError(sentence)
        guest = options.get("guest", "")
        run = self._new_run(
            Pair(agent, options.get("sender") or DEFAULT_SENDER),
            guest,
            options.get("cwd"),
            options.get("parent"),
        )
        run.detached = options.get("detached", False)
        run.chain = options.get("chain", 0)
        run.said = content
        if not options.get("verbatim"):
            content = self.env.hook.preprocess(agent, content) or content
        self.env.hook.on_turn(run, content)
        self._hold(run, content)
        conversation = self.conversations.get(run.pair)
        place = conversation.join(run.id)
        run.emit(Started(run.speaker, run.id))
        self._own(run, self._turn(run, conversation, place, primary, guest, content, choice))
        return run

    def _tool_names(self, agent: Agent) -> list[str]:
        return [tool.name for tool in self.env.tools(agent)]

    async def stream(
        self, agent: str, content: str, **options: Unpack[TurnOptions]
    ) -> AsyncGenerator[Event, None]:
        """A turn's events. Closed early, the run is killed, unless it is detached."""
        run = self.start(agent, content, **options)
        async with aclosing(run.events()) as events:
            async for event in events:
                yield event

    async def send(self, agent: str, content: str, **options: Unpack[TurnOptions]) -> Done:
        """A turn, when it is over. Cancelled, the run goes on."""
        return await self.start(agent, content, **options).wait()

    def _new_run(
        self, pair: Pair, guest: str = "", cwd: Path | None = None, parent: Parent | None = None
    ) -> Run:
        if len(self._runs) >= self.limits.runs:
            raise BusyError(f"{len(self._runs)} turns are running or waiting; try again later")
        return Run(
            self.clock.new_id(),
            pair,
            guest or pair.agent,
            self.env,
            self.limits.stream_events,
            cwd=cwd or self.env.cwd,
            is_guest=bool(guest),
            parent=parent,
        )

    def _hold(self, run: Run, text: str) -> None:
        """Takes note of a text that stays in memory as long as its run. Raises BusyError."""
        if self._held + len(text) > self.limits.held_bytes:
            raise BusyError("too much was said that no agent has come to yet; try again later")
        self._held += len(text)
        run.held += len(text)

    def _own(self, run: Run, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The run's task is the runtime's, whoever asked for it."""
        task = asyncio.ensure_future(work)
        run.task = task

        def over(task: asyncio.Task[T]) -> None:
            self._runs.discard(run)
            self._held -= run.held
            if not task.cancelled():
                task.exception()  # whoever waits has it; if nobody does any more, nobody cares

        self._runs.add(run)
        task.add_done_callback(over)
        return task

    async def _turn(
        self,
        run: Run,
        conversation: Conversation,
        place: Place,
        primary: Agent,
        guest: str,
        content: str,
        tool_choice: str,
    ) -> None:
        """The whole life of a run: its place in the line, the turn, the end."""
        done = Done(run.speaker, StopReason.CANCELLED)
        try:
            async with conversation.turn(place):
                conversation.run = run
                try:
                    done = await self._carry_out(
                        run, conversation, primary, guest, content, tool_choice
                    )
                finally:
                    conversation.run = None
        except asyncio.CancelledError:
            uncancel()
        except (ApiError, StorageError, UnknownAgentError) as error:
            is_passing = isinstance(error, StorageUnavailableError)
            done = Done(run.speaker, StopReason.ERROR, error=str(error), is_passing=is_passing)
        except Exception as error:
            log.exception("run %s failed", run.id)
            sentence = f"internal error ({type(error).__name__}); the daemon's log has the details"
            done = Done(run.speaker, StopReason.ERROR, error=sentence)
        run.accepts_steers = False
        run.done = done
        run.emit(done)
        self.conversations.trim()
        note(run, done)

    async def _carry_out(
        self,
        run: Run,
        conversation: Conversation,
        primary: Agent,
        guest: str,
        content: str,
        tool_choice: str,
    ) -> Done:
        speaker = self.agent(guest) if guest else primary
        backend = self._backend
        with backend.used():
            turn = Turn(
                run,
                conversation,
                speaker,
                backend,
                self.env,
                self.limits,
                self.clock,
                tool_choice=tool_choice,
            )
            try:
                return await turn.carry_out(content)
            except asyncio.CancelledError:
                uncancel()
                return await turn.finish(StopReason.CANCELLED)

    @property
    def running(self) -> int:
        """Turns that run or wait, compactions included."""
        return len(self._runs)

    # ── Acting on what runs ─────────────────────────────────────────────────────────────────

    async def kill(self, agent: str, sender: str = "") -> bool:
        """Cancels the run in flight, whoever speaks in it. False when nothing was in flight.

        Raises UnknownConversationError when there is no such conversation either.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.find(pair)
        if conversation is not None and conversation.run is not None:
            conversation.run.kill()
            return True
        if conversation is None or not conversation.exists:
            await self._must_exist(pair)
        return False

    def steer(self, agent: str, content: str, sender: str = "") -> None:
        """Says something into the run in flight: the agent reads it at its next step.

        Raises NothingInFlightError, and BusyError when too much waits to be read.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.find(pair)
        run = conversation.run if conversation is not None else None
        if run is None or not run.accepts_steers:
            raise NothingInFlightError(
                f"nothing runs in the conversation of {pair.agent[:80]} with {pair.sender[:80]}; "
                "say it as a message of its own"
            )
        if len(run.steers) >= self.limits.steers:
            raise BusyError(f"{len(run.steers)} steering messages wait to be read; try again later")
        self._hold(run, content)
        run.steers.append(content)

    # ── Compaction ──────────────────────────────────────────────────────────────────────────

    async def compact(self, agent: str, sender: str = "", *, fresh: bool = False) -> Archive:
        """Folds the history into an archive. Turns that come meanwhile wait; `kill` stops it.

        With `fresh` no model is asked and nothing of it goes on: the archive has no summary, and
        the next turn finds no history.

        Raises UnknownConversationError, NothingToCompactError and CompactionError; nothing has
        changed then. Cancelled, it goes on.
        """
        speaker = self.agent(agent)
        run = self._new_run(Pair(agent, sender or DEFAULT_SENDER))
        run.outlet.close()
        run.accepts_steers = False
        conversation = self.conversations.get(run.pair)
        place = conversation.join(run.id)
        return await asyncio.shield(
            self._own(run, self._compaction(run, conversation, place, speaker, fresh=fresh))
        )

    async def _compaction(
        self,
        run: Run,
        conversation: Conversation,
        place: Place,
        agent: Agent,
        *,
        fresh: bool,
    ) -> Archive:
        try:
            async with conversation.turn(place):
                conversation.run = run
                try:
                    archive = await self._fold(conversation, agent, fresh=fresh)
                finally:
                    conversation.run = None
        except asyncio.CancelledError:
            uncancel()
            raise CompactionError("the compaction was killed; nothing changed") from None
        except RuntimeRefusalError:
            raise
        except StorageUnavailableError:
            raise
        except (ApiError, StorageError) as error:
            raise CompactionError(f"{error}; nothing changed") from error
        except Exception as error:
            log.exception("the compaction %s failed", run.id)
            sentence = f"internal error ({type(error).__name__}); nothing changed"
            raise CompactionError(sentence) from error
        finally:
            self.conversations.trim()
        run.emit(Compacted(archive))
        return archive

    async def _fold(self, conversation: Conversation, agent: Agent, *, fresh: bool) -> Archive:
        await to_the_end(conversation.load())
        if not conversation.exists:
            raise no_conversation(conversation.pair)
        marker = conversation.marker
        carried = 1 if marker is not None and marker.summary and not fresh else 0
        if len(conversation.history) <= carried:
            raise NothingToCompactError("nothing was said that is not in an archive already")
        base = log_name(conversation.pair)
        name = next_name(base, marker.archive_name if marker is not None else "")
        if fresh:
            ending: Awaitable[Archive] = conversation.begin_afresh(name)
        else:
            summary = await self._summary(conversation, agent)
            ending = conversation.fold(name, title_of(summary), summary, self.env.archive)
        folding = asyncio.ensure_future(ending)
        try:
            return await to_the_end(folding)
        except asyncio.CancelledError:
            uncancel()
            return folding.result()  # too late to say that nothing changed

    async def _summary(self, conversation: Conversation, agent: Agent) -> str:
        backend = self._backend
        with backend.used() as provider:
            model = await backend.model(agent.model)
            text = transcript(conversation.history, agent)
            summary = await summarise(provider, agent, text, model)
        if not summary:
            raise CompactionError("the model wrote no summary; nothing changed")
        return summary

    # ── Titles ──────────────────────────────────────────────────────────────────────────────

    async def set_title(self, agent: str, title: str, sender: str = "") -> None:
        """Names a conversation for people. A run in flight, whose tool this may be, goes on.

        Raises UnknownConversationError and StorageError.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        line = " ".join(title.split())[:TITLE_LENGTH]
        conversation = self.conversations.get(pair)
        if conversation.run is not None and conversation.exists:
            await conversation.retitle(line)
            return
        try:
            async with conversation.turn(conversation.join(first=True)):
                await to_the_end(conversation.load())
                if not conversation.exists:
                    raise no_conversation(pair)
                await conversation.retitle(line)
        finally:
            self.conversations.trim()

    # ── Approvals ───────────────────────────────────────────────────────────────────────────

    def approved(self, pair: Pair) -> Collection[str]:
        """Tools a person allowed in a conversation for good. Of one that is in use."""
        conversation = self.conversations.find(pair)
        return conversation.meta.approved if conversation is not None else ()

    async def approve(self, pair: Pair, tool: str) -> None:
        """Remembers one, with the conversation. From within a run of it. Raises StorageError."""
        await self.conversations.get(pair).approve(tool)

    # ── Reading and removing ────────────────────────────────────────────────────────────────

    async def delete(self, agent: str, sender: str = "") -> None:
        """Removes a conversation, live state and all. A run in flight is killed first.

        Raises UnknownConversationError.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.get(pair)
        place = conversation.join(first=True)
        if conversation.run is not None:
            conversation.run.kill()
        try:
            async with conversation.turn(place):
                if self.index is not None:
                    self.index.deleted(pair)
                try:
                    removed = await to_the_end(self.storage.delete(pair))
                finally:
                    conversation.unload()
        finally:
            self.conversations.trim()
        if not removed:
            raise no_conversation(pair)

    async def _must_exist(self, pair: Pair) -> None:
        if await self.storage.meta(pair) is None:
            raise no_conversation(pair)

    async def close(self) -> None:
        """Kills what runs and waits for it; what was said by then is kept. Storage stays open.

        So is what waits for its turn, if it was to outlive whoever said it.
        """
        for run in list(self._runs):
            conversation = self.conversations.find(run.pair)
            if run.detached and conversation is not None and conversation.run is not run:
                run.stopping = True
            else:
                run.kill()
        tasks = [run.task for run in self._runs if run.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        await self._backend.close()
        if self._retiring:
            await asyncio.wait(self._retiring)


def no_conversation(pair: Pair) -> UnknownConversationError:
    agent, sender = pair.agent[:80], pair.sender[:80]
    return UnknownConversationError(f"{agent} has had no conversation with {sender} yet")


def note(run: Run, done: Done) -> None:
    """One line in the log for each run: what it was, and how it ended; never what was said."""
    level = logging.WARNING if done.reason is StopReason.ERROR else logging.INFO
    if log.isEnabledFor(level):
        values: dict[str, object] = {
            "run": run.id,
            "agent": run.pair.agent,
            "sender": run.pair.sender,
            "reason": done.reason.value,
            "steps": done.steps,
        }
        values |= {"guest": run.speaker} if run.is_guest else {}
        values |= {"model": done.model} if done.model else {}
        values |= {"tokens": done.usage.total} if done.usage is not None else {}
        values |= {"error": done.error} if done.error else {}
        log.log(level, "run done", extra={"fields": values})


def uncancel() -> None:
    """The cancellation was heard; what follows is tidying up and must not be taken for it."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
