"""One agent's conversation with our sender, the session that shows it, and all their parts."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from crabtalk.client import Client
from crabtalk_web.adapter import OpenAsk, ReceivedEvent
from crabtalk_web.stream import Envelope, TurnEnd, TurnStart

from .ask_answers import AskAnswer
from .backoff import RetryBackoff
from .call_receipts import CallReceipts
from .config import GatewayConfig
from .conversation_journal import ConversationJournal
from .credentials import RelayCredentials
from .device_rpc import DeviceRpc
from .envelope_writer import EnvelopeWriter, now_ms
from .errors import DAEMON_AWAY_ERRORS, RelayRefusedError, RelayUnavailableError, WebGatewayError
from .file_sender import FileSender
from .file_transfer import FileTransfer
from .inbox import Inbox
from .journal_entries import SessionOpened
from .live_text import LiveText
from .log_follower import LogFollower
from .message_delivery import MessageDelivery, reply_to_ask
from .outbox import Outbox
from .owner_approvals import OwnerApprovals
from .question_tracker import QuestionTracker
from .refusal_notices import RefusalNotices
from .relay_http import RelayHttp
from .relay_socket import RelaySocket
from .session_identity import SessionIdentity
from .session_publisher import ARCHIVED, SessionPublisher
from .session_renewal import SessionRenewal
from .usage_report import build_usage_report

PUSH_TEXTS = {
    "done": "A turn is over.",
    "question": "An agent has a question.",
    "permission": "An agent needs your permission.",
}
ARCHIVE_REQUESTED = "archiveRequested"

log = logging.getLogger(__name__)


class WebConversation:
    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        relay: RelayHttp,
        credentials: RelayCredentials,
        config: GatewayConfig,
        receipts: CallReceipts,
    ) -> None:
        self.identity = identity
        self.journal = journal
        self._relay = relay
        self._credentials = credentials
        self._config = config
        self._client: Client | None = None
        self._socket: RelaySocket | None = None
        self._must_open = asyncio.Event()
        self._must_open.set()
        self._is_first_open = True  # it was not opened since this process started
        self._deleted_at = 0  # a device deleted the session; older messages must not come back
        self._group: asyncio.TaskGroup | None = None
        self._pending_asks: tuple[OpenAsk, ...] = ()
        self.owner_approvals = OwnerApprovals()
        self.live_text = LiveText(identity.agent)
        self.questions = QuestionTracker(is_compat=config.compat)
        self.rpc = DeviceRpc(self, receipts)
        self.writer = EnvelopeWriter(identity, journal, config, self._on_changed)
        self.follower = LogFollower(
            identity, self.writer, backfill=config.backfill, max_unsent_bytes=config.journal_bytes
        )
        self.follower.on_cleared = self._on_cleared
        self.follower.set_title_listener(self._on_title_changed)
        self.outbox = Outbox(identity, journal, relay, is_compat=config.compat)
        self.outbox.on_sent = self._on_sent
        files = FileTransfer(identity, journal, relay, config.directory)
        self.file_sender = FileSender(journal, files, self.writer)
        self.delivery = MessageDelivery(
            self.follower,
            journal,
            files.download_files,
            cwd=config.directory,
            steers=config.while_busy == "steer",
        )
        self.refusal_notices = RefusalNotices(self.writer.write_refusal)
        self.inbox = Inbox(identity, journal, relay, self._on_inbound, self.refusal_notices)
        self.publisher = SessionPublisher(
            identity, self.follower, self.questions, credentials, config, self.rpc.method_names
        )
        self.renewal = SessionRenewal(
            identity,
            journal,
            relay,
            credentials,
            self.follower,
            self.inbox,
            self.publisher,
            self.unregister_session,
        )
        self.outbox.on_session_lost = self.inbox.on_session_lost = (
            self.file_sender.on_session_lost
        ) = self._on_session_lost

    @property
    def session(self) -> str:
        return self.journal.state.session

    async def run(self) -> None:
        """Run until cancelled, or until another session continues from its journal, which is then
        complete and closed."""
        try:
            async with asyncio.TaskGroup() as self._group:
                services = [
                    self._keep_session_open(),
                    self.follower.run(),
                    self.outbox.run(),
                    self.inbox.run(),
                    self.delivery.run(),
                    self.file_sender.run(),
                    self.publisher.run(),
                ]
                tasks = [self._group.create_task(part) for part in services]
                await self.renewal.is_done.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self.journal.close()

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    def on_daemon_connected(self, client: Client) -> None:
        self._client = client
        self.follower.on_daemon_connected(client)
        self.delivery.set_client(client)
        self.publisher.set_client(client)

    def on_daemon_disconnected(self) -> None:
        self._client = None
        self.owner_approvals.clear()
        self.follower.on_daemon_disconnected()
        self.delivery.set_client(None)
        self.publisher.set_client(None)

    def handle_event(self, received: ReceivedEvent) -> None:
        if self._config.report_usage and self._socket is not None and self.session:
            report = build_usage_report(self.identity, self.session, received)
            if report is not None:
                self._spawn(self._send_usage_report(self._socket, report))
        self.follower.queue_event(received)

    def handle_owner_approval_event(self, received: ReceivedEvent) -> None:
        """Handle an approval for another sender's run with this agent, or the end of such a run."""
        if self.owner_approvals.handle_event(received):
            self.writer.notify_changed()

    async def _send_usage_report(self, socket: RelaySocket, report: dict[str, Any]) -> None:
        await socket.request("usage-report", report)

    def _on_changed(self, envelopes: Sequence[Envelope]) -> None:
        """Called after every change: envelopes, questions, or just more text."""
        self.live_text.update(envelopes, self.writer.growing_text)
        asks = (*self.follower.pending_asks, *self.owner_approvals.pending_asks)
        was_asking, self._pending_asks = self._pending_asks, asks
        if not envelopes and self.follower.is_turn_open and self._pending_asks == was_asking:
            return
        new = self.questions.update(self._pending_asks)
        self.outbox.wake()
        self.file_sender.wake()
        self.delivery.wake()
        if self.publisher.is_archived and any(isinstance(e.ev, TurnStart) for e in envelopes):
            self.unarchive_session()
        if any(isinstance(envelope.ev, TurnEnd) for envelope in envelopes):
            self._push_notice("done")
        for ask in new:
            self._push_notice("permission" if ask.is_approval else "question")
        self.publisher.wake()

    def _on_title_changed(self, title: str) -> None:
        self.publisher.set_title(title)

    def _on_cleared(self) -> None:
        self._spawn(self.renewal.renew_cleared())

    # ── The relay ───────────────────────────────────────────────────────────────────────────

    async def _keep_session_open(self) -> None:
        backoff = RetryBackoff()
        while True:
            await self._must_open.wait()
            if self._deleted_at and not self.journal.state.unsent_envelopes:
                await asyncio.sleep(1)  # the person who deleted it does not want an empty one back
                continue
            try:
                await self._open_session()
                backoff.reset()
            except (RelayUnavailableError, RelayRefusedError, OSError) as error:
                log.info("the session of %s cannot be opened: %s", self.identity.agent, error)
                await backoff.wait()

    async def _open_session(self) -> None:
        sealed = self.identity.sealer.seal(self.publisher.build_metadata())
        session = await self._relay.open_session(self.identity.tag, sealed, self.identity.data_key)
        session_id = str(session["id"])
        self.publisher.values.load(session)
        if session_id != self.session:
            if await self.renewal.follow_successor(self.publisher.values.get_value("metadata")):
                return
            await self._begin_session(session_id, is_old=bool(session.get("seq")))
        elif self._is_first_open:
            # A previous process archived it, and no message has come since.
            state = self.publisher.values.get_value("metadata").get("lifecycleState")
            self.publisher.is_archived = state == ARCHIVED and not self.follower.is_turn_open
        if self.journal.state.replay_guard is None:
            await self.inbox.learn_history(session_id, self.journal.state.relay_cursor)
        self._is_first_open = False
        self._deleted_at = 0
        self._must_open.clear()
        for part in (self.outbox, self.inbox, self.file_sender, self.publisher):
            part.is_open.set()
        self.inbox.request_fetch()
        if self._socket is not None:
            await self._register_methods(self._socket)
        self.publisher.wake()

    async def _begin_session(self, session: str, *, is_old: bool) -> None:
        """Begin a session that is not in this journal."""
        identity, is_first = self.identity, not self.session
        cursor, through = 0, self._deleted_at
        if is_first and is_old:
            # The session is older than this journal: devices have its messages, and messages they
            # sent since then were not received.
            cursor = self.inbox.find_last_gateway_seq(await self._relay.fetch_latest(session))
            through = now_ms()
        self.journal.append(
            SessionOpened(
                session, identity.agent, identity.sender, identity.generation, cursor, through
            )
        )
        await self.journal.flush()
        self.follower.on_session_begun(anew=not is_first)

    def _on_inbound(self) -> None:
        """A device sent a message."""
        self.delivery.wake()
        self.publisher.wake()

    def _on_sent(self) -> None:
        self.renewal.on_sent()
        self.follower.wake()

    def _on_session_lost(self) -> None:
        for part in (self.outbox, self.inbox, self.file_sender, self.publisher):
            part.is_open.clear()
        self._must_open.set()

    async def set_socket(self, socket: RelaySocket | None) -> None:
        self._socket = socket
        self.publisher.set_socket(socket)
        if socket is not None and not self._must_open.is_set():
            await self._register_methods(socket)
            self.inbox.request_fetch()  # messages that came while there was no socket

    async def _register_methods(self, socket: RelaySocket) -> None:
        for name in self.rpc.method_names:
            await socket.emit("rpc-register", {"method": f"{self.session}:{name}"})

    def handle_update(self, body: dict[str, Any]) -> None:
        match body.get("t"):
            case "new-message":
                self.inbox.receive_live(body.get("message"))
            case "update-session":
                self.publisher.values.handle_update(body)
                state = self.publisher.values.get_value("metadata").get("lifecycleState")
                if state == ARCHIVE_REQUESTED:
                    self._spawn(self.archive_session())
            case "delete-session":
                self._deleted_at = now_ms()
                self._on_session_lost()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._group is not None and not self.renewal.is_done.is_set():
            self._group.create_task(log_failures(work))
        else:
            work.close()

    def _push_notice(self, kind: str) -> None:
        if self._config.push and self.session and not self.follower.is_behind:
            self._spawn(self._relay.push_notice(self.session, kind, "crabtalk", PUSH_TEXTS[kind]))

    async def send_session_end(self, socket: RelaySocket) -> None:
        await socket.emit("session-end", {"sid": self.session, "time": now_ms()})

    # ── What calls do ───────────────────────────────────────────────────────────────────────

    async def abort(self) -> None:
        if self._client is None:
            raise WebGatewayError("the daemon cannot be reached; try again")
        self.writer.mark_killed()
        await self._client.kill(self.identity.agent, sender=self.identity.sender)

    async def reply_to_ask(self, ask: OpenAsk, answer: AskAnswer, outcome: dict[str, Any]) -> bool:
        if self._client is None:
            raise WebGatewayError("the daemon cannot be reached; try again")
        is_first = await reply_to_ask(self._client, ask, answer.text)
        is_stranger = self.owner_approvals.contains(ask)
        self.owner_approvals.remove(ask)
        if is_first:
            self.questions.set_outcome(ask, outcome)
        if is_stranger and is_first:
            self.writer.write_approval(ask, answer.receipt)
        elif is_first:
            self.writer.close_ask(ask.id, answer.receipt)
        elif is_stranger:
            self.writer.notify_changed()
        return is_first

    async def set_mode(self, mode: str) -> dict[str, Any]:
        """Change how much the agent may do without asking, in this conversation."""
        if self._client is None:
            raise WebGatewayError("the daemon cannot be reached; try again")
        identity = self.identity
        result = await self._client.set_mode(identity.agent, mode, sender=identity.sender)
        self.publisher.update_mode(result.mode, is_set=result.is_set)
        return {"mode": result.mode, "isSet": result.is_set}

    async def archive_session(self) -> None:
        """Archive the session. The conversation stays, and the next message opens the session
        again."""
        self.publisher.is_archived = True
        if self._client is not None:
            await self.abort()
        await self.publisher.publish_metadata()
        if self._socket is not None:
            await self.send_session_end(self._socket)

    def unarchive_session(self) -> None:
        """Open an archived session again."""
        if self.publisher.is_archived:
            self.publisher.is_archived = False
            self._on_session_lost()  # a relay accepts heartbeats again after it was opened

    async def unregister_session(self) -> None:
        """Tell the relay that this session is no longer served."""
        if self._socket is not None:
            for name in self.rpc.method_names:
                method = f"{self.session}:{name}"
                await self._socket.emit("rpc-unregister", {"method": method})
            await self.send_session_end(self._socket)


async def log_failures(work: Coroutine[Any, Any, None]) -> None:
    """A background task must not end everything else."""
    try:
        await work
    except (
        WebGatewayError,
        RelayUnavailableError,
        RelayRefusedError,
        *DAEMON_AWAY_ERRORS,
    ) as error:
        log.info("%s", error)
    except Exception:
        log.exception("something done on the side failed")
