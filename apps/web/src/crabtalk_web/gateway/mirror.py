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
from crabtalk_web.adapter import Ask, Heard, StreamReader
from crabtalk_web.adapter.happenings import AnyHappening, Began, Ended, Reason
from crabtalk_web.adapter.sources import milliseconds

from .book import Book
from .errors import AWAY
from .identity import Identity
from .live_run import LiveRun
from .record_log import NOT_FOUND, RecordLog, ToldRecords, read_open_turn
from .run_teller import RunTeller
from .teller import UNSEEN, Teller, now_ms

# Events that may wait to be told. The log has what matters of those that do not fit.
MOST_WAITING = 16_384
# Seconds: what a feed may have on its way when the log has it already; between two looks at the log
# while a turn goes on; without a word until what was said so far is shown.
ON_ITS_WAY = 0.3
STALLED = 1.5
SILENCE = 2.0

log = logging.getLogger(__name__)


class Mirror:
    def __init__(
        self,
        identity: Identity,
        teller: Teller,
        *,
        backfill: int = 1000,
        most_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.identity = identity
        self.teller = teller
        self._backfill = backfill
        self._most_bytes = most_bytes
        self._heard: deque[Heard | None] = deque()  # None: some are missing here
        self._drained = asyncio.Event()  # no event waits
        self._news = asyncio.Event()
        self._client: Client | None = None
        self._epoch = 0  # another one with each connection, and with each session
        self._log = RecordLog(identity)
        self._runs = RunTeller(identity, teller, self._log, lambda: not self._is_full)
        self._blocked_at = 0.0  # since when the log is ahead of the feed, and nothing was heard
        self._attached: asyncio.Task[None] | None = None
        self._attached_run = ""
        self._group: asyncio.TaskGroup | None = None
        self.is_behind = True
        self.cleared: Callable[[], None] = self.wake  # the conversation is another now

    @property
    def book(self) -> Book:
        return self.teller.book

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open, or may be."""
        return self.teller.is_busy or self.is_behind

    @property
    def is_thinking(self) -> bool:
        return self.teller.is_busy

    def on_rename(self, renamed: Callable[[str], None]) -> None:
        """Has `renamed` called with the conversation's title, whenever the log has one."""
        self._runs.renamed = renamed

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self.teller.asks

    # ── From outside ────────────────────────────────────────────────────────────────────────

    def follow(self, client: Client) -> None:
        """A feed begins."""
        self._start_over(client)

    def leave(self) -> None:
        """The daemon is away."""
        self._start_over(None)

    def hear(self, heard: Heard) -> None:
        if len(self._heard) >= MOST_WAITING:
            self._heard.clear()
            self._heard.append(None)
        self._heard.append(heard)
        self._blocked_at = 0.0
        self._drained.clear()
        self._news.set()

    def miss(self) -> None:
        """The feed left something out, of this conversation or of another."""
        self._heard.append(None)
        self._news.set()

    def wake(self) -> None:
        """There may be room again."""
        self._news.set()

    def read_again(self) -> None:
        """The log may have more than was heard of."""
        self._runs.must_read = True
        self._news.set()

    def begin(self, *, anew: bool) -> None:
        """There is a session now; anew, it is another, and its book is empty."""
        if anew:
            self.teller.begin_again()
            self._start_over(self._client)
        self._news.set()

    def _start_over(self, client: Client | None) -> None:
        self._client = client
        self._epoch += 1
        self._heard.clear()
        self._log.start(self.book.record, self.book.log_id)
        self._runs.start_over()
        self._detach()
        self.is_behind = True
        self._news.set()

    async def work(self) -> None:
        """Until cancelled. All that was noted stays noted then."""
        async with asyncio.TaskGroup() as self._group:
            while True:
                self._news.clear()
                client = self._client
                if client is None or not self.book.session or self._is_full:
                    await self._pause(SILENCE)
                    continue
                try:
                    await self._go_on(client)
                except AWAY as error:
                    log.info("cannot read the log of %s: %s", self.identity.agent, error)
                    self._runs.must_read = True
                    await self._pause(SILENCE)

    @property
    def _is_full(self) -> bool:
        """Whether enough waits for the relay. The rest waits in the conversation's log."""
        return self.book.unsent_bytes > self._most_bytes

    async def _pause(self, seconds: float) -> bool:
        """False when nothing has come until then."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    # ── Steps ───────────────────────────────────────────────────────────────────────────────

    async def _go_on(self, client: Client) -> None:
        """Reads what there is to read, tells what can be told, and waits for more. Raises what the
        client raises."""
        if self._runs.must_read and self._log.has_room:
            await self._read(client)
        if self._runs.live is not None and self._runs.live.is_paced:
            self._detach()
        self._runs.tell_entries()
        while self._heard and not self._runs.must_read and not self._is_full:
            heard = self._heard.popleft()
            if heard is not None and isinstance(heard.what, Began) and not heard.is_streamed:
                self.is_behind = False  # from here on all is heard as it happens
            self._runs.take(heard)
            self._runs.tell_entries()
        if not self._heard:
            self._drained.set()
        if (self._runs.must_read and self._log.has_room) or self._is_full:
            return
        if self._log.entries:
            await self._wait_for_feed(client)
            return
        self._blocked_at = 0.0
        self._catch_up()
        if self.book.run and not self._is_live(self.book.run):
            if not await self._pause(ON_ITS_WAY):
                self._attach(client, self.book.run)
        elif not self.teller.is_busy and not self.book.pending:
            await self._news.wait()
        elif not await self._pause(SILENCE):
            self.teller.idle(now_ms())
            self._runs.must_read = True

    async def _wait_for_feed(self, client: Client) -> None:
        """The log is ahead of the feed; for a feed that lost something, it always is."""
        if run := self._runs.unknown_run:
            if not await self._pause(ON_ITS_WAY):
                self._attach(client, run)
            return
        now = asyncio.get_running_loop().time()
        self._blocked_at = self._blocked_at or now
        if now - self._blocked_at > STALLED:
            self._runs.live, self._blocked_at = None, 0.0
        else:
            await self._pause(STALLED)

    def _is_live(self, run: str) -> bool:
        """Whether the end of a run will be heard."""
        is_live = self._runs.live is not None and self._runs.live.run == run
        is_attached = self._attached is not None and not self._attached.done()
        return is_live or (is_attached and self._attached_run == run)

    def _catch_up(self) -> None:
        """All that the log has is told."""
        if self.book.record != self._log.position and self._log.position:
            self.teller.note(
                (), run=self.book.run, record=self._log.position, position=self._runs.read_messages
            )
        self._runs.end_unrecorded()
        if self.is_behind:
            self.is_behind = False
            self.teller.changed()

    # ── The log ─────────────────────────────────────────────────────────────────────────────

    async def _read(self, client: Client) -> None:
        epoch = self._epoch
        self._runs.must_read = False
        if not self._log.position and self._runs.told is None:
            told = await self._find_told(client)
            if epoch != self._epoch:
                return
            self._runs.told = told
        page = await self._log.fetch(client)
        if epoch != self._epoch:
            return
        if self._is_other_log(page):
            if self.teller.is_busy:
                self.teller.lose()
            self.cleared()  # what is said from now on belongs to another session
            self._runs.must_read = True
            await self._pause(SILENCE)
            return
        if page is None:
            return
        if page.restarted:
            self._log.start(0, "")
            self._runs.told = ToldRecords(self.book.position, self.book.through, self.book.run)
        if page.log_id != self.book.log_id:
            await self.teller.keep_log_id(page.log_id)
        self._log.add(page)
        self._runs.must_read = self._runs.must_read or page.has_more

    async def _find_told(self, client: Client) -> ToldRecords:
        """What is told already, for a book that has no position in the log."""
        book = self.book
        opened = read_open_turn(book.recent) if book.run else None
        if opened is not None:
            return ToldRecords(book.position, max(book.through, opened.time), book.run)
        if not book.position and not book.through:
            position = await self._log.count_messages(client) - self._backfill
            return ToldRecords(max(0, position), 0)
        return ToldRecords(book.position, book.through, book.run)

    def _is_other_log(self, page: wire.RecordPage | None) -> bool:
        """Whether the conversation that was told of is gone; there may be another in its place."""
        book = self.book
        if page is None:
            return bool(book.log_id or book.born)
        if book.log_id:
            return page.log_id != book.log_id
        messages = [r.message for r in page.records if r.WhichOneof("record") == "message"]
        has_first = bool(messages) and messages[0].id == 0
        return bool(book.born) and has_first and milliseconds(messages[0].timestamp) != book.born

    # ── Events ──────────────────────────────────────────────────────────────────────────────

    def _attach(self, client: Client, run: str) -> None:
        """Follows a run of which the feed did not bring the beginning."""
        if self._group is not None and not self._is_live(run):
            self._detach()
            self._attached_run = run
            self._attached = self._group.create_task(self._follow_run(client, run, self._epoch))

    def _detach(self) -> None:
        if self._attached is not None:
            self._attached.cancel()
        self._attached, self._attached_run = None, ""

    async def _follow_run(self, client: Client, run: str, epoch: int) -> None:
        agent, sender = self.identity.agent, self.identity.sender
        reader = StreamReader(agent, sender, run=run)
        try:
            async with aclosing(client.attach(agent, sender=sender, run_id=run)) as events:
                async for _, event in events:
                    heard = reader.read(event, now_ms())
                    if len(self._heard) >= MOST_WAITING // 2:
                        await self._drained.wait()
                    if epoch != self._epoch:
                        return
                    if heard is not None:
                        self.hear(heard)
        except ServerError as error:
            if error.code != NOT_FOUND:
                log.info("cannot follow a run of %s: %s", agent, error)
            elif epoch == self._epoch:
                self._runs.live = LiveRun(run, "", is_paced=False)
                self.hear(as_streamed(run, Ended(Reason.ERROR, UNSEEN)))
        except AWAY as error:
            log.info("cannot follow a run of %s: %s", agent, error)


def as_streamed(run: str, what: AnyHappening) -> Heard:
    return Heard(run=run, what=what, at=now_ms(), is_streamed=True)
