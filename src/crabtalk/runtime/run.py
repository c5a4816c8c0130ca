"""Run: one turn being carried out, as the rest of the program sees it."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from crabtalk.storage import Accepted, Agent, Pair

from .events import Done, Event, Started, StopReason, ToolProgress
from .hook import Env
from .outlet import Outlet
from .run_tree import RunTree
from .transcript import Numbered, Transcript

log = logging.getLogger(__name__)


class Parent(msgspec.Struct, frozen=True):
    """The run, and the call in it, that delegated this one."""

    pair: Pair
    run_id: str
    call_id: str
    origin: str = ""  # who set all of it off: the sender of the first run of the chain
    keeper: str = ""  # of an agent made for the task: the agent whose memory it uses
    depth: int = 1  # runs above
    task: int = 0  # which of the call's tasks
    # The agents of the runs above, as they were written, the first caller first. Whatever confines
    # one of them confines this run too.
    lineage: tuple[Agent, ...] = ()
    directories: tuple[Path, ...] = ()  # where those runs work, in the same order
    tree: RunTree | None = None


class Steer(msgspec.Struct, frozen=True):
    """A steering message that is kept and waits to be read."""

    number: int  # counted from 1 within its run
    text: str


class Label(msgspec.Struct, frozen=True):
    """What the log says of a message beside its text."""

    key: str = ""  # that the client gave it
    content_hash: str = ""
    said: str = ""  # what the person typed, where a skill made another text of it


class Run:
    """Owned by its task, not by whoever listens: a listener that leaves takes it along only if it
    is the one who asked for it, and did not ask for it to go on."""

    __slots__ = (
        "_env",
        "_origin",
        "accepted",
        "accepting",
        "accepts_steers",
        "agent",
        "attended",
        "chain",
        "confirmed",
        "cwd",
        "detached",
        "done",
        "follow_count",
        "followers",
        "held",
        "id",
        "is_guest",
        "is_key_checked",
        "is_started",
        "killed",
        "labels",
        "mode",
        "number",
        "outlet",
        "pair",
        "parent",
        "receipts",
        "said",
        "speaker",
        "steer_count",
        "steer_keys",
        "steering",
        "steers",
        "stopping",
        "task",
        "transcript",
        "tree",
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
        parent: Parent | None = None,
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
        self.receipts: list[tuple[str, dict[str, Any]]] = []
        self.outlet = Outlet(bound)
        self.transcript = Transcript(buffer)
        self.followers = 0  # how many read the transcript
        self.follow_count = 0  # and how often somebody began to
        self.is_key_checked = False  # the log has been searched for its key
        # With a key: set when its turn has come and nobody else has used the key.
        self.confirmed: asyncio.Event | None = None
        self.labels: dict[int, Label] = {}  # of its own message (0) and of steering messages
        self.steer_keys: dict[str, asyncio.Task[None]] = {}  # steering messages that have a key
        self.number = 0  # order of acceptance among all runs and steers of this process
        self.steers: deque[Steer] = deque()
        self.steer_count = 0  # steering messages it was given, also those that could not be kept
        self.accepting: set[asyncio.Task[None]] = set()  # steering messages being kept
        self.steering = asyncio.Lock()  # they are kept one after the other, in order
        self.accepted: dict[int, Accepted] = {}  # kept, and not in the log yet; 0 is the turn's own
        self.is_started = False
        self.said = ""  # what it answers, in the words it was said in
        self.accepts_steers = True
        self.detached = False
        self.chain = 0  # events that led to it, one after another
        self.held = 0  # its share of the bytes all runs hold of what was said
        self.stopping = False  # when its turn comes, it keeps what was said and does no more
        self.killed = False
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
    def lineage(self) -> tuple[Agent, ...]:
        """The agents of the runs above it, the first caller first."""
        return self.parent.lineage if self.parent is not None else ()

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where the runs above it work, the first caller first."""
        return self.parent.directories if self.parent is not None else ()

    @property
    def keeper(self) -> str:
        """Whose memory it uses: its agent's, or for one made for a task that of who made it."""
        return (self.parent.keeper if self.parent is not None else "") or self.pair.agent

    @property
    def shown_mode(self) -> str:
        """The permission mode that its Started names."""
        return self._env.mode(self, self.agent) if self.agent is not None else ""

    def announce(self) -> None:
        """Emits Started, once. What it answers must be kept by then."""
        if not self.is_started:
            self.is_started = True
            self.emit(Started(self.speaker, self.id, self.shown_mode))

    def confirm(self) -> None:
        """It is a run of its own, or over."""
        if self.confirmed is not None:
            self.confirmed.set()

    async def wait_for_steers(self) -> None:
        """Until every steering message that is being kept is kept, or failed."""
        while self.accepting:
            await asyncio.wait(self.accepting)

    def emit(self, event: Event) -> None:
        # How far something is matters now or never: a reader that is behind does without.
        if type(event) is not ToolProgress:
            self.outlet.push(event)
            self.transcript.add(event)
        elif not self.outlet.full:
            self.outlet.push(event)
        self.tell(event)

    def show(self, event: Event) -> None:
        """To those who read its stream alone."""
        self.outlet.push(event)
        self.transcript.add(event)

    def tell(self, event: Event) -> None:
        """To those who watch alone."""
        try:
            self._env.on_event(self, event)
        except Exception:
            log.exception("a hook could not hear of %s", type(event).__name__)

    def kill(self) -> None:
        """Cancels at its next await. Once: a second one would interrupt the tidying up."""
        if not self.killed and self.done is None and self.task is not None:
            self.killed = True
            # Through the loop, so that it has begun by then: a task cancelled before that never
            # runs, and would neither leave the line nor say that it is over.
            self.task.get_loop().call_soon(self.task.cancel)

    async def events(self) -> AsyncGenerator[Event, None]:
        """All of it from the start; one reader only. Closed early, the run is killed, unless it
        is detached."""
        try:
            while True:
                event = await self.outlet.next()
                yield event
                if type(event) is Done:
                    return
        finally:
            self.outlet.close()
            if not self.detached:
                self.kill()

    async def follow(self, after: int = 0) -> AsyncGenerator[Numbered, None]:
        """The events with a number above `after`, for one of any number of readers, until the
        Done. It returns without one when the reader is so far behind that the next event was
        dropped. A reader that leaves does not stop the run."""
        while after >= self.transcript.dropped:
            found = self.transcript.next(after)
            if found is None:
                await self.transcript.grown(after)
                continue
            after = found.number
            yield Numbered(0, found.event) if self.transcript.is_stored else found
            if type(found.event) is Done:
                return

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Counts a follower for the length of the block."""
        self.followers += 1
        self.follow_count += 1
        try:
            yield
        finally:
            self.followers -= 1

    async def wait(self) -> Done:
        """The end of it, without its events. Cancelled, the run goes on."""
        self.outlet.close()
        if self.task is not None:
            await asyncio.wait([self.task])
        return self.done or Done(self.speaker, StopReason.CANCELLED)
