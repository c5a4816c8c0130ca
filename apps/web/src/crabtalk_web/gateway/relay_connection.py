"""Machine: this machine at the relay: its record, its one socket, its heartbeats and its calls.

Conversations come and go; what of the relay is theirs is passed on to them.
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

# Seconds: between heartbeats of those that work, of the others, of the machine; for goodbyes.
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
        """Until cancelled, which devices see at once."""
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
            for each in list(self._conversations()):
                await each.set_socket(None)
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
        for each in list(self._conversations()):
            await each.set_socket(socket)

    async def announce_conversation(self, conversation: WebConversation) -> None:
        """One that came while there was a socket."""
        if self.socket is not None:
            with suppress(RelayUnavailableError):  # the next socket is introduced to all
                await conversation.set_socket(self.socket)

    def _find_conversation(self, session: Any) -> WebConversation | None:
        for each in self._conversations():
            if each.session == session and session:
                return each
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
        """There is one conversation with each agent: a device that wants one is shown its session,
        or with `fresh` another that begins empty."""
        given = self._sealer.open(params)
        try:
            if not isinstance(given, dict) or not await self._receipts.add_if_new(params):
                return self._seal_error("this call was made before, or cannot be opened")
            session = await self._session_for(given)
        except (WebGatewayError, RelayUnavailableError, RelayRefusedError, OSError) as error:
            return self._seal_error(str(error))
        return self._sealer.seal({"type": "success", "sessionId": session})

    async def _session_for(self, given: dict[str, Any]) -> str:
        """Raises GatewayError, RelayAwayError and RelayRefusedError."""
        known = {each.identity.agent: each for each in self._conversations() if each.session}
        directory = PurePath(str(given.get("directory") or "")).name
        found = known.get(str(given.get("agent"))) or known.get(directory)
        if found is None:
            raise WebGatewayError(f"there is no such agent; there are {', '.join(sorted(known))}")
        if given.get("fresh") is True:
            return await found.renewal.renew()
        found.unarchive_session()
        return found.session

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
            is_beat = ticks % round(IDLE_BEAT / BUSY_BEAT) == 0
            with suppress(RelayUnavailableError):
                for each in list(self._conversations()):
                    if is_beat or each.follower.is_turn_open:
                        await each.publisher.send_heartbeat(socket)
                if ticks % round(MACHINE_BEAT / BUSY_BEAT) == 0:
                    await self._send_machine_heartbeat(socket)

    async def _send_machine_heartbeat(self, socket: RelaySocket) -> None:
        machine = self._credentials.machine_id
        await socket.emit("machine-alive", {"machineId": machine, "time": now_ms()})

    async def _send_session_ends(self, socket: RelaySocket) -> None:
        """Devices see at once that nobody is there."""
        with suppress(RelayUnavailableError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                for each in list(self._conversations()):
                    if each.session:
                        await each.send_session_end(socket)
