"""Gateway: a client of the daemon and of a relay, and between them every conversation of a sender.

Either may be away at any time, and this process may be killed at any time: what it has to remember
is in the journals.
"""

import asyncio
import logging
import time
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from crabtalk.client import Client, connect
from crabtalk.protocol import wire
from crabtalk_web.adapter import Switchboard, from_feed
from crabtalk_web.adapter.sources import milliseconds
from crabtalk_web.sealing import DataSealer, Replays, to_base64, wrap_key

from .backoff import Backoff
from .config import GatewayConfig
from .conversation import Conversation
from .credentials import Credentials
from .errors import AWAY, RelayAwayError, RelayRefusedError
from .identity import identity_of
from .journal import Journal
from .metadata import Surroundings, machine_metadata, machine_state
from .mirror import now_ms
from .relay_http import RelayHttp
from .relay_socket import RelaySocket
from .store import Store

# Seconds. A daemon that is away for longer has its turns closed; heartbeats of those that work and
# of the others; between two looks for what nobody has told us.
GRACE = 5.0
BUSY_BEAT, BEAT, MACHINE_BEAT = 2.0, 15.0, 20.0
AUDIT_EVERY = 30.0
# A message that is untold for so long, while nothing is at work, was missed.
MISSED_AFTER = 5.0
SETTLE = 0.05
FAREWELL = 2.0
ANEW_AFTER = 5.0

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
        self._machine = DataSealer(credentials.machine_key)
        self._conversations: dict[str, Conversation] = {}  # by agent
        self._switchboard = Switchboard()
        self._replays = Replays()
        self._surroundings = Surroundings()
        self._client: Client | None = None
        self._since = 0
        self._left_at = time.monotonic()
        self._socket: RelaySocket | None = None
        self.is_following = asyncio.Event()  # the daemon's feed
        self.is_connected = asyncio.Event()  # to the relay's socket

    async def run(self) -> None:
        """Until cancelled. Raises GatewayError when the home cannot be used."""
        self._store.prepare()
        credentials = self._credentials
        async with (
            RelayHttp(credentials.relay, credentials.token) as self._relay,
            asyncio.TaskGroup() as self._group,
        ):
            self._open_journals()
            self._group.create_task(self._follow())
            self._group.create_task(self._stay_connected())
            self._group.create_task(self._beat())
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
                found.follow(self._client, self._since)
            if self._socket is not None:
                self._group.create_task(self._introduce(found, self._socket))
        return found

    def _add(self, agent: str, journal: Journal) -> Conversation:
        generation = journal.book.generation
        identity = identity_of(self._credentials, agent, self._config.sender, generation)
        added = Conversation(identity, journal, self._relay, self._credentials, self._config)
        added.surroundings = self._surroundings
        self._conversations[agent] = added
        self._group.create_task(self._work(added))
        return added

    async def _work(self, conversation: Conversation) -> None:
        """One that fails is begun anew from its journal, and takes no other along."""
        try:
            await conversation.work()
        except Exception:
            agent = conversation.identity.agent
            log.exception("the conversation with %s has failed, and is begun anew", agent)
            del self._conversations[agent]
            await asyncio.sleep(ANEW_AFTER)
            self._conversation(agent)

    def _of_session(self, session: Any) -> Conversation | None:
        for each in self._conversations.values():
            if each.session == session and session:
                return each
        return None

    # ── The daemon ──────────────────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        backoff = Backoff(longest=5.0)
        while True:
            try:
                async with connect(home=self._home, client="web") as client:
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
                        each.mirror.lose()

    def _leave(self) -> None:
        self.is_following.clear()
        if self._client is not None:
            self._left_at = time.monotonic()
            self._client = None
            for each in self._conversations.values():
                each.leave()

    async def _hear_all(self, client: Client, backoff: Backoff) -> None:
        """One feed of everything: delegated runs have senders of their own."""
        since = now_ms()
        async with aclosing(client.subscribe_events(all_kinds=True)) as feed:
            coming = asyncio.ensure_future(anext(feed))
            try:
                await asyncio.sleep(SETTLE)  # nothing says when a feed has begun
                await self._meet(client, since)
                backoff.reset()
                while True:
                    message = await coming
                    coming = asyncio.ensure_future(anext(feed))
                    self._hear_daemon(message)
            finally:
                coming.cancel()
                await asyncio.wait([coming])

    async def _meet(self, client: Client, since: int) -> None:
        agents = (await client.list_agents()).agents
        stored = (await client.list_conversations(sender=self._config.sender)).conversations
        models = (await client.list_models()).models
        skills = (await client.list_skills()).skills
        self._surroundings = Surroundings(
            tuple(model.name for model in models),
            next((model.name for model in models if model.active), ""),
            tuple(skill.name for skill in skills),
        )
        names = {one.agent for one in stored}
        if self._config.announce_agents:
            names |= {agent.name for agent in agents}
        self._client, self._since = client, since
        for each in self._conversations.values():
            each.surroundings = self._surroundings
            each.follow(client, since)
        for name in sorted(names):
            self._conversation(name)
        for one in stored:
            self._conversations[one.agent].name(one.title)
        self.is_following.set()

    def _hear_daemon(self, message: wire.AgentEventMsg) -> None:
        if message.missed:
            for each in self._conversations.values():
                each.mirror.miss(milliseconds(message.timestamp))
        pair = self._switchboard.pair_of(message)
        if pair is None or pair[1] != self._config.sender:
            return
        heard = from_feed(message)
        if heard is not None:
            self._conversation(pair[0]).mirror.hear(heard)

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
        for one in stored:
            conversation = self._conversation(one.agent)
            conversation.name(one.title)
            if one.message_count > conversation.journal.book.position:
                await conversation.mirror.audit(client, MISSED_AFTER)

    # ── The relay ───────────────────────────────────────────────────────────────────────────

    async def _stay_connected(self) -> None:
        backoff = Backoff()
        credentials = self._credentials
        while True:
            try:
                await self._register_machine()
                async with RelaySocket(
                    credentials.relay, credentials.token, self._hear_relay, self._serve
                ) as socket:
                    self._socket = socket
                    listening = asyncio.ensure_future(socket.listen())
                    try:
                        await self._introduce_all(socket)
                        backoff.reset()
                        self.is_connected.set()
                        await listening
                    except asyncio.CancelledError:
                        await self._say_goodbye(socket)
                        raise
                    finally:
                        listening.cancel()
                        await asyncio.wait([listening])
            except RelayAwayError as error:
                log.info("%s", error)
            except RelayRefusedError as error:
                sentence = "%s; if this machine was removed, run `crabtalk-web pair`"
                log.error(sentence, error)  # noqa: TRY400
            finally:
                self.is_connected.clear()
                self._socket = None
            for each in self._conversations.values():
                await each.connected(None)
            await backoff.wait()

    async def _introduce_all(self, socket: RelaySocket) -> None:
        machine = self._credentials.machine_id
        await socket.tell("rpc-register", {"method": f"{machine}:spawn-happy-session"})
        await socket.tell("machine-alive", {"machineId": machine, "time": now_ms()})
        for each in list(self._conversations.values()):
            await each.connected(socket)

    async def _introduce(self, conversation: Conversation, socket: RelaySocket) -> None:
        with suppress(RelayAwayError):  # the next socket is introduced to all
            await conversation.connected(socket)

    async def _register_machine(self) -> None:
        credentials = self._credentials
        wrapped = to_base64(wrap_key(credentials.content_key, credentials.machine_key))
        await self._relay.machine(
            credentials.machine_id,
            self._machine.seal(machine_metadata(self._store.directory)),
            self._machine.seal(machine_state(now_ms())),
            wrapped,
        )

    def _hear_relay(self, name: str, payload: Any) -> None:
        body = payload.get("body") if name == "update" and isinstance(payload, dict) else None
        if isinstance(body, dict):
            conversation = self._of_session(body.get("sid") or body.get("id"))
            if conversation is not None:
                conversation.hear_update(body)

    async def _serve(self, method: str, params: str) -> str | None:
        record, _, name = method.rpartition(":")
        if record == self._credentials.machine_id:
            return self._spawn(params)
        conversation = self._of_session(record)
        return None if conversation is None else await conversation.calls.serve(name, params)

    def _spawn(self, params: str) -> str:
        """Conversations are not made here: a device that wants one is shown the one there is."""
        given = self._machine.open(params)
        if not isinstance(given, dict) or not self._replays.is_new(params):
            return self._refusal("this call was made before, or cannot be opened")
        found = self._conversations.get(str(given.get("agent")))
        if found is None or not found.session:
            names = ", ".join(sorted(self._conversations))
            return self._refusal(f"there is no such agent; there are {names}")
        return self._machine.seal({"type": "success", "sessionId": found.session})

    def _refusal(self, sentence: str) -> str:
        return self._machine.seal({"type": "error", "errorMessage": sentence})

    async def _beat(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(BUSY_BEAT)
            ticks += 1
            socket = self._socket
            if socket is None:
                continue
            is_beat = ticks % round(BEAT / BUSY_BEAT) == 0
            try:
                for each in list(self._conversations.values()):
                    if is_beat or each.mirror.is_thinking:
                        await each.alive(socket)
                if ticks % round(MACHINE_BEAT / BUSY_BEAT) == 0:
                    machine = self._credentials.machine_id
                    await socket.tell("machine-alive", {"machineId": machine, "time": now_ms()})
            except RelayAwayError:
                continue

    async def _say_goodbye(self, socket: RelaySocket) -> None:
        """Devices see at once that nobody is there."""
        with suppress(RelayAwayError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                for each in self._conversations.values():
                    if each.session:
                        await each.bye(socket)
