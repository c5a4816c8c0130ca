"""Follows the log of one conversation and keeps its session up to date.

It reads the log from a position stored in the journal: each record is written once, in the order of
the log. The daemon's feed announces new records and provides what the log does not have: the text
of the message in progress, events of delegated runs, and questions. If the feed did not have the
beginning of a run, it attaches to that run.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire
from crabtalk_web.adapter import OpenAsk, ReceivedEvent, TurnStreamReader
from crabtalk_web.adapter.event_parsing import parse_timestamp
from crabtalk_web.adapter.run_events import AnyRunEvent, EndReason, RunBegan, RunEnded

from .conversation_state import ConversationState
from .envelope_writer import END_UNSEEN_TEXT, EnvelopeWriter, now_ms
from .errors import DAEMON_AWAY_ERRORS
from .live_run import LiveRun
from .record_log import NOT_FOUND, RecordLog, WrittenRecords, measure_open_turn
from .run_merger import RunMerger
from .session_identity import SessionIdentity

# Events that may be queued. The log has the important part of those that do not fit.
MAX_WAITING = 16_384
# In seconds: how long an event of the feed may come after its record; how often the log is checked
# during a turn; without events until the text so far is shown.
FEED_DELAY = 0.3
STALLED_AFTER = 1.5
IDLE_AFTER = 2.0

log = logging.getLogger(__name__)


class LogFollower:
    def __init__(
        self,
        identity: SessionIdentity,
        writer: EnvelopeWriter,
        *,
        backfill: int = 1000,
        max_unsent_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.identity = identity
        self.writer = writer
        self._backfill = backfill
        self._max_unsent_bytes = max_unsent_bytes
        self._events: deque[ReceivedEvent | None] = deque()  # None: events are missing here
        self._drained = asyncio.Event()  # the queue is empty
        self._wakeup = asyncio.Event()
        self._client: Client | None = None
        self._epoch = 0  # changes with each connection and each session
        self._log = RecordLog(identity)
        self._merger = RunMerger(identity, writer, self._log, lambda: not self._is_full)
        self._blocked_at = 0.0  # since when the log is ahead of the feed without any event
        self._attached: asyncio.Task[None] | None = None
        self._attached_run = ""
        self._group: asyncio.TaskGroup | None = None
        self.is_behind = True
        self.on_cleared: Callable[[], None] = self.wake  # the conversation was cleared

    @property
    def state(self) -> ConversationState:
        return self.writer.state

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open, or may be."""
        return self.writer.is_busy or self.is_behind

    @property
    def is_turn_open(self) -> bool:
        return self.writer.is_busy

    def set_title_listener(self, on_title: Callable[[str], None]) -> None:
        """Call `renamed` with the conversation's title whenever the log has a new one."""
        self._merger.on_title_changed = on_title

    @property
    def pending_asks(self) -> tuple[OpenAsk, ...]:
        return self.writer.pending_asks

    # ── From outside ────────────────────────────────────────────────────────────────────────

    def on_daemon_connected(self, client: Client) -> None:
        """Start with a new feed."""
        self._restart(client)

    def on_daemon_disconnected(self) -> None:
        self._restart(None)

    def queue_event(self, received: ReceivedEvent) -> None:
        if len(self._events) >= MAX_WAITING:
            self._events.clear()
            self._events.append(None)
        self._events.append(received)
        self._blocked_at = 0.0
        self._drained.clear()
        self._wakeup.set()

    def mark_missed_events(self) -> None:
        """The feed lost events, of this conversation or of another."""
        self._events.append(None)
        self._wakeup.set()

    def wake(self) -> None:
        """Run again, because there may be room."""
        self._wakeup.set()

    def request_read(self) -> None:
        """Read the log, because it may have more than the events announced."""
        self._merger.must_read = True
        self._wakeup.set()

    def on_session_begun(self, *, anew: bool) -> None:
        """The session exists. `anew` means that it replaced another one and that its state is
        empty."""
        if anew:
            self.writer.reload()
            self._restart(self._client)
        self._wakeup.set()

    def _restart(self, client: Client | None) -> None:
        self._client = client
        self._epoch += 1
        self._events.clear()
        self._log.start_at(self.state.log_position, self.state.log_id)
        self._merger.reset()
        self._detach_from_run()
        self.is_behind = True
        self._wakeup.set()

    async def run(self) -> None:
        """Run until cancelled. Everything that was appended stays in the journal."""
        async with asyncio.TaskGroup() as self._group:
            while True:
                self._wakeup.clear()
                client = self._client
                if client is None or not self.state.session or self._is_full:
                    await self._pause(IDLE_AFTER)
                    continue
                try:
                    await self._advance(client)
                except DAEMON_AWAY_ERRORS as error:
                    log.info("cannot read the log of %s: %s", self.identity.agent, error)
                    self._merger.must_read = True
                    await self._pause(IDLE_AFTER)

    @property
    def _is_full(self) -> bool:
        """Whether enough waits for the relay. The rest waits in the conversation's log."""
        return self.state.unsent_bytes > self._max_unsent_bytes

    async def _pause(self, seconds: float) -> bool:
        """Return False if nothing has happened until then."""
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            return False
        return True

    # ── Steps ───────────────────────────────────────────────────────────────────────────────

    async def _advance(self, client: Client) -> None:
        """Read what is new, write what can be written, and wait for more. Raises what the client
        raises."""
        if self._merger.must_read and self._log.has_room:
            await self._read_page(client)
        if self._merger.live_run is not None and self._merger.live_run.is_paced:
            self._detach_from_run()
        self._merger.write_entries()
        while self._events and not self._merger.must_read and not self._is_full:
            received = self._events.popleft()
            if (
                received is not None
                and isinstance(received.event, RunBegan)
                and not received.is_streamed
            ):
                self.is_behind = False  # from here on all events are live
            self._merger.handle_event(received)
            self._merger.write_entries()
        if not self._events:
            self._drained.set()
        if (self._merger.must_read and self._log.has_room) or self._is_full:
            return
        if self._log.entries:
            await self._wait_for_feed(client)
            return
        self._blocked_at = 0.0
        self._finish_catching_up()
        if self.state.open_run and not self._is_run_followed(self.state.open_run):
            if not await self._pause(FEED_DELAY):
                self._attach_to_run(client, self.state.open_run)
        elif not self.writer.is_busy and not self.state.pending_keys:
            await self._wakeup.wait()
        elif not await self._pause(IDLE_AFTER):
            self.writer.flush_idle_text(now_ms())
            self._merger.must_read = True

    async def _wait_for_feed(self, client: Client) -> None:
        """The log is ahead of the feed. If the feed lost events, it stays ahead."""
        if run := self._merger.unresolved_run:
            if not await self._pause(FEED_DELAY):
                self._attach_to_run(client, run)
            return
        now = asyncio.get_running_loop().time()
        self._blocked_at = self._blocked_at or now
        if now - self._blocked_at > STALLED_AFTER:
            self._merger.live_run, self._blocked_at = None, 0.0
        else:
            await self._pause(STALLED_AFTER)

    def _is_run_followed(self, run: str) -> bool:
        """Return whether the end of a run will be received."""
        is_live = self._merger.live_run is not None and self._merger.live_run.run == run
        is_attached = self._attached is not None and not self._attached.done()
        return is_live or (is_attached and self._attached_run == run)

    def _finish_catching_up(self) -> None:
        """Everything in the log is written."""
        if self.state.log_position != self._log.position and self._log.position:
            self.writer.append_entry(
                (),
                run=self.state.open_run,
                record=self._log.position,
                position=self._merger.next_message,
            )
        self._merger.end_unrecorded_run()
        if self.is_behind:
            self.is_behind = False
            self.writer.notify_changed()

    # ── The log ─────────────────────────────────────────────────────────────────────────────

    async def _read_page(self, client: Client) -> None:
        epoch = self._epoch
        self._merger.must_read = False
        if not self._log.position and self._merger.written_records is None:
            written = await self._find_written_records(client)
            if epoch != self._epoch:
                return
            self._merger.written_records = written
        page = await self._log.fetch_page(client)
        if epoch != self._epoch:
            return
        if self._is_other_log(page):
            if self.writer.is_busy:
                self.writer.close_lost_turn()
            self.on_cleared()  # later messages belong to another session
            self._merger.must_read = True
            await self._pause(IDLE_AFTER)
            return
        if page is None:
            return
        if page.restarted:
            self._log.start_at(0, "")
            self._merger.written_records = WrittenRecords(
                self.state.message_position, self.state.written_until, self.state.open_run
            )
        if page.log_id != self.state.log_id:
            await self.writer.save_log_id(page.log_id)
        self._log.add_page(page)
        self._merger.must_read = self._merger.must_read or page.has_more

    async def _find_written_records(self, client: Client) -> WrittenRecords:
        """Find which records are written, for a state without a position in the log."""
        state = self.state
        open_turn = measure_open_turn(state.recent_envelopes) if state.open_run else None
        if open_turn is not None:
            return WrittenRecords(
                state.message_position, max(state.written_until, open_turn.time), state.open_run
            )
        if not state.message_position and not state.written_until:
            position = await self._log.count_messages(client) - self._backfill
            return WrittenRecords(max(0, position), 0)
        return WrittenRecords(state.message_position, state.written_until, state.open_run)

    def _is_other_log(self, page: wire.RecordPage | None) -> bool:
        """Return whether the followed conversation is gone. Another one may have replaced it."""
        state = self.state
        if page is None:
            return bool(state.log_id or state.first_message_at)
        if state.log_id:
            return page.log_id != state.log_id
        messages = [r.message for r in page.records if r.WhichOneof("record") == "message"]
        has_first = bool(messages) and messages[0].id == 0
        return (
            bool(state.first_message_at)
            and has_first
            and parse_timestamp(messages[0].timestamp) != state.first_message_at
        )

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def _attach_to_run(self, client: Client, run: str) -> None:
        """Follow a run whose beginning the feed did not have."""
        if self._group is not None and not self._is_run_followed(run):
            self._detach_from_run()
            self._attached_run = run
            self._attached = self._group.create_task(self._follow_run(client, run, self._epoch))

    def _detach_from_run(self) -> None:
        if self._attached is not None:
            self._attached.cancel()
        self._attached, self._attached_run = None, ""

    async def _follow_run(self, client: Client, run: str, epoch: int) -> None:
        agent, sender = self.identity.agent, self.identity.sender
        reader = TurnStreamReader(agent, sender, run=run)
        try:
            async with aclosing(client.attach(agent, sender=sender, run_id=run)) as events:
                async for _, event in events:
                    received = reader.parse_event(event, now_ms())
                    if len(self._events) >= MAX_WAITING // 2:
                        await self._drained.wait()
                    if epoch != self._epoch:
                        return
                    if received is not None:
                        self.queue_event(received)
        except ServerError as error:
            if error.code != NOT_FOUND:
                log.info("cannot follow a run of %s: %s", agent, error)
            elif epoch == self._epoch:
                self._merger.live_run = LiveRun(run, "", is_paced=False)
                self.queue_event(
                    build_streamed_event(run, RunEnded(EndReason.ERROR, END_UNSEEN_TEXT))
                )
        except DAEMON_AWAY_ERRORS as error:
            log.info("cannot follow a run of %s: %s", agent, error)


def build_streamed_event(run: str, what: AnyRunEvent) -> ReceivedEvent:
    return ReceivedEvent(run=run, event=what, at=now_ms(), is_streamed=True)
