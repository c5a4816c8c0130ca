"""Relay: what agents do in one daemon, told to the clients of the others.

Only what somebody there asked for leaves a daemon, a few of its elements at a time. Like the feed,
it slows nobody down: what does not get through in time is missed, and counted.
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
# Elements are collected for so long, in seconds: a person sees no difference.
COLLECT_SECONDS = 0.02
# What may wait for one daemon, in bytes; and what goes in one letter.
MAX_QUEUED_BYTES = 8 * 1024 * 1024
MAX_MESSAGE_BYTES = 256 * 1024
# Of the length before each element.
LENGTH_PREFIX_BYTES = 4


class RelayQueue:
    """Elements on their way to one daemon."""

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
        self._interests: dict[UUID, list[tuple[str, str]]] = {}  # of the others
        self._own_interests: Counter[tuple[str, str]] = Counter()  # of our clients
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

    # ── What others want of us ──────────────────────────────────────────────────────────────

    async def refresh(self) -> None:
        """Reads what the others want to hear. Raises StorageError."""
        interests: dict[UUID, list[tuple[str, str]]] = {}
        for daemon, agent, sender in await self._storage.load_interests():
            interests.setdefault(daemon, []).append((agent, sender))
        self._interests = interests

    @property
    def has_interests(self) -> bool:
        """Whether anybody elsewhere wants to hear of anything."""
        return bool(self._interests)

    def find_interested(self, pair: Pair) -> list[UUID]:
        """Who wants to hear of a conversation. Costs next to nothing while nobody does."""
        return [
            daemon
            for daemon, wishes in self._interests.items()
            if any(matches_interest(wish, pair) for wish in wishes)
        ]

    def send(self, daemons: Iterable[UUID], message: wire.AgentEventMsg) -> None:
        data = message.SerializeToString()
        for daemon in daemons:
            bag = self._queues.setdefault(daemon, RelayQueue())
            if bag.size + len(data) > MAX_QUEUED_BYTES:
                bag.missed += 1
                continue
            if bag.missed:
                late = wire.AgentEventMsg.FromString(data)
                late.missed, bag.missed = late.missed + bag.missed, 0
                bag.elements.append(late.SerializeToString())
            else:
                bag.elements.append(data)
            bag.size += len(data)
            if bag.sending is None:
                bag.sending = self._spawn(self._send_queued(daemon, bag))

    async def _send_queued(self, daemon: UUID, bag: RelayQueue) -> None:
        try:
            while bag.elements:
                await asyncio.sleep(COLLECT_SECONDS)
                some = take_batch(bag)
                try:
                    await self._storage.mailbox.send(daemon, EVENTS, encode_batch(some))
                except StorageError as error:
                    bag.missed += len(some)
                    log.info("another daemon does not hear of %d elements: %s", len(some), error)
        finally:
            bag.sending = None
            if not bag.elements and not bag.missed:
                self._queues.pop(daemon, None)

    async def _serve_questions(self, body: bytes) -> bytes:
        """What our runs wait for, for a client that just came to another daemon."""
        from crabtalk.daemon.events.feed import to_agent_event

        if self._feed is None or self._pending_questions is None:
            return b""
        asked = [
            to_agent_event(run, ask, self._feed.clock)
            for run, ask in self._pending_questions.list_unanswered()
        ]
        return encode_batch(
            [message.SerializeToString() for message in asked if message is not None]
        )

    # ── What our clients want of others ─────────────────────────────────────────────────────

    def add_interest(self, agent: str, sender: str) -> None:
        self._own_interests[agent, sender] += 1
        self._spawn(self._announce())

    def remove_interest(self, agent: str, sender: str) -> None:
        self._own_interests[agent, sender] -= 1
        if not self._own_interests[agent, sender]:
            del self._own_interests[agent, sender]
        self._spawn(self._announce())

    def announce(self) -> None:
        """All of it anew: the others may have forgotten."""
        self._announced.clear()
        self._spawn(self._announce())

    async def _announce(self) -> None:
        async with self._announcing:
            wishes = set(self._own_interests)
            if wishes != self._announced:
                try:
                    await self._storage.publish_interests(wishes)
                    self._announced = wishes
                except StorageError as error:
                    log.info("the others do not know what is wanted here: %s", error)

    def request_questions(self, subscriber: "FeedSubscriber") -> None:
        """Tells a subscriber what runs elsewhere wait for."""
        self._spawn(self._request_questions(subscriber))

    async def _request_questions(self, subscriber: "FeedSubscriber") -> None:
        with suppress(StorageError):
            for member in await self._storage.membership.list_members():
                if member.is_alive and member.id != self._storage.id:
                    # Side by side: one that just died seems alive, and is waited for in vain.
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


def matches_interest(wish: tuple[str, str], pair: Pair) -> bool:
    return wish[0] in ("", pair.agent) and wish[1] in ("", pair.sender)


def take_batch(bag: RelayQueue) -> list[bytes]:
    """As many as go in one letter; one that is larger goes alone."""
    size = count = 0
    for element in bag.elements:
        if count and size + len(element) > MAX_MESSAGE_BYTES:
            break
        size += len(element)
        count += 1
    some, bag.elements = bag.elements[:count], bag.elements[count:]
    bag.size -= sum(map(len, some))
    return some


def encode_batch(elements: Iterable[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(LENGTH_PREFIX_BYTES, "big") + each for each in elements)


def decode_batch(body: bytes) -> Iterator[wire.AgentEventMsg]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + LENGTH_PREFIX_BYTES], "big")
        at += LENGTH_PREFIX_BYTES
        yield wire.AgentEventMsg.FromString(body[at : at + size])
        at += size
