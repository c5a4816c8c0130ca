"""The gateway: connects the conversations of one sender at the daemon with their sessions at a
relay.

Either side may be away at any time, and this process may be killed at any time: all state that must
survive is in the journals.
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

# In seconds: how long the daemon may be away before its turns are closed; how often missed messages
# are looked for.
GRACE = 5.0
AUDIT_EVERY = 30.0
FEED_SETTLE_TIME = 0.05
RESTART_AFTER = 5.0
OWNER, USER = "owner", "user"
# Features that the daemon must have.
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
        # by agent; it outlives the conversations
        self._owner_approvals: dict[str, OwnerApprovals] = {}
        self._is_owner = False  # devices speak for the owner of the daemon
        self._resolver = ConversationResolver()
        self._daemon_info = DaemonInfo()
        self._client: Client | None = None
        self._disconnected_at = time.monotonic()
        self.is_following = asyncio.Event()  # connected to the daemon's feed
        self.is_connected = self._relay_connection.is_connected  # connected to the relay's socket

    async def run(self) -> None:
        """Run until cancelled. Raises WebGatewayError if the home cannot be used."""
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
        states = [conversation.journal.state for conversation in self._conversations.values()]
        return {
            "conversations": len(states),
            "unsent": sum(len(state.unsent_envelopes) for state in states),
            "waiting": sum(len(state.inbound) for state in states),
            "behind": sum(
                conversation.follower.is_behind for conversation in self._conversations.values()
            ),
        }

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    def _open_journals(self) -> None:
        """Open the journals of earlier processes: their envelopes must reach the relay even without
        the daemon."""
        for path in sorted(self._store.journal_folder.glob("*.jsonl")):
            journal = ConversationJournal(path)
            journal.open()
            state = journal.state
            if state.sender == self._config.sender and state.agent not in self._conversations:
                self._add_conversation(state.agent, journal)
            else:
                journal.close()

    def _get_conversation(self, agent: str) -> WebConversation:
        conversation = self._conversations.get(agent)
        if conversation is None:
            identity = derive_identity(self._credentials, agent, self._config.sender)
            journal = ConversationJournal(self._store.journal_folder / f"{identity.tag}.jsonl")
            journal.open()
            conversation = self._add_conversation(agent, journal)
            if self._client is not None:
                conversation.on_daemon_connected(self._client)
            self._group.create_task(self._relay_connection.announce_conversation(conversation))
        return conversation

    def _add_conversation(self, agent: str, journal: ConversationJournal) -> WebConversation:
        generation = journal.state.generation
        identity = derive_identity(self._credentials, agent, self._config.sender, generation)
        conversation = WebConversation(
            identity, journal, self._relay, self._credentials, self._config, self._receipts
        )
        conversation.publisher.daemon_info = self._daemon_info
        conversation.owner_approvals = self._owner_approvals.setdefault(
            agent, conversation.owner_approvals
        )
        self._conversations[agent] = conversation
        self._group.create_task(self._run_conversation(conversation))
        return conversation

    async def _run_conversation(self, conversation: WebConversation) -> None:
        """Run a conversation. If it fails, or another session continues it, start it again from its
        journal without affecting the others."""
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
                # All parts start again with the next connection.
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
                for conversation in self._conversations.values():
                    if conversation.follower.is_turn_open:
                        conversation.writer.close_lost_turn()

    def _on_daemon_disconnected(self) -> None:
        self.is_following.clear()
        if self._client is not None:
            self._disconnected_at = time.monotonic()
            self._client = None
            for conversation in self._conversations.values():
                conversation.on_daemon_disconnected()

    async def _read_feed(self, client: Client, backoff: RetryBackoff) -> None:
        """Read the feed of all senders, because delegated runs have senders of their own."""
        async with aclosing(client.subscribe_events(all_kinds=True)) as feed:
            next_message = asyncio.ensure_future(anext(feed))
            try:
                # the daemon does not say when a feed has begun
                await asyncio.sleep(FEED_SETTLE_TIME)
                await self._load_daemon_info(client)
                backoff.reset()
                while True:
                    message = await next_message
                    next_message = asyncio.ensure_future(anext(feed))
                    self._handle_event(message)
            finally:
                next_message.cancel()
                await asyncio.wait([next_message])

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
        names = {stored_conversation.agent for stored_conversation in stored}
        if self._config.announce_agents:
            names |= {agent.name for agent in agents}
        self._client = client
        for conversation in self._conversations.values():
            conversation.publisher.daemon_info = self._daemon_info
            conversation.on_daemon_connected(client)
        for name in sorted(names):
            self._get_conversation(name)
        for stored_conversation in stored:
            self._conversations[stored_conversation.agent].publisher.set_title(
                stored_conversation.title
            )
        self.is_following.set()

    def _handle_event(self, message: wire.AgentEventMsg) -> None:
        if message.missed:
            for conversation in self._conversations.values():
                conversation.follower.mark_missed_events()
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
        received = parse_feed_event(message)
        if received is None:
            return
        acts_for_us = not is_ours and is_requested_by(message, self._config.sender)
        if is_for_owner(message) or acts_for_us:
            if self._is_owner:
                self._get_conversation(pair[0]).handle_owner_approval_event(received)
        elif is_ours:
            self._get_conversation(pair[0]).handle_event(received)
        elif message.kind != wire.ASK_USER:
            for conversation in self._conversations.values():
                conversation.handle_owner_approval_event(received)

    async def _audit_conversations(self) -> None:
        """Look for messages that no event announced."""
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
        counts = {
            stored_conversation.agent: stored_conversation.message_count
            for stored_conversation in stored
        }
        for stored_conversation in stored:
            self._get_conversation(stored_conversation.agent).publisher.set_title(
                stored_conversation.title
            )
        for agent, conversation in list(self._conversations.items()):
            state = conversation.journal.state
            is_gone = agent not in counts and state.log_id
            if is_gone or counts.get(agent, 0) != state.message_position:
                conversation.follower.request_read()


async def check_features(client: Client) -> None:
    """Raises WebGatewayError for a daemon that is too old."""
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
    """Return whether this sender belongs to the owner, who answers for other senders' runs.

    A gateway with a less privileged sender must not approve what that sender does.
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
    """Return whether it is an approval for a run that acts for this sender elsewhere, such as a
    scheduled job."""
    if message.kind != wire.ASK_USER:
        return False
    approvals = [q.approval for q in message.ask.questions if q.HasField("approval")]
    return any(stored_conversation.requested_by == sender for stored_conversation in approvals)
