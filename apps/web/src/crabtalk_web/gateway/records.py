"""Records: the two values beside a session's messages, its metadata and its agent state.

Each has a version. Whoever writes says which one it has seen; who comes second sees what the first
wrote, and writes again on top of it, a few times and no more.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from .errors import RelayAwayError
from .identity import Identity
from .relay_socket import RelaySocket

TRIES = 8

log = logging.getLogger(__name__)

Name = Literal["metadata", "agentState"]
Change = Callable[[dict[str, Any]], dict[str, Any] | None]
EVENTS: dict[Name, str] = {"metadata": "update-metadata", "agentState": "update-state"}


class Records:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._session = ""
        self._values: dict[Name, dict[str, Any]] = {"metadata": {}, "agentState": {}}
        self._versions: dict[Name, int] = {"metadata": 0, "agentState": 0}
        self._locks = {name: asyncio.Lock() for name in EVENTS}
        self._socket: RelaySocket | None = None

    def open(self, session: dict[str, Any]) -> None:
        """As the relay has it."""
        self._session = str(session["id"])
        for name in EVENTS:
            self._learn(name, session.get(name), session.get(f"{name}Version"))

    def follow(self, socket: RelaySocket | None) -> None:
        self._socket = socket

    def hear(self, update: dict[str, Any]) -> None:
        """Somebody has changed one."""
        for name in EVENTS:
            told = update.get(name)
            if isinstance(told, dict):
                self._learn(name, told.get("value"), told.get("version"))

    def value(self, name: Name) -> dict[str, Any]:
        return self._values[name]

    def _learn(self, name: Name, sealed: Any, version: Any) -> None:
        if not isinstance(version, int) or version < self._versions[name]:
            return
        opened = self._identity.sealer.open(sealed) if isinstance(sealed, str) else {}
        self._versions[name] = version
        self._values[name] = opened if isinstance(opened, dict) else {}

    async def change(self, name: Name, change: Change) -> bool:
        """False when it could not be written. `change` gets what is there and gives what should be,
        or None to leave it."""
        async with self._locks[name]:
            for _ in range(TRIES):
                value = change(dict(self._values[name]))
                if value is None or value == self._values[name]:
                    return True
                try:
                    if await self._write(name, value):
                        return True
                except RelayAwayError:
                    return False
            log.warning("%s of a session is being changed by others all the time", name)
            return False

    async def _write(self, name: Name, value: dict[str, Any]) -> bool:
        if self._socket is None or not self._session:
            raise RelayAwayError("there is no socket")
        told = {
            "sid": self._session,
            name: self._identity.sealer.seal(value),
            "expectedVersion": self._versions[name],
        }
        answer = await self._socket.ask(EVENTS[name], told)
        if not isinstance(answer, dict):
            raise RelayAwayError("the relay answered with nothing that can be understood")
        if answer.get("result") == "success":
            version = answer.get("version")
            self._versions[name] = version if isinstance(version, int) else 0
            self._values[name] = value
            return True
        if answer.get("result") != "version-mismatch":
            raise RelayAwayError(f"{EVENTS[name]}: {answer.get('message') or 'refused'}")
        self._learn(name, answer.get(name), answer.get("version"))
        return False
