"""Runtime: the engine. It holds agents, conversations and runs, on top of storage and a provider.

It opens no socket, starts no process, and knows no protocol. From the outside world it needs
Storage, Provider and Env; Env has a default.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TypedDict, Unpack

from crabtalk.model import ApiError, Provider
from crabtalk.search import SessionIndex
from crabtalk.storage import (
    AcceptedMessage,
    Agent,
    Archive,
    EventRecord,
    KeyUse,
    MessageRecord,
    OpenRuns,
    Pair,
    Record,
    Storage,
    StorageError,
    StorageUnavailableError,
    find_run_end,
    hash_content,
)

from .agent_registry import AgentRegistry
from .clock import Clock
from .compaction import render_transcript, summarize_text
from .compaction_run import SummaryWriter, run_compaction
from .conversation import Conversation, ConversationClaim, clear_cancellation, run_to_completion
from .conversation_cache import ConversationCache
from .errors import (
    CompactionError,
    KeyConflictError,
    NothingInFlightError,
    UnknownAgentError,
    UnknownToolError,
    key_conflict_error,
    unknown_conversation_error,
)
from .events import Compacted, Done, Event, Started, StopReason
from .hook import Env
from .limits import RuntimeLimits
from .replay_buffer import NumberedEvent
from .run import MessageLabel, ParentRun, PendingSteer, Run
from .run_registry import RunRegistry
from .shared_provider import SharedProvider
from .turn import Turn

log = logging.getLogger(__name__)

DEFAULT_SENDER = "user"
TITLE_LENGTH = 200
# The values of `tool_choice` with a fixed meaning; any other value is the name of a tool.
TOOL_CHOICES = frozenset({"", "auto", "none", "required"})


class RepeatedKeyError(Exception):
    """The key of this turn was used for the same message before: the log has its run."""


class TurnOptions(TypedDict, total=False):
    """The options of a turn; all may be left out."""

    sender: str  # empty: `user`
    guest: str  # the agent that answers instead of the conversation's own
    cwd: Path | None  # for this run only
    tool_choice: str
    parent: ParentRun | None
    verbatim: bool  # the content is not preprocessed: commands in it are plain text
    detached: bool  # the run goes on when its reader leaves
    chain: int  # how many events led to this turn, one causing the next
    origin: str  # the sender on whose behalf the run acts, if it is not `sender`
    mode: str  # the permission mode of this turn; empty: the conversation's
    attended: bool  # the client that starts the turn shows its questions (the default)
    unattended: bool  # no person will answer its questions
    key: str  # idempotency key: a message with this key runs once in its conversation, ever


class Runtime:
    def __init__(
        self,
        storage: Storage,
        provider: Provider,
        env: Env | None = None,
        *,
        limits: RuntimeLimits | None = None,
        clock: Clock | None = None,
        index: SessionIndex | None = None,
    ) -> None:
        self.storage = storage
        self.env = env or Env()
        self.limits = limits or RuntimeLimits()
        self.clock = clock or Clock()
        self.index = index
        self.conversations = ConversationCache(
            storage,
            self.limits,
            self.clock,
            index.add_records if index is not None else None,
            lambda pair: self._runs.has_delegated_runs(pair),
        )
        self._agents = AgentRegistry(self.env)
        self._runs = RunRegistry(self.env, lambda: self.limits, self.clock)
        self._shared_provider = SharedProvider(provider)
        self._closing_providers: set[asyncio.Task[None]] = set()
        self._recoveries: dict[asyncio.Task[None], Pair] = {}
        self._acceptance_numbers = itertools.count(1)  # order of acceptance

    # ── Agents ──────────────────────────────────────────────────────────────────────────────

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The agents that can be addressed, by name, as they were written."""
        return self._agents.registered

    def register(self, agent: Agent) -> None:
        """Adds an agent, or replaces the one of that name. Runs in flight keep the old one."""
        self._agents.register(agent)

    def unregister(self, name: str) -> None:
        self._agents.unregister(name)

    def add_temporary_agent(self, agent: Agent) -> None:
        """Adds an agent for one task: it runs like others, but is neither listed nor stored."""
        self._agents.add_temporary(agent)

    def remove_temporary_agent(self, name: str) -> None:
        """Removes the agent of a finished task. A run still in flight keeps its agent."""
        self._agents.remove_temporary(name)

    def find_agent_definition(self, name: str) -> Agent:
        """The agent as it was written. Raises UnknownAgentError."""
        return self._agents.find_definition(name)

    def build_agent(self, name: str) -> Agent:
        """The agent as the hooks build it to run. Raises UnknownAgentError."""
        return self._agents.build_agent(name)

    async def load_agents(self) -> dict[str, str]:
        """Registers the agents in storage, and unregisters those that storage no longer has.

        Returns the reason for each agent that cannot be used, by name. An agent that was registered
        before its file broke stays as it was.
        """
        return await self._agents.load(self.storage)

    # ── The provider ────────────────────────────────────────────────────────────────────────

    @property
    def provider(self) -> Provider:
        return self._shared_provider.provider

    def set_provider(self, provider: Provider) -> None:
        """Runs from now on use this provider. Runs in flight finish on the old one, which is
        closed after the last of them."""
        old, self._shared_provider = self._shared_provider, SharedProvider(provider)
        task = asyncio.ensure_future(old.close())
        self._closing_providers.add(task)
        task.add_done_callback(self._closing_providers.discard)

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def start(self, agent: str, content: str, **options: Unpack[TurnOptions]) -> Run:
        """Begins a turn, without waiting: the turns of a conversation run in the order of these
        calls.

        The Started event comes once the content is stored: in the log, or, while the turn waits for
        an earlier one, as an accepted message. If the content cannot be stored, the run has only a
        Done event.

        When a run with the same key is in flight, that run is returned. When it is over, the new
        run only replays the earlier one; read it with `follow`.

        Raises UnknownAgentError, UnknownToolError, BusyError and KeyConflictError; later errors
        are in the run's Done.
        """
        primary = self.build_agent(agent)
        pair = Pair(agent, options.get("sender") or DEFAULT_SENDER)
        guest = options.get("guest", "")
        key = options.get("key", "")
        content_hash = hash_content(content, guest) if key else ""
        if key and (earlier := self._find_run_with_key(pair, key, content_hash)) is not None:
            earlier.is_detached = earlier.is_detached or options.get("detached", False)
            return earlier
        choice = options.get("tool_choice", "")
        if choice not in TOOL_CHOICES and choice not in (names := self._tool_names(primary)):
            known = ", ".join(names) or "none"
            sentence = f"{agent} has no tool called {choice[:80]!r} to choose; it has {known[:400]}"
            raise UnknownToolError(sentence)
        run = self._runs.create_run(
            pair,
            guest,
            options.get("cwd"),
            options.get("parent"),
            options.get("origin", ""),
        )
        run.cwd = self.env.working_directory(primary, run.origin, run.cwd)
        run.agent = primary
        run.mode = options.get("mode", "")
        run.attended = options.get("attended", True)
        run.unattended = options.get("unattended", False)
        run.is_detached = options.get("detached", False)
        run.event_depth = options.get("chain", 0)
        run.typed_text = content
        if not options.get("verbatim"):
            content = self.env.hook.preprocess(agent, content) or content
        if key or content != run.typed_text:
            typed_text = run.typed_text if content != run.typed_text else ""
            run.labels[0] = MessageLabel(key, content_hash, typed_text)
        if key:
            run.event_queue.close()  # readers of a run with a key use `follow`
            run.confirmed = asyncio.Event()
        self._runs.reserve_text(run, content)
        try:
            # Called only once nothing can refuse the turn any more: hooks keep state until its
            # Done.
            self.env.hook.on_turn(run, content)
        except BaseException:
            self._runs.release_text(run)
            raise
        conversation = self.conversations.get(run.pair)
        claim = conversation.claim_turn(run.id)
        run.number = next(self._acceptance_numbers)
        self._runs.start_task(
            run, self._run_turn(run, conversation, claim, primary, content, choice)
        )
        return run

    def _find_run_with_key(self, pair: Pair, key: str, content_hash: str) -> Run | None:
        """The run in memory that was started with this key. Raises KeyConflictError."""
        run = self._runs.find_run(pair, key=key)
        if run is not None and run.labels[0].content_hash == content_hash:
            return run
        # While the log was not yet searched for that run's key, either of the two may be the one
        # in conflict with it: both wait for their turn, and the log decides.
        if run is not None and run.is_key_checked:
            raise key_conflict_error(key)
        conversation = self.conversations.find(pair)
        current = conversation.run if conversation is not None else None
        if current is not None and key in current.steer_keys:
            raise key_conflict_error(key)
        return None

    def _tool_names(self, agent: Agent) -> list[str]:
        return [tool.name for tool in self.env.list_tools(agent)]

    async def stream(
        self, agent: str, content: str, **options: Unpack[TurnOptions]
    ) -> AsyncGenerator[Event, None]:
        """Starts a turn and yields its events. Closed early, the run is killed, unless it is
        detached."""
        run = self.start(agent, content, **options)
        async with aclosing(run.events()) as events:
            async for event in events:
                yield event

    async def send(self, agent: str, content: str, **options: Unpack[TurnOptions]) -> Done:
        """Starts a turn and waits for its end. Cancelled, the run goes on."""
        return await self.start(agent, content, **options).wait()

    async def _run_turn(
        self,
        run: Run,
        conversation: Conversation,
        claim: ConversationClaim,
        primary: Agent,
        content: str,
        choice: str,
    ) -> None:
        """The whole life of a run: waiting in the queue, the turn, the end."""
        done = Done(run.speaker, StopReason.CANCELLED)
        is_withdrawn = True  # accepted messages are withdrawn, unless the turn began

        async def accept() -> None:
            if run.key and await self._check_waiting_key(run, conversation, claim):
                return  # the log has the message
            await run_to_completion(self._accept_turn(run, conversation, content))

        try:
            async with conversation.hold_turn(claim, accept):
                is_withdrawn = False
                conversation.run = run
                try:
                    done = await self._run_own_turn(run, conversation, primary, content, choice)
                finally:
                    conversation.run = None
        except asyncio.CancelledError:
            clear_cancellation()
        except RepeatedKeyError:
            is_withdrawn = True
            try:
                done = await run_to_completion(self._replay_stored_run(run))
            except asyncio.CancelledError:
                clear_cancellation()
        except KeyConflictError as error:
            is_withdrawn = True
            done = Done(run.speaker, StopReason.ERROR, error=str(error), is_conflict=True)
        except UnknownAgentError as error:
            # The guest does not exist. Nothing of the turn is stored, and the client gets the
            # reason.
            is_withdrawn = True
            run.emit_started()
            done = Done(run.speaker, StopReason.ERROR, error=str(error))
        except (ApiError, StorageError) as error:
            is_withdrawn = False
            is_passing = isinstance(error, StorageUnavailableError)
            done = Done(run.speaker, StopReason.ERROR, error=str(error), is_passing=is_passing)
        except Exception as error:
            is_withdrawn = False
            log.exception("run %s failed", run.id)
            sentence = f"internal error ({type(error).__name__}); the daemon's log has the details"
            done = Done(run.speaker, StopReason.ERROR, error=sentence)
        run.accepts_steers = False
        run.confirm()
        try:
            await run_to_completion(self._settle_accepted(run, is_withdrawn=is_withdrawn))
        except asyncio.CancelledError:
            clear_cancellation()
        run.done = done
        if run.replay_buffer.is_stored:
            run.replay_buffer.add(done)
            self.env.hook.on_event(run, done)
        else:
            run.emit(done)
            log_run_end(run, done)
        self.conversations.evict_idle()

    async def _accept_turn(self, run: Run, conversation: Conversation, content: str) -> None:
        """Stores the content of a turn that has to wait, then reports that it is accepted."""
        entry = self._make_accepted(run, conversation, content, number=run.number)
        await self.storage.accept_message(entry)
        run.accepted[0] = entry
        run.emit_started()

    async def _check_waiting_key(
        self, run: Run, conversation: Conversation, claim: ConversationClaim
    ) -> bool:
        """Looks for the key of a turn before it waits in the queue: a key whose run is over needs
        no turn. True: a run that may still be in flight used the key, so there is nothing to
        accept.

        Raises RepeatedKeyError, KeyConflictError and StorageError.
        """
        # A recovery writes how the runs ended that a crash interrupted. It is before this turn in
        # the queue, unless this turn is first here and waits for another process: then the recovery
        # waits for this turn.
        if not claim.local.done():
            await self._wait_for_recovery(run.pair)
        if conversation.is_loaded and conversation.is_alone:
            await check_key(run, conversation)
            run.is_key_checked = True
            return False
        records = await self.storage.find_run(run.pair, key=run.key)
        uses = [r for r in records if isinstance(r, MessageRecord) and r.key == run.key]
        if uses and uses[0].content_hash != run.labels[0].content_hash:
            raise key_conflict_error(run.key)
        if uses and find_run_end(records) is not None:
            raise RepeatedKeyError
        run.is_key_checked = conversation.is_alone
        # A run without an end may be in flight in another process, or the current turn here is
        # about to close it. This turn comes after that one.
        return bool(uses)

    async def _replay_stored_run(self, run: Run) -> Done:
        """Fills the run with the stored events of the earlier run that used its key."""
        try:
            records = await self.storage.find_run(run.pair, key=run.key)
        except StorageError as error:
            return Done(run.speaker, StopReason.ERROR, error=str(error), is_passing=True)
        run.is_started = True
        from .stored_run import stored_events  # imported late: repeated keys are rare

        *events, done = stored_events(run.pair, find_run_id(records), records)
        run.replay_buffer.load_stored(events)
        return done if isinstance(done, Done) else Done(run.speaker, StopReason.ERROR)

    def _make_accepted(
        self, run: Run, conversation: Conversation, text: str, *, number: int, steer: int = 0
    ) -> AcceptedMessage:
        label = run.labels.get(steer) or MessageLabel()
        return AcceptedMessage(
            run.pair.agent,
            run.pair.sender,
            run.id,
            text,
            self.clock.now(),
            number=number,
            steer=steer,
            speaker=run.speaker,
            cwd=str(run.cwd),
            after=conversation.meta.message_count,
            message_key=label.key,
            content_hash=label.content_hash,
            said=label.typed_text,
        )

    async def _settle_accepted(self, run: Run, *, is_withdrawn: bool) -> None:
        """Withdraws the accepted messages that a finished run did not append, or leaves them to a
        recovery."""
        await run.wait_for_steers()
        entries = list(run.accepted.values())
        if not entries:
            return
        run.accepted.clear()
        if is_withdrawn:
            try:
                await self.storage.withdraw_messages(entries)
            except StorageError as error:
                log.warning("an accepted message of run %s was not taken back: %s", run.id, error)
                self.storage.abandon_messages(entries)
        else:
            self.storage.abandon_messages(entries)
            self._start_recovery(run.pair)

    async def _run_own_turn(
        self, run: Run, conversation: Conversation, primary: Agent, content: str, choice: str
    ) -> Done:
        speaker = self.build_agent(run.speaker) if run.is_guest else primary
        if run.key:
            await run_to_completion(conversation.load())
            await check_key(run, conversation)
            run.is_key_checked = True
            run.confirm()
        backend = self._shared_provider
        with backend.hold_provider():
            turn = Turn(
                run,
                conversation,
                speaker,
                backend,
                self.env,
                self.limits,
                self.clock,
                tool_choice=choice,
            )
            try:
                return await turn.run(content)
            except asyncio.CancelledError:
                clear_cancellation()
                return await turn.finish(StopReason.CANCELLED)

    # ── Following runs ──────────────────────────────────────────────────────────────────────

    def find_run(
        self, agent: str, sender: str = "", *, run_id: str = "", key: str = ""
    ) -> Run | None:
        """A run of this process, waiting or in flight: by its id, by the key of a message, or
        without both the one in flight in the conversation."""
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.find(pair)
        in_flight = conversation.run if conversation is not None else None
        if in_flight is not None and key and key in in_flight.steer_keys:
            return in_flight
        if run_id or key:
            return self._runs.find_run(pair, run_id=run_id, key=key)
        return in_flight

    async def follow(self, run: Run, after: int = 0) -> AsyncGenerator[NumberedEvent, None]:
        """Yields a run's events with a number above `after`, until its Done. When these are no
        longer in memory, all events from the first one are read from the log. Raises StorageError.
        """
        with run.count_follower():
            while True:
                if after < run.replay_buffer.last_dropped:
                    after = run.replay_buffer.last_dropped
                    for event in await self._dropped_events(run):
                        yield NumberedEvent(0, event)
                async with aclosing(run.follow(after)) as events:
                    async for numbered in events:
                        after = max(after, numbered.number)
                        yield numbered
                        if type(numbered.event) is Done:
                            return

    async def _dropped_events(self, run: Run) -> list[Event]:
        """The events that the replay buffer has dropped, from the first one on."""
        count = run.replay_buffer.dropped_messages
        records = await self.storage.find_run(run.pair, run=run.id)
        from .stored_run import dropped_events

        started = Started(run.speaker, run.id, run.effective_mode)
        return list(dropped_events(started, records, count))

    async def read_stored_events(
        self, agent: str, sender: str = "", *, run_id: str = "", key: str = ""
    ) -> list[Event]:
        """The events of a finished run, from the log; empty when the log has no such run. Raises
        StorageError."""
        pair = Pair(agent, sender or DEFAULT_SENDER)
        await self.wait_until_recovered(pair)
        records = await self.storage.find_run(pair, run=run_id, key=key)
        from .stored_run import stored_events

        return list(stored_events(pair, find_run_id(records), records)) if records else []

    @property
    def running_count(self) -> int:
        """How many turns run or wait, compactions and recoveries included."""
        return len(self._runs) + len(self._recoveries)

    # ── Acting on what runs ─────────────────────────────────────────────────────────────────

    async def kill(self, agent: str, sender: str = "", *, run_id: str = "", key: str = "") -> bool:
        """Cancels the run in flight and all runs that it or earlier turns delegated, background
        tasks included. False when nothing was in flight.

        With the id or the key of a run it cancels only that run, also while it waits for its turn.

        Raises UnknownConversationError when nothing was in flight and there is no such
        conversation.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.find(pair)
        if run_id or key:
            named = self._runs.find_run(pair, run_id=run_id, key=key)
            running = [named] if named is not None else []
        else:
            running = self._runs.list_delegated_runs(pair)
            if conversation is not None and conversation.run is not None:
                running.insert(0, conversation.run)
        for run in running:
            run.kill()
        if running:
            return True
        is_known = conversation is not None and conversation.exists
        if not is_known and await self.storage.read_meta(pair) is None:
            raise unknown_conversation_error(pair)
        return False

    async def steer(self, agent: str, content: str, sender: str = "", key: str = "") -> None:
        """Sends a steering message to the run in flight: the agent reads it at its next step. The
        message is stored when this returns; the run does not end meanwhile.

        When the same message was sent with this key before, nothing is sent.

        Raises NothingInFlightError, BusyError when too many messages wait to be read,
        KeyConflictError and StorageError; the agent does not get the message then. Cancelled, the
        message is sent all the same.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        content_hash = hash_content(content, is_steer=True) if key else ""
        if key and await self._is_steered(pair, key, content_hash):
            return
        conversation, run = await self._find_steerable(pair)
        if key and (key in run.steer_keys or self._runs.find_run(pair, key=key) is not None):
            # Another call sent it while this one searched the log.
            await self.steer(agent, content, sender, key)
            return
        number = self._runs.reserve_steer(run, content)
        if key:
            run.labels[number] = MessageLabel(key, content_hash)
        task = asyncio.ensure_future(self._accept_steer(run, conversation, content, number))
        run.accept_tasks.add(task)
        if key:
            run.steer_keys[key] = task

        def on_accepted(task: asyncio.Task[None]) -> None:
            run.accept_tasks.discard(task)
            if key and (task.cancelled() or task.exception() is not None):
                run.steer_keys.pop(key, None)  # the message was not sent
                run.labels.pop(number, None)
            if not task.cancelled():
                task.exception()  # mark it as retrieved: the caller may have left

        task.add_done_callback(on_accepted)
        await asyncio.shield(task)

    async def _find_steerable(self, pair: Pair) -> tuple[Conversation, Run]:
        """The run in flight, once it is certain that it really runs: a run whose key is repeated
        only replays an earlier run, and withdraws its steering messages. Raises
        NothingInFlightError."""
        while (conversation := self.conversations.find(pair)) is not None:
            run = conversation.run
            if run is None or not run.accepts_steers:
                break
            if run.confirmed is None or run.confirmed.is_set():
                return conversation, run
            await run.confirmed.wait()
        raise NothingInFlightError(
            f"nothing runs in the conversation of {pair.agent[:80]} with {pair.sender[:80]}; "
            "say it as a message of its own"
        )

    async def _is_steered(self, pair: Pair, key: str, content_hash: str) -> bool:
        """Whether the same message was sent with this key before. Raises KeyConflictError."""
        conversation = self.conversations.find(pair)
        run = conversation.run if conversation is not None else None
        if run is not None and (task := run.steer_keys.get(key)) is not None:
            number = next(n for n, label in run.labels.items() if n and label.key == key)
            if run.labels[number].content_hash != content_hash:
                raise key_conflict_error(key)
            await asyncio.shield(task)
            return True
        if self._runs.find_run(pair, key=key) is not None:
            raise key_conflict_error(key)  # a turn has this key
        if conversation is not None and conversation.is_loaded and run is not None:
            use = await conversation.find_key_use(key)
        else:
            await self.recover()  # a process that died may have accepted it
            await self.wait_until_recovered(pair)
            records = await self.storage.find_run(pair, key=key)
            use = next(
                (
                    KeyUse.from_record(r)
                    for r in records
                    if isinstance(r, MessageRecord) and r.key == key
                ),
                None,
            )
        if use is not None and use.content_hash != content_hash:
            raise key_conflict_error(key)
        return use is not None

    async def _accept_steer(
        self, run: Run, conversation: Conversation, content: str, steer: int
    ) -> None:
        entry = self._make_accepted(
            run, conversation, content, number=next(self._acceptance_numbers), steer=steer
        )
        async with run.steer_lock:
            await self.storage.accept_message(entry)
            run.accepted[steer] = entry
            run.steers.append(PendingSteer(steer, content))

    # ── After a crash ───────────────────────────────────────────────────────────────────────

    async def recover(self) -> None:
        """Puts accepted messages whose process died into their logs, as interrupted.

        That happens in the background, before any turn that is started after this returned. Raises
        StorageError when the list of such messages cannot be read.
        """
        pairs = await self.storage.list_unsettled()
        recovering = set(self._recoveries.values())
        for pair in pairs:
            if pair not in recovering:
                self._start_recovery(pair)

    async def wait_until_recovered(self, pair: Pair) -> None:
        """Waits until the accepted messages of a conversation are in its log, and so is the end of
        a run that the death of its process interrupted, or until writing them has failed.
        Cancelled, only the waiting stops."""
        if isinstance(self.storage, OpenRuns) and self._may_be_interrupted(pair):
            # Checked first: loading needs the turn, and is rarely necessary.
            with suppress(StorageError):
                is_open = await self.storage.has_open_run(pair)
                if is_open and self._may_be_interrupted(pair):
                    self._start_recovery(pair)
        await self._wait_for_recovery(pair)

    async def _wait_for_recovery(self, pair: Pair) -> None:
        if tasks := [task for task, recovering in self._recoveries.items() if recovering == pair]:
            await asyncio.wait(tasks)

    def _may_be_interrupted(self, pair: Pair) -> bool:
        """Whether an open run of the conversation may be that of a dead process: nothing here has
        loaded the conversation, or is about to."""
        conversation = self.conversations.find(pair)
        return conversation is None or (conversation.is_idle and not conversation.is_loaded)

    def _start_recovery(self, pair: Pair) -> None:
        """Starts a recovery in the background; it enters the queue before this returns."""
        conversation = self.conversations.get(pair)
        claim = conversation.claim_turn(first=True)
        task = asyncio.ensure_future(self._reload(conversation, claim))
        self._recoveries[task] = pair
        task.add_done_callback(self._recoveries.pop)

    async def _reload(self, conversation: Conversation, claim: ConversationClaim) -> None:
        """Loads the conversation, which closes its interrupted runs. When that fails, the next
        turn tries again."""
        try:
            async with conversation.hold_turn(claim):
                # Unlike unload(), this keeps the permission mode in force until it is read again.
                conversation.is_loaded = False
                await conversation.load()
        except StorageError as error:
            agent, sender = conversation.pair
            log.warning("accepted messages of %.80s with %.80s wait: %s", agent, sender, error)
        else:
            if self.index is not None:
                self.index.rescan()
        self.conversations.evict_idle()

    # ── Compaction ──────────────────────────────────────────────────────────────────────────

    async def compact(self, agent: str, sender: str = "", *, fresh: bool = False) -> Archive:
        """Moves the history into an archive and puts a summary in its place. Turns that come
        meanwhile wait; `kill` stops the compaction.

        With `fresh` no model is asked: the archive has no summary, and the next turn starts without
        history.

        Raises UnknownConversationError, NothingToCompactError and CompactionError; nothing has
        changed then. Cancelled, the compaction goes on.
        """
        speaker = self.build_agent(agent)
        run = self._runs.create_run(Pair(agent, sender or DEFAULT_SENDER))
        run.event_queue.close()
        run.accepts_steers = False
        conversation = self.conversations.get(run.pair)
        claim = conversation.claim_turn(run.id)
        write_summary = None if fresh else lambda: self._write_summary(conversation, speaker)
        work = self._compact(run, conversation, claim, write_summary)
        return await asyncio.shield(self._runs.start_task(run, work))

    async def _compact(
        self,
        run: Run,
        conversation: Conversation,
        claim: ConversationClaim,
        write_summary: SummaryWriter | None,
    ) -> Archive:
        # A client that follows a compaction sees a run without text.
        run.is_started = True
        run.replay_buffer.add(Started(run.speaker, run.id))
        try:
            archive = await run_compaction(
                run, conversation, claim, write_summary, self.env.store_archive
            )
        except Exception as error:
            run.replay_buffer.add(Done(run.speaker, StopReason.ERROR, error=str(error)))
            raise
        finally:
            self.conversations.evict_idle()
        run.emit(Compacted(archive))
        run.replay_buffer.add(Done(run.speaker, StopReason.COMPLETED))
        return archive

    async def _write_summary(self, conversation: Conversation, agent: Agent) -> str:
        backend = self._shared_provider
        with backend.hold_provider() as provider:
            model = await backend.choose_model(agent.model)
            text = render_transcript(conversation.history, agent)
            summary = await summarize_text(provider, agent, text, model)
        if not summary:
            raise CompactionError("the model wrote no summary; nothing changed")
        return summary

    # ── Titles ──────────────────────────────────────────────────────────────────────────────

    async def set_title(self, agent: str, title: str, sender: str = "") -> None:
        """Sets the title that people see. It does not wait for a run in flight, whose tool may be
        the caller.

        Raises UnknownConversationError and StorageError.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        line = " ".join(title.split())[:TITLE_LENGTH]
        conversation = self.conversations.get(pair)
        if conversation.run is not None and conversation.exists:
            await conversation.set_title(line)
            return
        try:
            async with conversation.hold_turn(conversation.claim_turn(first=True)):
                await run_to_completion(conversation.load())
                if not conversation.exists:
                    raise unknown_conversation_error(pair)
                await conversation.set_title(line)
        finally:
            self.conversations.evict_idle()

    # ── Approvals ───────────────────────────────────────────────────────────────────────────

    def approved_rules(self, pair: Pair) -> Collection[str]:
        """The rules that a person has approved for a conversation; empty when the conversation is
        not in memory."""
        conversation = self.conversations.find(pair)
        return conversation.meta.approved if conversation is not None else ()

    async def approve_rule(self, pair: Pair, rule: str) -> None:
        """Stores an approved rule with the conversation. Called from a run of that conversation.
        Raises StorageError."""
        await self.conversations.get(pair).approve_rule(rule)

    def get_mode(self, pair: Pair) -> str:
        """The permission mode that was set for a conversation; empty when none was set or the
        conversation is not in memory."""
        conversation = self.conversations.find(pair)
        return conversation.meta.mode if conversation is not None else ""

    async def set_mode(self, agent: str, mode: str, sender: str = "") -> None:
        """Sets the permission mode of a conversation, effective immediately, also in a run in
        flight. A conversation that does not exist yet is created. Raises StorageError."""
        self.build_agent(agent)
        conversation = self.conversations.get(Pair(agent, sender or DEFAULT_SENDER))
        try:
            if conversation.run is not None and conversation.exists:
                await conversation.set_mode(mode)
                return
            async with conversation.hold_turn(conversation.claim_turn(first=True)):
                await run_to_completion(conversation.load())
                await conversation.set_mode(mode)
        finally:
            self.conversations.evict_idle()

    # ── Reading and removing ────────────────────────────────────────────────────────────────

    async def delete_conversation(self, agent: str, sender: str = "") -> None:
        """Removes a conversation from storage and memory. A run in flight is killed first, with
        all runs that it delegated.

        Raises UnknownConversationError.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.get(pair)
        claim = conversation.claim_turn(first=True)
        if conversation.run is not None:
            conversation.run.kill()
        for run in self._runs.list_delegated_runs(pair):
            run.kill()
        try:
            async with conversation.hold_turn(claim):
                if self.index is not None:
                    self.index.remove_conversation(pair)
                try:
                    removed = await run_to_completion(self.storage.delete_conversation(pair))
                finally:
                    conversation.unload()
        finally:
            self.conversations.evict_idle()
        if not removed:
            raise unknown_conversation_error(pair)

    async def close(self) -> None:
        """Kills all runs and waits for them; messages so far are stored. Storage stays open.

        The message of a detached run that still waits for its turn is stored as well.
        """
        for run in self._runs:
            conversation = self.conversations.find(run.pair)
            if run.is_detached and conversation is not None and conversation.run is not run:
                run.is_stopping = True
            else:
                run.kill()
        await self._runs.wait_until_idle()
        if self._recoveries:
            await asyncio.wait(self._recoveries)
        await self._shared_provider.close()
        if self._closing_providers:
            await asyncio.wait(self._closing_providers)


async def check_key(run: Run, conversation: Conversation) -> None:
    """Raises RepeatedKeyError when the conversation has this turn's key with the same message, and
    KeyConflictError when it has the key with another message."""
    use = await conversation.find_key_use(run.key)
    if use is None:
        return
    if use.content_hash != run.labels[0].content_hash:
        raise key_conflict_error(run.key)
    raise RepeatedKeyError


def find_run_id(records: Sequence[Record]) -> str:
    return next((r.run for r in records if isinstance(r, MessageRecord | EventRecord)), "")


def log_run_end(run: Run, done: Done) -> None:
    """Writes one log line per run: which run it was and how it ended, never any message text."""
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
