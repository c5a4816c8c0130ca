"""Gateway: people in a chat service talk to agents. A Service in front, the daemon behind.

What comes is in the journal before the service may forget it, and is done when its answer is where
it belongs. Whatever is killed in between goes on from there.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from crabtalk.client import connect

from .access import Access
from .backoff import Backoff
from .bindings import check_prefix, has_valid_ids
from .book import Book
from .desk import Bounds, Desk
from .entries import Came, Done, Item, LeftOut
from .errors import GatewayError
from .files import Files
from .journal import Journal
from .lane import Lane
from .link import Link
from .pairing import Pairing
from .posting import notice
from .service import Blocked, Chat, Person, Refused, Service, ServiceError, Update
from .settings import Settings

FULL = "Too much of yours waits already; this was not taken. Send it again when I have answered."
TOO_LONG = "That is too long for me; send a file instead."
# Of what could not be read, so much is kept.
MOST_RAW = 4096
# Updates that are read ahead of the journal, which takes all there are at once.
AHEAD = 256
LOOK_EVERY = 0.05

log = logging.getLogger(__name__)


class Gateway:
    """Of one service, in one home. `config` is what `config/<name>.toml` says."""

    def __init__(
        self,
        home: Path,
        service: Service,
        config: Settings,
        *,
        bounds: Bounds | None = None,
        book: Book | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        check_prefix(service.prefix)
        self.place = home / service.name
        self._service = service
        self._bounds = bounds
        self._journal = Journal(self.place / "journal", book)
        # A lost connection is heard of at once: people are told that the daemon is away.
        self._link = Link(connect(home=home, client=service.name, reconnect_timeout=0))
        self._desk = Desk(
            self._journal,
            service,
            self._link,
            Files(home, service),
            config,
            asyncio.Semaphore(bounds.turns),
            bounds,
        )
        pairing = Pairing(home, service.name)
        path = home / "config" / f"{service.name}.toml"
        self.access = Access(service.name, config, path, pairing)
        self._lanes: dict[str, Lane] = {}
        self._full: set[str] = set()  # chats that know that too much of theirs waits
        self._group: asyncio.TaskGroup | None = None
        self._unsaid: list[tuple[Chat, str]] = []  # until the journal knows why
        self._notices = 0
        self._ahead: asyncio.Queue[Update] = asyncio.Queue(AHEAD)
        self._kept: asyncio.Queue[Update] = asyncio.Queue(AHEAD)

    def statistics(self) -> Mapping[str, Any]:
        book = self._journal.book
        return {
            "waiting": len(book.items),
            "chats_at_work": len(self._lanes),
            "seen": len(book.seen),
            "chats": len(book.chats),
            "notices": self._notices,
            "journal_bytes": self._journal.size,
        }

    async def run(self) -> None:
        """Until cancelled. Raises GatewayError when it cannot go on: a token that is refused, a
        journal that cannot be used, a daemon that is too old."""
        self._journal.open()
        try:
            async with asyncio.TaskGroup() as self._group:
                for item in list(self._journal.book.items.values()):
                    self._resume(item)
                self._group.create_task(self._link.watch_version())
                self._group.create_task(self._listen())
                self._group.create_task(self._take_all())
                self._group.create_task(self._let_forget())
        except* GatewayError as group:
            raise group.exceptions[0] from None
        finally:
            self._journal.close()
            await self._link.close()

    # ── What comes in ───────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._follow(self._service.updates(), backoff)
            except Refused as error:
                raise GatewayError(str(error)) from None
            except (ServiceError, OSError) as error:
                log.warning("%s broke off: %s", self._service.name, error)
            await backoff.wait()

    async def _follow(self, updates: AsyncIterator[Update], backoff: Backoff) -> None:
        try:
            async for update in updates:
                backoff.reset()
                await self._room()
                await self._ahead.put(cleaned(update))
        finally:
            if isinstance(updates, AsyncGenerator):
                await updates.aclose()

    async def _room(self) -> None:
        """The service is asked for more when there is room for it."""
        book, bounds = self._journal.book, self._bounds
        # Looked at, as updates are done in many places.
        while (  # noqa: ASYNC110
            len(book.items) + self._ahead.qsize() >= bounds.waiting
            or book.waiting_characters >= bounds.waiting_characters
        ):
            await asyncio.sleep(LOOK_EVERY)

    async def _take_all(self) -> None:
        while True:
            updates = [await self._ahead.get()]
            while not self._ahead.empty():
                updates.append(self._ahead.get_nowait())
            items = [item for update in updates if (item := self._note(update)) is not None]
            await self._keep()
            for chat, text in self._unsaid:
                self._say(chat, text)
            self._unsaid.clear()
            for item in items:
                self._dispatch(item)
            for update in updates:
                await self._kept.put(update)

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._journal.flush()
                return
            except OSError as error:
                log.error("the journal cannot be written: %s", error)  # noqa: TRY400
                await backoff.wait()

    async def _let_forget(self) -> None:
        """Tells the service what it may forget. Nobody waits for that."""
        while True:
            update = await self._kept.get()
            try:
                await self._service.taken(update)
            except (ServiceError, OSError) as error:  # it comes again, and is known then
                log.info("%s was not told that an update is taken: %s", self._service.name, error)

    def _note(self, update: Update) -> Item | None:
        """What is to be answered. None for what is known, or not for us."""
        book = self._journal.book
        if book.is_known(update.id):
            return None
        if update.unread:
            log.warning("%s cannot be read and is left out; the journal has it", update.id)
            self._journal.note(LeftOut(update.id, update.unread[:MOST_RAW]))
            return None
        if not has_valid_ids(update):
            log.warning("%s has an id that cannot be served and is left out", update.id)
            self._journal.note(LeftOut(update.id, repr((update.person.id, update.chat.id))))
            return None
        if not self.access.serves(update.person, update.chat):
            self._turn_away(update)
            return None
        has_words = update.text.strip() or update.attachments or update.press
        if not has_words or (update.chat.is_group and not update.is_to_us):
            return None
        if len(update.text) > self._bounds.text:
            self._drop(update, TOO_LONG)
            return None
        lane = self._lanes.get(update.chat.id)
        if lane is not None and len(lane) >= self._bounds.waiting_in_chat:
            self._drop(update, "" if update.chat.id in self._full else FULL)
            self._full.add(update.chat.id)
            return None
        self._full.discard(update.chat.id)
        self._journal.note(Came(update))
        return book.items[update.id]

    def _turn_away(self, update: Update) -> None:
        """A stranger, whose words are not kept. One who is let in by a code has said it once: it is
        no message to an agent when it comes again."""
        text = self.access.stranger(update)
        if self.access.serves(update.person, update.chat):
            self._drop(update, text)
        else:
            self._unsaid.append((update.chat, text))

    def _drop(self, update: Update, text: str) -> None:
        """Known from now on, and not answered but for this."""
        self._journal.note(Came(replace(update, text="", attachments=())), Done(update.id))
        self._unsaid.append((update.chat, text))

    def _say(self, chat: Chat, text: str) -> None:
        if not text or self._group is None:
            return
        if self._notices >= self._bounds.notices:
            log.info("a notice is not sent: too many wait for the service")
            return
        self._notices += 1
        self._group.create_task(self._tell(chat, text))

    async def _tell(self, chat: Chat, text: str) -> None:
        try:
            await notice(self._desk, chat, text)
        except Blocked:
            log.info("a chat does not want to be told")
        finally:
            self._notices -= 1

    # ── One lane a chat ─────────────────────────────────────────────────────────────────────

    def _resume(self, item: Item) -> None:
        """Goes on with what the journal has, unless an earlier release took it from somebody whose
        id cannot be served."""
        if has_valid_ids(item.update):
            self._dispatch(item)
        else:
            log.warning("%s has an id that cannot be served and is left out", item.id)
            self._journal.note(Done(item.id))

    def _dispatch(self, item: Item) -> None:
        chat = item.update.chat.id
        lane = self._lanes.get(chat)
        if lane is None:
            lane = self._lanes[chat] = Lane(self._desk)
            lane.add(item)
            assert self._group is not None  # noqa: S101 - it is running
            self._group.create_task(self._work(chat, lane))
        else:
            lane.add(item)

    async def _work(self, chat: str, lane: Lane) -> None:
        backoff = Backoff()
        try:
            while True:
                try:
                    await lane.work()
                    return
                except OSError as error:  # the journal's: the rest is seen to where it happens
                    log.error("the journal cannot be written: %s", error)  # noqa: TRY400
                    await backoff.wait()
        finally:
            del self._lanes[chat]
            self._full.discard(chat)


def cleaned(update: Update) -> Update:
    """Without halves of characters, which no file and no wire would take."""
    person = Person(update.person.id, whole(update.person.name))
    return replace(update, text=whole(update.text), person=person)


def whole(text: str) -> str:
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
