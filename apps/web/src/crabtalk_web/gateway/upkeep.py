"""Upkeep: what a session says of itself, kept as it is: its metadata, its state, its presence."""

import asyncio
from typing import Any

from crabtalk.client import Client, ServerError

from .config import GatewayConfig
from .credentials import Credentials
from .errors import AWAY, RelayAwayError
from .identity import Identity
from .metadata import Surroundings, merged, mode_metadata, session_metadata
from .mirror import Mirror
from .questions import Questions
from .records import Records
from .relay_socket import RelaySocket
from .teller import now_ms

ARCHIVED = "archived"
# Where a session says which kinds of clients write in it without replay protection.
UNPROTECTED = "unprotectedClients"
NOT_OFFERED = 501


class Upkeep:
    """`methods` are the calls that devices may make."""

    def __init__(
        self,
        identity: Identity,
        mirror: Mirror,
        questions: Questions,
        credentials: Credentials,
        config: GatewayConfig,
        methods: list[str],
    ) -> None:
        self.records = Records(identity)
        self.surroundings = Surroundings()
        self.is_open = asyncio.Event()  # the session exists at the relay
        self.is_archived = False
        self._identity = identity
        self._mirror = mirror
        self._questions = questions
        self._credentials = credentials
        self._config = config
        self._methods = methods
        self._client: Client | None = None
        self._socket: RelaySocket | None = None
        self._title = ""
        self._mode = ""  # empty: not known
        self._is_mode_set = False  # for this conversation, and not by the agent's file
        self._is_mode_stale = False  # it was changed since it was asked for
        self._told_mode = ""
        self._has_modes = True  # the daemon knows them, as far as anybody has heard
        self._news = asyncio.Event()

    def wake(self) -> None:
        self._news.set()

    def follow(self, client: Client | None) -> None:
        self._client = client
        self._has_modes = True
        self.wake()

    def connected(self, socket: RelaySocket | None) -> None:
        self._socket = socket
        self.records.follow(socket)
        self.wake()

    def name(self, title: str) -> None:
        if title and title != self._title:
            self._title = title
            self.wake()

    def learn_mode(self, mode: str, *, is_set: bool) -> None:
        if (mode, is_set) != (self._mode, self._is_mode_set):
            self._mode, self._is_mode_set = mode, is_set
            self.wake()

    def ask_mode(self) -> None:
        """Somebody changed it. The daemon knows as well whether it is the agent's own again."""
        self._is_mode_stale = True
        self.wake()

    async def work(self) -> None:
        """Until cancelled; whatever may have changed is then told by the next process."""
        was_thinking = False
        while True:
            await self._news.wait()
            self._news.clear()
            socket = self._socket
            if socket is None or not self.is_open.is_set():
                continue
            try:
                if self._mirror.is_thinking != was_thinking:
                    was_thinking = self._mirror.is_thinking
                    await self.alive(socket)
                if not self._mirror.is_behind:  # else it is not yet known what is being asked
                    await self.records.change("agentState", self._questions.state)
                if not was_thinking or not self._mode or self._is_mode_stale:
                    await self._learn_mode()
                if not was_thinking or self._mode != self._told_mode:
                    await self.tell()
            except RelayAwayError:
                pass  # the next connection brings the next try

    async def tell(self, **rest: Any) -> bool:
        """Says what it is, and `rest`. False when nobody could be told."""
        mode = self._mode
        is_told = await self.records.change(
            "metadata", lambda there: {**merged(there, self.metadata()), **rest}
        )
        if is_told:
            self._told_mode = mode
        return is_told

    def metadata(self) -> dict[str, Any]:
        told = session_metadata(
            self._identity.agent,
            self._title,
            self._credentials,
            self._config.directory,
            self.surroundings,
            self._methods,
        )
        memory = self._mirror.book.memory
        if memory is not None and memory.clients:
            told[UNPROTECTED] = sorted(memory.clients)
        return {
            **told,
            **mode_metadata(self._mode, is_set=self._is_mode_set),
            "lifecycleState": ARCHIVED if self.is_archived else "running",
        }

    async def alive(self, socket: RelaySocket) -> None:
        session = self._mirror.book.session
        if self.is_archived or not session:
            return
        told = {
            "sid": session,
            "time": now_ms(),
            "thinking": self._mirror.is_thinking,
            "mode": "remote",
        }
        await socket.tell("session-alive", told)

    async def _learn_mode(self) -> None:
        """A daemon that knows no modes says so once, and is not asked again."""
        client, identity = self._client, self._identity
        if client is None or not self._has_modes:
            return
        self._is_mode_stale = False
        try:
            told = await client.set_mode(identity.agent, sender=identity.sender)
        except ServerError as error:
            self._has_modes = error.code != NOT_OFFERED
        except AWAY:
            pass
        else:
            self.learn_mode(told.mode, is_set=told.is_set)
