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
from crabtalk_web.adapter import Switchboard, from_feed

from .backoff import Backoff
from .config import GatewayConfig
from .conversation import Conversation
from .credentials import Credentials
from .errors import AWAY, GatewayError
from .identity import identity_of
from .journal import Journal
from .machine import Machine
from .metadata import Surroundings
from .receipts import Receipts
from .relay_http import RelayHttp
from .store import Store
from .stranger_asks import StrangerAsks

# Seconds. A daemon that is away for longer has its turns closed; between two looks for what nobody
# has told us.
GRACE = 5.0
AUDIT_EVERY = 30.0
SETTLE = 0.05
ANEW_AFTER = 5.0
OWNER, USER = "owner", "user"
# What the daemon has to offer.
NEEDED = frozenset({"keys", "attach", "records"})
NOT_OFFERED = 501

log = logging.getLogger(__name__)


class Gateway:
    def __init__(
        self,
        home: Path,
        credentials: Credentials,
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
        self._store = Store(home)
        self._receipts = Receipts(self._store.receipts)
        self._relay = RelayHttp(credentials.relay, credentials.token)
        self._conversations: dict[str, Conversation] = {}  # by agent
        self._machine = Machine(
            credentials, self._relay, self._store, self._receipts, self._conversations.values
        )
        self._stranger_asks: dict[str, StrangerAsks] = {}  # by agent; conversations come and go
        self._is_owner = False  # whether devices speak for the owner of the daemon
        self._switchboard = Switchboard()
        self._surroundings = Surroundings()
        self._client: Client | None = None
        self._left_at = time.monotonic()
        self.is_following = asyncio.Event()  # the daemon's feed
        self.is_connected = self._machine.is_connected  # to the relay's socket

    async def run(self) -> None:
        """Until cancelled. Raises GatewayError when the home cannot be used."""
        self._store.prepare()
        try:
            self._receipts.open()
        except OSError as error:
            raise GatewayError(
                f"cannot use {self._store.receipts}: {error.strerror}; see to its permissions"
            ) from None
        async with self._relay, asyncio.TaskGroup() as self._group:
            self._open_journals()
            self._group.create_task(self._follow())
            self._group.create_task(self._machine.stay_connected())
            self._group.create_task(self._machine.beat())
            self._group.create_task(self._audit())

    def statistics(self) -> dict[str, int]:
        books = [each.journal.book for each in self._conversations.values()]
        return {
            "conversations": len(books),
            "unsent": sum(len(book.unsent) for book in books),
            "waiting": sum(len(book.waiting) for book in books),
            "behind": sum(each.mirror.is_behind for each in self._conversations.values()),
        }

    # ── Conversations ───────────────────────────────────────────────────────────────────────

    def _open_journals(self) -> None:
        """What a former process left: it has to go to the relay, be the daemon there or not."""
        for path in sorted(self._store.journal.glob("*.jsonl")):
            journal = Journal(path)
            journal.open()
            book = journal.book
            if book.sender == self._config.sender and book.agent not in self._conversations:
                self._add(book.agent, journal)
            else:
                journal.close()

    def _conversation(self, agent: str) -> Conversation:
        found = self._conversations.get(agent)
        if found is None:
            identity = identity_of(self._credentials, agent, self._config.sender)
            journal = Journal(self._store.journal / f"{identity.tag}.jsonl")
            journal.open()
            found = self._add(agent, journal)
            if self._client is not None:
                found.follow(self._client)
            self._group.create_task(self._machine.introduce(found))
        return found

    def _add(self, agent: str, journal: Journal) -> Conversation:
        generation = journal.book.generation
        identity = identity_of(self._credentials, agent, self._config.sender, generation)
        added = Conversation(
            identity, journal, self._relay, self._credentials, self._config, self._receipts
        )
        added.upkeep.surroundings = self._surroundings
        added.stranger_asks = self._stranger_asks.setdefault(agent, added.stranger_asks)
        self._conversations[agent] = added
        self._group.create_task(self._work(added))
        return added

    async def _work(self, conversation: Conversation) -> None:
        """One that fails, or that another session shows from now on, is begun anew from its
        journal, and takes no other along."""
        agent = conversation.identity.agent
        try:
            await conversation.work()
        except Exception:
            log.exception("the conversation with %s has failed, and is begun anew", agent)
            del self._conversations[agent]
            await asyncio.sleep(ANEW_AFTER)
        else:
            del self._conversations[agent]
        self._conversation(agent)

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        backoff = Backoff(longest=5.0)
        while True:
            try:
                # Everybody here starts anew with the next connection.
                daemon = connect(home=self._home, client="web", reconnect_timeout=0)
                async with daemon as client:
                    await self._hear_all(client, backoff)
            except AWAY as error:
                if self._client is not None:
                    log.warning("the daemon is away: %s", error)
            finally:
                self._leave()
            await backoff.wait()
            if time.monotonic() - self._left_at > self._grace:
                for each in self._conversations.values():
                    if each.mirror.is_thinking:
                        each.teller.lose()

    def _leave(self) -> None:
        self.is_following.clear()
        if self._client is not None:
            self._left_at = time.monotonic()
            self._client = None
            for each in self._conversations.values():
                each.leave()

    async def _hear_all(self, client: Client, backoff: Backoff) -> None:
        """One feed of everything: delegated runs have senders of their own."""
        async with aclosing(client.subscribe_events(all_kinds=True)) as feed:
            coming = asyncio.ensure_future(anext(feed))
            try:
                await asyncio.sleep(SETTLE)  # nothing says when a feed has begun
                await self._meet(client)
                backoff.reset()
                while True:
                    message = await coming
                    coming = asyncio.ensure_future(anext(feed))
                    self._hear(message)
            finally:
                coming.cancel()
                await asyncio.wait([coming])

    async def _meet(self, client: Client) -> None:
        await check_features(client)
        agents = (await client.list_agents()).agents
        stored = (await client.list_conversations(sender=self._config.sender)).conversations
        models = (await client.list_models()).models
        skills = (await client.list_skills()).skills
        self._surroundings = Surroundings(
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
            each.upkeep.surroundings = self._surroundings
            each.follow(client)
        for name in sorted(names):
            self._conversation(name)
        for one in stored:
            self._conversations[one.agent].upkeep.name(one.title)
        self.is_following.set()

    def _hear(self, message: wire.AgentEventMsg) -> None:
        if message.missed:
            for each in self._conversations.values():
                each.mirror.miss()
        pair = self._switchboard.pair_of(message)
        if pair is None:
            return
        if message.kind == wire.MODE_CHANGED:
            if pair[1] == self._config.sender and pair[0] in self._conversations:
                self._conversations[pair[0]].upkeep.ask_mode()
            return
        is_ours = pair[1] == self._config.sender
        if not is_ours and message.kind not in (wire.ASK_USER, wire.TOOLS_COMPLETE, wire.DONE):
            return
        heard = from_feed(message)
        if heard is None:
            return
        acts_for_us = not is_ours and is_asked_in_name_of(message, self._config.sender)
        if is_for_owner(message) or acts_for_us:
            if self._is_owner:
                self._conversation(pair[0]).hear_stranger(heard)
        elif is_ours:
            self._conversation(pair[0]).hear(heard)
        elif message.kind != wire.ASK_USER:
            for each in self._conversations.values():
                each.hear_stranger(heard)

    async def _audit(self) -> None:
        """Looks for messages that nobody told us of."""
        while True:
            await asyncio.sleep(self._audit_every)
            client = self._client
            if client is None:
                continue
            try:
                await self._look_for_missed(client)
            except AWAY as error:
                log.info("cannot look at the conversations: %s", error)

    async def _look_for_missed(self, client: Client) -> None:
        stored = (await client.list_conversations(sender=self._config.sender)).conversations
        counts = {one.agent: one.message_count for one in stored}
        for one in stored:
            self._conversation(one.agent).upkeep.name(one.title)
        for agent, each in list(self._conversations.items()):
            book = each.journal.book
            is_gone = agent not in counts and book.log_id
            if is_gone or counts.get(agent, 0) != book.position:
                each.mirror.read_again()


async def check_features(client: Client) -> None:
    """Raises GatewayError for a daemon that is too old."""
    try:
        features = frozenset((await client.hello()).features)
    except ServerError as error:
        if error.code != NOT_OFFERED:
            raise
        features = frozenset()
    if not features >= NEEDED:
        raise GatewayError(
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


def is_asked_in_name_of(message: wire.AgentEventMsg, sender: str) -> bool:
    """An approval of a run that acts in this sender's name elsewhere, such as a scheduled job."""
    if message.kind != wire.ASK_USER:
        return False
    approvals = [q.approval for q in message.ask.questions if q.HasField("approval")]
    return any(one.requested_by == sender for one in approvals)
