"""FeedRelay: sends the events of runs to the feeds of other daemons.

A daemon sends only events that a client of the other daemon subscribed to, in batches. Like the
feed, it slows no run down: events that cannot be sent in time are dropped and counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from google.protobuf.message import DecodeError

from crabtalk.hooks import AskRegistry
from crabtalk.protocol import wire
from crabtalk.storage import Pair, StorageError

if TYPE_CHECKING:
    from crabtalk.daemon.events.feed import Feed, FeedSubscriber
    from crabtalk.storage.postgres import PostgresStorage

log = logging.getLogger(__name__)

EVENTS, ASKS = "events", "asks"
# Seconds to collect events for one batch: too short for a person to notice.
COLLECT_SECONDS = 0.02
# Bytes that may wait for one daemon, and bytes in one message.
MAX_QUEUED_BYTES = 8 * 1024 * 1024
MAX_MESSAGE_BYTES = 256 * 1024
# Size of the length field before each event.
LENGTH_PREFIX_BYTES = 4


class RelayQueue:
    """Encoded events on their way to one daemon."""

    __slots__ = ("elements", "missed", "sending", "size")

    def __init__(self) -> None:
        self.elements: list[bytes] = []
        self.size = 0
        self.missed = 0
        self.sending: asyncio.Task[None] | None = None


class FeedRelay:
    def __init__(self, storage: "PostgresStorage") -> None:
        self._storage = storage
        self._feed: Feed | None = None
        self._pending_questions: AskRegistry | None = None
        self._interests: dict[UUID, list[tuple[str, str]]] = {}  # of other daemons
        # Of our clients, with their number.
        self._own_interests: Counter[tuple[str, str]] = Counter()
        self._announced: set[tuple[str, str]] = set()
        self._announcing = asyncio.Lock()
        self._queues: dict[UUID, RelayQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, feed: "Feed", asks: AskRegistry) -> None:
        self._feed = feed
        self._pending_questions = asks
        feed.relay = self
        self._storage.mailbox.on_message(EVENTS, self._on_events)
        self._storage.mailbox.on_request(ASKS, self._serve_questions)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ── Interests of other daemons ──────────────────────────────────────────────────────────

    async def refresh(self) -> None:
        """Read the interests of other daemons. Raises StorageError."""
        interests: dict[UUID, list[tuple[str, str]]] = {}
        for daemon, agent, sender in await self._storage.load_interests():
            interests.setdefault(daemon, []).append((agent, sender))
        self._interests = interests

    @property
    def has_interests(self) -> bool:
        """Whether other daemons have any interests."""
        return bool(self._interests)

    def find_interested(self, pair: Pair) -> list[UUID]:
        """The daemons interested in a conversation. Cheap while there are no interests."""
        return [
            daemon
            for daemon, interests in self._interests.items()
            if any(matches_interest(interest, pair) for interest in interests)
        ]

    def send(self, daemons: Iterable[UUID], message: wire.AgentEventMsg) -> None:
        data = message.SerializeToString()
        for daemon in daemons:
            queue = self._queues.setdefault(daemon, RelayQueue())
            if queue.size + len(data) > MAX_QUEUED_BYTES:
                queue.missed += 1
                continue
            if queue.missed:
                late = wire.AgentEventMsg.FromString(data)
                late.missed, queue.missed = late.missed + queue.missed, 0
                queue.elements.append(late.SerializeToString())
            else:
                queue.elements.append(data)
            queue.size += len(data)
            if queue.sending is None:
                queue.sending = self._spawn(self._send_queued(daemon, queue))

    async def _send_queued(self, daemon: UUID, queue: RelayQueue) -> None:
        try:
            while queue.elements:
                await asyncio.sleep(COLLECT_SECONDS)
                batch = take_batch(queue)
                try:
                    await self._storage.mailbox.send(daemon, EVENTS, encode_batch(batch))
                except StorageError as error:
                    queue.missed += len(batch)
                    log.info("%d events could not be sent to another daemon: %s", len(batch), error)
        finally:
            queue.sending = None
            if not queue.elements and not queue.missed:
                self._queues.pop(daemon, None)

    async def _serve_questions(self, body: bytes) -> bytes:
        """The open questions of our runs, for a client that just connected to another daemon."""
        from crabtalk.daemon.events.feed import to_agent_event

        if self._feed is None or self._pending_questions is None:
            return b""
        messages = [
            to_agent_event(run, ask, self._feed.clock)
            for run, ask in self._pending_questions.list_unanswered()
        ]
        return encode_batch(
            [message.SerializeToString() for message in messages if message is not None]
        )

    # ── Interests of our clients ────────────────────────────────────────────────────────────

    def add_interest(self, agent: str, sender: str) -> None:
        self._own_interests[agent, sender] += 1
        self._spawn(self._announce())

    def remove_interest(self, agent: str, sender: str) -> None:
        self._own_interests[agent, sender] -= 1
        if not self._own_interests[agent, sender]:
            del self._own_interests[agent, sender]
        self._spawn(self._announce())

    def announce(self) -> None:
        """Publish all interests again, in case they were removed from the database."""
        self._announced.clear()
        self._spawn(self._announce())

    async def _announce(self) -> None:
        async with self._announcing:
            interests = set(self._own_interests)
            if interests != self._announced:
                try:
                    await self._storage.publish_interests(interests)
                    self._announced = interests
                except StorageError as error:
                    log.info("the interests of this daemon could not be published: %s", error)

    def request_questions(self, subscriber: "FeedSubscriber") -> None:
        """Send a subscriber the open questions of runs in other daemons."""
        self._spawn(self._request_questions(subscriber))

    async def _request_questions(self, subscriber: "FeedSubscriber") -> None:
        with suppress(StorageError):
            for member in await self._storage.membership.list_members():
                if member.is_alive and member.id != self._storage.id:
                    # Concurrently: a daemon that just died still seems alive and does not answer.
                    self._spawn(self._request_questions_from(member.id, subscriber))

    async def _request_questions_from(self, daemon: UUID, subscriber: "FeedSubscriber") -> None:
        from crabtalk.storage.postgres import PeerRefusedError

        with suppress(StorageError, PeerRefusedError, DecodeError):
            for message in decode_batch(await self._storage.mailbox.request(daemon, ASKS, b"")):
                subscriber.offer_remote(message)

    def _on_events(self, _sender: UUID, body: bytes) -> None:
        if self._feed is not None:
            for message in decode_batch(body):
                self._feed.publish_remote(message)


def matches_interest(interest: tuple[str, str], pair: Pair) -> bool:
    return interest[0] in ("", pair.agent) and interest[1] in ("", pair.sender)


def take_batch(queue: RelayQueue) -> list[bytes]:
    """Take the events for one message; an event above the limit goes alone."""
    size = count = 0
    for element in queue.elements:
        if count and size + len(element) > MAX_MESSAGE_BYTES:
            break
        size += len(element)
        count += 1
    batch, queue.elements = queue.elements[:count], queue.elements[count:]
    queue.size -= sum(map(len, batch))
    return batch


def encode_batch(elements: Iterable[bytes]) -> bytes:
    return b"".join(
        len(element).to_bytes(LENGTH_PREFIX_BYTES, "big") + element for element in elements
    )


def decode_batch(body: bytes) -> Iterator[wire.AgentEventMsg]:
    offset = 0
    while offset < len(body):
        size = int.from_bytes(body[offset : offset + LENGTH_PREFIX_BYTES], "big")
        offset += LENGTH_PREFIX_BYTES
        yield wire.AgentEventMsg.FromString(body[offset : offset + size])
        offset += size
