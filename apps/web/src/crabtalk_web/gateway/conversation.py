"""Conversation: one agent's with our sender, and the session that shows it: all its parts."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from crabtalk.client import Client
from crabtalk_web.adapter import Ask, Heard
from crabtalk_web.adapter.happenings import Called, Returned
from crabtalk_web.stream import Envelope, TurnEnd, TurnStart
from crabtalk_web.stream.plain import parsed

from .backoff import Backoff
from .book import Opened
from .calls import Calls
from .config import GatewayConfig
from .credentials import Credentials
from .delivery import Delivery, reply
from .errors import AWAY, GatewayError, RelayAwayError, RelayRefusedError
from .files import Files
from .identity import Identity
from .inbox import Inbox
from .journal import Journal
from .live import Live
from .metadata import Surroundings, merged, session_metadata
from .mirror import Mirror, now_ms
from .outbox import Outbox
from .questions import Questions
from .records import Records
from .relay_http import RelayHttp
from .relay_socket import RelaySocket

SEND_FILE = "send_file"
PUSH = {
    "done": "A turn is over.",
    "question": "An agent has a question.",
}
ARCHIVED, ARCHIVE_REQUESTED = "archived", "archiveRequested"

log = logging.getLogger(__name__)


class Conversation:
    def __init__(
        self,
        identity: Identity,
        journal: Journal,
        relay: RelayHttp,
        credentials: Credentials,
        config: GatewayConfig,
    ) -> None:
        self.identity = identity
        self.journal = journal
        self.surroundings = Surroundings()
        self._relay = relay
        self._credentials = credentials
        self._config = config
        self._client: Client | None = None
        self._socket: RelaySocket | None = None
        self._closed = asyncio.Event()  # the session has to be opened
        self._closed.set()
        self._deleted_at = 0  # by a device; what was said before is not wanted any more
        self._is_archived = False
        self._upkeep = asyncio.Event()
        self._title = ""
        self._group: asyncio.TaskGroup | None = None
        self._sending: dict[str, tuple[str, Path]] = {}  # files, by the call that sends them
        self.live = Live()
        self.questions = Questions(is_compat=config.compat)
        self.records = Records(identity)
        self.calls = Calls(self)
        self.mirror = Mirror(
            identity,
            journal,
            self._changed,
            is_compat=config.compat,
            backfill=config.backfill,
            most_bytes=config.journal_bytes,
        )
        self.mirror.heard = self._hear
        self.outbox = Outbox(identity, journal, relay, is_compat=config.compat)
        self.outbox.sent = self.mirror.wake
        self.outbox.lost = self._lose
        self.files = Files(identity, journal, relay, config.directory)
        self.delivery = Delivery(
            self.mirror,
            journal,
            self.files.fetch,
            cwd=config.directory,
            steers=config.while_busy == "steer",
        )
        self.inbox = Inbox(identity, journal, relay, self.delivery.wake)
        self.inbox.lost = self._lose

    @property
    def session(self) -> str:
        return self.journal.book.session

    async def work(self) -> None:
        """Until cancelled. The journal is whole then, and is closed."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self._keep_open())
                self._group.create_task(self.mirror.work())
                self._group.create_task(self.outbox.work())
                self._group.create_task(self.inbox.work())
                self._group.create_task(self.delivery.work())
                self._group.create_task(self._keep_up())
        finally:
            self.journal.close()

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    def follow(self, client: Client, since: int) -> None:
        self._client = client
        self.mirror.follow(client, since)
        self.delivery.follow(client)
        self._upkeep.set()

    def leave(self) -> None:
        self._client = None
        self.mirror.leave()
        self.delivery.follow(None)

    def _changed(self, envelopes: Sequence[Envelope]) -> None:
        self.outbox.wake()
        self.delivery.wake()
        if self._is_archived and any(isinstance(e.ev, TurnStart) for e in envelopes):
            self._is_archived = False
            self._lose()  # a relay listens to it again once it was opened again
        if any(isinstance(envelope.ev, TurnEnd) for envelope in envelopes):
            self._notify("done")
        for _ in self.questions.see(self.mirror.asks):
            self._notify("question")
        self._upkeep.set()

    def _hear(self, heard: Heard) -> None:
        """As it happens, before it is told."""
        if heard.parent is None:
            self.live.hear(heard)
        match heard.what:
            case Called(calls=calls):
                for call in calls:
                    if call.name == SEND_FILE or call.name.endswith(f"__{SEND_FILE}"):
                        self._sending[call.id] = heard.run, path_in(call.arguments)
            case Returned(call=call, is_error=is_error) if call in self._sending:
                run, path = self._sending.pop(call)
                if not is_error:
                    self._spawn(self._send_file(path, run))

    async def _send_file(self, path: Path, run: str) -> None:
        backoff = Backoff()
        while True:
            try:
                self.mirror.attach(await self.files.send(path), run)
            except RelayAwayError:
                await backoff.wait()
            except (GatewayError, RelayRefusedError) as error:
                self.mirror.note(f"**Error:** {error}")
                return
            else:
                return

    # ── The relay ───────────────────────────────────────────────────────────────────────────

    async def _keep_open(self) -> None:
        backoff = Backoff()
        while True:
            await self._closed.wait()
            if self._deleted_at and not self.journal.book.unsent:
                await asyncio.sleep(1)  # whoever deleted it does not want an empty one back
                continue
            try:
                await self._open()
                backoff.reset()
            except (RelayAwayError, RelayRefusedError, OSError) as error:
                log.info("the session of %s cannot be opened: %s", self.identity.agent, error)
                await backoff.wait()

    async def _open(self) -> None:
        sealed = self.identity.sealer.seal(self._metadata())
        session = await self._relay.session(self.identity.tag, sealed, self.identity.data_key)
        opened = str(session.get("id", ""))
        if not opened:
            raise RelayAwayError("the relay gave a session without an id")
        if opened != self.session:
            await self._begin(opened, is_old=bool(session.get("seq")))
        self._deleted_at = 0
        self.records.open(session)
        self._closed.clear()
        self.outbox.is_open.set()
        self.inbox.is_open.set()
        self.inbox.fetch()
        if self._socket is not None:
            await self._register(self._socket)
        self._upkeep.set()

    async def _begin(self, session: str, *, is_old: bool) -> None:
        """A session that this journal knows nothing of."""
        identity, is_first = self.identity, not self.session
        cursor, through = 0, self._deleted_at
        if is_first and is_old:
            # It is ours, and older than our memory: what it has, devices were told, and what they
            # said since then was not heard.
            cursor = self.inbox.heard_of(await self._relay.latest(session))
            through = now_ms()
        self.journal.note(
            Opened(session, identity.agent, identity.sender, identity.generation, cursor, through)
        )
        await self.journal.flush()
        self.mirror.begin(anew=not is_first)

    def _lose(self) -> None:
        self.outbox.is_open.clear()
        self.inbox.is_open.clear()
        self._closed.set()

    async def connected(self, socket: RelaySocket | None) -> None:
        self._socket = socket
        self.records.follow(socket)
        if socket is not None and not self._closed.is_set():
            await self._register(socket)
            # What was said while there was no socket; and the records may have been changed.
            self.inbox.fetch()
            self._upkeep.set()

    async def _register(self, socket: RelaySocket) -> None:
        for name in self.calls.names:
            await socket.tell("rpc-register", {"method": f"{self.session}:{name}"})

    def hear_update(self, body: dict[str, Any]) -> None:
        match body.get("t"):
            case "new-message":
                self.inbox.hear(body.get("message"))
            case "update-session":
                self.records.hear(body)
                if self.records.value("metadata").get("lifecycleState") == ARCHIVE_REQUESTED:
                    self._spawn(self.end())
            case "delete-session":
                self._deleted_at = now_ms()
                self._lose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._group is not None:
            self._group.create_task(quietly(work))
        else:
            work.close()

    def _notify(self, kind: str) -> None:
        if self._config.push and self.session and not self.mirror.is_behind:
            self._spawn(self._relay.notify(self.session, kind, "crabtalk", PUSH[kind]))

    async def alive(self, socket: RelaySocket) -> None:
        if self._is_archived or not self.session:
            return
        told = {
            "sid": self.session,
            "time": time.time_ns() // 1_000_000,
            "thinking": self.mirror.is_thinking,
            "mode": "remote",
        }
        await socket.tell("session-alive", told)

    async def bye(self, socket: RelaySocket) -> None:
        await socket.tell("session-end", {"sid": self.session, "time": now_ms()})

    # ── Records ─────────────────────────────────────────────────────────────────────────────

    async def _keep_up(self) -> None:
        """Metadata, agent state and presence, whenever they may have changed."""
        was_thinking = False
        while True:
            await self._upkeep.wait()
            self._upkeep.clear()
            socket = self._socket
            if socket is None or self._closed.is_set():
                continue
            try:
                if self.mirror.is_thinking != was_thinking:
                    was_thinking = self.mirror.is_thinking
                    await self.alive(socket)
                if not self.mirror.is_behind:  # else it is not yet known what is being asked
                    await self.records.change("agentState", self.questions.state)
                if not was_thinking:
                    await self._learn_title()
                    await self.records.change("metadata", self._with_ours)
            except RelayAwayError:
                pass  # the next connection brings the next try

    def _with_ours(self, there: dict[str, Any]) -> dict[str, Any]:
        return merged(there, self._metadata())

    def _metadata(self) -> dict[str, Any]:
        told = session_metadata(
            self.identity.agent,
            self._title,
            self._credentials,
            self._config.directory,
            self.surroundings,
            self.calls.names,
        )
        return {**told, "lifecycleState": ARCHIVED if self._is_archived else "running"}

    async def _learn_title(self) -> None:
        client, identity = self._client, self.identity
        if client is None:
            return
        try:
            found = await client.list_active_conversations(identity.agent, identity.sender)
        except AWAY:
            return
        for one in found.conversations:
            if (one.agent, one.sender) == (identity.agent, identity.sender):
                self.name(one.title)

    def name(self, title: str) -> None:
        if title and title != self._title:
            self._title = title
            self._upkeep.set()

    # ── What calls do ───────────────────────────────────────────────────────────────────────

    async def abort(self) -> None:
        if self._client is None:
            raise GatewayError("the daemon cannot be reached; try again")
        self.mirror.kill()
        await self._client.kill(self.identity.agent, sender=self.identity.sender)

    async def reply(self, ask: Ask, text: str, outcome: dict[str, Any]) -> bool:
        if self._client is None:
            raise GatewayError("the daemon cannot be reached; try again")
        if not await reply(self._client, ask, text):
            return False
        self.questions.settle(ask, outcome)
        self.mirror.answered(ask.id)
        return True

    async def end(self) -> None:
        """The session is put away. The conversation stays, and the next word opens it again."""
        self._is_archived = True
        if self._client is not None:
            await self.abort()
        await self.records.change("metadata", self._with_ours)
        if self._socket is not None:
            await self.bye(self._socket)


async def quietly(work: Coroutine[Any, Any, None]) -> None:
    """What is done on the side must not end all else."""
    try:
        await work
    except (GatewayError, RelayAwayError, RelayRefusedError, *AWAY) as error:
        log.info("%s", error)
    except Exception:
        log.exception("something done on the side failed")


def path_in(arguments: str) -> Path:
    try:
        given = parsed(arguments)
    except ValueError:
        return Path()
    path = given.get("path") if isinstance(given, dict) else None
    return Path(path) if isinstance(path, str) else Path()
