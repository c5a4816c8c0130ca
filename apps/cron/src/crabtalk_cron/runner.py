"""Fires the entries that the timetable says are due, and applies changes of crons.toml.

An entry is fired only when its last turn is over, and only `at_once` turns run at a time. The file
is the only state: times that passed while cron did not run are not caught up on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path

from crabtalk.client import CannotConnectError, ServerError, UnexpectedReplyError, connect
from crabtalk.protocol import FrameError, wire

from .clock import CronClock
from .crons_file import DEFAULT_AT_ONCE, CronsFile
from .entry import CronEntry
from .file_watcher import POLL_INTERVAL, CronsFileWatcher
from .timetable import DueEntry, Timetable

# Seconds. A time that was missed by more, through sleep or for want of a daemon, is skipped.
TOO_LATE = 60.0
# Seconds between two tries to reach the daemon.
TRY_EVERY = 1.0
# The longest sleep in seconds; a clock that is set meanwhile is noticed by then.
MAX_SLEEP = 1.0
# Seconds after which a turn frees its place for others. It goes on at the daemon.
LONGEST_TURN = 3600.0
# Seconds that turns have at the end to be accepted by the daemon.
GRACE = 2.0

log = logging.getLogger(__name__)


class CronRunner:
    def __init__(self, home: Path, clock: CronClock | None = None) -> None:
        self._home = home
        self._clock = clock or CronClock()
        self._timetable = Timetable(self._clock)
        self._watcher = CronsFileWatcher(home / "config" / "crons.toml")
        self._file_lock = asyncio.Lock()
        self._zone = self._clock.read_zone()
        self._last_read = CronsFile()
        self._at_once = DEFAULT_AT_ONCE
        self._waiting: dict[int, DueEntry] = {}  # by the entry's id, oldest first
        self._firing: dict[int, asyncio.Task[None]] = {}
        self._retrying: set[int] = set()  # entries that found no daemon, and try again
        self._requested: dict[int, asyncio.Event] = {}  # turns that the daemon has yet to accept
        self._fired_once: set[CronEntry] = set()  # `once` entries that are still in the file
        self._changed = asyncio.Event()
        self._is_stopping = False

    async def run(self) -> None:
        """Run until cancelled. Afterwards nothing is fired; turns go on at the daemon."""
        self._load_first(await asyncio.to_thread(self._watcher.read_file))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch())
                group.create_task(self._run_clock())
        finally:
            await self._stop()

    # ── The file ────────────────────────────────────────────────────────────────────────────

    def _load_first(self, crons: CronsFile) -> None:
        """Load the file at the start. Entries without a mistake run even if others have one."""
        self._last_read = crons
        self._log_problems(
            crons, "the others run" if crons.entries else "nothing runs until it is mended"
        )
        self._apply_file(crons)
        log.info("%d entries in %s", len(crons.entries), self._watcher.path)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            async with self._file_lock:
                crons = await asyncio.to_thread(self._watcher.check_file)
            if crons is None or crons == self._last_read:
                continue
            self._last_read = crons
            self._log_problems(crons, "what ran before goes on")
            if not crons.mistakes:
                self._apply_file(crons)
                log.info("%s has changed: %d entries", self._watcher.path, len(crons.entries))

    def _apply_file(self, crons: CronsFile) -> None:
        self._at_once = crons.at_once
        self._fired_once &= set(crons.entries)
        remaining = [entry for entry in crons.entries if entry not in self._fired_once]
        self._timetable.replace(remaining, self._clock.now())
        self._changed.set()

    def _log_problems(self, crons: CronsFile, consequence: str) -> None:
        for remark in crons.remarks:
            log.warning("%s, %s", self._watcher.path, remark)
        for mistake in crons.mistakes:
            log.error("%s, %s; %s", self._watcher.path, mistake, consequence)

    # ── The clock ───────────────────────────────────────────────────────────────────────────

    async def _run_clock(self) -> None:
        while True:
            self._check_clock()
            await self._clock.wait(self._changed, self._sleep_time())
            self._changed.clear()

    def _check_clock(self) -> None:
        now = self._clock.now()
        if (zone := self._clock.read_zone()) != self._zone:
            self._zone = zone
            self._timetable.replan(now)
        for due in self._timetable.pop_due(now):
            if self._should_fire(due, now):
                self._waiting[due.entry.id] = due
        self._fire_waiting()

    def _sleep_time(self) -> float:
        moment = self._timetable.next_moment()
        return MAX_SLEEP if moment is None else min(MAX_SLEEP, max(0.0, moment - self._clock.now()))

    def _should_fire(self, due: DueEntry, now: float) -> bool:
        entry = due.entry
        if entry.schedule.is_quiet(due.tick):
            log.debug("%s: these are quiet hours", entry.title)
            return False
        if now - due.moment > TOO_LATE:
            log.warning("%s: its time was %d s ago, passed over", entry.title, now - due.moment)
            return False
        if entry.id in self._retrying:  # logged already, and not again every second
            return False
        if entry.id in self._firing or entry.id in self._waiting:
            log.info("%s: its last turn is not over, passed over", entry.title)
            return False
        return True

    # ── Turns ───────────────────────────────────────────────────────────────────────────────

    def _fire_waiting(self) -> None:
        while self._waiting and len(self._firing) < self._at_once and not self._is_stopping:
            due = self._waiting.pop(next(iter(self._waiting)))
            self._firing[due.entry.id] = asyncio.create_task(self._fire(due))

    async def _fire(self, due: DueEntry) -> None:
        entry = due.entry
        try:
            async with asyncio.timeout(LONGEST_TURN):
                for number in count():
                    if await self._try_once(due, is_first=number == 0):
                        break
                    await asyncio.sleep(TRY_EVERY)
        except TimeoutError:
            log.warning("%s: still at it after %d s, left alone", entry.title, LONGEST_TURN)
        except Exception:
            log.exception("%s: a fault of crabtalk-cron", entry.title)
        finally:
            del self._firing[entry.id]
            self._retrying.discard(entry.id)
            self._fire_waiting()

    async def _try_once(self, due: DueEntry, *, is_first: bool) -> bool:
        """False if there is no daemon, and it should be tried again."""
        entry, now = due.entry, self._clock.now()
        if not self._timetable.holds(entry):
            log.info("%s: changed or removed before it was fired", entry.title)
            return True
        if entry.schedule.is_quiet_at(now):
            log.info("%s: quiet hours began before it was fired", entry.title)
            return True
        accepted = self._requested[entry.id] = asyncio.Event()
        try:
            error = await run_turn(self._home, entry, lambda: self._on_begun(entry))
        except CannotConnectError as problem:
            return self._has_given_up(due, problem, is_first=is_first)
        except (ServerError, UnexpectedReplyError, FrameError, OSError) as problem:
            log.error("%s: %s; tried again at its next time", entry.title, problem)  # noqa: TRY400
        else:
            if error:
                log.warning("%s: ended with an error: %s", entry.title, error)
            else:
                log.info("%s: done", entry.title)
        finally:
            self._requested.pop(entry.id, accepted).set()
        return True

    def _has_given_up(self, due: DueEntry, problem: Exception, *, is_first: bool) -> bool:
        if self._is_stopping or self._clock.now() + TRY_EVERY - due.moment > TOO_LATE:
            log.error("%s: %s; tried again at its next time", due.entry.title, problem)
            return True
        if is_first:
            log.warning("%s: %s; tried again for a minute", due.entry.title, problem)
        self._retrying.add(due.entry.id)
        return False

    async def _on_begun(self, entry: CronEntry) -> None:
        self._retrying.discard(entry.id)
        log.info("%s: fired", entry.title)
        if entry.once:
            self._fired_once.add(entry)
            self._timetable.remove(entry)
            await self._remove_from_file(entry)
        self._requested.pop(entry.id).set()

    async def _remove_from_file(self, entry: CronEntry) -> None:
        """Remove a `once` entry. If that fails, it is not fired again while this process runs."""
        try:
            async with self._file_lock:
                await asyncio.to_thread(self._watcher.remove_entry, entry)
                self._fired_once.discard(entry)
        except (OSError, ValueError) as error:
            log.error(  # noqa: TRY400
                "%s: cannot be taken out of %s: %s; take it out yourself, or it is fired again "
                "after a restart",
                entry.title,
                self._watcher.path,
                error,
            )

    async def _stop(self) -> None:
        """Stop firing. Requested turns get time to begin, so that `once` entries can be removed."""
        log.info("stopping: %d turns go on at the daemon", len(self._firing))
        self._is_stopping = True
        self._waiting.clear()
        waiters = [asyncio.create_task(accepted.wait()) for accepted in self._requested.values()]
        if waiters:
            _, late = await asyncio.wait(waiters, timeout=GRACE)
            for task in late:
                task.cancel()
        turns = list(self._firing.values())
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)


async def run_turn(home: Path, entry: CronEntry, on_begin: Callable[[], Awaitable[None]]) -> str:
    """Send the message and read the answer to its end. The conversation stores the answer.

    `on_begin` is called once, when the daemon has accepted the turn. Returns the error the turn
    ended with, or an empty text. Raises what a client's stream raises; CannotConnectError means
    that the daemon did not get the message. Cancelled, the turn goes on at the daemon.
    """
    has_begun = False
    error = ""
    async with (
        connect(home=home, client="crabtalk-cron") as client,
        aclosing(
            client.stream(
                entry.agent,
                entry.content,
                sender=entry.sender,
                detach=True,
                mode=entry.mode or None,
                # No person is there to approve: a call that needs it is refused at once.
                unattended=True,
                origin=entry.created_by,
            )
        ) as events,
    ):
        async for event in events:
            if not has_begun:
                has_begun = True
                await on_begin()
            if isinstance(event, wire.StreamEnd):
                error = event.error
    return error
