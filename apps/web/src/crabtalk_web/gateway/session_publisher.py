"""Publishes a session's metadata, agent state and heartbeats, and keeps them current."""

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
# The metadata key for the clients that write without replay protection.
UNPROTECTED_KEY = "unprotectedClients"
NOT_IMPLEMENTED = 501


class SessionPublisher:
    """`methods` are the RPC methods that devices may call."""

    def __init__(
        self,
        identity: SessionIdentity,
        follower: LogFollower,
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
        self._follower = follower
        self._questions = questions
        self._credentials = credentials
        self._config = config
        self._methods = methods
        self._client: Client | None = None
        self._socket: RelaySocket | None = None
        self._title = ""
        self._mode = ""  # empty: unknown
        self._is_mode_set = False  # set for this conversation, and not by the agent's file
        self._is_mode_stale = False  # changed since it was fetched
        self._published_mode = ""
        self._has_modes = True  # False once the daemon has said that it has no modes
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
        """Fetch the mode, because another client changed it. Only the daemon knows whether the
        agent's own mode is active again."""
        self._is_mode_stale = True
        self.wake()

    async def run(self) -> None:
        """Run until cancelled; the next process publishes pending changes."""
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
                if not self._follower.is_behind:  # before that the pending questions are not known
                    await self.values.change_value("agentState", self._questions.build_state)
                if not was_thinking or not self._mode or self._is_mode_stale:
                    await self._fetch_mode()
                if not was_thinking or self._mode != self._published_mode:
                    await self.publish_metadata()
            except RelayUnavailableError:
                pass  # the next connection tries again

    async def publish_metadata(self, **extra: Any) -> bool:
        """Publish the metadata together with `rest`. Return False if the relay did not take it."""
        mode = self._mode
        is_published = await self.values.change_value(
            "metadata", lambda current: {**merge_metadata(current, self.build_metadata()), **extra}
        )
        if is_published:
            self._published_mode = mode
        return is_published

    def build_metadata(self) -> dict[str, Any]:
        metadata = build_session_metadata(
            self._identity.agent,
            self._title,
            self._credentials,
            self._config.directory,
            self.daemon_info,
            self._methods,
        )
        guard = self._follower.state.replay_guard
        if guard is not None and guard.clients:
            metadata[UNPROTECTED_KEY] = sorted(guard.clients)
        return {
            **metadata,
            **build_mode_metadata(self._mode, is_set=self._is_mode_set),
            "lifecycleState": ARCHIVED if self.is_archived else "running",
        }

    async def send_heartbeat(self, socket: RelaySocket) -> None:
        session = self._follower.state.session
        if self.is_archived or not session:
            return
        metadata = {
            "sid": session,
            "time": now_ms(),
            "thinking": self._follower.is_turn_open,
            "mode": "remote",
        }
        await socket.emit("session-alive", metadata)

    async def _fetch_mode(self) -> None:
        """A daemon without modes says so once and is not asked again."""
        client, identity = self._client, self._identity
        if client is None or not self._has_modes:
            return
        self._is_mode_stale = False
        try:
            metadata = await client.set_mode(identity.agent, sender=identity.sender)
        except ServerError as error:
            self._has_modes = error.code != NOT_IMPLEMENTED
        except DAEMON_AWAY_ERRORS:
            pass
        else:
            self.update_mode(metadata.mode, is_set=metadata.is_set)
