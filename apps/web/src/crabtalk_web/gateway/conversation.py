"""Conversation: one agent's with our sender, and the session that shows it: all its parts."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from crabtalk.client import Client
from crabtalk_web.adapter import Ask, Heard
from crabtalk_web.stream import Envelope, TurnEnd, TurnStart

from .answers import Answer
from .backoff import Backoff
from .calls import Calls
from .config import GatewayConfig
from .credentials import Credentials
from .delivery import Delivery, reply
from .entries import Opened
from .errors import AWAY, GatewayError, RelayAwayError, RelayRefusedError
from .files import Files
from .identity import Identity
from .inbox import Inbox
from .journal import Journal
from .live import Live
from .mirror import Mirror
from .outbox import Outbox
from .questions import Questions
from .receipts import Receipts
from .refusals import Refusals
from .relay_http import RelayHttp
from .relay_socket import RelaySocket
from .renewal import Renewal
from .sending import Sending
from .stranger_asks import StrangerAsks
from .teller import Teller, now_ms
from .upkeep import ARCHIVED, Upkeep
from .usage import usage_report

PUSH = {
    "done": "A turn is over.",
    "question": "An agent has a question.",
    "permission": "An agent needs your permission.",
}
ARCHIVE_REQUESTED = "archiveRequested"

log = logging.getLogger(__name__)


class Conversation:
    def __init__(
        self,
        identity: Identity,
        journal: Journal,
        relay: RelayHttp,
        credentials: Credentials,
        config: GatewayConfig,
        receipts: Receipts,
    ) -> None:
        self.identity = identity
        self.journal = journal
        self._relay = relay
        self._credentials = credentials
        self._config = config
        self._client: Client | None = None
        self._socket: RelaySocket | None = None
        self._closed = asyncio.Event()  # the session has to be opened
        self._closed.set()
        self._is_first = True  # it was not opened since this process began
        self._deleted_at = 0  # by a device; what was said before is not wanted any more
        self._group: asyncio.TaskGroup | None = None
        self._asks: tuple[Ask, ...] = ()
        self.stranger_asks = StrangerAsks()
        self.live = Live(identity.agent)
        self.questions = Questions(is_compat=config.compat)
        self.calls = Calls(self, receipts)
        self.teller = Teller(identity, journal, config, self._changed)
        self.mirror = Mirror(
            identity, self.teller, backfill=config.backfill, most_bytes=config.journal_bytes
        )
        self.mirror.cleared = self._clear
        self.mirror.on_rename(self._rename)
        self.outbox = Outbox(identity, journal, relay, is_compat=config.compat)
        self.outbox.sent = self._has_sent
        files = Files(identity, journal, relay, config.directory)
        self.sending = Sending(journal, files, self.teller)
        self.delivery = Delivery(
            self.mirror,
            journal,
            files.fetch,
            cwd=config.directory,
            steers=config.while_busy == "steer",
        )
        self.refusals = Refusals(self.teller.say_refused)
        self.inbox = Inbox(identity, journal, relay, self._has_read, self.refusals)
        self.upkeep = Upkeep(
            identity, self.mirror, self.questions, credentials, config, self.calls.names
        )
        self.renewal = Renewal(
            identity,
            journal,
            relay,
            credentials,
            self.mirror,
            self.inbox,
            self.upkeep,
            self.take_leave,
        )
        self.outbox.lost = self.inbox.lost = self.sending.lost = self._lose

    @property
    def session(self) -> str:
        return self.journal.book.session

    async def work(self) -> None:
        """Until cancelled, or until another session is to go on from its journal, which is whole
        and closed then."""
        try:
            async with asyncio.TaskGroup() as self._group:
                parts = [
                    self._keep_open(),
                    self.mirror.work(),
                    self.outbox.work(),
                    self.inbox.work(),
                    self.delivery.work(),
                    self.sending.work(),
                    self.upkeep.work(),
                ]
                tasks = [self._group.create_task(part) for part in parts]
                await self.renewal.is_done.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self.journal.close()

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    def follow(self, client: Client) -> None:
        self._client = client
        self.mirror.follow(client)
        self.delivery.follow(client)
        self.upkeep.follow(client)

    def leave(self) -> None:
        self._client = None
        self.stranger_asks.clear()
        self.mirror.leave()
        self.delivery.follow(None)
        self.upkeep.follow(None)

    def hear(self, heard: Heard) -> None:
        if self._config.report_usage and self._socket is not None and self.session:
            report = usage_report(self.identity, self.session, heard)
            if report is not None:
                self._spawn(self._report(self._socket, report))
        self.mirror.hear(heard)

    def hear_stranger(self, heard: Heard) -> None:
        """An approval for somebody else's run with this agent, or the end of one."""
        if self.stranger_asks.hear(heard):
            self.teller.changed()

    async def _report(self, socket: RelaySocket, report: dict[str, Any]) -> None:
        await socket.ask("usage-report", report)

    def _changed(self, envelopes: Sequence[Envelope]) -> None:
        """Something was said, or asked, or only a word more than before."""
        self.live.see(envelopes, self.teller.spoken)
        asks = (*self.mirror.asks, *self.stranger_asks.asks)
        was_asking, self._asks = self._asks, asks
        if not envelopes and self.mirror.is_thinking and self._asks == was_asking:
            return
        new = self.questions.see(self._asks)
        self.outbox.wake()
        self.sending.wake()
        self.delivery.wake()
        if self.upkeep.is_archived and any(isinstance(e.ev, TurnStart) for e in envelopes):
            self.reopen()
        if any(isinstance(envelope.ev, TurnEnd) for envelope in envelopes):
            self._notify("done")
        for ask in new:
            self._notify("permission" if ask.is_approval else "question")
        self.upkeep.wake()

    def _rename(self, title: str) -> None:
        self.upkeep.name(title)

    def _clear(self) -> None:
        self._spawn(self.renewal.clear())

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
        sealed = self.identity.sealer.seal(self.upkeep.metadata())
        session = await self._relay.session(self.identity.tag, sealed, self.identity.data_key)
        opened = str(session["id"])
        self.upkeep.records.open(session)
        if opened != self.session:
            if await self.renewal.follow(self.upkeep.records.value("metadata")):
                return
            await self._begin(opened, is_old=bool(session.get("seq")))
        elif self._is_first:
            # A former process has put it away, and no word has come since.
            state = self.upkeep.records.value("metadata").get("lifecycleState")
            self.upkeep.is_archived = state == ARCHIVED and not self.mirror.is_thinking
        if self.journal.book.memory is None:
            await self.inbox.learn(opened, self.journal.book.cursor)
        self._is_first = False
        self._deleted_at = 0
        self._closed.clear()
        for part in (self.outbox, self.inbox, self.sending, self.upkeep):
            part.is_open.set()
        self.inbox.fetch()
        if self._socket is not None:
            await self._register(self._socket)
        self.upkeep.wake()

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

    def _has_read(self) -> None:
        """A device has said something."""
        self.delivery.wake()
        self.upkeep.wake()

    def _has_sent(self) -> None:
        self.renewal.has_sent()
        self.mirror.wake()

    def _lose(self) -> None:
        for part in (self.outbox, self.inbox, self.sending, self.upkeep):
            part.is_open.clear()
        self._closed.set()

    async def connected(self, socket: RelaySocket | None) -> None:
        self._socket = socket
        self.upkeep.connected(socket)
        if socket is not None and not self._closed.is_set():
            await self._register(socket)
            self.inbox.fetch()  # what was said while there was no socket

    async def _register(self, socket: RelaySocket) -> None:
        for name in self.calls.names:
            await socket.tell("rpc-register", {"method": f"{self.session}:{name}"})

    def hear_update(self, body: dict[str, Any]) -> None:
        match body.get("t"):
            case "new-message":
                self.inbox.hear(body.get("message"))
            case "update-session":
                self.upkeep.records.hear(body)
                state = self.upkeep.records.value("metadata").get("lifecycleState")
                if state == ARCHIVE_REQUESTED:
                    self._spawn(self.end())
            case "delete-session":
                self._deleted_at = now_ms()
                self._lose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._group is not None and not self.renewal.is_done.is_set():
            self._group.create_task(quietly(work))
        else:
            work.close()

    def _notify(self, kind: str) -> None:
        if self._config.push and self.session and not self.mirror.is_behind:
            self._spawn(self._relay.notify(self.session, kind, "crabtalk", PUSH[kind]))

    async def bye(self, socket: RelaySocket) -> None:
        await socket.tell("session-end", {"sid": self.session, "time": now_ms()})

    # ── What calls do ───────────────────────────────────────────────────────────────────────

    async def abort(self) -> None:
        if self._client is None:
            raise GatewayError("the daemon cannot be reached; try again")
        self.teller.kill()
        await self._client.kill(self.identity.agent, sender=self.identity.sender)

    async def reply(self, ask: Ask, answer: Answer, outcome: dict[str, Any]) -> bool:
        if self._client is None:
            raise GatewayError("the daemon cannot be reached; try again")
        is_first = await reply(self._client, ask, answer.text)
        is_stranger = self.stranger_asks.has(ask)
        self.stranger_asks.drop(ask)
        if is_first:
            self.questions.settle(ask, outcome)
        if is_stranger and is_first:
            self.teller.record(ask, answer.receipt)
        elif is_first:
            self.teller.answered(ask.id, answer.receipt)
        elif is_stranger:
            self.teller.changed()
        return is_first

    async def set_mode(self, mode: str) -> dict[str, Any]:
        """Changes how much the agent may do without asking, in this conversation."""
        if self._client is None:
            raise GatewayError("the daemon cannot be reached; try again")
        identity = self.identity
        told = await self._client.set_mode(identity.agent, mode, sender=identity.sender)
        self.upkeep.learn_mode(told.mode, is_set=told.is_set)
        return {"mode": told.mode, "isSet": told.is_set}

    async def end(self) -> None:
        """The session is put away. The conversation stays, and the next word opens it again."""
        self.upkeep.is_archived = True
        if self._client is not None:
            await self.abort()
        await self.upkeep.tell()
        if self._socket is not None:
            await self.bye(self._socket)

    def reopen(self) -> None:
        """One that was put away."""
        if self.upkeep.is_archived:
            self.upkeep.is_archived = False
            self._lose()  # a relay listens to it again once it was opened again

    async def take_leave(self) -> None:
        """Nobody answers for this session any longer."""
        if self._socket is not None:
            for name in self.calls.names:
                method = f"{self.session}:{name}"
                await self._socket.tell("rpc-unregister", {"method": method})
            await self.bye(self._socket)


async def quietly(work: Coroutine[Any, Any, None]) -> None:
    """What is done on the side must not end all else."""
    try:
        await work
    except (GatewayError, RelayAwayError, RelayRefusedError, *AWAY) as error:
        log.info("%s", error)
    except Exception:
        log.exception("something done on the side failed")
