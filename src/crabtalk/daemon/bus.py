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

from .firings import EventLimits, Firings, Published
from .losses import Losses

log = logging.getLogger(__name__)

# Problems of a kind that are told; the log has all of them.
SHOWN = 10
# What agents made for one task are called.
WORKER = "worker"
T = TypeVar("T")


class Subscriptions(Protocol):
    """Where they are kept. Each call raises StorageError, and has changed nothing then.

    Callers take care that no two calls overlap.
    """

    is_shared: bool  # others change them too

    async def load(self) -> list[Subscription]: ...

    async def of(self, source: str) -> list[Subscription]:
        """Those of one source, as they are now."""
        ...

    async def add(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription: ...

    async def remove(self, ids: Collection[int]) -> set[int]:
        """Those that were there. Whoever removed one has it to themselves."""
        ...


class Bus:
    """`once` is at most once: such a subscription is struck off, on disk, before it is fired.

    A crash in between loses that firing. The other way round it would be repeated, and an agent
    that does twice what it was to do once can do harm that nobody asked for.
    """

    def __init__(
        self,
        file: Subscriptions,
        runtime: Callable[[], Runtime],
        limits: EventLimits | None = None,
        is_owner: Callable[[str], bool] = lambda sender: False,
    ) -> None:
        self._file = file
        self._is_owner = is_owner
        self._runtime = runtime
        self._limits = limits or EventLimits()
        self.losses = Losses()
        self.firings = Firings(runtime, self._limits, self.losses)
        self._table: dict[int, Subscription] = {}
        self._sources: dict[str, list[Subscription]] = {}
        self._changing = asyncio.Lock()
        self._due: list[tuple[Published, list[Subscription]]] = []  # to be struck off and fired
        self._striking: asyncio.Task[None] | None = None  # that has not begun to
        self._tasks: set[asyncio.Task[Any]] = set()
        self._trouble = ""  # with the file
        self._circles: dict[str, str] = {}  # by source
        self._closed = False

    # ── Subscriptions ───────────────────────────────────────────────────────────────────────

    async def load(self) -> None:
        """Reads them anew. Those in force stay when that fails, which is a problem to be shown."""
        async with self._changing:
            try:
                found = await self._file.load()
            except StorageError as error:
                self._trouble = str(error)
                log.error("%s", error)  # noqa: TRY400 - a sentence for a person
                return
            self._trouble = ""
            self._circles.clear()
            self.losses.forget()
            self._replace(found)

    @property
    def subscriptions(self) -> list[Subscription]:
        return sorted(self._table.values(), key=lambda one: one.id)

    async def subscribe(
        self, source: str, target_agent: str, *, once: bool, created_by: str = ""
    ) -> Subscription:
        """On disk when it returns. Raises BusyError and StorageError. Cancelled, it goes on."""
        work = self._subscribe(source, target_agent, once, created_by)
        return await asyncio.shield(self._own(work))

    async def _subscribe(
        self, source: str, target_agent: str, once: bool, created_by: str
    ) -> Subscription:
        async with self._changing:
            if len(self._table) >= self._limits.subscriptions:
                raise BusyError(
                    f"there are {len(self._table)} subscriptions already; unsubscribe one, or "
                    "raise subscriptions in [limits] of config.toml"
                )
            await self._recover()
            new = await self._file.add(source, target_agent, once=once, created_by=created_by)
            self._put(new)
            return new

    async def unsubscribe(self, number: int) -> bool:
        """False when there is none. Raises StorageError. Cancelled, it goes on."""
        return await asyncio.shield(self._own(self._unsubscribe(number)))

    async def _unsubscribe(self, number: int) -> bool:
        async with self._changing:
            await self._recover()
            removed = await self._file.remove([number])
            is_known = number in self._table
            self._drop([number])
            self._circles.clear()  # it may have been what closed one
            return bool(removed) or is_known

    async def _recover(self) -> None:
        """After trouble with the file, what it says now comes first. Raises StorageError."""
        if self._trouble:
            self._replace(await self._file.load())
            self._trouble = ""

    def _replace(self, subscriptions: Iterable[Subscription]) -> None:
        self._table, self._sources = {}, {}
        for one in subscriptions:
            self._put(one)

    def _put(self, one: Subscription) -> None:
        self._drop([one.id])
        self._table[one.id] = one
        self._sources.setdefault(one.source, []).append(one)

    def _drop(self, ids: Iterable[int]) -> None:
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
            if self._file.is_shared:
                await self._look(source)
            striking = self._spread(Published(source, payload))
        except BusyError as error:
            self.losses.refuse(error)
            raise
        if striking is not None:
            await asyncio.shield(striking)

    def heard(self, run: Run, done: Done) -> None:
        """A run is over. Nothing of what it sets off comes back to it."""
        if run.is_guest:
            return
        # One made for a task has a name that nobody can know.
        is_made = run.parent is not None and run.pair.agent not in self._runtime().agents
        name = WORKER if is_made else run.pair.agent
        kind, payload = outcome(done)
        event = Published(f"agent:{name}:{kind}", payload, run.chain + 1, run.origin)
        if self._file.is_shared:
            self._own(self._look_and_pass_on(event))
        else:
            self._pass_on(event)

    async def _look_and_pass_on(self, event: Published) -> None:
        try:
            await self._look(event.source)
        except StorageError as error:
            log.warning("who wants %.80r is not known for sure: %s", event.source, error)
        self._pass_on(event)

    def _pass_on(self, event: Published) -> None:
        try:
            self._spread(event)
        except BusyError as error:
            self.losses.lose(event.source, error)

    async def _look(self, source: str) -> None:
        """Who subscribed to it elsewhere a moment ago, or does no more. Raises StorageError."""
        async with self._changing:
            due = {one.id for _, once in self._due for one in once}
            found = [one for one in await self._file.of(source) if one.id not in due]
            self._drop([one.id for one in self._sources.get(source, [])])
            for one in found:
                self._put(one)

    def _spread(self, event: Published) -> asyncio.Task[None] | None:
        """To all who match, at once; for those who want it once, what is still to be done."""
        matching = self._sources.get(event.source)
        if not matching or self._closed:
            return None
        if event.depth > self._limits.event_depth:
            self._cut(event, matching)
            return None
        self.firings.require_room(event, len(matching))
        once = [one for one in matching if one.once]
        self.firings.add(event, self._targets(event, [one for one in matching if not one.once]))
        if not once:
            return None
        # At once, for the next event: else each of many would have to look into the file.
        self._drop([one.id for one in once])
        self._due.append((event, once))
        if self._striking is None:
            self._striking = self._own(self._strike())
        return self._striking

    async def _strike(self) -> None:
        """Whatever is due by the time the file is free, in one change of it."""
        async with self._changing:
            due, self._due, self._striking = self._due, [], None
            if self._closed:
                return  # the file still has them, for the next daemon
            struck = [one for _, once in due for one in once]
            try:
                await self._recover()
                removed = await self._file.remove([one.id for one in struck])
            except StorageError as error:
                for one in struck:
                    self._put(one)
                self._trouble = str(error)
                for event, _ in due:
                    log.error("%.80r was not fired: %s", event.source, error)  # noqa: TRY400
                raise
            self._drop(one.id for one in struck)  # a reload may have read them again
        if not self._closed:
            for event, once in due:
                # One that was not there any more is somebody else's, who took it out of the file;
                # or an earlier event's, if a reload has read it again in between.
                mine = [one for one in once if one.id in removed]
                removed -= {one.id for one in mine}
                self.firings.add(event, self._targets(event, mine))

    def _targets(
        self, event: Published, subscriptions: Iterable[Subscription]
    ) -> list[tuple[str, str]]:
        """Whom an event runs, and in whose name: whoever set the subscription up, unless the event
        comes of a run of somebody who is not the owner. Then it is theirs."""
        is_foreign = bool(event.origin) and not self._is_owner(event.origin)
        return [
            (one.target_agent, event.origin if is_foreign else one.created_by)
            for one in subscriptions
        ]

    def _cut(self, event: Published, matching: list[Subscription]) -> None:
        names = ", ".join(sorted({one.target_agent for one in matching})[:SHOWN])
        sentence = (
            f"events seem to go in circles: after {self._limits.event_depth} in a row, "
            f"{event.source} was not passed on to {names}; unsubscribe what closes the circle, or "
            "raise event_depth in [limits] of config.toml"
        )
        log.warning("%s", sentence)
        self._circles[event.source] = sentence
        while len(self._circles) > SHOWN:
            del self._circles[next(iter(self._circles))]

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
            *([self._trouble] if self._trouble else []),
            *self._circles.values(),
            *([self.losses.problem] if self.losses.problem else []),
            *(
                f"subscription {one.id} to {one.source[:80]!r} is for {name[:80]!r}, but no agent "
                "is called that; unsubscribe it, or give an agent that name"
                for name, one in list(nobody.items())[:SHOWN]
            ),
        ]

    def statistics(self) -> dict[str, int]:
        return {
            "subscriptions": len(self._table),
            "changing": len(self._tasks),
            "waiting": self.firings.waiting,
            "running": self.firings.running,
            "refused": self.losses.refused,
            "lost": self.losses.lost,
        }

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
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
        await self.firings.close()
        self.losses.forget()


def outcome(done: Done) -> tuple[str, str]:
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
