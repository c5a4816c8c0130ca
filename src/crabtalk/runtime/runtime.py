"""Runtime: the engine. Agents, conversations, runs; storage and a provider behind them.

It opens no socket, starts no process, and knows no protocol. What it needs of the outside world is
Storage, Provider and Env, and all but the first two have defaults.
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
# What a turn may say of tools; anything else is the name of one.
TOOL_CHOICES = frozenset({"", "auto", "none", "required"})


class RepeatedKeyError(Exception):
    """The key of a turn was used for the same message before: the log has its run."""


class TurnOptions(TypedDict, total=False):
    """How a turn may differ from a plain one."""

    sender: str  # empty: `user`
    guest: str  # the agent that speaks in the other's place
    cwd: Path | None  # for this run only
    tool_choice: str
    parent: ParentRun | None
    verbatim: bool  # the content is not looked through for commands
    detached: bool  # the run goes on when its listener leaves
    chain: int  # events that led to it, one after another
    origin: str  # the sender in whose name it acts, if that is another
    mode: str  # the permission mode of this turn; empty: the conversation's
    attended: bool  # whoever starts it sees what it asks (the default)
    unattended: bool  # nobody will answer what it asks
    key: str  # runs once in its conversation, for good


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
        kept = index.add_records if index is not None else None
        self.conversations = ConversationCache(
            storage, self.limits, self.clock, kept, lambda pair: self._runs.has_delegated_runs(pair)
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
        """Those that can be addressed, as they were written."""
        return self._agents.registered

    def register(self, agent: Agent) -> None:
        """Adds an agent, or puts another in its place. Runs in flight keep the one they have."""
        self._agents.register(agent)

    def unregister(self, name: str) -> None:
        self._agents.unregister(name)

    def add_temporary_agent(self, agent: Agent) -> None:
        """An agent for a task: it runs as others do, but is not listed, kept, or reloaded."""
        self._agents.add_temporary(agent)

    def remove_temporary_agent(self, name: str) -> None:
        """Its task is over. A run that is still in flight keeps what it has."""
        self._agents.remove_temporary(name)

    def find_agent_definition(self, name: str) -> Agent:
        """As it was written. Raises UnknownAgentError."""
        return self._agents.find_definition(name)

    def build_agent(self, name: str) -> Agent:
        """As it runs. Raises UnknownAgentError."""
        return self._agents.build_agent(name)

    async def load_agents(self) -> dict[str, str]:
        """Registers what storage has, and forgets what it no longer has.

        Returns those that cannot be used, by name, with a sentence why. One that was registered
        before it broke stays as it was.
        """
        return await self._agents.load(self.storage)

    # ── The provider ────────────────────────────────────────────────────────────────────────

    @property
    def provider(self) -> Provider:
        return self._shared_provider.provider

    def set_provider(self, provider: Provider) -> None:
        """From now on. Runs in flight finish on the one they have, which is closed after them."""
        old, self._shared_provider = self._shared_provider, SharedProvider(provider)
        task = asyncio.ensure_future(old.close())
        self._closing_providers.add(task)
        task.add_done_callback(self._closing_providers.discard)

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def start(self, agent: str, content: str, **options: Unpack[TurnOptions]) -> Run:
        """Begins a turn, at once: turns of a conversation run in the order of these calls.

        Its Started comes when the content is kept: in the log, or while the turn waits for an
        earlier one, as an accepted text. Of one that cannot be kept there is only the Done.

        With a key that is being run it returns that run. With one that was run, the new run is only
        the story of the earlier one; `follow` tells it.

        Raises UnknownAgentError, UnknownToolError, BusyError and KeyConflictError; everything later
        is in the run's Done.
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
            said = run.typed_text if content != run.typed_text else ""
            run.labels[0] = MessageLabel(key, content_hash, said)
        if key:
            run.event_queue.close()  # it is followed
            run.confirmed = asyncio.Event()
        self._runs.reserve_text(run, content)
        try:
            # Only of a turn that nothing refuses any more: hooks keep what they learn to its Done.
            self.env.hook.on_turn(run, content)
        except BaseException:
            self._runs.release_text(run)
            raise
        conversation = self.conversations.get(run.pair)
        place = conversation.claim_turn(run.id)
        run.number = next(self._acceptance_numbers)
        self._runs.start_task(
            run, self._run_turn(run, conversation, place, primary, content, choice)
        )
        return run

    def _find_run_with_key(self, pair: Pair, key: str, content_hash: str) -> Run | None:
        """The run in memory that was started with this key. Raises KeyConflictError."""
        run = self._runs.find_run(pair, key=key)
        if run is not None and run.labels[0].content_hash == content_hash:
            return run
        # A run whose key was not looked for in the log yet may be the one that has to give way;
        # both wait for their turn then, and the log decides.
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
        """A turn's events. Closed early, the run is killed, unless it is detached."""
        run = self.start(agent, content, **options)
        async with aclosing(run.events()) as events:
            async for event in events:
                yield event

    async def send(self, agent: str, content: str, **options: Unpack[TurnOptions]) -> Done:
        """A turn, when it is over. Cancelled, the run goes on."""
        return await self.start(agent, content, **options).wait()

    async def _run_turn(
        self,
        run: Run,
        conversation: Conversation,
        place: ConversationClaim,
        primary: Agent,
        content: str,
        choice: str,
    ) -> None:
        """The whole life of a run: its place in the line, the turn, the end."""
        done = Done(run.speaker, StopReason.CANCELLED)
        is_taken_back = True  # what was accepted, unless it had its turn

        async def accept() -> None:
            if run.key and await self._check_waiting_key(run, conversation, place):
                return  # the log has it
            await run_to_completion(self._accept_turn(run, conversation, content))

        try:
            async with conversation.hold_turn(place, accept):
                is_taken_back = False
                conversation.run = run
                try:
                    done = await self._run_own_turn(run, conversation, primary, content, choice)
                finally:
                    conversation.run = None
        except asyncio.CancelledError:
            clear_cancellation()
        except RepeatedKeyError:
            is_taken_back = True
            try:
                done = await run_to_completion(self._replay_stored_run(run))
            except asyncio.CancelledError:
                clear_cancellation()
        except KeyConflictError as error:
            is_taken_back = True
            done = Done(run.speaker, StopReason.ERROR, error=str(error), is_conflict=True)
        except UnknownAgentError as error:
            # A guest that nobody knows. Nothing of its turn is kept, and the client hears why.
            is_taken_back = True
            run.emit_started()
            done = Done(run.speaker, StopReason.ERROR, error=str(error))
        except (ApiError, StorageError) as error:
            is_taken_back = False
            is_passing = isinstance(error, StorageUnavailableError)
            done = Done(run.speaker, StopReason.ERROR, error=str(error), is_passing=is_passing)
        except Exception as error:
            is_taken_back = False
            log.exception("run %s failed", run.id)
            sentence = f"internal error ({type(error).__name__}); the daemon's log has the details"
            done = Done(run.speaker, StopReason.ERROR, error=sentence)
        run.accepts_steers = False
        run.confirm()
        try:
            await run_to_completion(self._settle_accepted(run, is_taken_back=is_taken_back))
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
        """Keeps the content of a turn that has to wait, then says that it is accepted."""
        entry = self._make_accepted(run, conversation, content, number=run.number)
        await self.storage.accept_message(entry)
        run.accepted[0] = entry
        run.emit_started()

    async def _check_waiting_key(
        self, run: Run, conversation: Conversation, place: ConversationClaim
    ) -> bool:
        """Before a turn waits in line: when the run of its key is over, there is no need to.
        True: the key was used by a run that may not be over, and there is nothing to accept.

        Raises RepeatedKeyError, KeyConflictError and StorageError.
        """
        # A recovery says how runs ended that a crash cut off. It is before us in line, unless we
        # are first here and wait for another process: then it waits for us.
        if not place.local.done():
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
        # Without an end it may run in another process, or whoever has the turn here is about to
        # close it. When that turn is over, ours comes.
        return bool(uses)

    async def _replay_stored_run(self, run: Run) -> Done:
        """Makes the run the story of the earlier one that has its key."""
        try:
            records = await self.storage.find_run(run.pair, key=run.key)
        except StorageError as error:
            return Done(run.speaker, StopReason.ERROR, error=str(error), is_passing=True)
        run.is_started = True
        from .stored_run import stored_events  # late: for keys that are repeated

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

    async def _settle_accepted(self, run: Run, *, is_taken_back: bool) -> None:
        """Sees to accepted texts of a run that ended without appending them."""
        await run.wait_for_steers()
        entries = list(run.accepted.values())
        if not entries:
            return
        run.accepted.clear()
        if is_taken_back:
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
        """One that waits or is in flight here: by id, by key, or what runs in the conversation."""
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.find(pair)
        in_flight = conversation.run if conversation is not None else None
        if in_flight is not None and key and key in in_flight.steer_keys:
            return in_flight
        if run_id or key:
            return self._runs.find_run(pair, run_id=run_id, key=key)
        return in_flight

    async def follow(self, run: Run, after: int = 0) -> AsyncGenerator[NumberedEvent, None]:
        """A run's events with a number above `after`, those to come included. Where they are not
        in memory any more, all of them from the first one, read from the log. Raises StorageError.
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
        """The events that the transcript does not have any more, from the first one on."""
        count = run.replay_buffer.dropped_messages
        records = await self.storage.find_run(run.pair, run=run.id)
        from .stored_run import dropped_events

        started = Started(run.speaker, run.id, run.effective_mode)
        return list(dropped_events(started, records, count))

    async def read_stored_events(
        self, agent: str, sender: str = "", *, run_id: str = "", key: str = ""
    ) -> list[Event]:
        """Those of a run that is over, from the log; empty when it has no such run. Raises
        StorageError."""
        pair = Pair(agent, sender or DEFAULT_SENDER)
        await self.wait_until_recovered(pair)
        records = await self.storage.find_run(pair, run=run_id, key=key)
        from .stored_run import stored_events

        return list(stored_events(pair, find_run_id(records), records)) if records else []

    @property
    def running_count(self) -> int:
        """Turns that run or wait, compactions and recoveries included."""
        return len(self._runs) + len(self._recoveries)

    # ── Acting on what runs ─────────────────────────────────────────────────────────────────

    async def kill(self, agent: str, sender: str = "", *, run_id: str = "", key: str = "") -> bool:
        """Cancels the run in flight, whoever speaks in it, and all that came of it or of earlier
        turns, background included. False when nothing was in flight.

        With the id or the key of a run only that run, also while it waits for its turn.

        Raises UnknownConversationError when there is no such conversation either.
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
        """Says something into the run in flight: the agent reads it at its next step. It is kept
        when this returns; the run does not end meanwhile.

        With a key that was used for the same before, it is not said again.

        Raises NothingInFlightError, BusyError when too much waits to be read, KeyConflictError and
        StorageError; the agent does not read it then. Cancelled, it is carried out.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        content_hash = hash_content(content, is_steer=True) if key else ""
        if key and await self._is_steered(pair, key, content_hash):
            return
        conversation, run = await self._find_steerable(pair)
        if key and (key in run.steer_keys or self._runs.find_run(pair, key=key) is not None):
            # Somebody said it while we looked for it.
            await self.steer(agent, content, sender, key)
            return
        number = self._runs.reserve_steer(run, content)
        if key:
            run.labels[number] = MessageLabel(key, content_hash)
        keeping = asyncio.ensure_future(self._accept_steer(run, conversation, content, number))
        run.accept_tasks.add(keeping)
        if key:
            run.steer_keys[key] = keeping

        def kept(keeping: asyncio.Task[None]) -> None:
            run.accept_tasks.discard(keeping)
            if key and (keeping.cancelled() or keeping.exception() is not None):
                run.steer_keys.pop(key, None)  # it was not said
                run.labels.pop(number, None)
            if not keeping.cancelled():
                keeping.exception()  # whoever steers has it, unless they left

        keeping.add_done_callback(kept)
        await asyncio.shield(keeping)

    async def _find_steerable(self, pair: Pair) -> tuple[Conversation, Run]:
        """The run in flight, when it is certain that it is one: a repeated key only tells of an
        earlier run, and takes back what was said into it. Raises NothingInFlightError."""
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
        """Whether the same was said with this key before. Raises KeyConflictError."""
        conversation = self.conversations.find(pair)
        run = conversation.run if conversation is not None else None
        if run is not None and (keeping := run.steer_keys.get(key)) is not None:
            number = next(n for n, label in run.labels.items() if n and label.key == key)
            if run.labels[number].content_hash != content_hash:
                raise key_conflict_error(key)
            await asyncio.shield(keeping)
            return True
        if self._runs.find_run(pair, key=key) is not None:
            raise key_conflict_error(key)  # it is that of a turn
        if conversation is not None and conversation.is_loaded and run is not None:
            use = await conversation.find_key_use(key)
        else:
            await self.recover()  # it may have been accepted by a process that died
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
        """Closes accepted texts whose process died: they are put into their logs as interrupted.

        That happens in the background, ahead of any turn that is started after this returned.
        Raises StorageError when nobody knows what there is to close.
        """
        pairs = await self.storage.list_unsettled()
        under_way = set(self._recoveries.values())
        for pair in pairs:
            if pair not in under_way:
                self._start_recovery(pair)

    async def wait_until_recovered(self, pair: Pair) -> None:
        """Returns when the accepted texts of a conversation are in its log, and a run that the
        death of its process cut off has its end there, or could not be put there. Cancelled, it
        only stops waiting."""
        if isinstance(self.storage, OpenRuns) and self._may_be_cut_off(pair):
            # Asked first: only whoever has the turn may load, and as a rule there is no need.
            with suppress(StorageError):
                is_open = await self.storage.has_open_run(pair)
                if is_open and self._may_be_cut_off(pair):
                    self._start_recovery(pair)
        await self._wait_for_recovery(pair)

    async def _wait_for_recovery(self, pair: Pair) -> None:
        """Until the recovery that is under way in a conversation is over."""
        if tasks := [task for task, each in self._recoveries.items() if each == pair]:
            await asyncio.wait(tasks)

    def _may_be_cut_off(self, pair: Pair) -> bool:
        """Whether nothing here has loaded the conversation, or is about to."""
        conversation = self.conversations.find(pair)
        return conversation is None or (conversation.is_idle and not conversation.is_loaded)

    def _start_recovery(self, pair: Pair) -> None:
        """Takes its place in line at once."""
        conversation = self.conversations.get(pair)
        place = conversation.claim_turn(first=True)
        task = asyncio.ensure_future(self._reload(conversation, place))
        self._recoveries[task] = pair
        task.add_done_callback(self._recoveries.pop)

    async def _reload(self, conversation: Conversation, place: ConversationClaim) -> None:
        """Loading is what closes them. When it fails, the next turn tries again."""
        try:
            async with conversation.hold_turn(place):
                conversation.is_loaded = False  # and the mode holds until it is read again
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
        """Folds the history into an archive. Turns that come meanwhile wait; `kill` stops it.

        With `fresh` no model is asked and nothing of it goes on: the archive has no summary, and
        the next turn finds no history.

        Raises UnknownConversationError, NothingToCompactError and CompactionError; nothing has
        changed then. Cancelled, it goes on.
        """
        speaker = self.build_agent(agent)
        run = self._runs.create_run(Pair(agent, sender or DEFAULT_SENDER))
        run.event_queue.close()
        run.accepts_steers = False
        conversation = self.conversations.get(run.pair)
        place = conversation.claim_turn(run.id)
        summarising = None if fresh else lambda: self._write_summary(conversation, speaker)
        work = self._compact(run, conversation, place, summarising)
        return await asyncio.shield(self._runs.start_task(run, work))

    async def _compact(
        self,
        run: Run,
        conversation: Conversation,
        place: ConversationClaim,
        summarising: SummaryWriter | None,
    ) -> Archive:
        # Whoever attaches to it sees a run without words, which ends.
        run.is_started = True
        run.replay_buffer.add(Started(run.speaker, run.id))
        try:
            archive = await run_compaction(
                run, conversation, place, summarising, self.env.store_archive
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
        """Names a conversation for people. A run in flight, whose tool this may be, goes on.

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
        """The rules a person allowed in a conversation for good. Of one that is in use."""
        conversation = self.conversations.find(pair)
        return conversation.meta.approved if conversation is not None else ()

    async def approve_rule(self, pair: Pair, rule: str) -> None:
        """Remembers one, with the conversation. From within a run of it. Raises StorageError."""
        await self.conversations.get(pair).approve_rule(rule)

    def get_mode(self, pair: Pair) -> str:
        """The permission mode that was set for a conversation in use; empty without one."""
        conversation = self.conversations.find(pair)
        return conversation.meta.mode if conversation is not None else ""

    async def set_mode(self, agent: str, mode: str, sender: str = "") -> None:
        """Sets the permission mode of a conversation, at once, also while a turn of it runs. A
        conversation that does not exist yet is created. Raises StorageError."""
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
        """Removes a conversation, live state and all. A run in flight is killed first, with all
        that came of it.

        Raises UnknownConversationError.
        """
        pair = Pair(agent, sender or DEFAULT_SENDER)
        conversation = self.conversations.get(pair)
        place = conversation.claim_turn(first=True)
        if conversation.run is not None:
            conversation.run.kill()
        for run in self._runs.list_delegated_runs(pair):
            run.kill()
        try:
            async with conversation.hold_turn(place):
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
        """Kills what runs and waits for it; what was said by then is kept. Storage stays open.

        So is what waits for its turn, if it was to outlive whoever said it.
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
    """Raises RepeatedKeyError when the conversation has the key of this turn already, and
    KeyConflictError when it is that of something else."""
    use = await conversation.find_key_use(run.key)
    if use is None:
        return
    if use.content_hash != run.labels[0].content_hash:
        raise key_conflict_error(run.key)
    raise RepeatedKeyError


def find_run_id(records: Sequence[Record]) -> str:
    return next((r.run for r in records if isinstance(r, MessageRecord | EventRecord)), "")


def log_run_end(run: Run, done: Done) -> None:
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
