"""The gateway: people in a chat service talk to agents, and the daemon runs the agents.

An update is written to the journal before the service may forget it, and it is done when its answer
has been delivered. After a crash, every unfinished update goes on from its last journal record.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from crabtalk.client import connect

from .access_control import AccessControl
from .agent_bindings import check_prefix, has_valid_ids
from .backoff import Backoff
from .chat_queue import ChatQueue
from .chat_service import (
    Chat,
    ChatBlockedError,
    ChatService,
    ChatServiceError,
    Person,
    RejectedError,
    Update,
)
from .daemon_monitor import DaemonMonitor
from .errors import GatewayError
from .gateway_context import GatewayBounds, GatewayContext
from .gateway_state import GatewayState
from .journal import GatewayJournal
from .journal_records import PendingUpdate, UpdateHandled, UpdateReceived, UpdateSkipped
from .outgoing_messages import send_notice
from .pairing import PairingCode
from .sender_files import SenderFiles
from .settings import GatewaySettings

CHAT_FULL = (
    "Too much of yours waits already; this was not taken. Send it again when I have answered."
)
TEXT_TOO_LONG = "That is too long for me; send a file instead."
# Characters of an unreadable update that are stored in the journal.
MAX_RAW = 4096
# Updates that are read ahead of the journal, which writes all of them in one go.
READ_AHEAD = 256
POLL_INTERVAL = 0.05

log = logging.getLogger(__name__)


class Gateway:
    """A gateway of one service, in one home. `config` is the content of `config/<name>.toml`."""

    def __init__(
        self,
        home: Path,
        service: ChatService,
        config: GatewaySettings,
        *,
        bounds: GatewayBounds | None = None,
        state: GatewayState | None = None,
    ) -> None:
        bounds = bounds or GatewayBounds()
        check_prefix(service.prefix)
        self.directory = home / service.name
        self._service = service
        self._bounds = bounds
        self._journal = GatewayJournal(self.directory / "journal", state)
        # No reconnect in the client: the gateway must notice a lost connection at once, to tell
        # people that the daemon is away.
        self._daemon = DaemonMonitor(connect(home=home, client=service.name, reconnect_timeout=0))
        self._context = GatewayContext(
            self._journal,
            service,
            self._daemon,
            SenderFiles(home, service),
            config,
            asyncio.Semaphore(bounds.turns),
            bounds,
        )
        pairing = PairingCode(home, service.name)
        path = home / "config" / f"{service.name}.toml"
        self.access = AccessControl(service.name, config, path, pairing)
        self._chat_queues: dict[str, ChatQueue] = {}
        self._full_chats: set[str] = set()  # chats that were told that their queue is full
        self._tasks: asyncio.TaskGroup | None = None
        self._pending_notices: list[tuple[Chat, str]] = []  # sent once the journal is flushed
        self._active_notices = 0
        self._incoming: asyncio.Queue[Update] = asyncio.Queue(READ_AHEAD)
        self._to_acknowledge: asyncio.Queue[Update] = asyncio.Queue(READ_AHEAD)

    def statistics(self) -> Mapping[str, Any]:
        state = self._journal.state
        return {
            "waiting": len(state.pending),
            "chats_at_work": len(self._chat_queues),
            "seen": len(state.seen_ids),
            "chats": len(state.chats),
            "notices": self._active_notices,
            "journal_bytes": self._journal.size,
        }

    async def run(self) -> None:
        """Run until cancelled. Raises GatewayError when it cannot go on: a token that is refused, a
        journal that cannot be used, a daemon that is too old."""
        self._journal.open()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for item in list(self._journal.state.pending.values()):
                    self._resume_item(item)
                self._tasks.create_task(self._daemon.watch_version())
                self._tasks.create_task(self._receive_updates())
                self._tasks.create_task(self._process_updates())
                self._tasks.create_task(self._acknowledge_updates())
        except* GatewayError as group:
            raise group.exceptions[0] from None
        finally:
            self._journal.close()
            await self._daemon.close()

    # ── Incoming updates ────────────────────────────────────────────────────────────────────

    async def _receive_updates(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._read_updates(self._service.updates(), backoff)
            except RejectedError as error:
                raise GatewayError(str(error)) from None
            except (ChatServiceError, OSError) as error:
                log.warning("%s broke off: %s", self._service.name, error)
            await backoff.wait()

    async def _read_updates(self, updates: AsyncIterator[Update], backoff: Backoff) -> None:
        try:
            async for update in updates:
                backoff.reset()
                await self._wait_for_room()
                await self._incoming.put(clean_update(update))
        finally:
            if isinstance(updates, AsyncGenerator):
                await updates.aclose()

    async def _wait_for_room(self) -> None:
        """Wait until there is room for another update, before the service is asked for more."""
        state, bounds = self._journal.state, self._bounds
        # Polled, because updates are finished in many places.
        while (  # noqa: ASYNC110
            len(state.pending) + self._incoming.qsize() >= bounds.waiting
            or state.pending_characters >= bounds.waiting_characters
        ):
            await asyncio.sleep(POLL_INTERVAL)

    async def _process_updates(self) -> None:
        while True:
            updates = [await self._incoming.get()]
            while not self._incoming.empty():
                updates.append(self._incoming.get_nowait())
            items = [
                item for update in updates if (item := self._record_update(update)) is not None
            ]
            await self._flush_journal()
            for chat, text in self._pending_notices:
                self._queue_notice(chat, text)
            self._pending_notices.clear()
            for item in items:
                self._dispatch_item(item)
            for update in updates:
                await self._to_acknowledge.put(update)

    async def _flush_journal(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._journal.flush()
                return
            except OSError as error:
                log.error("the journal cannot be written: %s", error)  # noqa: TRY400
                await backoff.wait()

    async def _acknowledge_updates(self) -> None:
        """Tell the service which updates it may forget. No other task waits for this."""
        while True:
            update = await self._to_acknowledge.get()
            try:
                await self._service.acknowledge(update)
            except (ChatServiceError, OSError) as error:  # it comes again, and is recognised
                log.info("%s was not told that an update is taken: %s", self._service.name, error)

    def _record_update(self, update: Update) -> PendingUpdate | None:
        """Record an update. Returns what is to be answered; None for repeats and for other chats'
        messages."""
        state = self._journal.state
        if state.is_known(update.id):
            return None
        if update.unread:
            log.warning("%s cannot be read and is left out; the journal has it", update.id)
            self._journal.append(UpdateSkipped(update.id, update.unread[:MAX_RAW]))
            return None
        if not has_valid_ids(update):
            log.warning("%s has an id that cannot be served and is left out", update.id)
            self._journal.append(UpdateSkipped(update.id, repr((update.person.id, update.chat.id))))
            return None
        if not self.access.is_allowed(update.person, update.chat):
            self._reject_stranger(update)
            return None
        has_words = update.text.strip() or update.attachments or update.press
        if not has_words or (update.chat.is_group and not update.is_to_us):
            return None
        if len(update.text) > self._bounds.text:
            self._drop_update(update, TEXT_TOO_LONG)
            return None
        queue = self._chat_queues.get(update.chat.id)
        if queue is not None and len(queue) >= self._bounds.waiting_in_chat:
            self._drop_update(update, "" if update.chat.id in self._full_chats else CHAT_FULL)
            self._full_chats.add(update.chat.id)
            return None
        self._full_chats.discard(update.chat.id)
        self._journal.append(UpdateReceived(update))
        return state.pending[update.id]

    def _reject_stranger(self, update: Update) -> None:
        """Answer a stranger; the message is not stored. A pairing code that is accepted is recorded
        as handled, so that it is not sent to an agent when it comes again."""
        text = self.access.handle_stranger(update)
        if self.access.is_allowed(update.person, update.chat):
            self._drop_update(update, text)
        else:
            self._pending_notices.append((update.chat, text))

    def _drop_update(self, update: Update, text: str) -> None:
        """Record an update as handled, without its text, and answer it with `text` only."""
        self._journal.append(
            UpdateReceived(replace(update, text="", attachments=())), UpdateHandled(update.id)
        )
        self._pending_notices.append((update.chat, text))

    def _queue_notice(self, chat: Chat, text: str) -> None:
        if not text or self._tasks is None:
            return
        if self._active_notices >= self._bounds.notices:
            log.info("a notice is not sent: too many wait for the service")
            return
        self._active_notices += 1
        self._tasks.create_task(self._send_notice(chat, text))

    async def _send_notice(self, chat: Chat, text: str) -> None:
        try:
            await send_notice(self._context, chat, text)
        except ChatBlockedError:
            log.info("a chat does not want to be told")
        finally:
            self._active_notices -= 1

    # ── One queue a chat ────────────────────────────────────────────────────────────────────

    def _resume_item(self, item: PendingUpdate) -> None:
        """Continue an update of the journal. An earlier release may have stored one with an id
        that is not valid: it is marked as handled."""
        if has_valid_ids(item.update):
            self._dispatch_item(item)
        else:
            log.warning("%s has an id that cannot be served and is left out", item.id)
            self._journal.append(UpdateHandled(item.id))

    def _dispatch_item(self, item: PendingUpdate) -> None:
        chat = item.update.chat.id
        queue = self._chat_queues.get(chat)
        if queue is None:
            queue = self._chat_queues[chat] = ChatQueue(self._context)
            queue.add(item)
            assert self._tasks is not None  # noqa: S101 - it is running
            self._tasks.create_task(self._run_chat_queue(chat, queue))
        else:
            queue.add(item)

    async def _run_chat_queue(self, chat: str, queue: ChatQueue) -> None:
        backoff = Backoff()
        try:
            while True:
                try:
                    await queue.run()
                    return
                except OSError as error:  # of the journal; other errors are handled in the queue
                    log.error("the journal cannot be written: %s", error)  # noqa: TRY400
                    await backoff.wait()
        finally:
            del self._chat_queues[chat]
            self._full_chats.discard(chat)


def clean_update(update: Update) -> Update:
    """Replace lone surrogates, which cannot be encoded in UTF-8."""
    person = Person(update.person.id, replace_lone_surrogates(update.person.name))
    return replace(update, text=replace_lone_surrogates(update.text), person=person)


def replace_lone_surrogates(text: str) -> str:
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
