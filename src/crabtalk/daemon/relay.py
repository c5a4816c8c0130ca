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

from crabtalk.hooks import Asks
from crabtalk.protocol import wire
from crabtalk.storage import Pair, StorageError

if TYPE_CHECKING:
    from crabtalk.storage.postgres import PostgresStorage

    from .feed import Feed, Subscriber

log = logging.getLogger(__name__)

EVENTS, ASKS = "events", "asks"
# Elements are collected for so long, in seconds: a person sees no difference.
COLLECTING = 0.02
# What may wait for one daemon, in bytes; and what goes in one letter.
WAITING = 8 * 1024 * 1024
LETTER = 256 * 1024
# Of the length before each element.
PREFIX = 4


class Bag:
    """Elements on their way to one daemon."""

    __slots__ = ("elements", "missed", "sending", "size")

    def __init__(self) -> None:
        self.elements: list[bytes] = []
        self.size = 0
        self.missed = 0
        self.sending: asyncio.Task[None] | None = None


class Relay:
    def __init__(self, storage: "PostgresStorage") -> None:
        self._storage = storage
        self._feed: Feed | None = None
        self._asks: Asks | None = None
        self._interests: dict[UUID, list[tuple[str, str]]] = {}  # of the others
        self._own: Counter[tuple[str, str]] = Counter()  # of our clients
        self._announced: set[tuple[str, str]] = set()
        self._announcing = asyncio.Lock()
        self._bags: dict[UUID, Bag] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, feed: "Feed", asks: Asks) -> None:
        self._feed = feed
        self._asks = asks
        feed.relay = self
        self._storage.mail.take(EVENTS, self._came)
        self._storage.mail.answer(ASKS, self._own_asks)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ── What others want of us ──────────────────────────────────────────────────────────────

    async def refresh(self) -> None:
        """Reads what the others want to hear. Raises StorageError."""
        interests: dict[UUID, list[tuple[str, str]]] = {}
        for daemon, agent, sender in await self._storage.interests():
            interests.setdefault(daemon, []).append((agent, sender))
        self._interests = interests

    @property
    def is_wanted(self) -> bool:
        """Whether anybody elsewhere wants to hear of anything."""
        return bool(self._interests)

    def wanted(self, pair: Pair) -> list[UUID]:
        """Who wants to hear of a conversation. Costs next to nothing while nobody does."""
        return [
            daemon
            for daemon, wishes in self._interests.items()
            if any(matches(wish, pair) for wish in wishes)
        ]

    def send(self, daemons: Iterable[UUID], message: wire.AgentEventMsg) -> None:
        data = message.SerializeToString()
        for daemon in daemons:
            bag = self._bags.setdefault(daemon, Bag())
            if bag.size + len(data) > WAITING:
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
                bag.sending = self._start(self._empty(daemon, bag))

    async def _empty(self, daemon: UUID, bag: Bag) -> None:
        try:
            while bag.elements:
                await asyncio.sleep(COLLECTING)
                some = taken(bag)
                try:
                    await self._storage.mail.post(daemon, EVENTS, joined(some))
                except StorageError as error:
                    bag.missed += len(some)
                    log.info("another daemon does not hear of %d elements: %s", len(some), error)
        finally:
            bag.sending = None
            if not bag.elements and not bag.missed:
                self._bags.pop(daemon, None)

    async def _own_asks(self, body: bytes) -> bytes:
        """What our runs wait for, for a client that just came to another daemon."""
        from .feed import agent_event

        if self._feed is None or self._asks is None:
            return b""
        asked = [agent_event(run, ask, self._feed.clock) for run, ask in self._asks.waiting()]
        return joined([message.SerializeToString() for message in asked if message is not None])

    # ── What our clients want of others ─────────────────────────────────────────────────────

    def listen(self, agent: str, sender: str) -> None:
        self._own[agent, sender] += 1
        self._start(self._announce())

    def ignore(self, agent: str, sender: str) -> None:
        self._own[agent, sender] -= 1
        if not self._own[agent, sender]:
            del self._own[agent, sender]
        self._start(self._announce())

    def announce(self) -> None:
        """All of it anew: the others may have forgotten."""
        self._announced.clear()
        self._start(self._announce())

    async def _announce(self) -> None:
        async with self._announcing:
            wishes = set(self._own)
            if wishes != self._announced:
                try:
                    await self._storage.want(wishes)
                    self._announced = wishes
                except StorageError as error:
                    log.info("the others do not know what is wanted here: %s", error)

    def ask_all(self, subscriber: "Subscriber") -> None:
        """Tells a subscriber what runs elsewhere wait for."""
        self._start(self._ask_all(subscriber))

    async def _ask_all(self, subscriber: "Subscriber") -> None:
        with suppress(StorageError):
            for member in await self._storage.members.list():
                if member.is_alive and member.id != self._storage.id:
                    # Side by side: one that just died seems alive, and is waited for in vain.
                    self._start(self._ask(member.id, subscriber))

    async def _ask(self, daemon: UUID, subscriber: "Subscriber") -> None:
        from crabtalk.storage.postgres import RefusedError

        with suppress(StorageError, RefusedError, DecodeError):
            for message in split(await self._storage.mail.ask(daemon, ASKS, b"")):
                subscriber.hear(message)

    def _came(self, _sender: UUID, body: bytes) -> None:
        if self._feed is not None:
            for message in split(body):
                self._feed.hear(message)


def matches(wish: tuple[str, str], pair: Pair) -> bool:
    return wish[0] in ("", pair.agent) and wish[1] in ("", pair.sender)


def taken(bag: Bag) -> list[bytes]:
    """As many as go in one letter; one that is larger goes alone."""
    size = count = 0
    for element in bag.elements:
        if count and size + len(element) > LETTER:
            break
        size += len(element)
        count += 1
    some, bag.elements = bag.elements[:count], bag.elements[count:]
    bag.size -= sum(map(len, some))
    return some


def joined(elements: Iterable[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(PREFIX, "big") + each for each in elements)


def split(body: bytes) -> Iterator[wire.AgentEventMsg]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + PREFIX], "big")
        at += PREFIX
        yield wire.AgentEventMsg.FromString(body[at : at + size])
        at += size
