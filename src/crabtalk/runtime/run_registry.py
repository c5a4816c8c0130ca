"""RunRegistry: the runs in flight and waiting, bounded in number and in bytes of message text.

It owns their tasks, but not the work that they do.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from crabtalk.storage import Pair

from .clock import Clock
from .errors import BusyError
from .hook import Env
from .limits import RuntimeLimits
from .run import ParentRun, Run

T = TypeVar("T")


class RunRegistry:
    def __init__(self, env: Env, limits: Callable[[], RuntimeLimits], clock: Clock) -> None:
        self._env = env
        self._limits = limits  # called each time: a process may lower its limits after the start
        self._clock = clock
        self._runs: set[Run] = set()
        self._runs_by_key: dict[tuple[Pair, str], Run] = {}  # those whose message has a key
        self._delegated_counts: Counter[Pair] = Counter()  # delegated runs per conversation
        self._held_bytes = 0  # message text that all runs hold in memory

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs))

    def create_run(
        self,
        pair: Pair,
        guest: str = "",
        cwd: Path | None = None,
        parent: ParentRun | None = None,
        origin: str = "",
    ) -> Run:
        """A run that has not begun; it counts as one only from `start_task` on. Raises BusyError
        and TreeLimitError."""
        if len(self._runs) >= self._limits().runs:
            raise BusyError(f"{len(self._runs)} turns are running or waiting; try again later")
        run = Run(
            self._clock.new_id(),
            pair,
            guest or pair.agent,
            self._env,
            self._limits().stream_events,
            self._limits().run_buffer,
            cwd=cwd or self._env.cwd,
            is_guest=bool(guest),
            parent=parent,
            origin=origin,
        )
        run.tree.add_run(self._limits())
        return run

    def reserve_text(self, run: Run, text: str) -> None:
        """Counts a text that stays in memory as long as its run. Raises BusyError."""
        if self._held_bytes + len(text) > self._limits().held_bytes:
            raise BusyError("too much was said that no agent has come to yet; try again later")
        self._held_bytes += len(text)
        run.held_bytes += len(text)

    def release_text(self, run: Run) -> None:
        """Stops counting the texts of a run."""
        self._held_bytes -= run.held_bytes
        run.held_bytes = 0

    def reserve_steer(self, run: Run, text: str) -> int:
        """Reserves space for a steering message and returns its number. Raises BusyError."""
        waiting = len(run.steers) + len(run.accept_tasks)
        if waiting >= self._limits().steers:
            raise BusyError(f"{waiting} steering messages wait to be read; try again later")
        self.reserve_text(run, text)
        run.steer_count += 1
        return run.steer_count

    def start_task(self, run: Run, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts the run's task. It belongs to the registry and outlives the caller."""
        task = asyncio.ensure_future(work)
        run.task = task

        def on_done(task: asyncio.Task[T]) -> None:
            self._runs.discard(run)
            if self._runs_by_key.get((run.pair, run.key)) is run:
                del self._runs_by_key[run.pair, run.key]
            if run.parent is not None:
                root = run.tree.root.pair
                self._delegated_counts[root] -= 1
                if not self._delegated_counts[root]:
                    del self._delegated_counts[root]
            self.release_text(run)
            if not task.cancelled():
                task.exception()  # mark it as retrieved: the caller may have left

        self._runs.add(run)
        if run.key:
            self._runs_by_key[run.pair, run.key] = run
        if run.parent is not None:
            self._delegated_counts[run.tree.root.pair] += 1
        task.add_done_callback(on_done)
        return task

    def find_run(self, pair: Pair, *, run_id: str = "", key: str = "") -> Run | None:
        """A run of a conversation, waiting or in flight, by its id or its key."""
        if key:
            return self._runs_by_key.get((pair, key))
        return next((run for run in self._runs if run.id == run_id and run.pair == pair), None)

    def has_delegated_runs(self, pair: Pair) -> bool:
        """Whether a run is in flight that a turn of this conversation delegated."""
        return pair in self._delegated_counts

    def list_delegated_runs(self, pair: Pair) -> list[Run]:
        """Runs that turns of this conversation delegated, at any depth, background included."""
        delegated: list[Run] = []
        above = {run.id for run in self._runs if run.pair == pair}
        for run in sorted(self._runs, key=lambda run: run.parent.depth if run.parent else 0):
            if run.parent is None:
                continue
            if run.parent.run_id in above or run.tree.root.pair == pair:
                above.add(run.id)
                delegated.append(run)
        return delegated

    async def wait_until_idle(self) -> None:
        """Waits for the end of all current runs. Cancelled, the runs go on."""
        tasks = [run.task for run in self._runs if run.task is not None]
        if tasks:
            await asyncio.wait(tasks)
