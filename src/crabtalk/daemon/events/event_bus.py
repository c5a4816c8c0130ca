"""Bus: an agent runs when something is published that it, or somebody for it, subscribed to.

A table, matched by exact source, and nothing that routes (RFC 0121). Runs that end publish
`agent:<name>:done` or `agent:<name>:failed`; anything else comes from outside. What it sets off is
begun elsewhere, later: publishing takes no longer for it.
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

# Problems of a kind that are told; the log has all of them.
MAX_PROBLEMS_SHOWN = 10
# What agents made for one task are called.
WORKER_NAME = "worker"
T = TypeVar("T")


class SubscriptionStore(Protocol):
    """Where they are kept. Each call raises StorageError, and has changed nothing then.

    Callers take care that no two calls overlap.
    """

    is_shared: bool  # others change them too

    async def load(self) -> list[Subscription]: ...

    async def list_for_source(self, source: str) -> list[Subscription]:
        """Those of one source, as they are now."""
        ...

    async def add(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription: ...

    async def remove(self, ids: Collection[int]) -> set[int]:
        """Those that were there. Whoever removed one has it to themselves."""
        ...


class EventBus:
    """`once` is at most once: such a subscription is struck off, on disk, before it is fired.

    A crash in between loses that firing. The other way round it would be repeated, and an agent
    that does twice what it was to do once can do harm that nobody asked for.
    """

    def __init__(
        self,
        file: SubscriptionStore,
        runtime: Callable[[], Runtime],
        limits: EventLimits | None = None,
        is_owner: Callable[[str], bool] = lambda sender: False,
    ) -> None:
        self._store = file
        self._is_owner = is_owner
        self._runtime = runtime
        self._limits = limits or EventLimits()
        self.dropped_events = DroppedEvents()
        self.run_queue = EventRunQueue(runtime, self._limits, self.dropped_events)
        self._table: dict[int, Subscription] = {}
        self._sources: dict[str, list[Subscription]] = {}
        self._lock = asyncio.Lock()
        self._pending_once: list[
            tuple[PublishedEvent, list[Subscription]]
        ] = []  # to be struck off and fired
        self._removal_task: asyncio.Task[None] | None = None  # that has not begun to
        self._tasks: set[asyncio.Task[Any]] = set()
        self._store_error = ""  # with the file
        self._cycles: dict[str, str] = {}  # by source
        self._closed = False

    # ── Subscriptions ───────────────────────────────────────────────────────────────────────

    async def load(self) -> None:
        """Reads them anew. Those in force stay when that fails, which is a problem to be shown."""
        async with self._lock:
            try:
                found = await self._store.load()
            except StorageError as error:
                self._store_error = str(error)
                log.error("%s", error)  # noqa: TRY400 - a sentence for a person
                return
            self._store_error = ""
            self._cycles.clear()
            self.dropped_events.reset()
            self._replace_subscriptions(found)

    @property
    def subscriptions(self) -> list[Subscription]:
        return sorted(self._table.values(), key=lambda one: one.id)

    async def subscribe(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription:
        """On disk when it returns. Raises BusyError and StorageError. Cancelled, it goes on."""
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
        """False when there is none. Raises StorageError. Cancelled, it goes on."""
        return await asyncio.shield(self._spawn(self._unsubscribe(number)))

    async def _unsubscribe(self, number: int) -> bool:
        async with self._lock:
            await self._reload_after_failure()
            removed = await self._store.remove([number])
            is_known = number in self._table
            self._remove_subscriptions([number])
            self._cycles.clear()  # it may have been what closed one
            return bool(removed) or is_known

    async def _reload_after_failure(self) -> None:
        """After trouble with the file, what it says now comes first. Raises StorageError."""
        if self._store_error:
            self._replace_subscriptions(await self._store.load())
            self._store_error = ""

    def _replace_subscriptions(self, subscriptions: Iterable[Subscription]) -> None:
        self._table, self._sources = {}, {}
        for one in subscriptions:
            self._add_subscription(one)

    def _add_subscription(self, one: Subscription) -> None:
        self._remove_subscriptions([one.id])
        self._table[one.id] = one
        self._sources.setdefault(one.source, []).append(one)

    def _remove_subscriptions(self, ids: Iterable[int]) -> None:
        for number in ids:
            if (one := self._table.pop(number, None)) is not None:
                left = [other for other in self._sources[one.source] if other.id != number]
                if left:
                    self._sources[one.source] = left
                else:
                    del self._sources[one.source]

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    async def publish(self, source: str, payload: str) -> None:
        """From outside. Returns when all it sets off is scheduled, which may be nothing.

        Raises BusyError, when nothing was; and StorageError, when a `once` could not be struck off
        and was not fired for that. Cancelled, it goes on.
        """
        try:
            if self._store.is_shared:
                await self._refresh_source(source)
            striking = self._dispatch(PublishedEvent(source, payload))
        except BusyError as error:
            self.dropped_events.count_refused(error)
            raise
        if striking is not None:
            await asyncio.shield(striking)

    def on_run_done(self, run: Run, done: Done) -> None:
        """A run is over. Nothing of what it sets off comes back to it."""
        if run.is_guest:
            return
        # One made for a task has a name that nobody can know.
        is_made = run.parent is not None and run.pair.agent not in self._runtime().agents
        name = WORKER_NAME if is_made else run.pair.agent
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
            log.warning("who wants %.80r is not known for sure: %s", event.source, error)
        self._publish_run_event(event)

    def _publish_run_event(self, event: PublishedEvent) -> None:
        try:
            self._dispatch(event)
        except BusyError as error:
            self.dropped_events.count_lost(event.source, error)

    async def _refresh_source(self, source: str) -> None:
        """Who subscribed to it elsewhere a moment ago, or does no more. Raises StorageError."""
        async with self._lock:
            due = {one.id for _, once in self._pending_once for one in once}
            found = [one for one in await self._store.list_for_source(source) if one.id not in due]
            self._remove_subscriptions([one.id for one in self._sources.get(source, [])])
            for one in found:
                self._add_subscription(one)

    def _dispatch(self, event: PublishedEvent) -> asyncio.Task[None] | None:
        """To all who match, at once; for those who want it once, what is still to be done."""
        matching = self._sources.get(event.source)
        if not matching or self._closed:
            return None
        if event.depth > self._limits.event_depth:
            self._report_cycle(event, matching)
            return None
        self.run_queue.require_room(event, len(matching))
        once = [one for one in matching if one.once]
        self.run_queue.add(
            event, self._list_targets(event, [one for one in matching if not one.once])
        )
        if not once:
            return None
        # At once, for the next event: else each of many would have to look into the file.
        self._remove_subscriptions([one.id for one in once])
        self._pending_once.append((event, once))
        if self._removal_task is None:
            self._removal_task = self._spawn(self._remove_once_subscriptions())
        return self._removal_task

    async def _remove_once_subscriptions(self) -> None:
        """Whatever is due by the time the file is free, in one change of it."""
        async with self._lock:
            due, self._pending_once, self._removal_task = self._pending_once, [], None
            if self._closed:
                return  # the file still has them, for the next daemon
            struck = [one for _, once in due for one in once]
            try:
                await self._reload_after_failure()
                removed = await self._store.remove([one.id for one in struck])
            except StorageError as error:
                for one in struck:
                    self._add_subscription(one)
                self._store_error = str(error)
                for event, _ in due:
                    log.error("%.80r was not fired: %s", event.source, error)  # noqa: TRY400
                raise
            self._remove_subscriptions(
                one.id for one in struck
            )  # a reload may have read them again
        if not self._closed:
            for event, once in due:
                # One that was not there any more is somebody else's, who took it out of the file;
                # or an earlier event's, if a reload has read it again in between.
                mine = [one for one in once if one.id in removed]
                removed -= {one.id for one in mine}
                self.run_queue.add(event, self._list_targets(event, mine))

    def _list_targets(
        self, event: PublishedEvent, subscriptions: Iterable[Subscription]
    ) -> list[tuple[str, str]]:
        """Whom an event runs, and in whose name: whoever set the subscription up, unless the event
        comes of a run of somebody who is not the owner. Then it is theirs."""
        is_foreign = bool(event.origin) and not self._is_owner(event.origin)
        return [
            (one.target_agent, event.origin if is_foreign else one.created_by)
            for one in subscriptions
        ]

    def _report_cycle(self, event: PublishedEvent, matching: list[Subscription]) -> None:
        names = ", ".join(sorted({one.target_agent for one in matching})[:MAX_PROBLEMS_SHOWN])
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
        """What is wrong with subscriptions, a sentence each."""
        agents = self._runtime().agents
        nobody: dict[str, Subscription] = {}
        for one in self._table.values():
            if one.target_agent not in agents:
                nobody.setdefault(one.target_agent, one)
        return [
            *([self._store_error] if self._store_error else []),
            *self._cycles.values(),
            *([self.dropped_events.problem] if self.dropped_events.problem else []),
            *(
                f"subscription {one.id} to {one.source[:80]!r} is for {name[:80]!r}, but no agent "
                "is called that; unsubscribe it, or give an agent that name"
                for name, one in list(nobody.items())[:MAX_PROBLEMS_SHOWN]
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
        """A change is made to its end, whoever asked for it."""
        task = asyncio.ensure_future(work)

        def over(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # whoever waits has it; the log has what nobody waits for

        self._tasks.add(task)
        task.add_done_callback(over)
        return task

    async def close(self) -> None:
        """Fires nothing more; changes in hand are made."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self.run_queue.close()
        self.dropped_events.reset()


def describe_outcome(done: Done) -> tuple[str, str]:
    """How a run ended, as an event says it: a result, or a sentence on why there is none."""
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
