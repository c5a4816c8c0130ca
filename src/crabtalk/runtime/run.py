"""Run: one turn in progress, as the rest of the program sees it.

It holds the run's events, steering messages and state. The work itself is done in `turn`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from crabtalk.storage import AcceptedMessage, Agent, Pair

from .events import Done, Event, Started, StopReason, ToolProgress
from .hook import Env
from .replay_buffer import NumberedEvent, ReplayBuffer
from .run_tree import RunTree

log = logging.getLogger(__name__)


class ParentRun(msgspec.Struct, frozen=True):
    """The run, and the call in it, that delegated this one."""

    pair: Pair
    run_id: str
    call_id: str
    origin: str = ""  # the sender of the first run of the chain
    memory_owner: str = ""  # for an agent made for the task: the agent whose memory it uses
    depth: int = 1  # how many runs are above
    task: int = 0  # which of the call's tasks
    # The agents of the runs above, as they were written, the first caller first. A restriction on
    # any of them applies to this run too.
    caller_agents: tuple[Agent, ...] = ()
    caller_directories: tuple[Path, ...] = ()  # where those runs work, in the same order
    tree: RunTree | None = None


class PendingSteer(msgspec.Struct, frozen=True):
    """A steering message that is stored and that the agent has not read yet."""

    number: int  # counted from 1 within its run
    text: str


class MessageLabel(msgspec.Struct, frozen=True):
    """What the log records about a message beside its text."""

    key: str = ""  # the client's idempotency key
    content_hash: str = ""
    typed_text: str = ""  # what the person typed, when a skill replaced it


class Run:
    """Belongs to its task, not to its readers. Only the reader of `events` ends the run by leaving,
    and only if the run is not detached."""

    __slots__ = (
        "_env",
        "_origin",
        "accept_tasks",
        "accepted",
        "accepts_steers",
        "agent",
        "attended",
        "confirmed",
        "cwd",
        "decision_records",
        "done",
        "event_depth",
        "event_queue",
        "follow_count",
        "followers",
        "held_bytes",
        "id",
        "is_detached",
        "is_guest",
        "is_key_checked",
        "is_killed",
        "is_started",
        "is_stopping",
        "labels",
        "mode",
        "number",
        "pair",
        "parent",
        "replay_buffer",
        "speaker",
        "steer_count",
        "steer_keys",
        "steer_lock",
        "steers",
        "task",
        "tree",
        "typed_text",
        "unattended",
    )

    def __init__(
        self,
        run_id: str,
        pair: Pair,
        speaker: str,
        env: Env,
        bound: int,
        buffer: int,
        *,
        cwd: Path,
        is_guest: bool = False,
        parent: ParentRun | None = None,
        origin: str = "",
    ) -> None:
        self.id = run_id
        self.pair = pair
        self.speaker = speaker  # who answers: the conversation's agent, or a guest
        self.cwd = cwd
        self.is_guest = is_guest
        self.parent = parent
        self.tree = parent.tree if parent is not None and parent.tree is not None else RunTree(self)
        self._origin = (parent.origin if parent is not None else "") or origin or pair.sender
        self.agent: Agent | None = None  # the conversation's agent, as it was when the run began
        self.mode = ""  # the permission mode of this turn; empty: the conversation's
        self.attended = True  # the client that started it shows its questions
        self.unattended = False  # the client said that no person will answer
        # People's decisions about its tool calls, for the log: (event, data).
        self.decision_records: list[tuple[str, dict[str, Any]]] = []
        self.event_queue = EventQueue(bound)
        self.replay_buffer = ReplayBuffer(buffer)
        self.followers = 0  # current readers of the replay buffer
        self.follow_count = 0  # readers so far
        self.is_key_checked = False  # the log has been searched for its key
        # With a key: set when its turn has come and no other message has used the key.
        self.confirmed: asyncio.Event | None = None
        self.labels: dict[int, MessageLabel] = {}  # of its own message (0) and of steering messages
        self.steer_keys: dict[str, asyncio.Task[None]] = {}  # steering messages that have a key
        self.number = 0  # order of acceptance among all runs and steers of this process
        self.steers: deque[PendingSteer] = deque()
        self.steer_count = 0  # steering messages so far, also those that could not be stored
        self.accept_tasks: set[asyncio.Task[None]] = set()  # steering messages being stored
        self.steer_lock = asyncio.Lock()  # they are stored one after the other, in order
        # Messages that are stored and not in the log yet; 0 is the turn's own.
        self.accepted: dict[int, AcceptedMessage] = {}
        self.is_started = False
        self.typed_text = ""  # the user's message as typed
        self.accepts_steers = True
        self.is_detached = False
        self.event_depth = 0  # how many events led to it, one causing the next
        self.held_bytes = 0  # its share of the message text that all runs hold in memory
        self.is_stopping = False  # when its turn comes, it stores its message and ends
        self.is_killed = False
        self.done: Done | None = None
        self.task: asyncio.Task[Any] | None = None
        self._env = env

    @property
    def origin(self) -> str:
        """The sender on whose behalf the run acts. Delegated runs inherit it from the first run."""
        return self._origin

    @property
    def key(self) -> str:
        """The key of its message; empty without one."""
        label = self.labels.get(0)
        return label.key if label is not None else ""

    @property
    def caller_agents(self) -> tuple[Agent, ...]:
        """The agents of the runs above it, the first caller first."""
        return self.parent.caller_agents if self.parent is not None else ()

    @property
    def caller_directories(self) -> tuple[Path, ...]:
        """Where the runs above it work, the first caller first."""
        return self.parent.caller_directories if self.parent is not None else ()

    @property
    def memory_owner(self) -> str:
        """The agent whose memory the run uses: its own, or the creator of a temporary agent."""
        return (self.parent.memory_owner if self.parent is not None else "") or self.pair.agent

    @property
    def effective_mode(self) -> str:
        """The permission mode that the Started event reports."""
        return self._env.permission_mode(self, self.agent) if self.agent is not None else ""

    def emit_started(self) -> None:
        """Emits Started, once. The message it answers must be stored by then."""
        if not self.is_started:
            self.is_started = True
            self.emit(Started(self.speaker, self.id, self.effective_mode))

    def confirm(self) -> None:
        """Marks that the run is no repetition of an earlier one, or that it is over."""
        if self.confirmed is not None:
            self.confirmed.set()

    async def wait_for_steers(self) -> None:
        """Waits until every steering message being stored is stored or has failed."""
        while self.accept_tasks:
            await asyncio.wait(self.accept_tasks)

    def emit(self, event: Event) -> None:
        # Progress is of no use later: a reader that is behind does not get it.
        if type(event) is not ToolProgress:
            self.event_queue.push(event)
            self.replay_buffer.add(event)
        elif not self.event_queue.is_full:
            self.event_queue.push(event)
        self.notify_hooks(event)

    def emit_to_readers(self, event: Event) -> None:
        """Emits an event only to readers of the run, not to hooks."""
        self.event_queue.push(event)
        self.replay_buffer.add(event)

    def notify_hooks(self, event: Event) -> None:
        """Emits an event only to hooks, not to readers of the run."""
        try:
            self._env.on_event(self, event)
        except Exception:
            log.exception("a hook could not hear of %s", type(event).__name__)

    def kill(self) -> None:
        """Cancels the run at its next await. Only once: again would interrupt the cleanup."""
        if not self.is_killed and self.done is None and self.task is not None:
            self.is_killed = True
            # Through the loop, so that the task has begun by then: a task cancelled earlier never
            # runs, and would neither leave the queue nor emit its Done.
            self.task.get_loop().call_soon(self.task.cancel)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields all events from the start, for one reader only. Closed early, the run is killed,
        unless it is detached."""
        try:
            while True:
                event = await self.event_queue.next_event()
                yield event
                if type(event) is Done:
                    return
        finally:
            self.event_queue.close()
            if not self.is_detached:
                self.kill()

    async def follow(self, after: int = 0) -> AsyncGenerator[NumberedEvent, None]:
        """Yields the events with a number above `after`, up to the Done, for any number of readers.
        Returns without a Done when the reader is so far behind that the next event was dropped. A
        reader that leaves does not stop the run."""
        begins_anew = False
        while after >= self.replay_buffer.last_dropped:
            if self.replay_buffer.is_stored and not begins_anew:
                # Stored events are numbered among themselves, so `after` means nothing here.
                after, begins_anew = 0, True
            numbered = self.replay_buffer.read_next(after)
            if numbered is None:
                await self.replay_buffer.wait_for_events(after)
                continue
            after = numbered.number
            yield NumberedEvent(0, numbered.event) if self.replay_buffer.is_stored else numbered
            if type(numbered.event) is Done:
                return

    @contextmanager
    def count_follower(self) -> Iterator[None]:
        """Counts a follower for the duration of the block."""
        self.followers += 1
        self.follow_count += 1
        try:
            yield
        finally:
            self.followers -= 1

    async def wait(self) -> Done:
        """Waits for the end of the run, discarding its events. Cancelled, the run goes on."""
        self.event_queue.close()
        if self.task is not None:
            await asyncio.wait([self.task])
        return self.done or Done(self.speaker, StopReason.CANCELLED)


class EventQueue:
    """One writer, one reader. The writer pushes, and waits for room while the queue `is_full`."""

    __slots__ = ("_bound", "_closed", "_events", "_reader", "_writer")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._events: deque[Event] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def is_full(self) -> bool:
        return len(self._events) >= self._bound

    def push(self, event: Event) -> None:
        if self._closed:
            return
        self._events.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait_for_room(self) -> None:
        """Waits until the reader has caught up, or left."""
        while self.is_full and not self._closed:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def next_event(self) -> Event:
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = self._events.popleft()
        if self._writer is not None and not self._writer.done() and not self.is_full:
            self._writer.set_result(None)
        return event

    def close(self) -> None:
        """Called when the reader leaves."""
        self._closed = True
        self._events.clear()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
