"""Run: one turn being carried out, as the rest of the program sees it."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from crabtalk.storage import AcceptedMessage, Agent, Pair

from .event_queue import EventQueue
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
    origin: str = ""  # who set all of it off: the sender of the first run of the chain
    memory_owner: str = ""  # of an agent made for the task: the agent whose memory it uses
    depth: int = 1  # runs above
    task: int = 0  # which of the call's tasks
    # The agents of the runs above, as they were written, the first caller first. Whatever confines
    # one of them confines this run too.
    caller_agents: tuple[Agent, ...] = ()
    caller_directories: tuple[Path, ...] = ()  # where those runs work, in the same order
    tree: RunTree | None = None


class PendingSteer(msgspec.Struct, frozen=True):
    """A steering message that is kept and waits to be read."""

    number: int  # counted from 1 within its run
    text: str


class MessageLabel(msgspec.Struct, frozen=True):
    """What the log says of a message beside its text."""

    key: str = ""  # that the client gave it
    content_hash: str = ""
    typed_text: str = ""  # what the person typed, where a skill made another text of it


class Run:
    """Owned by its task, not by whoever listens: a listener that leaves takes it along only if it
    is the one who asked for it, and did not ask for it to go on."""

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
        self.agent: Agent | None = None  # whose conversation it is, as it was when the run began
        self.mode = ""  # the permission mode asked for with this turn; empty: the conversation's
        self.attended = True  # whoever started it sees what it asks
        self.unattended = False  # and said that nobody will answer
        # What people decided about its calls, for the log: (event, data).
        self.decision_records: list[tuple[str, dict[str, Any]]] = []
        self.event_queue = EventQueue(bound)
        self.replay_buffer = ReplayBuffer(buffer)
        self.followers = 0  # how many read the transcript
        self.follow_count = 0  # and how often somebody began to
        self.is_key_checked = False  # the log has been searched for its key
        # With a key: set when its turn has come and nobody else has used the key.
        self.confirmed: asyncio.Event | None = None
        self.labels: dict[int, MessageLabel] = {}  # of its own message (0) and of steering messages
        self.steer_keys: dict[str, asyncio.Task[None]] = {}  # steering messages that have a key
        self.number = 0  # order of acceptance among all runs and steers of this process
        self.steers: deque[PendingSteer] = deque()
        self.steer_count = 0  # steering messages it was given, also those that could not be kept
        self.accept_tasks: set[asyncio.Task[None]] = set()  # steering messages being kept
        self.steer_lock = asyncio.Lock()  # they are kept one after the other, in order
        self.accepted: dict[
            int, AcceptedMessage
        ] = {}  # kept, and not in the log yet; 0 is the turn's own
        self.is_started = False
        self.typed_text = ""  # what it answers, in the words it was said in
        self.accepts_steers = True
        self.is_detached = False
        self.event_depth = 0  # events that led to it, one after another
        self.held_bytes = 0  # its share of the bytes all runs hold of what was said
        self.is_stopping = False  # when its turn comes, it keeps what was said and does no more
        self.is_killed = False
        self.done: Done | None = None
        self.task: asyncio.Task[Any] | None = None
        self._env = env

    @property
    def origin(self) -> str:
        """The sender in whose name it acts. Set where the first run begins, and inherited."""
        return self._origin

    @property
    def key(self) -> str:
        """That its message was given; empty without one."""
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
        """Whose memory it uses: its agent's, or for one made for a task that of who made it."""
        return (self.parent.memory_owner if self.parent is not None else "") or self.pair.agent

    @property
    def effective_mode(self) -> str:
        """The permission mode that its Started names."""
        return self._env.permission_mode(self, self.agent) if self.agent is not None else ""

    def emit_started(self) -> None:
        """Emits Started, once. What it answers must be kept by then."""
        if not self.is_started:
            self.is_started = True
            self.emit(Started(self.speaker, self.id, self.effective_mode))

    def confirm(self) -> None:
        """It is a run of its own, or over."""
        if self.confirmed is not None:
            self.confirmed.set()

    async def wait_for_steers(self) -> None:
        """Until every steering message that is being kept is kept, or failed."""
        while self.accept_tasks:
            await asyncio.wait(self.accept_tasks)

    def emit(self, event: Event) -> None:
        # How far something is matters now or never: a reader that is behind does without.
        if type(event) is not ToolProgress:
            self.event_queue.push(event)
            self.replay_buffer.add(event)
        elif not self.event_queue.is_full:
            self.event_queue.push(event)
        self.notify_hooks(event)

    def emit_to_readers(self, event: Event) -> None:
        """To those who read its stream alone."""
        self.event_queue.push(event)
        self.replay_buffer.add(event)

    def notify_hooks(self, event: Event) -> None:
        """To those who watch alone."""
        try:
            self._env.on_event(self, event)
        except Exception:
            log.exception("a hook could not hear of %s", type(event).__name__)

    def kill(self) -> None:
        """Cancels at its next await. Once: a second one would interrupt the tidying up."""
        if not self.is_killed and self.done is None and self.task is not None:
            self.is_killed = True
            # Through the loop, so that it has begun by then: a task cancelled before that never
            # runs, and would neither leave the line nor say that it is over.
            self.task.get_loop().call_soon(self.task.cancel)

    async def events(self) -> AsyncGenerator[Event, None]:
        """All of it from the start; one reader only. Closed early, the run is killed, unless it
        is detached."""
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
        """The events with a number above `after`, for one of any number of readers, until the
        Done. It returns without one when the reader is so far behind that the next event was
        dropped. A reader that leaves does not stop the run."""
        while after >= self.replay_buffer.last_dropped:
            found = self.replay_buffer.read_next(after)
            if found is None:
                await self.replay_buffer.wait_for_events(after)
                continue
            after = found.number
            yield NumberedEvent(0, found.event) if self.replay_buffer.is_stored else found
            if type(found.event) is Done:
                return

    @contextmanager
    def count_follower(self) -> Iterator[None]:
        """Counts a follower for the length of the block."""
        self.followers += 1
        self.follow_count += 1
        try:
            yield
        finally:
            self.followers -= 1

    async def wait(self) -> Done:
        """The end of it, without its events. Cancelled, the run goes on."""
        self.event_queue.close()
        if self.task is not None:
            await asyncio.wait([self.task])
        return self.done or Done(self.speaker, StopReason.CANCELLED)
