"""The two values beside a session's messages: its metadata and its agent state.

Each has a version. A writer sends the version it has seen; on a conflict it gets the current value
and applies its change again, a limited number of times.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from .errors import RelayUnavailableError
from .relay_socket import RelaySocket
from .session_identity import SessionIdentity

MAX_TRIES = 8

log = logging.getLogger(__name__)

ValueName = Literal["metadata", "agentState"]
ChangeValue = Callable[[dict[str, Any]], dict[str, Any] | None]
UPDATE_EVENTS: dict[ValueName, str] = {"metadata": "update-metadata", "agentState": "update-state"}


class SessionValues:
    def __init__(self, identity: SessionIdentity) -> None:
        self._identity = identity
        self._session = ""
        self._values: dict[ValueName, dict[str, Any]] = {"metadata": {}, "agentState": {}}
        self._versions: dict[ValueName, int] = {"metadata": 0, "agentState": 0}
        self._locks = {name: asyncio.Lock() for name in UPDATE_EVENTS}
        self._socket: RelaySocket | None = None

    def load(self, session: dict[str, Any]) -> None:
        """Load the values of a session from the relay."""
        self._session = str(session["id"])
        for name in UPDATE_EVENTS:
            self._store_value(name, session.get(name), session.get(f"{name}Version"))

    def set_socket(self, socket: RelaySocket | None) -> None:
        self._socket = socket

    def handle_update(self, update: dict[str, Any]) -> None:
        """Another client changed a value."""
        for name in UPDATE_EVENTS:
            entry = update.get(name)
            if isinstance(entry, dict):
                self._store_value(name, entry.get("value"), entry.get("version"))

    def get_value(self, name: ValueName) -> dict[str, Any]:
        return self._values[name]

    def _store_value(self, name: ValueName, sealed: Any, version: Any) -> None:
        if not isinstance(version, int) or version < self._versions[name]:
            return
        value = self._identity.sealer.open(sealed) if isinstance(sealed, str) else {}
        self._versions[name] = version
        self._values[name] = value if isinstance(value, dict) else {}

    async def change_value(self, name: ValueName, change: ChangeValue) -> bool:
        """Return False if the value could not be written. `change` gets the current value and
        returns the new one, or None to leave it."""
        async with self._locks[name]:
            for _ in range(MAX_TRIES):
                value = change(dict(self._values[name]))
                if value is None or value == self._values[name]:
                    return True
                try:
                    if await self._write_value(name, value):
                        return True
                except RelayUnavailableError:
                    return False
            log.warning("%s of a session is being changed by others all the time", name)
            return False

    async def _write_value(self, name: ValueName, value: dict[str, Any]) -> bool:
        if self._socket is None or not self._session:
            raise RelayUnavailableError("there is no socket")
        entry = {
            "sid": self._session,
            name: self._identity.sealer.seal(value),
            "expectedVersion": self._versions[name],
        }
        answer = await self._socket.request(UPDATE_EVENTS[name], entry)
        if not isinstance(answer, dict):
            raise RelayUnavailableError("the relay answered with nothing that can be understood")
        if answer.get("result") == "success":
            version = answer.get("version")
            self._versions[name] = version if isinstance(version, int) else 0
            self._values[name] = value
            return True
        if answer.get("result") != "version-mismatch":
            raise RelayUnavailableError(
                f"{UPDATE_EVENTS[name]}: {answer.get('message') or 'refused'}"
            )
        self._store_value(name, answer.get(name), answer.get("version"))
        return False
