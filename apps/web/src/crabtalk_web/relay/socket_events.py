"""Socket events: what devices and gateways say. Whoever wants an answer gets one, always."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import msgspec

from . import access_keys, artifact_updates, artifacts, presence_rows, shapes, versions
from .accounts import within_quota
from .core import Core
from .errors import RelayError
from .ids import now_ms
from .message_routes import append
from .messages import Draft
from .rpc import Rpc, failed
from .socket import Socket

T = TypeVar("T")
Answer: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[[Socket, Any], Awaitable[Answer | None]]

log = logging.getLogger(__name__)


class SocketEvents:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._rpc = Rpc(core.hub, core.limits)
        self._handlers: dict[str, Handler] = {
            "ping": self.ping,
            "message": self.message,
            "update-metadata": self.update_metadata,
            "update-state": self.update_state,
            "machine-update-metadata": self.machine_update_metadata,
            "machine-update-state": self.machine_update_state,
            "session-alive": self.session_alive,
            "session-end": self.session_end,
            "machine-alive": self.machine_alive,
            "usage-report": self.usage_report,
            "app-state": self.app_state,
            "rpc-register": self.rpc_register,
            "rpc-unregister": self.rpc_unregister,
            "artifact-read": self.artifact_read,
            "artifact-create": self.artifact_create,
            "artifact-update": self.artifact_update,
            "artifact-delete": self.artifact_delete,
            "access-key-get": self.access_key_get,
        }

    async def handle(self, socket: Socket, name: str, payload: Any) -> Answer:
        """The answer, which is sent if it was asked for."""
        handler = self._handlers.get(name)
        if handler is None:
            return refusal(f"there is no event {name[:100]!r}")
        try:
            return await handler(socket, payload) or {}
        except RelayError as error:
            return refusal(str(error))
        except Exception:
            log.exception("the event %s failed", name)
            return refusal("the relay failed; try again")

    async def call(self, socket: Socket, payload: Any) -> Answer:
        try:
            wanted = shaped(payload, shapes.RpcCall)
        except RelayError as error:
            return failed(str(error))
        return await self._rpc.call(socket, wanted.method, wanted.params)

    # ── Messages and records ────────────────────────────────────────────────────────────────

    async def ping(self, socket: Socket, payload: Any) -> None:
        """So that a client knows somebody is there."""

    async def message(self, socket: Socket, payload: Any) -> Answer:
        given = shaped(payload, shapes.SocketMessage)
        drafts = [Draft(given.message, given.local_id)]
        (row,) = await append(self._core, socket.account, given.sid, drafts, skip=socket)
        return {"result": "success", "id": row["id"], "seq": row["seq"]}

    async def update_metadata(self, socket: Socket, payload: Any) -> Answer:
        given = shaped(payload, shapes.MetadataChange)
        return await self._swap(
            socket, "sessions", "metadata", given.sid, given.metadata, given.expected_version
        )

    async def update_state(self, socket: Socket, payload: Any) -> Answer:
        given = shaped(payload, shapes.StateChange)
        return await self._swap(
            socket, "sessions", "agent_state", given.sid, given.agent_state, given.expected_version
        )

    async def machine_update_metadata(self, socket: Socket, payload: Any) -> Answer:
        given = shaped(payload, shapes.MachineMetadataChange)
        return await self._swap(
            socket,
            "machines",
            "metadata",
            given.machine_id,
            given.metadata,
            given.expected_version,
        )

    async def machine_update_state(self, socket: Socket, payload: Any) -> Answer:
        given = shaped(payload, shapes.MachineStateChange)
        return await self._swap(
            socket,
            "machines",
            "daemon_state",
            given.machine_id,
            given.daemon_state,
            given.expected_version,
        )

    async def _swap(
        self,
        socket: Socket,
        table: presence_rows.Kind,
        field: versions.Field,
        record: str,
        value: bytes | None,
        expected: int,
    ) -> Answer:
        if len(value or b"") > self._core.limits.metadata:
            return refusal(f"it may have at most {self._core.limits.metadata} bytes")
        name = {"metadata": "metadata", "agent_state": "agentState"}.get(field, "daemonState")
        now = await self._core.database.write(
            within_quota,
            self._core.limits,
            versions.swap,
            socket.account,
            table,
            field,
            record,
            value,
            expected,
        )
        if now is None:
            return refusal("there is no such record; create it first")
        if not now.is_done:
            return {"result": "version-mismatch", "version": now.version, name: now.value}
        told = {name: versions.versioned(now)}
        if table == "sessions":
            body = {"t": "update-session", "id": record, **told}
            self._core.hub.update(socket.account, now.update, body, session=record)
        else:
            body = {"t": "update-machine", "machineId": record, **told}
            self._core.hub.update(socket.account, now.update, body, machine=record)
        return {"result": "success", "version": now.version, name: now.value}

    # ── Presence ────────────────────────────────────────────────────────────────────────────

    async def session_alive(self, socket: Socket, payload: Any) -> None:
        given = shaped(payload, shapes.SessionAlive)
        await self._core.presence.alive(
            "sessions", socket.account, given.sid, given.time, is_thinking=bool(given.thinking)
        )

    async def session_end(self, socket: Socket, payload: Any) -> None:
        given = shaped(payload, shapes.SessionEnd)
        await self._core.presence.ended("sessions", socket.account, given.sid)

    async def machine_alive(self, socket: Socket, payload: Any) -> None:
        given = shaped(payload, shapes.MachineAlive)
        await self._core.presence.alive("machines", socket.account, given.machine_id, given.time)

    async def usage_report(self, socket: Socket, payload: Any) -> Answer:
        """Shown to devices that are there, and not kept."""
        given = shaped(payload, shapes.UsageReport)
        if "total" not in given.tokens or "total" not in given.cost:
            return {"success": False, "error": "tokens and cost need a total"}
        now = now_ms()
        if given.session_id is not None:
            body = {
                "type": "usage",
                "id": given.session_id,
                "key": given.key,
                "tokens": given.tokens,
                "cost": given.cost,
                "timestamp": now,
            }
            self._core.hub.ephemeral(socket.account, body)
        return {"success": True, "reportId": None, "createdAt": now, "updatedAt": now}

    async def app_state(self, socket: Socket, payload: Any) -> None:
        socket.is_watched = shaped(payload, shapes.AppState).state == "active"

    # ── Methods ─────────────────────────────────────────────────────────────────────────────

    async def rpc_register(self, socket: Socket, payload: Any) -> None:
        method = shaped(payload, shapes.Method).method
        most = self._core.limits.methods
        if len(socket.methods) >= most and method not in socket.methods:
            error = f"a socket registers at most {most} methods"
            socket.tell("rpc-error", {"type": "register", "error": error})
            return
        self._core.hub.register(socket, method)
        socket.tell("rpc-registered", {"method": method})

    async def rpc_unregister(self, socket: Socket, payload: Any) -> None:
        method = shaped(payload, shapes.Method).method
        self._core.hub.unregister(socket, method)
        socket.tell("rpc-unregistered", {"method": method})

    # ── Artifacts and access keys ───────────────────────────────────────────────────────────

    async def artifact_read(self, socket: Socket, payload: Any) -> Answer:
        artifact = shaped(payload, shapes.ArtifactId).artifact_id
        found = await self._core.database.read(artifacts.one, socket.account, artifact)
        return {"result": "success", "artifact": found}

    async def artifact_create(self, socket: Socket, payload: Any) -> Answer:
        new = shaped(payload, shapes.NewArtifact)
        made = await artifact_updates.make(self._core, socket.account, new)
        return {"result": "success", "artifact": made}

    async def artifact_update(self, socket: Socket, payload: Any) -> Answer:
        given = shaped(payload, shapes.SocketArtifactChange)
        header = (
            None if given.header is None else (given.header.data, given.header.expected_version)
        )
        body = None if given.body is None else (given.body.data, given.body.expected_version)
        if header is None and body is None:
            return refusal("No updates provided")
        now, is_done = await artifact_updates.alter(
            self._core, socket.account, given.artifact_id, header, body
        )
        if is_done:
            told = {name: {"version": at.version, "data": at.value} for name, at in now.items()}
            return {"result": "success", **told}
        told = {
            name: {"currentVersion": at.version, "currentData": at.value}
            for name, at in now.items()
        }
        return {"result": "version-mismatch", **told}

    async def artifact_delete(self, socket: Socket, payload: Any) -> Answer:
        artifact = shaped(payload, shapes.ArtifactId).artifact_id
        await artifact_updates.remove(self._core, socket.account, artifact)
        return {"result": "success"}

    async def access_key_get(self, socket: Socket, payload: Any) -> Answer:
        given = shaped(payload, shapes.AccessKeyGet)
        try:
            found = await self._core.database.read(
                access_keys.get, socket.account, given.session_id, given.machine_id
            )
        except RelayError as error:
            return {"ok": False, "error": str(error)}
        return {"ok": True, "accessKey": found}


def shaped(payload: Any, shape: type[T]) -> T:
    try:
        return msgspec.convert(payload, shape)
    except msgspec.ValidationError as error:
        raise RelayError(400, f"Invalid parameters: {error}") from None


def refusal(reason: str) -> Answer:
    """Clients look at `result`, at `error` or at `message`, each at its own."""
    return {"result": "error", "error": reason, "message": reason}
