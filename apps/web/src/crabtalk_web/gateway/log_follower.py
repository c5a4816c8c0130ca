"""Mirror: one conversation as its session shows it.

It follows the conversation's log from a position that the journal keeps: each record is told once,
in the order of the log. The daemon's feed says when there is more to read, and brings what no log
of the conversation has: the words of the message that is being written, what delegated runs do, and
what people are asked. A run whose events the feed did not bring from the beginning is attached to.
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

# Events that may wait to be told. The log has what matters of those that do not fit.
MAX_WAITING = 16_384
# Seconds: what a feed may have on its way when the log has it already; between two looks at the log
# while a turn goes on; without a word until what was said so far is shown.
FEED_DELAY = 0.3
STALLED_AFTER = 1.5
IDLE_AFTER = 2.0

log = logging.getLogger(__name__)


class LogFollower:
    def __init__(
        self,
        identity: SessionIdentity,
        teller: EnvelopeWriter,
        *,
        backfill: int = 1000,
        most_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.identity = identity
        self.writer = teller
        self._backfill = backfill
        self._most_bytes = most_bytes
        self._events: deque[ReceivedEvent | None] = deque()  # None: some are missing here
        self._drained = asyncio.Event()  # no event waits
        self._wakeup = asyncio.Event()
        self._client: Client | None = None
        self._epoch = 0  # another one with each connection, and with each session
        self._log = RecordLog(identity)
        self._merger = RunMerger(identity, teller, self._log, lambda: not self._is_full)
        self._blocked_at = 0.0  # since when the log is ahead of the feed, and nothing was heard
        self._attached: asyncio.Task[None] | None = None
        self._attached_run = ""
        self._group: asyncio.TaskGroup | None = None
        self.is_behind = True
        self.on_cleared: Callable[[], None] = self.wake  # the conversation is another now

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

    def set_title_listener(self, renamed: Callable[[str], None]) -> None:
        """Has `renamed` called with the conversation's title, whenever the log has one."""
        self._merger.on_title_changed = renamed

    @property
    def pending_asks(self) -> tuple[OpenAsk, ...]:
        return self.writer.pending_asks

    # ── From outside ────────────────────────────────────────────────────────────────────────

    def on_daemon_connected(self, client: Client) -> None:
        """A feed begins."""
        self._restart(client)

    def on_daemon_disconnected(self) -> None:
        """The daemon is away."""
        self._restart(None)

    def queue_event(self, heard: ReceivedEvent) -> None:
        if len(self._events) >= MAX_WAITING:
            self._events.clear()
            self._events.append(None)
        self._events.append(heard)
        self._blocked_at = 0.0
        self._drained.clear()
        self._wakeup.set()

    def mark_missed_events(self) -> None:
        """The feed left something out, of this conversation or of another."""
        self._events.append(None)
        self._wakeup.set()

    def wake(self) -> None:
        """There may be room again."""
        self._wakeup.set()

    def request_read(self) -> None:
        """The log may have more than was heard of."""
        self._merger.must_read = True
        self._wakeup.set()

    def on_session_begun(self, *, anew: bool) -> None:
        """There is a session now; anew, it is another, and its book is empty."""
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
        """Until cancelled. All that was noted stays noted then."""
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
        return self.state.unsent_bytes > self._most_bytes

    async def _pause(self, seconds: float) -> bool:
        """False when nothing has come until then."""
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            return False
        return True

    # ── Steps ───────────────────────────────────────────────────────────────────────────────

    async def _advance(self, client: Client) -> None:
        """Reads what there is to read, tells what can be told, and waits for more. Raises what the
        client raises."""
        if self._merger.must_read and self._log.has_room:
            await self._read_page(client)
        if self._merger.live_run is not None and self._merger.live_run.is_paced:
            self._detach_from_run()
        self._merger.write_entries()
        while self._events and not self._merger.must_read and not self._is_full:
            heard = self._events.popleft()
            if heard is not None and isinstance(heard.event, RunBegan) and not heard.is_streamed:
                self.is_behind = False  # from here on all is heard as it happens
            self._merger.handle_event(heard)
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
        """The log is ahead of the feed; for a feed that lost something, it always is."""
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
        """Whether the end of a run will be heard."""
        is_live = self._merger.live_run is not None and self._merger.live_run.run == run
        is_attached = self._attached is not None and not self._attached.done()
        return is_live or (is_attached and self._attached_run == run)

    def _finish_catching_up(self) -> None:
        """All that the log has is told."""
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
            told = await self._find_written_records(client)
            if epoch != self._epoch:
                return
            self._merger.written_records = told
        page = await self._log.fetch_page(client)
        if epoch != self._epoch:
            return
        if self._is_other_log(page):
            if self.writer.is_busy:
                self.writer.close_lost_turn()
            self.on_cleared()  # what is said from now on belongs to another session
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
        """What is told already, for a book that has no position in the log."""
        book = self.state
        opened = measure_open_turn(book.recent_envelopes) if book.open_run else None
        if opened is not None:
            return WrittenRecords(
                book.message_position, max(book.written_until, opened.time), book.open_run
            )
        if not book.message_position and not book.written_until:
            position = await self._log.count_messages(client) - self._backfill
            return WrittenRecords(max(0, position), 0)
        return WrittenRecords(book.message_position, book.written_until, book.open_run)

    def _is_other_log(self, page: wire.RecordPage | None) -> bool:
        """Whether the conversation that was told of is gone; there may be another in its place."""
        book = self.state
        if page is None:
            return bool(book.log_id or book.first_message_at)
        if book.log_id:
            return page.log_id != book.log_id
        messages = [r.message for r in page.records if r.WhichOneof("record") == "message"]
        has_first = bool(messages) and messages[0].id == 0
        return (
            bool(book.first_message_at)
            and has_first
            and parse_timestamp(messages[0].timestamp) != book.first_message_at
        )

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def _attach_to_run(self, client: Client, run: str) -> None:
        """Follows a run of which the feed did not bring the beginning."""
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
                    heard = reader.parse_event(event, now_ms())
                    if len(self._events) >= MAX_WAITING // 2:
                        await self._drained.wait()
                    if epoch != self._epoch:
                        return
                    if heard is not None:
                        self.queue_event(heard)
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
