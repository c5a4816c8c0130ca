"""Socket events of devices and gateways. Every event that asks for an answer gets one."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import msgspec

from . import (
    access_keys,
    artifact_updates,
    artifacts,
    presence_rows,
    request_types,
    versioned_values,
)
from .accounts import run_within_quota
from .client_socket import ClientSocket
from .context import RelayContext
from .errors import RelayError
from .ids import now_ms
from .message_routes import append_and_announce
from .messages import MessageDraft
from .rpc import RpcRouter, build_rpc_error

T = TypeVar("T")
EventAnswer: TypeAlias = dict[str, Any]
EventHandler: TypeAlias = Callable[[ClientSocket, Any], Awaitable[EventAnswer | None]]

log = logging.getLogger(__name__)


class SocketEvents:
    def __init__(self, context: RelayContext) -> None:
        self._context = context
        self._rpc = RpcRouter(context.hub, context.limits)
        self._handlers: dict[str, EventHandler] = {
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

    async def handle(self, socket: ClientSocket, name: str, payload: Any) -> EventAnswer:
        """Return the answer, which is sent only if the client asked for it."""
        handler = self._handlers.get(name)
        if handler is None:
            return build_error_answer(f"there is no event {name[:100]!r}")
        try:
            return await handler(socket, payload) or {}
        except RelayError as error:
            return build_error_answer(str(error))
        except Exception:
            log.exception("the event %s failed", name)
            return build_error_answer("the relay failed; try again")

    async def handle_call(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        try:
            call = convert_payload(payload, request_types.RpcCall)
        except RelayError as error:
            return build_rpc_error(str(error))
        return await self._rpc.call(socket, call.method, call.params)

    # ── Messages and records ────────────────────────────────────────────────────────────────

    async def ping(self, socket: ClientSocket, payload: Any) -> None:
        """Answers a client that checks the connection."""

    async def message(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        event = convert_payload(payload, request_types.SocketMessage)
        drafts = [MessageDraft(event.message, event.local_id)]
        (row,) = await append_and_announce(
            self._context, socket.account, event.sid, drafts, skip=socket
        )
        return {"result": "success", "id": row["id"], "seq": row["seq"]}

    async def update_metadata(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        event = convert_payload(payload, request_types.MetadataChange)
        return await self._change_record(
            socket, "sessions", "metadata", event.sid, event.metadata, event.expected_version
        )

    async def update_state(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        event = convert_payload(payload, request_types.StateChange)
        return await self._change_record(
            socket, "sessions", "agent_state", event.sid, event.agent_state, event.expected_version
        )

    async def machine_update_metadata(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        event = convert_payload(payload, request_types.MachineMetadataChange)
        return await self._change_record(
            socket,
            "machines",
            "metadata",
            event.machine_id,
            event.metadata,
            event.expected_version,
        )

    async def machine_update_state(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        event = convert_payload(payload, request_types.MachineStateChange)
        return await self._change_record(
            socket,
            "machines",
            "daemon_state",
            event.machine_id,
            event.daemon_state,
            event.expected_version,
        )

    async def _change_record(
        self,
        socket: ClientSocket,
        table: presence_rows.RecordKind,
        field: versioned_values.RecordField,
        record: str,
        value: bytes | None,
        expected: int,
    ) -> EventAnswer:
        if len(value or b"") > self._context.limits.metadata:
            return build_error_answer(f"it may have at most {self._context.limits.metadata} bytes")
        name = {"metadata": "metadata", "agent_state": "agentState"}.get(field, "daemonState")
        now = await self._context.database.write(
            run_within_quota,
            self._context.limits,
            versioned_values.swap_value,
            socket.account,
            table,
            field,
            record,
            value,
            expected,
        )
        if now is None:
            return build_error_answer("there is no such record; create it first")
        if not now.is_done:
            return {"result": "version-mismatch", "version": now.version, name: now.value}
        announced = {name: versioned_values.build_update_value(now)}
        if table == "sessions":
            body = {"t": "update-session", "id": record, **announced}
            self._context.hub.send_update(socket.account, now.update, body, session=record)
        else:
            body = {"t": "update-machine", "machineId": record, **announced}
            self._context.hub.send_update(socket.account, now.update, body, machine=record)
        return {"result": "success", "version": now.version, name: now.value}

    # ── Presence ────────────────────────────────────────────────────────────────────────────

    async def session_alive(self, socket: ClientSocket, payload: Any) -> None:
        event = convert_payload(payload, request_types.SessionAlive)
        await self._context.presence.record_heartbeat(
            "sessions", socket.account, event.sid, event.time, is_thinking=bool(event.thinking)
        )

    async def session_end(self, socket: ClientSocket, payload: Any) -> None:
        event = convert_payload(payload, request_types.SessionEnd)
        await self._context.presence.mark_ended("sessions", socket.account, event.sid)

    async def machine_alive(self, socket: ClientSocket, payload: Any) -> None:
        event = convert_payload(payload, request_types.MachineAlive)
        await self._context.presence.record_heartbeat(
            "machines", socket.account, event.machine_id, event.time
        )

    async def usage_report(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        """Forward usage to connected devices. It is not stored."""
        event = convert_payload(payload, request_types.UsageReport)
        if "total" not in event.tokens or "total" not in event.cost:
            return {"success": False, "error": "tokens and cost need a total"}
        now = now_ms()
        if event.session_id is not None:
            body = {
                "type": "usage",
                "id": event.session_id,
                "key": event.key,
                "tokens": event.tokens,
                "cost": event.cost,
                "timestamp": now,
            }
            self._context.hub.send_ephemeral(socket.account, body)
        return {"success": True, "reportId": None, "createdAt": now, "updatedAt": now}

    async def app_state(self, socket: ClientSocket, payload: Any) -> None:
        socket.is_watched = convert_payload(payload, request_types.AppState).state == "active"

    # ── Methods ─────────────────────────────────────────────────────────────────────────────

    async def rpc_register(self, socket: ClientSocket, payload: Any) -> None:
        method = convert_payload(payload, request_types.MethodName).method
        most = self._context.limits.methods
        if len(socket.methods) >= most and method not in socket.methods:
            error = f"a socket registers at most {most} methods"
            socket.emit("rpc-error", {"type": "register", "error": error})
            return
        self._context.hub.register_method(socket, method)
        socket.emit("rpc-registered", {"method": method})

    async def rpc_unregister(self, socket: ClientSocket, payload: Any) -> None:
        method = convert_payload(payload, request_types.MethodName).method
        self._context.hub.unregister_method(socket, method)
        socket.emit("rpc-unregistered", {"method": method})

    # ── Artifacts and access keys ───────────────────────────────────────────────────────────

    async def artifact_read(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        artifact = convert_payload(payload, request_types.ArtifactId).artifact_id
        row = await self._context.database.read(artifacts.get_artifact, socket.account, artifact)
        return {"result": "success", "artifact": row}

    async def artifact_create(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        new = convert_payload(payload, request_types.NewArtifact)
        artifact = await artifact_updates.create_and_announce(self._context, socket.account, new)
        return {"result": "success", "artifact": artifact}

    async def artifact_update(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        event = convert_payload(payload, request_types.SocketArtifactChange)
        header = (
            None if event.header is None else (event.header.data, event.header.expected_version)
        )
        body = None if event.body is None else (event.body.data, event.body.expected_version)
        if header is None and body is None:
            return build_error_answer("No updates provided")
        now, is_done = await artifact_updates.change_and_announce(
            self._context, socket.account, event.artifact_id, header, body
        )
        if is_done:
            announced = {
                name: {"version": at.version, "data": at.value} for name, at in now.items()
            }
            return {"result": "success", **announced}
        announced = {
            name: {"currentVersion": at.version, "currentData": at.value}
            for name, at in now.items()
        }
        return {"result": "version-mismatch", **announced}

    async def artifact_delete(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        artifact = convert_payload(payload, request_types.ArtifactId).artifact_id
        await artifact_updates.delete_and_announce(self._context, socket.account, artifact)
        return {"result": "success"}

    async def access_key_get(self, socket: ClientSocket, payload: Any) -> EventAnswer:
        event = convert_payload(payload, request_types.AccessKeyQuery)
        try:
            row = await self._context.database.read(
                access_keys.get_access_key, socket.account, event.session_id, event.machine_id
            )
        except RelayError as error:
            return {"ok": False, "error": str(error)}
        return {"ok": True, "accessKey": row}


def convert_payload(payload: Any, shape: type[T]) -> T:
    try:
        return msgspec.convert(payload, shape)
    except msgspec.ValidationError as error:
        raise RelayError(400, f"Invalid parameters: {error}") from None


def build_error_answer(reason: str) -> EventAnswer:
    """Some clients read `result`, others `error` or `message`."""
    return {"result": "error", "error": reason, "message": reason}
