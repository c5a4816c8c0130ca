"""Conversation: what one agent and one sender have said, as far as the agent has it before it.

Memory follows storage: nothing is in the history that is not kept, and when in doubt the history
is dropped and read again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from crabtalk.model.messages import Message, ToolCall
from crabtalk.storage import (
    Archive,
    ArchivedKeys,
    Claim,
    EventRecord,
    KeyUse,
    MarkerRecord,
    MessageRecord,
    Meta,
    MetaRecord,
    Pair,
    Record,
    Stamp,
    Storage,
    StorageError,
)

from .clock import Clock
from .compaction import title_of
from .line import Line
from .run import Run

T = TypeVar("T")
Archiving = Callable[[Pair, Archive], Awaitable[None]]
Kept = Callable[[Pair, Sequence[Record]], None]  # is told what was kept, right after it was

INTERRUPTED = "interrupted: the run was cut off before this call finished"
# What a message takes beside its text, roughly.
OVERHEAD = 500


class Place(msgspec.Struct, eq=False):
    """In the line of this process, and where others share its storage in that of all of them."""

    here: asyncio.Future[None]
    claim: Claim | None


class Conversation:
    """At most one per pair in a runtime. Changed only by whoever has its turn in the line."""

    def __init__(
        self, pair: Pair, storage: Storage, clock: Clock, kept: Kept | None = None
    ) -> None:
        self.pair = pair
        self._kept = kept
        self.line = Line()
        self.run: Run | None = None  # in flight
        self.since = clock.seconds()
        self.blind: set[str] = set()  # models that refused the images its tools had found
        self._storage = storage
        self._clock = clock
        # What is appended says what the meta is by then, so appends go one after the other: a
        # title may be set while a run keeps its words.
        self._writing = asyncio.Lock()
        self._is_alone = True
        self._stamp: Stamp = None  # where storage was when we last had the turn
        self.unload()

    def unload(self) -> None:
        """Forgets what storage has. The next turn reads it again."""
        self.loaded = False
        self.exists = False
        self.meta = Meta(self.pair.agent, self.pair.sender)
        self.history: list[Message] = []
        self.marker: MarkerRecord | None = None
        self.keys: dict[str, KeyUse] = {}  # of messages after the marker
        self._archived_keys: ArchivedKeys | None = None  # of those before it, when it was asked for
        self.size = 0

    @property
    def is_alone(self) -> bool:
        """Whether no other process can have a turn of it."""
        return self._is_alone

    @property
    def idle(self) -> bool:
        return self.line.idle and self.run is None

    def join(self, run: str = "", *, first: bool = False) -> Place:
        """A place in line, at once. It must be used: `turn` gives it back."""
        claim = self._storage.claim(self.pair, run, first=first)
        self._is_alone = claim is None
        return Place(self.line.join(first=first), claim)

    @asynccontextmanager
    async def turn(
        self, place: Place, before_waiting: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """Waits for one's turn, and has it. Raises StorageError.

        `before_waiting` is called first when the turn is somebody else's now; when it raises, the
        place is given up.
        """
        try:
            try:
                if before_waiting is not None and not await is_free(place):
                    await before_waiting()
            except BaseException:
                self.line.give_up(place.here)
                raise
            await self.line.reach(place.here)
            try:
                if place.claim is None:
                    yield
                else:
                    async with self._everybodys_turn(place.claim):
                        yield
            finally:
                self.line.leave()
        finally:
            if place.claim is not None:
                place.claim.leave()

    @asynccontextmanager
    async def _everybodys_turn(self, claim: Claim) -> AsyncIterator[None]:
        if await claim.reach() != self._stamp:
            self.unload()  # somebody else has had a turn since
        try:
            yield
        finally:
            self._stamp = claim.leave()

    async def load(self) -> None:
        if self.loaded:
            return
        stored = await self._storage.load(self.pair)
        self.unload()
        if stored is not None:
            self.exists = True
            self.meta = stored.meta
            self.marker = stored.marker
            self.keys = {r.key: KeyUse.of(r) for r in stored.messages if r.key}
            self.history = completed(replayed(stored.marker, stored.messages))
            self.size = sum(map(weight, self.history))
        self.loaded = True

    async def find_key(self, key: str) -> KeyUse | None:
        """What was said with a key, if anything was. Of one that is loaded. Raises StorageError."""
        if (use := self.keys.get(key)) is not None:
            return use
        if not self.archived_keys.may_have(key):
            return None
        records = await self._storage.find_run(self.pair, key=key)
        return next(
            (KeyUse.of(r) for r in records if isinstance(r, MessageRecord) and r.key == key), None
        )

    @property
    def archived_keys(self) -> ArchivedKeys:
        if self._archived_keys is None:
            self._archived_keys = ArchivedKeys(self.marker)
        return self._archived_keys

    async def append(
        self,
        messages: Sequence[Message] = (),
        events: Sequence[EventRecord] = (),
        *,
        run: Run | None = None,
        steers: Sequence[int] = (),
        snapshot: bool = False,
    ) -> None:
        """Keeps them, then has them in the history. Raises StorageError, and then has neither.

        Cancelled meanwhile, it is carried out first. `run` is the one they belong to, `steers` the
        numbers of the messages that steer it. `snapshot` adds the meta as it is then, so that a
        listing finds it at the end of the log.
        """
        await to_the_end(self._append(messages, events, run, steers, snapshot))

    async def _append(
        self,
        messages: Sequence[Message],
        events: Sequence[EventRecord],
        run: Run | None,
        steers: Sequence[int],
        snapshot: bool,
    ) -> None:
        async with self._writing:
            at = self._clock.now()
            meta = self.meta
            if not self.exists and not meta.created_at:
                meta = msgspec.structs.replace(meta, created_at=at)
            records: list[Record] = [] if self.exists else [meta.snapshot()]
            said = list(zip(messages, steers or (0,) * len(messages), strict=True))
            for number, (message, steer) in enumerate(said, meta.message_count):
                records.append(record_of(number, at, message, run, steer))
            records += events
            for record in records:
                meta = meta.patched(record)
            if snapshot:
                records.append(meta.snapshot())
            await self._keep(records)
            for message, steer in said:
                if message.role == "user" and run is not None:
                    run.accepted.pop(steer, None)
            self.keys |= {
                r.key: KeyUse.of(r) for r in records if isinstance(r, MessageRecord) and r.key
            }
            self.exists = True
            self.meta = meta
            self.history += messages
            self.size += sum(map(weight, messages))

    async def retitle(self, title: str) -> None:
        """Raises StorageError. Cancelled meanwhile, it is carried out first."""
        await to_the_end(self._patch(MetaRecord(title=title)))

    async def approve(self, rule: str) -> None:
        """Calls that match it need no person's yes here from now on. Raises StorageError."""
        if rule not in self.meta.approved:
            await to_the_end(self._patch(MetaRecord(approved=(*self.meta.approved, rule))))

    async def set_mode(self, mode: str) -> None:
        """Raises StorageError. Cancelled meanwhile, it is carried out first."""
        if not self.exists:
            await self.append()
        await to_the_end(self._patch(MetaRecord(mode=mode)))

    async def _patch(self, record: MetaRecord) -> None:
        async with self._writing:
            await self._keep([record])
            self.meta = self.meta.patched(record)

    async def fold(self, name: str, title: str, summary: str, archiving: Archiving) -> Archive:
        """Has the archive kept elsewhere, then appends a marker: the history is the summary now.

        Not to be cancelled: an archive without its marker is one of nothing.
        """
        marker = self._new_marker(name, title, summary)
        archive = self.archive_of(marker)
        await archiving(self.pair, archive)
        await self._mark(marker, self.meta.title)
        return archive

    async def begin_afresh(self, name: str) -> Archive:
        """Appends a marker without a summary: there is no history now, and no title.

        Not to be cancelled, as above.
        """
        title = self.meta.title or title_of(next((m.text for m in self.history if m.text), ""))
        marker = self._new_marker(name, title, "")
        archive = self.archive_of(marker)
        await self._mark(marker, "")
        return archive

    def _new_marker(self, name: str, title: str, summary: str) -> MarkerRecord:
        keys, dropped = self.archived_keys.packed_with(self.keys)
        count = self.meta.message_count
        return MarkerRecord(name, self._clock.now(), title, summary, count, keys, dropped)

    async def _mark(self, marker: MarkerRecord, title: str) -> None:
        async with self._writing:
            meta = self.meta.patched(marker).patched(MetaRecord(title=title))
            await self._keep([marker, meta.snapshot()])
            self.meta = meta
            self.marker = marker
            self.keys = {}
            self._archived_keys = None
            self.history = replayed(marker, ())
            self.size = sum(map(weight, self.history))

    def archive_of(self, marker: MarkerRecord) -> Archive:
        return Archive(
            name=marker.archive_name,
            title=marker.title,
            archived_at=marker.archived_at,
            summary=marker.summary,
            first_id=self.marker.end_id if self.marker is not None else 0,
            end_id=marker.end_id,
        )

    async def _keep(self, records: list[Record]) -> None:
        try:
            await self._storage.append(self.pair, records, create=not self.exists)
        except StorageError:
            self.unload()
            raise
        if self._kept is not None:
            self._kept(self.pair, records)


def record_of(number: int, at: str, message: Message, run: Run | None, steer: int) -> MessageRecord:
    if run is None:
        return MessageRecord(number, at, message, steer=steer)
    label = run.labels.get(steer) if message.role == "user" else None
    if label is None:
        is_keyed = bool(run.key)
        return MessageRecord(number, at, message, run=run.id, steer=steer, is_keyed=is_keyed)
    return MessageRecord(
        number,
        at,
        message,
        run=run.id,
        steer=steer,
        key=label.key,
        content_hash=label.content_hash,
        said=label.said,
        is_keyed=bool(run.key),
    )


async def is_free(place: Place) -> bool:
    """Whether the turn has come without waiting for another one's end."""
    return place.here.done() and (place.claim is None or await place.claim.is_free())


async def to_the_end(work: Awaitable[T]) -> T:
    """Awaits all of it though we are cancelled meanwhile; the cancellation then goes on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # seen, though the cancellation matters more
        raise cancelled
    return task.result()


def uncancel() -> None:
    """The cancellation was heard; what follows is tidying up and must not be taken for it."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def replayed(marker: MarkerRecord | None, messages: Sequence[MessageRecord]) -> list[Message]:
    """The history a run starts from."""
    summary = [Message("user", marker.summary)] if marker is not None and marker.summary else []
    return summary + [record.message for record in messages]


def completed(history: Sequence[Message]) -> list[Message]:
    """Gives every call a result, since strict providers refuse a history with one that has none."""
    whole: list[Message] = []
    unanswered: list[ToolCall] = []
    for message in history:
        if message.role == "tool":
            call = next((call for call in unanswered if call.id == message.call_id), None)
            if call is None:
                continue  # a result without its call would be refused as well
            unanswered.remove(call)
        else:
            whole += map(interrupted, unanswered)
            unanswered = list(message.tool_calls)
        whole.append(message)
    return [*whole, *map(interrupted, unanswered)]


def interrupted(call: ToolCall) -> Message:
    return Message("tool", INTERRUPTED, call_id=call.id, name=call.name, is_error=True)


def weight(message: Message) -> int:
    """About how much memory it holds."""
    images = sum(len(image.data) + len(image.url) for image in message.images)
    calls = sum(len(call.arguments) for call in message.tool_calls)
    return OVERHEAD + len(message.text) + len(message.reasoning) + images + calls
