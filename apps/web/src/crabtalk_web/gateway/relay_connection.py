"""This machine's connection to the relay: its registration, its socket, heartbeats and RPC calls.

Conversations come and go; events and calls that concern them are passed on to them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from crabtalk_web.sealing import DataSealer, to_base64, wrap_key

from .backoff import RetryBackoff
from .call_receipts import CallReceipts
from .credentials import RelayCredentials
from .envelope_writer import now_ms
from .errors import RelayRefusedError, RelayUnavailableError, WebGatewayError
from .relay_http import RelayHttp
from .relay_socket import RelaySocket
from .session_metadata import build_machine_metadata, build_machine_state
from .web_conversation import WebConversation
from .web_folder import WebFolder

# In seconds: heartbeats of sessions with an open turn, of other sessions, of the machine; and the
# time for saying goodbye.
BUSY_BEAT, IDLE_BEAT, MACHINE_BEAT = 2.0, 15.0, 20.0
CLOSE_TIMEOUT = 2.0
SPAWN_METHOD = "spawn-happy-session"

log = logging.getLogger(__name__)

ListConversations = Callable[[], Iterable[WebConversation]]


class RelayConnection:
    def __init__(
        self,
        credentials: RelayCredentials,
        relay: RelayHttp,
        store: WebFolder,
        receipts: CallReceipts,
        conversations: ListConversations,
    ) -> None:
        self._credentials = credentials
        self._relay = relay
        self._store = store
        self._receipts = receipts
        self._conversations = conversations
        self._sealer = DataSealer(credentials.machine_key)
        self.socket: RelaySocket | None = None
        self.is_connected = asyncio.Event()

    async def stay_connected(self) -> None:
        """Run until cancelled; devices are then told at once."""
        backoff = RetryBackoff()
        credentials = self._credentials
        while True:
            try:
                await self._register_machine()
                async with RelaySocket(
                    credentials.relay, credentials.token, self._handle_event, self._handle_call
                ) as socket:
                    await self._hold_socket(socket, backoff)
            except RelayUnavailableError as error:
                log.info("%s", error)
            except RelayRefusedError as error:
                sentence = "%s; if this machine was removed, run `crabtalk-web pair`"
                log.error(sentence, error)  # noqa: TRY400
            finally:
                self.is_connected.clear()
                self.socket = None
            for conversation in list(self._conversations()):
                await conversation.set_socket(None)
            await backoff.wait()

    async def _hold_socket(self, socket: RelaySocket, backoff: RetryBackoff) -> None:
        self.socket = socket
        listening = asyncio.ensure_future(socket.listen())
        try:
            await self._announce_all(socket)
            backoff.reset()
            self.is_connected.set()
            await listening
        except asyncio.CancelledError:
            await self._send_session_ends(socket)
            raise
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _register_machine(self) -> None:
        credentials = self._credentials
        wrapped = to_base64(wrap_key(credentials.content_key, credentials.machine_key))
        await self._relay.register_machine(
            credentials.machine_id,
            self._sealer.seal(build_machine_metadata(self._store.directory)),
            self._sealer.seal(build_machine_state(now_ms())),
            wrapped,
        )

    async def _announce_all(self, socket: RelaySocket) -> None:
        await socket.emit(
            "rpc-register", {"method": f"{self._credentials.machine_id}:{SPAWN_METHOD}"}
        )
        await self._send_machine_heartbeat(socket)
        for conversation in list(self._conversations()):
            await conversation.set_socket(socket)

    async def announce_conversation(self, conversation: WebConversation) -> None:
        """Give the socket to a conversation that was added while it is open."""
        if self.socket is not None:
            with suppress(RelayUnavailableError):  # the next socket is given to all conversations
                await conversation.set_socket(self.socket)

    def _find_conversation(self, session: Any) -> WebConversation | None:
        for conversation in self._conversations():
            if conversation.session == session and session:
                return conversation
        return None

    def _handle_event(self, name: str, payload: Any) -> None:
        body = payload.get("body") if name == "update" and isinstance(payload, dict) else None
        if isinstance(body, dict):
            conversation = self._find_conversation(body.get("sid") or body.get("id"))
            if conversation is not None:
                conversation.handle_update(body)
        elif name == "rpc-error":
            log.error("the relay does not pass on calls: %s", payload)

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    async def _handle_call(self, method: str, params: str) -> str | None:
        record, _, name = method.rpartition(":")
        if record == self._credentials.machine_id:
            return await self._open_requested_session(params)
        conversation = self._find_conversation(record)
        return None if conversation is None else await conversation.rpc.handle_call(name, params)

    async def _open_requested_session(self, params: str) -> str:
        """Each agent has one conversation. A device that asks for it gets its session, or with
        `fresh` a new, empty one."""
        request = self._sealer.open(params)
        try:
            if not isinstance(request, dict) or not await self._receipts.add_if_new(params):
                return self._seal_error("this call was made before, or cannot be opened")
            session = await self._session_for(request)
        except (WebGatewayError, RelayUnavailableError, RelayRefusedError, OSError) as error:
            return self._seal_error(str(error))
        return self._sealer.seal({"type": "success", "sessionId": session})

    async def _session_for(self, request: dict[str, Any]) -> str:
        """Raises WebGatewayError, RelayUnavailableError and RelayRefusedError."""
        conversations = {
            conversation.identity.agent: conversation
            for conversation in self._conversations()
            if conversation.session
        }
        directory = PurePath(str(request.get("directory") or "")).name
        target = conversations.get(str(request.get("agent"))) or conversations.get(directory)
        if target is None:
            raise WebGatewayError(
                f"there is no such agent; there are {', '.join(sorted(conversations))}"
            )
        if request.get("fresh") is True:
            return await target.renewal.renew()
        target.unarchive_session()
        return target.session

    def _seal_error(self, sentence: str) -> str:
        return self._sealer.seal({"type": "error", "errorMessage": sentence})

    # ── Presence ────────────────────────────────────────────────────────────────────────────

    async def send_heartbeats(self) -> None:
        """Until cancelled."""
        ticks = 0
        while True:
            await asyncio.sleep(BUSY_BEAT)
            ticks += 1
            socket = self.socket
            if socket is None:
                continue
            is_idle_beat = ticks % round(IDLE_BEAT / BUSY_BEAT) == 0
            with suppress(RelayUnavailableError):
                for conversation in list(self._conversations()):
                    if is_idle_beat or conversation.follower.is_turn_open:
                        await conversation.publisher.send_heartbeat(socket)
                if ticks % round(MACHINE_BEAT / BUSY_BEAT) == 0:
                    await self._send_machine_heartbeat(socket)

    async def _send_machine_heartbeat(self, socket: RelaySocket) -> None:
        machine = self._credentials.machine_id
        await socket.emit("machine-alive", {"machineId": machine, "time": now_ms()})

    async def _send_session_ends(self, socket: RelaySocket) -> None:
        """Tell devices at once that the sessions are offline."""
        with suppress(RelayUnavailableError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                for conversation in list(self._conversations()):
                    if conversation.session:
                        await conversation.send_session_end(socket)
