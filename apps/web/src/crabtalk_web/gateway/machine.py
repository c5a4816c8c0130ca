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

from .backoff import Backoff
from .conversation import Conversation
from .credentials import Credentials
from .errors import GatewayError, RelayAwayError, RelayRefusedError
from .metadata import machine_metadata, machine_state
from .receipts import Receipts
from .relay_http import RelayHttp
from .relay_socket import RelaySocket
from .store import Store
from .teller import now_ms

# Seconds: between heartbeats of those that work, of the others, of the machine; for goodbyes.
BUSY_BEAT, BEAT, MACHINE_BEAT = 2.0, 15.0, 20.0
FAREWELL = 2.0
SPAWN = "spawn-happy-session"

log = logging.getLogger(__name__)

Conversations = Callable[[], Iterable[Conversation]]


class Machine:
    def __init__(
        self,
        credentials: Credentials,
        relay: RelayHttp,
        store: Store,
        receipts: Receipts,
        conversations: Conversations,
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
        backoff = Backoff()
        credentials = self._credentials
        while True:
            try:
                await self._register()
                async with RelaySocket(
                    credentials.relay, credentials.token, self._hear, self._serve
                ) as socket:
                    await self._stay(socket, backoff)
            except RelayAwayError as error:
                log.info("%s", error)
            except RelayRefusedError as error:
                sentence = "%s; if this machine was removed, run `crabtalk-web pair`"
                log.error(sentence, error)  # noqa: TRY400
            finally:
                self.is_connected.clear()
                self.socket = None
            for each in list(self._conversations()):
                await each.connected(None)
            await backoff.wait()

    async def _stay(self, socket: RelaySocket, backoff: Backoff) -> None:
        self.socket = socket
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

    async def _register(self) -> None:
        credentials = self._credentials
        wrapped = to_base64(wrap_key(credentials.content_key, credentials.machine_key))
        await self._relay.machine(
            credentials.machine_id,
            self._sealer.seal(machine_metadata(self._store.directory)),
            self._sealer.seal(machine_state(now_ms())),
            wrapped,
        )

    async def _introduce_all(self, socket: RelaySocket) -> None:
        await socket.tell("rpc-register", {"method": f"{self._credentials.machine_id}:{SPAWN}"})
        await self._alive(socket)
        for each in list(self._conversations()):
            await each.connected(socket)

    async def introduce(self, conversation: Conversation) -> None:
        """One that came while there was a socket."""
        if self.socket is not None:
            with suppress(RelayAwayError):  # the next socket is introduced to all
                await conversation.connected(self.socket)

    def _of_session(self, session: Any) -> Conversation | None:
        for each in self._conversations():
            if each.session == session and session:
                return each
        return None

    def _hear(self, name: str, payload: Any) -> None:
        body = payload.get("body") if name == "update" and isinstance(payload, dict) else None
        if isinstance(body, dict):
            conversation = self._of_session(body.get("sid") or body.get("id"))
            if conversation is not None:
                conversation.hear_update(body)
        elif name == "rpc-error":
            log.error("the relay does not pass on calls: %s", payload)

    # ── Calls ───────────────────────────────────────────────────────────────────────────────

    async def _serve(self, method: str, params: str) -> str | None:
        record, _, name = method.rpartition(":")
        if record == self._credentials.machine_id:
            return await self._spawn(params)
        conversation = self._of_session(record)
        return None if conversation is None else await conversation.calls.serve(name, params)

    async def _spawn(self, params: str) -> str:
        """There is one conversation with each agent: a device that wants one is shown its session,
        or with `fresh` another that begins empty."""
        given = self._sealer.open(params)
        try:
            if not isinstance(given, dict) or not await self._receipts.is_new(params):
                return self._refusal("this call was made before, or cannot be opened")
            session = await self._session_for(given)
        except (GatewayError, RelayAwayError, RelayRefusedError, OSError) as error:
            return self._refusal(str(error))
        return self._sealer.seal({"type": "success", "sessionId": session})

    async def _session_for(self, given: dict[str, Any]) -> str:
        """Raises GatewayError, RelayAwayError and RelayRefusedError."""
        known = {each.identity.agent: each for each in self._conversations() if each.session}
        directory = PurePath(str(given.get("directory") or "")).name
        found = known.get(str(given.get("agent"))) or known.get(directory)
        if found is None:
            raise GatewayError(f"there is no such agent; there are {', '.join(sorted(known))}")
        if given.get("fresh") is True:
            return await found.renewal.carry_out()
        found.reopen()
        return found.session

    def _refusal(self, sentence: str) -> str:
        return self._sealer.seal({"type": "error", "errorMessage": sentence})

    # ── Presence ────────────────────────────────────────────────────────────────────────────

    async def beat(self) -> None:
        """Until cancelled."""
        ticks = 0
        while True:
            await asyncio.sleep(BUSY_BEAT)
            ticks += 1
            socket = self.socket
            if socket is None:
                continue
            is_beat = ticks % round(BEAT / BUSY_BEAT) == 0
            with suppress(RelayAwayError):
                for each in list(self._conversations()):
                    if is_beat or each.mirror.is_thinking:
                        await each.upkeep.alive(socket)
                if ticks % round(MACHINE_BEAT / BUSY_BEAT) == 0:
                    await self._alive(socket)

    async def _alive(self, socket: RelaySocket) -> None:
        machine = self._credentials.machine_id
        await socket.tell("machine-alive", {"machineId": machine, "time": now_ms()})

    async def _say_goodbye(self, socket: RelaySocket) -> None:
        """Devices see at once that nobody is there."""
        with suppress(RelayAwayError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                for each in list(self._conversations()):
                    if each.session:
                        await each.bye(socket)
