"""EventBus: starts the agents that are subscribed to a published event.

It is a table matched by exact source; it does no routing (RFC 0121). A run that ends publishes
`agent:<name>:done` or `agent:<name>:failed`; all other events come from clients. The run queue
starts the runs later, so publishing does not wait for them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from crabtalk.runtime import BusyError, Done, Run, Runtime, StopReason
from crabtalk.storage import StorageError, Subscription

from .dropped_events import DroppedEvents
from .run_queue import EventLimits, EventRunQueue, PublishedEvent

log = logging.getLogger(__name__)

# Problems of one kind that are shown; the log has all of them.
MAX_PROBLEMS_SHOWN = 10
# Name in events of an agent that was created for one task.
WORKER_NAME = "worker"
T = TypeVar("T")


class SubscriptionStore(Protocol):
    """Stores the subscriptions. A call that raises StorageError has changed nothing.

    Callers must not let two calls overlap.
    """

    is_shared: bool  # other daemons change them too

    async def load(self) -> list[Subscription]: ...

    async def list_for_source(self, source: str) -> list[Subscription]:
        """The subscriptions to one source, as they are now."""
        ...

    async def add(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription: ...

    async def remove(self, ids: Collection[int]) -> set[int]:
        """Remove those that exist, and return their ids. Each id is returned to one caller only."""
        ...


class EventBus:
    """`once` means at most once: the subscription is removed on disk before it is fired.

    A crash in between loses the firing. The other order could fire it twice, and an agent that
    repeats an action can do harm.
    """

    def __init__(
        self,
        store: SubscriptionStore,
        runtime: Callable[[], Runtime],
        limits: EventLimits | None = None,
        is_owner: Callable[[str], bool] = lambda sender: False,
    ) -> None:
        self._store = store
        self._is_owner = is_owner
        self._runtime = runtime
        self._limits = limits or EventLimits()
        self.dropped_events = DroppedEvents()
        self.run_queue = EventRunQueue(runtime, self._limits, self.dropped_events)
        self._table: dict[int, Subscription] = {}
        self._sources: dict[str, list[Subscription]] = {}
        self._lock = asyncio.Lock()
        # `once` subscriptions to remove from the store and then fire.
        self._pending_once: list[tuple[PublishedEvent, list[Subscription]]] = []
        self._removal_task: asyncio.Task[None] | None = None  # one that has not started to remove
        self._tasks: set[asyncio.Task[Any]] = set()
        self._store_error = ""
        self._cycles: dict[str, str] = {}  # source to a sentence about it
        self._closed = False

    # ── Subscriptions ───────────────────────────────────────────────────────────────────────

    async def load(self) -> None:
        """Read the subscriptions again. On failure the old ones stay, and `problems` says so."""
        async with self._lock:
            try:
                subscriptions = await self._store.load()
            except StorageError as error:
                self._store_error = str(error)
                log.error("%s", error)  # noqa: TRY400 - a sentence for a person
                return
            self._store_error = ""
            self._cycles.clear()
            self.dropped_events.reset()
            self._replace_subscriptions(subscriptions)

    @property
    def subscriptions(self) -> list[Subscription]:
        return sorted(self._table.values(), key=lambda subscription: subscription.id)

    async def subscribe(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription:
        """On disk when it returns. Raises BusyError and StorageError. Completes when cancelled."""
        work = self._subscribe(source, target_agent, once, created_by)
        return await asyncio.shield(self._spawn(work))

    async def _subscribe(
        self, source: str, target_agent: str, once: bool, created_by: str
    ) -> Subscription:
        async with self._lock:
            if len(self._table) >= self._limits.subscriptions:
                raise BusyError(
                    f"there are {len(self._table)} subscriptions already; unsubscribe one, or "
                    "raise subscriptions in [limits] of config.toml"
                )
            await self._reload_after_failure()
            new = await self._store.add(source, target_agent, once=once, created_by=created_by)
            self._add_subscription(new)
            return new

    async def unsubscribe(self, number: int) -> bool:
        """False if there was none. Raises StorageError. Completes when cancelled."""
        return await asyncio.shield(self._spawn(self._unsubscribe(number)))

    async def _unsubscribe(self, number: int) -> bool:
        async with self._lock:
            await self._reload_after_failure()
            removed = await self._store.remove([number])
            is_known = number in self._table
            self._remove_subscriptions([number])
            self._cycles.clear()  # it may have closed a cycle
            return bool(removed) or is_known

    async def _reload_after_failure(self) -> None:
        """If the store failed before, read it again first. Raises StorageError."""
        if self._store_error:
            self._replace_subscriptions(await self._store.load())
            self._store_error = ""

    def _replace_subscriptions(self, subscriptions: Iterable[Subscription]) -> None:
        self._table, self._sources = {}, {}
        for subscription in subscriptions:
            self._add_subscription(subscription)

    def _add_subscription(self, subscription: Subscription) -> None:
        self._remove_subscriptions([subscription.id])
        self._table[subscription.id] = subscription
        self._sources.setdefault(subscription.source, []).append(subscription)

    def _remove_subscriptions(self, ids: Iterable[int]) -> None:
        for number in ids:
            if (subscription := self._table.pop(number, None)) is not None:
                left = [other for other in self._sources[subscription.source] if other.id != number]
                if left:
                    self._sources[subscription.source] = left
                else:
                    del self._sources[subscription.source]

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    async def publish(self, source: str, payload: str) -> None:
        """Publish an event from a client. Returns when all runs it starts are queued, if any.

        Raises BusyError if nothing was queued, and StorageError if a `once` subscription could not
        be removed and so was not fired. Completes when cancelled.
        """
        try:
            if self._store.is_shared:
                await self._refresh_source(source)
            removal = self._dispatch(PublishedEvent(source, payload))
        except BusyError as error:
            self.dropped_events.count_refused(error)
            raise
        if removal is not None:
            await asyncio.shield(removal)

    def on_run_done(self, run: Run, done: Done) -> None:
        """Publish the end of a run. Errors are counted and logged, not raised."""
        if run.is_guest:
            return
        # The name of an agent created for a task is random, so it cannot be subscribed to.
        is_worker = run.parent is not None and run.pair.agent not in self._runtime().agents
        name = WORKER_NAME if is_worker else run.pair.agent
        kind, payload = describe_outcome(done)
        event = PublishedEvent(f"agent:{name}:{kind}", payload, run.event_depth + 1, run.origin)
        if self._store.is_shared:
            self._spawn(self._refresh_and_publish_run_event(event))
        else:
            self._publish_run_event(event)

    async def _refresh_and_publish_run_event(self, event: PublishedEvent) -> None:
        try:
            await self._refresh_source(event.source)
        except StorageError as error:
            log.warning("the subscriptions to %.80r may be out of date: %s", event.source, error)
        self._publish_run_event(event)

    def _publish_run_event(self, event: PublishedEvent) -> None:
        try:
            self._dispatch(event)
        except BusyError as error:
            self.dropped_events.count_lost(event.source, error)

    async def _refresh_source(self, source: str) -> None:
        """Pick up changes that other daemons made to a source. Raises StorageError."""
        async with self._lock:
            due = {subscription.id for _, once in self._pending_once for subscription in once}
            current = [
                subscription
                for subscription in await self._store.list_for_source(source)
                if subscription.id not in due
            ]
            self._remove_subscriptions(
                [subscription.id for subscription in self._sources.get(source, [])]
            )
            for subscription in current:
                self._add_subscription(subscription)

    def _dispatch(self, event: PublishedEvent) -> asyncio.Task[None] | None:
        """Queue the matching runs. Returns the task that fires the `once` subscriptions, if any."""
        matching = self._sources.get(event.source)
        if not matching or self._closed:
            return None
        if event.depth > self._limits.event_depth:
            self._report_cycle(event, matching)
            return None
        self.run_queue.require_room(event, len(matching))
        once_subscriptions = [subscription for subscription in matching if subscription.once]
        self.run_queue.add(
            event,
            self._list_targets(
                event, [subscription for subscription in matching if not subscription.once]
            ),
        )
        if not once_subscriptions:
            return None
        # Removed from memory now, so that the next event does not have to read the store.
        self._remove_subscriptions([subscription.id for subscription in once_subscriptions])
        self._pending_once.append((event, once_subscriptions))
        if self._removal_task is None:
            self._removal_task = self._spawn(self._remove_once_subscriptions())
        return self._removal_task

    async def _remove_once_subscriptions(self) -> None:
        """Remove all pending `once` subscriptions from the store in one change, then fire them."""
        async with self._lock:
            due, self._pending_once, self._removal_task = self._pending_once, [], None
            if self._closed:
                return  # the store still has them, for the next daemon
            removing = [subscription for _, once in due for subscription in once]
            try:
                await self._reload_after_failure()
                removed = await self._store.remove([subscription.id for subscription in removing])
            except StorageError as error:
                for subscription in removing:
                    self._add_subscription(subscription)
                self._store_error = str(error)
                for event, _ in due:
                    log.error("%.80r was not fired: %s", event.source, error)  # noqa: TRY400
                raise
            # A reload may have read them again.
            self._remove_subscriptions(subscription.id for subscription in removing)
        if not self._closed:
            for event, once in due:
                # Skip those that are gone: another daemon or a person removed them, or an earlier
                # event fired them and a reload read them again in between.
                mine = [subscription for subscription in once if subscription.id in removed]
                removed -= {subscription.id for subscription in mine}
                self.run_queue.add(event, self._list_targets(event, mine))

    def _list_targets(
        self, event: PublishedEvent, subscriptions: Iterable[Subscription]
    ) -> list[tuple[str, str]]:
        """The agents that an event starts, each with the sender it acts for: the creator of the
        subscription, or the origin of the event if that is not the owner."""
        is_foreign = bool(event.origin) and not self._is_owner(event.origin)
        return [
            (subscription.target_agent, event.origin if is_foreign else subscription.created_by)
            for subscription in subscriptions
        ]

    def _report_cycle(self, event: PublishedEvent, matching: list[Subscription]) -> None:
        names = ", ".join(
            sorted({subscription.target_agent for subscription in matching})[:MAX_PROBLEMS_SHOWN]
        )
        sentence = (
            f"events seem to go in circles: after {self._limits.event_depth} in a row, "
            f"{event.source} was not passed on to {names}; unsubscribe what closes the circle, or "
            "raise event_depth in [limits] of config.toml"
        )
        log.warning("%s", sentence)
        self._cycles[event.source] = sentence
        while len(self._cycles) > MAX_PROBLEMS_SHOWN:
            del self._cycles[next(iter(self._cycles))]

    # ── The rest ────────────────────────────────────────────────────────────────────────────

    @property
    def problems(self) -> list[str]:
        """What is wrong with subscriptions, one sentence each."""
        agents = self._runtime().agents
        without_agent: dict[str, Subscription] = {}
        for subscription in self._table.values():
            if subscription.target_agent not in agents:
                without_agent.setdefault(subscription.target_agent, subscription)
        return [
            *([self._store_error] if self._store_error else []),
            *self._cycles.values(),
            *([self.dropped_events.problem] if self.dropped_events.problem else []),
            *(
                f"subscription {subscription.id} to {subscription.source[:80]!r} is for "
                f"{name[:80]!r}, but no agent is called that; unsubscribe it, or give an agent "
                "that name"
                for name, subscription in list(without_agent.items())[:MAX_PROBLEMS_SHOWN]
            ),
        ]

    def statistics(self) -> dict[str, int]:
        return {
            "subscriptions": len(self._table),
            "changing": len(self._tasks),
            "waiting": self.run_queue.waiting,
            "running": self.run_queue.running,
            "refused": self.dropped_events.refused,
            "lost": self.dropped_events.lost,
        }

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a change to its end, even if the caller is cancelled."""
        task = asyncio.ensure_future(work)

        def on_done(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # raised in the caller, or logged before; no warning at exit

        self._tasks.add(task)
        task.add_done_callback(on_done)
        return task

    async def close(self) -> None:
        """Fire nothing more; changes that have begun are completed."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self.run_queue.close()
        self.dropped_events.reset()


def describe_outcome(done: Done) -> tuple[str, str]:
    """The event kind and payload for the end of a run: its result, or why there is none."""
    match done.reason:
        case StopReason.COMPLETED | StopReason.LENGTH | StopReason.NO_ACTION if done.text:
            return "done", done.text
        case StopReason.CANCELLED:
            return "failed", f"{done.agent} was stopped before it was done"
        case StopReason.MAX_ITERATIONS:
            return "failed", f"{done.agent} took all the steps it may take, and was not done"
        case StopReason.ERROR:
            return "failed", done.error or f"{done.agent} failed"
        case _:
            return "failed", f"{done.agent} said nothing"
