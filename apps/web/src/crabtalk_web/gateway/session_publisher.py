"""Upkeep: what a session says of itself, kept as it is: its metadata, its state, its presence."""

import asyncio
from typing import Any

from crabtalk.client import Client, ServerError

from .config import GatewayConfig
from .credentials import RelayCredentials
from .envelope_writer import now_ms
from .errors import DAEMON_AWAY_ERRORS, RelayUnavailableError
from .log_follower import LogFollower
from .question_tracker import QuestionTracker
from .relay_socket import RelaySocket
from .session_identity import SessionIdentity
from .session_metadata import (
    DaemonInfo,
    build_mode_metadata,
    build_session_metadata,
    merge_metadata,
)
from .session_values import SessionValues

ARCHIVED = "archived"
# Where a session says which kinds of clients write in it without replay protection.
UNPROTECTED_KEY = "unprotectedClients"
NOT_IMPLEMENTED = 501


class SessionPublisher:
    """`methods` are the calls that devices may make."""

    def __init__(
        self,
        identity: SessionIdentity,
        mirror: LogFollower,
        questions: QuestionTracker,
        credentials: RelayCredentials,
        config: GatewayConfig,
        methods: list[str],
    ) -> None:
        self.values = SessionValues(identity)
        self.daemon_info = DaemonInfo()
        self.is_open = asyncio.Event()  # the session exists at the relay
        self.is_archived = False
        self._identity = identity
        self._follower = mirror
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
        self._published_mode = ""
        self._has_modes = True  # the daemon knows them, as far as anybody has heard
        self._wakeup = asyncio.Event()

    def wake(self) -> None:
        self._wakeup.set()

    def set_client(self, client: Client | None) -> None:
        self._client = client
        self._has_modes = True
        self.wake()

    def set_socket(self, socket: RelaySocket | None) -> None:
        self._socket = socket
        self.values.set_socket(socket)
        self.wake()

    def set_title(self, title: str) -> None:
        if title and title != self._title:
            self._title = title
            self.wake()

    def update_mode(self, mode: str, *, is_set: bool) -> None:
        if (mode, is_set) != (self._mode, self._is_mode_set):
            self._mode, self._is_mode_set = mode, is_set
            self.wake()

    def refresh_mode(self) -> None:
        """Somebody changed it. The daemon knows as well whether it is the agent's own again."""
        self._is_mode_stale = True
        self.wake()

    async def run(self) -> None:
        """Until cancelled; whatever may have changed is then told by the next process."""
        was_thinking = False
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            socket = self._socket
            if socket is None or not self.is_open.is_set():
                continue
            try:
                if self._follower.is_turn_open != was_thinking:
                    was_thinking = self._follower.is_turn_open
                    await self.send_heartbeat(socket)
                if not self._follower.is_behind:  # else it is not yet known what is being asked
                    await self.values.change_value("agentState", self._questions.build_state)
                if not was_thinking or not self._mode or self._is_mode_stale:
                    await self._fetch_mode()
                if not was_thinking or self._mode != self._published_mode:
                    await self.publish_metadata()
            except RelayUnavailableError:
                pass  # the next connection brings the next try

    async def publish_metadata(self, **rest: Any) -> bool:
        """Says what it is, and `rest`. False when nobody could be told."""
        mode = self._mode
        is_told = await self.values.change_value(
            "metadata", lambda there: {**merge_metadata(there, self.build_metadata()), **rest}
        )
        if is_told:
            self._published_mode = mode
        return is_told

    def build_metadata(self) -> dict[str, Any]:
        told = build_session_metadata(
            self._identity.agent,
            self._title,
            self._credentials,
            self._config.directory,
            self.daemon_info,
            self._methods,
        )
        memory = self._follower.state.replay_guard
        if memory is not None and memory.clients:
            told[UNPROTECTED_KEY] = sorted(memory.clients)
        return {
            **told,
            **build_mode_metadata(self._mode, is_set=self._is_mode_set),
            "lifecycleState": ARCHIVED if self.is_archived else "running",
        }

    async def send_heartbeat(self, socket: RelaySocket) -> None:
        session = self._follower.state.session
        if self.is_archived or not session:
            return
        told = {
            "sid": session,
            "time": now_ms(),
            "thinking": self._follower.is_turn_open,
            "mode": "remote",
        }
        await socket.emit("session-alive", told)

    async def _fetch_mode(self) -> None:
        """A daemon that knows no modes says so once, and is not asked again."""
        client, identity = self._client, self._identity
        if client is None or not self._has_modes:
            return
        self._is_mode_stale = False
        try:
            told = await client.set_mode(identity.agent, sender=identity.sender)
        except ServerError as error:
            self._has_modes = error.code != NOT_IMPLEMENTED
        except DAEMON_AWAY_ERRORS:
            pass
        else:
            self.update_mode(told.mode, is_set=told.is_set)
