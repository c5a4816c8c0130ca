"""EventRunQueue: runs started by published events, and those that wait to start.

The runs of one target and source go one at a time, in the order of the events, so a slow one
delays only itself. Nothing here is stored: waiting runs are lost when the process ends
(RFC 0121: no durability, best effort).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from crabtalk.runtime import (
    BusyError,
    Run,
    Runtime,
    UnknownAgentError,
    require_positive_integers,
)
from crabtalk.storage import Pair

from .dropped_events import DroppedEvents

log = logging.getLogger(__name__)

# Runs started at once, before other tasks of the loop run.
BATCH_SIZE = 16
# Seconds between two tries when the engine is too busy, and until waiting runs are dropped.
RETRY_SECONDS = 0.25
BUSY_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class EventLimits:
    # Active subscriptions; the next one is refused.
    subscriptions: int = 1024
    # Length of a chain of events, each published by the run that the last one started.
    event_depth: int = 8
    # Concurrent runs started by events; the others wait.
    event_runs: int = 64
    # Runs that may wait, and the total bytes of their payloads.
    events_waiting: int = 16384
    event_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        require_positive_integers(self)


class PublishedEvent(msgspec.Struct):
    """`depth` is its position in a chain of events, from 1."""

    source: str
    payload: str
    depth: int = 1
    origin: str = ""  # of the run that published it; empty if a client did
    waiting: int = 0  # its runs that have not started

    @property
    def content(self) -> str:
        """The message for the targets. Models refuse empty messages."""
        return self.payload if self.payload.strip() else self.source


class EventRunQueue:
    def __init__(
        self, runtime: Callable[[], Runtime], limits: EventLimits, dropped_events: DroppedEvents
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._dropped_events = dropped_events
        # By conversation: its waiting events, each with the sender it acts for.
        self._queues: dict[Pair, deque[tuple[PublishedEvent, str]]] = {}
        self._ready: deque[Pair] = deque()  # conversations whose next run may start
        self._running: dict[Pair, asyncio.Task[object]] = {}
        self._queued_bytes = 0
        self._timer: asyncio.Handle | None = None
        self._busy_since: float | None = None
        self.waiting = 0

    @property
    def running(self) -> int:
        return len(self._running)

    def require_room(self, event: PublishedEvent, count: int) -> None:
        """Raises BusyError when there is no room for `count` runs of an event."""
        if (
            self.waiting + count > self._limits.events_waiting
            or self._queued_bytes + len(event.payload) > self._limits.event_bytes
        ):
            raise BusyError(
                f"{self.waiting} runs that events set off are waiting already; publish it later"
            )

    def add(self, event: PublishedEvent, targets: Iterable[tuple[str, str]]) -> None:
        """Start runs soon, but not in this call: the publisher does not wait and gets no error.

        `targets` are agents, each with the sender it acts for.
        """
        for target, origin in targets:
            pair = Pair(target, f"event:{event.source}")
            if pair not in self._queues:
                self._queues[pair] = deque()
                self._ready.append(pair)
            self._queues[pair].append((event, origin))
            self._queued_bytes += 0 if event.waiting else len(event.payload)
            event.waiting += 1
            self.waiting += 1
        self._schedule()

    def _schedule(self, delay: float = 0) -> None:
        if self._timer is None and self._ready:
            self._timer = asyncio.get_running_loop().call_later(delay, self._start_batch)

    def _start_batch(self) -> None:
        self._timer = None
        for _ in range(BATCH_SIZE):
            if not self._ready or self.running >= self._limits.event_runs:
                return  # scheduled again when a run ends
            pair = self._ready.popleft()
            if not self._start(pair, *self._queues[pair][0]):
                self._ready.appendleft(pair)
                self._schedule(RETRY_SECONDS)
                return
        self._schedule()

    def _start(self, pair: Pair, event: PublishedEvent, origin: str) -> bool:
        """False if the engine is too busy."""
        run: Run | None = None
        try:
            run = self._runtime().start(
                pair.agent,
                event.content,
                sender=pair.sender,
                verbatim=True,  # text of another agent is not a command
                detached=True,
                attended=False,
                origin=origin,
                chain=event.depth,
            )
        except BusyError as error:
            if self._may_retry(error):
                return False
            self._dropped_events.count_lost(event.source, f"{pair.agent} was not told: {error}")
        except UnknownAgentError as error:
            log.warning("the event %.80r has no agent to run: %s", event.source, error)
        except Exception:
            log.exception("the event %.80r could not be told to %.80r", event.source, pair.agent)
            self._dropped_events.lost += 1
        self._busy_since = None
        self._remove_first(pair)
        if run is None:
            self._on_run_over(pair)
        else:
            task: asyncio.Task[object] = asyncio.ensure_future(run.wait())
            self._running[pair] = task
            task.add_done_callback(lambda _: self._on_run_over(pair))
        return True

    def _may_retry(self, error: BusyError) -> bool:
        now = asyncio.get_running_loop().time()
        if self._busy_since is None:
            self._busy_since = now
            log.warning("runs that events set off have to wait: %s", error)
        return now - self._busy_since < BUSY_TIMEOUT_SECONDS

    def _remove_first(self, pair: Pair) -> None:
        event, _ = self._queues[pair].popleft()
        event.waiting -= 1
        self.waiting -= 1
        self._queued_bytes -= 0 if event.waiting else len(event.payload)

    def _on_run_over(self, pair: Pair) -> None:
        """The next run of this conversation starts after those of all others."""
        self._running.pop(pair, None)
        queue = self._queues.get(pair)
        if queue:
            self._ready.append(pair)
        elif queue is not None:
            del self._queues[pair]
        self._schedule()

    async def close(self) -> None:
        """Start no more runs. The engine ends those that are running."""
        if self.waiting:
            log.warning("%d runs that events set off did not begin, and will not", self.waiting)
        self._queues.clear()
        self._ready.clear()
        self.waiting = self._queued_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
