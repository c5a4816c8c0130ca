"""Gateway: a client of the daemon and of a relay, and between them every conversation of a sender.

Either may be away at any time, and this process may be killed at any time: what it has to remember
is in the journals.
"""

import asyncio
import logging
import time
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import Client, ServerError, connect
from crabtalk.protocol import wire
from crabtalk_web.adapter import ConversationResolver, parse_feed_event

from .backoff import RetryBackoff
from .call_receipts import CallReceipts
from .config import GatewayConfig
from .conversation_journal import ConversationJournal
from .credentials import RelayCredentials
from .errors import DAEMON_AWAY_ERRORS, WebGatewayError
from .owner_approvals import OwnerApprovals
from .relay_connection import RelayConnection
from .relay_http import RelayHttp
from .session_identity import derive_identity
from .session_metadata import DaemonInfo
from .web_conversation import WebConversation
from .web_folder import WebFolder

# Seconds. A daemon that is away for longer has its turns closed; between two looks for what nobody
# has told us.
GRACE = 5.0
AUDIT_EVERY = 30.0
FEED_SETTLE_TIME = 0.05
RESTART_AFTER = 5.0
OWNER, USER = "owner", "user"
# What the daemon has to offer.
REQUIRED_FEATURES = frozenset({"keys", "attach", "records"})
NOT_IMPLEMENTED = 501

log = logging.getLogger(__name__)


class WebGateway:
    def __init__(
        self,
        home: Path,
        credentials: RelayCredentials,
        config: GatewayConfig,
        *,
        grace: float = GRACE,
        audit_every: float = AUDIT_EVERY,
    ) -> None:
        self._grace = grace
        self._audit_every = audit_every
        self._home = home
        self._credentials = credentials
        self._config = config
        self._store = WebFolder(home)
        self._receipts = CallReceipts(self._store.receipts_file)
        self._relay = RelayHttp(credentials.relay, credentials.token)
        self._conversations: dict[str, WebConversation] = {}  # by agent
        self._relay_connection = RelayConnection(
            credentials, self._relay, self._store, self._receipts, self._conversations.values
        )
        self._owner_approvals: dict[str, OwnerApprovals] = {}  # by agent; conversations come and go
        self._is_owner = False  # whether devices speak for the owner of the daemon
        self._resolver = ConversationResolver()
        self._daemon_info = DaemonInfo()
        self._client: Client | None = None
        self._disconnected_at = time.monotonic()
        self.is_following = asyncio.Event()  # the daemon's feed
        self.is_connected = self._relay_connection.is_connected  # to the relay's socket

    async def run(self) -> None:
        """Until cancelled. Raises GatewayError when the home cannot be used."""
        self._store.prepare()
        try:
            self._receipts.open()
        except OSError as error:
            raise WebGatewayError(
                f"cannot use {self._store.receipts_file}: {error.strerror}; see to its permissions"
            ) from None
        async with self._relay, asyncio.TaskGroup() as self._group:
            self._open_journals()
            self._group.create_task(self._follow_daemon())
            self._group.create_task(self._relay_connection.stay_connected())
            self._group.create_task(self._relay_connection.send_heartbeats())
            self._group.create_task(self._audit_conversations())

    def statistics(self) -> dict[str, int]:
        books = [each.journal.state for each in self._conversations.values()]
        return {
            "conversations": len(books),
            "unsent": sum(len(book.unsent_envelopes) for book in books),
            "waiting": sum(len(book.inbound) for book in books),
            "behind": sum(each.follower.is_behind for each in self._conversations.values()),
        }

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    def _open_journals(self) -> None:
        """What a former process left: it has to go to the relay, be the daemon there or not."""
        for path in sorted(self._store.journal_folder.glob("*.jsonl")):
            journal = ConversationJournal(path)
            journal.open()
            book = journal.state
            if book.sender == self._config.sender and book.agent not in self._conversations:
                self._add_conversation(book.agent, journal)
            else:
                journal.close()

    def _get_conversation(self, agent: str) -> WebConversation:
        found = self._conversations.get(agent)
        if found is None:
            identity = derive_identity(self._credentials, agent, self._config.sender)
            journal = ConversationJournal(self._store.journal_folder / f"{identity.tag}.jsonl")
            journal.open()
            found = self._add_conversation(agent, journal)
            if self._client is not None:
                found.on_daemon_connected(self._client)
            self._group.create_task(self._relay_connection.announce_conversation(found))
        return found

    def _add_conversation(self, agent: str, journal: ConversationJournal) -> WebConversation:
        generation = journal.state.generation
        identity = derive_identity(self._credentials, agent, self._config.sender, generation)
        added = WebConversation(
            identity, journal, self._relay, self._credentials, self._config, self._receipts
        )
        added.publisher.daemon_info = self._daemon_info
        added.owner_approvals = self._owner_approvals.setdefault(agent, added.owner_approvals)
        self._conversations[agent] = added
        self._group.create_task(self._run_conversation(added))
        return added

    async def _run_conversation(self, conversation: WebConversation) -> None:
        """One that fails, or that another session shows from now on, is begun anew from its
        journal, and takes no other along."""
        agent = conversation.identity.agent
        try:
            await conversation.run()
        except Exception:
            log.exception("the conversation with %s has failed, and is begun anew", agent)
            del self._conversations[agent]
            await asyncio.sleep(RESTART_AFTER)
        else:
            del self._conversations[agent]
        self._get_conversation(agent)

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    async def _follow_daemon(self) -> None:
        backoff = RetryBackoff(longest=5.0)
        while True:
            try:
                # Everybody here starts anew with the next connection.
                daemon = connect(home=self._home, client="web", reconnect_timeout=0)
                async with daemon as client:
                    await self._read_feed(client, backoff)
            except DAEMON_AWAY_ERRORS as error:
                if self._client is not None:
                    log.warning("the daemon is away: %s", error)
            finally:
                self._on_daemon_disconnected()
            await backoff.wait()
            if time.monotonic() - self._disconnected_at > self._grace:
                for each in self._conversations.values():
                    if each.follower.is_turn_open:
                        each.writer.close_lost_turn()

    def _on_daemon_disconnected(self) -> None:
        self.is_following.clear()
        if self._client is not None:
            self._disconnected_at = time.monotonic()
            self._client = None
            for each in self._conversations.values():
                each.on_daemon_disconnected()

    async def _read_feed(self, client: Client, backoff: RetryBackoff) -> None:
        """One feed of everything: delegated runs have senders of their own."""
        async with aclosing(client.subscribe_events(all_kinds=True)) as feed:
            coming = asyncio.ensure_future(anext(feed))
            try:
                await asyncio.sleep(FEED_SETTLE_TIME)  # nothing says when a feed has begun
                await self._load_daemon_info(client)
                backoff.reset()
                while True:
                    message = await coming
                    coming = asyncio.ensure_future(anext(feed))
                    self._handle_event(message)
            finally:
                coming.cancel()
                await asyncio.wait([coming])

    async def _load_daemon_info(self, client: Client) -> None:
        await check_features(client)
        agents = (await client.list_agents()).agents
        stored = (await client.list_conversations(sender=self._config.sender)).conversations
        models = (await client.list_models()).models
        skills = (await client.list_skills()).skills
        self._daemon_info = DaemonInfo(
            tuple(model.name for model in models),
            next((model.name for model in models if model.active), ""),
            tuple(skill.name for skill in skills),
        )
        self._is_owner = await speaks_for_owner(
            client, self._config.sender, [agent.name for agent in agents]
        )
        names = {one.agent for one in stored}
        if self._config.announce_agents:
            names |= {agent.name for agent in agents}
        self._client = client
        for each in self._conversations.values():
            each.publisher.daemon_info = self._daemon_info
            each.on_daemon_connected(client)
        for name in sorted(names):
            self._get_conversation(name)
        for one in stored:
            self._conversations[one.agent].publisher.set_title(one.title)
        self.is_following.set()

    def _handle_event(self, message: wire.AgentEventMsg) -> None:
        if message.missed:
            for each in self._conversations.values():
                each.follower.mark_missed_events()
        pair = self._resolver.find_conversation(message)
        if pair is None:
            return
        if message.kind == wire.MODE_CHANGED:
            if pair[1] == self._config.sender and pair[0] in self._conversations:
                self._conversations[pair[0]].publisher.refresh_mode()
            return
        is_ours = pair[1] == self._config.sender
        if not is_ours and message.kind not in (wire.ASK_USER, wire.TOOLS_COMPLETE, wire.DONE):
            return
        heard = parse_feed_event(message)
        if heard is None:
            return
        acts_for_us = not is_ours and is_requested_by(message, self._config.sender)
        if is_for_owner(message) or acts_for_us:
            if self._is_owner:
                self._get_conversation(pair[0]).handle_owner_approval_event(heard)
        elif is_ours:
            self._get_conversation(pair[0]).handle_event(heard)
        elif message.kind != wire.ASK_USER:
            for each in self._conversations.values():
                each.handle_owner_approval_event(heard)

    async def _audit_conversations(self) -> None:
        """Looks for messages that nobody told us of."""
        while True:
            await asyncio.sleep(self._audit_every)
            client = self._client
            if client is None:
                continue
            try:
                await self._look_for_missed(client)
            except DAEMON_AWAY_ERRORS as error:
                log.info("cannot look at the conversations: %s", error)

    async def _look_for_missed(self, client: Client) -> None:
        stored = (await client.list_conversations(sender=self._config.sender)).conversations
        counts = {one.agent: one.message_count for one in stored}
        for one in stored:
            self._get_conversation(one.agent).publisher.set_title(one.title)
        for agent, each in list(self._conversations.items()):
            book = each.journal.state
            is_gone = agent not in counts and book.log_id
            if is_gone or counts.get(agent, 0) != book.message_position:
                each.follower.request_read()


async def check_features(client: Client) -> None:
    """Raises GatewayError for a daemon that is too old."""
    try:
        features = frozenset((await client.hello()).features)
    except ServerError as error:
        if error.code != NOT_IMPLEMENTED:
            raise
        features = frozenset()
    if not features >= REQUIRED_FEATURES:
        raise WebGatewayError(
            "the daemon is too old for this gateway; upgrade crabtalk, and restart the daemon"
        )


async def speaks_for_owner(client: Client, sender: str, agents: list[str]) -> bool:
    """Whether this sender is one of the owner's, who answers for other people's runs.

    A gateway that was given a sender with fewer rights must not approve what that sender does.
    """
    for agent in agents[:1]:
        try:
            return (await client.explain_agent(agent, sender=sender)).origin == OWNER
        except ServerError as error:
            log.info("the daemon does not say who %s is: %s", sender, error.message)
    return sender == USER or sender.startswith(f"{USER}~")


def is_for_owner(message: wire.AgentEventMsg) -> bool:
    if message.kind != wire.ASK_USER:
        return False
    return any(q.HasField("approval") and q.approval.for_owner for q in message.ask.questions)


def is_requested_by(message: wire.AgentEventMsg, sender: str) -> bool:
    """An approval of a run that acts in this sender's name elsewhere, such as a scheduled job."""
    if message.kind != wire.ASK_USER:
        return False
    approvals = [q.approval for q in message.ask.questions if q.HasField("approval")]
    return any(one.requested_by == sender for one in approvals)
