"""Conversation: the messages of one agent and one sender that go into the model's context.

Memory follows storage: the history holds only stored messages, and after a failed write it is
dropped and read again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from crabtalk.model.messages import Message, ToolCall
from crabtalk.storage import (
    Archive,
    ArchivedKeys,
    ConversationMeta,
    ConversationVersion,
    EventRecord,
    KeyUse,
    MarkerRecord,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    Storage,
    StorageError,
    TurnClaim,
)

from .clock import Clock
from .compaction import make_title
from .run import Run

T = TypeVar("T")
ArchiveCallback = Callable[[Pair, Archive], Awaitable[None]]
AppendCallback = Callable[[Pair, Sequence[Record]], None]  # called right after records are stored

INTERRUPTED = "interrupted: the run was cut off before this call finished"
# Approximate bytes of a message beside its text.
MESSAGE_OVERHEAD = 500


class ConversationClaim(msgspec.Struct, eq=False):
    """A place in the queue of this process and, where processes share the storage, in the shared
    queue."""

    local: asyncio.Future[None]
    shared: TurnClaim | None


class Conversation:
    """At most one per pair in a runtime. Only the holder of its turn changes it."""

    def __init__(
        self, pair: Pair, storage: Storage, clock: Clock, on_append: AppendCallback | None = None
    ) -> None:
        self.pair = pair
        self._on_append = on_append
        self.turn_lock = TurnLock()
        self.run: Run | None = None  # in flight
        self.created_at = clock.monotonic()
        self.models_without_images: set[str] = set()  # models that refused images from tools
        self._storage = storage
        self._clock = clock
        # Records carry the meta as of their append, so appends must not overlap: a title may be
        # set while a run stores its messages.
        self._append_lock = asyncio.Lock()
        self._is_alone = True
        # What storage had when this process last held the turn.
        self._last_version: ConversationVersion = None
        self.unload()

    def unload(self) -> None:
        """Drops all state that was read from storage. The next turn reads it again."""
        self.is_loaded = False
        self.exists = False
        self.meta = ConversationMeta(self.pair.agent, self.pair.sender)
        self.history: list[Message] = []
        self.marker: MarkerRecord | None = None
        self.keys: dict[str, KeyUse] = {}  # of messages after the marker
        self._archived_keys: ArchivedKeys | None = None  # of messages before it, built on first use
        self.size = 0

    @property
    def is_alone(self) -> bool:
        """Whether no other process can hold a turn of this conversation."""
        return self._is_alone

    @property
    def is_idle(self) -> bool:
        return self.turn_lock.is_idle and self.run is None

    def claim_turn(self, run: str = "", *, first: bool = False) -> ConversationClaim:
        """Enters the queue, without waiting. Pass the claim to `hold_turn`, which releases it."""
        claim = self._storage.claim_turn(self.pair, run, first=first)
        self._is_alone = claim is None
        return ConversationClaim(self.turn_lock.enqueue(first=first), claim)

    @asynccontextmanager
    async def hold_turn(
        self, claim: ConversationClaim, before_waiting: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """Waits for the turn of this claim, and holds it for the block. Raises StorageError.

        `before_waiting` is called first when another run holds the turn; when it raises, the claim
        is released.
        """
        try:
            try:
                if before_waiting is not None and not await is_turn_free(claim):
                    await before_waiting()
            except BaseException:
                self.turn_lock.cancel(claim.local)
                raise
            await self.turn_lock.acquire(claim.local)
            try:
                if claim.shared is None:
                    yield
                else:
                    async with self._hold_shared_turn(claim.shared):
                        yield
            finally:
                self.turn_lock.release()
        finally:
            if claim.shared is not None:
                claim.shared.release()

    @asynccontextmanager
    async def _hold_shared_turn(self, claim: TurnClaim) -> AsyncIterator[None]:
        if await claim.acquire() != self._last_version:
            self.unload()  # another process has had a turn since
        try:
            yield
        finally:
            self._last_version = claim.release()

    async def load(self) -> None:
        if self.is_loaded:
            return
        stored = await self._storage.load_and_repair(self.pair)
        self.unload()
        if stored is not None:
            self.exists = True
            self.meta = stored.meta
            self.marker = stored.marker
            self.keys = {r.key: KeyUse.from_record(r) for r in stored.messages if r.key}
            self.history = complete_tool_calls(build_history(stored.marker, stored.messages))
            self.size = sum(map(estimate_size, self.history))
        self.is_loaded = True

    async def find_key_use(self, key: str) -> KeyUse | None:
        """The message that used a key, if any. The conversation must be loaded. Raises
        StorageError."""
        if (use := self.keys.get(key)) is not None:
            return use
        if not self.archived_keys.may_have(key):
            return None
        records = await self._storage.find_run(self.pair, key=key)
        return next(
            (
                KeyUse.from_record(r)
                for r in records
                if isinstance(r, MessageRecord) and r.key == key
            ),
            None,
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
        """Stores messages and events, then adds the messages to the history. When it raises
        StorageError, neither has happened.

        Cancelled meanwhile, it finishes first. `run` is the run they belong to, `steers` the
        numbers of the steering messages among them. `snapshot` appends the meta as well, so that a
        listing finds it at the end of the log.
        """
        await run_to_completion(self._append(messages, events, run, steers, snapshot))

    async def _append(
        self,
        messages: Sequence[Message],
        events: Sequence[EventRecord],
        run: Run | None,
        steers: Sequence[int],
        snapshot: bool,
    ) -> None:
        async with self._append_lock:
            at = self._clock.now()
            meta = self.meta
            if not self.exists and not meta.created_at:
                meta = msgspec.structs.replace(meta, created_at=at)
            records: list[Record] = [] if self.exists else [meta.make_snapshot()]
            numbered = list(zip(messages, steers or (0,) * len(messages), strict=True))
            for number, (message, steer) in enumerate(numbered, meta.message_count):
                records.append(make_message_record(number, at, message, run, steer))
            records += events
            for record in records:
                meta = meta.apply_record(record)
            if snapshot:
                records.append(meta.make_snapshot())
            await self._append_records(records)
            for message, steer in numbered:
                if message.role == "user" and run is not None:
                    run.accepted.pop(steer, None)
            self.keys |= {
                r.key: KeyUse.from_record(r)
                for r in records
                if isinstance(r, MessageRecord) and r.key
            }
            self.exists = True
            self.meta = meta
            self.history += messages
            self.size += sum(map(estimate_size, messages))

    async def set_title(self, title: str) -> None:
        """Raises StorageError. Cancelled meanwhile, it finishes first."""
        await run_to_completion(self._patch(MetaRecord(title=title)))

    async def approve_rule(self, rule: str) -> None:
        """Calls that match the rule need no approval in this conversation from now on. Raises
        StorageError."""
        if rule not in self.meta.approved:
            await run_to_completion(self._patch(MetaRecord(approved=(*self.meta.approved, rule))))

    async def set_mode(self, mode: str) -> None:
        """Raises StorageError. Cancelled meanwhile, it finishes first."""
        if not self.exists:
            await self.append()
        await run_to_completion(self._patch(MetaRecord(mode=mode)))

    async def _patch(self, record: MetaRecord) -> None:
        async with self._append_lock:
            await self._append_records([record])
            self.meta = self.meta.apply_record(record)

    async def archive_with_summary(
        self, name: str, title: str, summary: str, store_archive: ArchiveCallback
    ) -> Archive:
        """Stores the archive, then appends a marker: the summary replaces the history.

        Must not be cancelled: an archive without its marker would archive nothing.
        """
        marker = self._new_marker(name, title, summary)
        archive = self.make_archive(marker)
        await store_archive(self.pair, archive)
        await self._append_marker(marker, self.meta.title)
        return archive

    async def archive_without_summary(self, name: str) -> Archive:
        """Appends a marker without a summary: the conversation has no history and no title then.

        Must not be cancelled, as above.
        """
        title = self.meta.title or make_title(next((m.text for m in self.history if m.text), ""))
        marker = self._new_marker(name, title, "")
        archive = self.make_archive(marker)
        await self._append_marker(marker, "")
        return archive

    def _new_marker(self, name: str, title: str, summary: str) -> MarkerRecord:
        keys, dropped = self.archived_keys.pack_with(self.keys)
        count = self.meta.message_count
        return MarkerRecord(name, self._clock.now(), title, summary, count, keys, dropped)

    async def _append_marker(self, marker: MarkerRecord, title: str) -> None:
        async with self._append_lock:
            meta = self.meta.apply_record(marker).apply_record(MetaRecord(title=title))
            await self._append_records([marker, meta.make_snapshot()])
            self.meta = meta
            self.marker = marker
            self.keys = {}
            self._archived_keys = None
            self.history = build_history(marker, ())
            self.size = sum(map(estimate_size, self.history))

    def make_archive(self, marker: MarkerRecord) -> Archive:
        return Archive(
            name=marker.archive_name,
            title=marker.title,
            archived_at=marker.archived_at,
            summary=marker.summary,
            first_id=self.marker.end_id if self.marker is not None else 0,
            end_id=marker.end_id,
        )

    async def _append_records(self, records: list[Record]) -> None:
        try:
            await self._storage.append(self.pair, records, create=not self.exists)
        except StorageError:
            self.unload()
            raise
        if self._on_append is not None:
            self._on_append(self.pair, records)


def make_message_record(
    number: int, at: str, message: Message, run: Run | None, steer: int
) -> MessageRecord:
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
        said=label.typed_text,
        is_keyed=bool(run.key),
    )


async def is_turn_free(claim: ConversationClaim) -> bool:
    """Whether the claim can have its turn without waiting for another turn to end."""
    return claim.local.done() and (claim.shared is None or await claim.shared.is_free())


async def run_to_completion(work: Awaitable[T]) -> T:
    """Awaits the work to its end even when cancelled meanwhile, then raises the CancelledError."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # mark it as retrieved; the cancellation matters more
        raise cancelled
    return task.result()


def clear_cancellation() -> None:
    """Resets the task's cancellation, so that it does not hit the cleanup that follows."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def build_history(marker: MarkerRecord | None, messages: Sequence[MessageRecord]) -> list[Message]:
    """The history a run starts from."""
    summary = [Message("user", marker.summary)] if marker is not None and marker.summary else []
    return summary + [record.message for record in messages]


def complete_tool_calls(history: Sequence[Message]) -> list[Message]:
    """Gives every call a result: strict providers refuse a history with a call that has none."""
    complete: list[Message] = []
    unanswered: list[ToolCall] = []
    for message in history:
        if message.role == "tool":
            call = next((call for call in unanswered if call.id == message.call_id), None)
            if call is None:
                continue  # a result without its call would be refused as well
            unanswered.remove(call)
        else:
            complete += map(make_interrupted_result, unanswered)
            unanswered = list(message.tool_calls)
        complete.append(message)
    return [*complete, *map(make_interrupted_result, unanswered)]


def make_interrupted_result(call: ToolCall) -> Message:
    return Message("tool", INTERRUPTED, call_id=call.id, name=call.name, is_error=True)


def estimate_size(message: Message) -> int:
    """About how many bytes of memory the message takes."""
    images = sum(len(image.data) + len(image.url) for image in message.images)
    calls = sum(len(call.arguments) for call in message.tool_calls)
    return MESSAGE_OVERHEAD + len(message.text) + len(message.reasoning) + images + calls


class TurnLock:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False

    @property
    def is_idle(self) -> bool:
        return not self._busy and not self._waiting

    def enqueue(self, *, first: bool = False) -> asyncio.Future[None]:
        """Enters the queue, without waiting: the order is that of these calls, not of `acquire`.

        The place is the last one, or with `first` the one right after the current holder.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._busy:
            if first:
                self._waiting.appendleft(place)
            else:
                self._waiting.append(place)
        else:
            self._busy = True
            place.set_result(None)
        return place

    async def acquire(self, place: asyncio.Future[None]) -> None:
        """Waits until the lock is held. Cancelled, it gives up the place."""
        try:
            await place
        except asyncio.CancelledError:
            self.cancel(place)
            raise

    def cancel(self, place: asyncio.Future[None]) -> None:
        """Gives up a place, so that those behind it do not wait for it."""
        if place.done() and not place.cancelled():
            self.release()
        elif place in self._waiting:
            self._waiting.remove(place)

    def release(self) -> None:
        """Passes the lock to the next in the queue."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._busy = False
