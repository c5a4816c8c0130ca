"""The socket's route: a WebSocket at /v1/updates that speaks Engine.IO 4 and Socket.IO 5.

Only WebSockets: a client that begins with polling is told so, in the protocol's own words.
"""

import asyncio
import logging
from collections import Counter
from typing import Any, cast

from aiohttp import WSMsgType, web

from . import packets, shapes
from .core import Core
from .errors import RelayError
from .ids import new_id
from .mailroom import answer
from .packets import Packet, PacketError
from .rpc import failed
from .socket import Scope, Socket
from .socket_events import SocketEvents, shaped

SCOPES = {"user-scoped": "", "session-scoped": "session", "machine-scoped": "machine"}
# How long a client that is to leave may take to hang up by itself.
FAREWELL = 1.0

log = logging.getLogger(__name__)


class SocketRoute:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._events = SocketEvents(core)
        self._strangers: Counter[str] = Counter()  # by address

    async def get(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("EIO") != "4":
            return answer({"code": 5, "message": "Unsupported protocol version"}, 400)
        if request.query.get("transport") != "websocket":
            return answer({"code": 0, "message": "Transport unknown: use websocket"}, 400)
        limits, address = self._core.limits, self._core.proxies.client_of(request)
        if self._core.hub.count + self._strangers.total() >= limits.sockets:
            raise RelayError(503, "too many sockets are connected; try again later")
        if self._strangers[address] >= limits.strangers_sockets:
            raise RelayError(
                429,
                f"at most {limits.strangers_sockets} sockets of one address may be without a token"
                " at a time; try again in a moment",
            )
        # Compression would cost each of them a window of its own, and sealed text has no patterns.
        ws = web.WebSocketResponse(max_msg_size=limits.frame, compress=False, timeout=FAREWELL)
        self._strangers[address] += 1
        try:
            await ws.prepare(request)
            await ws.send_str(
                packets.opening(new_id(), limits.ping_interval, limits.ping_timeout, limits.frame)
            )
            socket = await self._welcome(ws)
        finally:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]
        if socket is not None:
            try:
                await self._listen(ws, socket)
            finally:
                self._core.hub.leave(socket)
        return ws

    async def _welcome(self, ws: web.WebSocketResponse) -> Socket | None:
        try:
            async with asyncio.timeout(self._core.limits.connect_timeout):
                message = await ws.receive()
        except TimeoutError:
            await ws.close()
            return None
        if message.type is not WSMsgType.TEXT:
            return None
        try:
            socket = await self._admit(ws, message.data)
        except (PacketError, RelayError) as error:
            await refuse(ws, str(error))
            return None
        # Without a pause between the two: whoever is revoked now is found among those who joined.
        socket.send(packets.connected(new_id()))
        self._core.hub.join(socket)
        return socket

    async def _admit(self, ws: web.WebSocketResponse, text: str) -> Socket:
        if not text.startswith(packets.MESSAGE + packets.CONNECT):
            raise PacketError("the first packet has to connect")
        auth = shapes_of(packets.parse(text[1:]))
        device = await self._core.doorman.device(auth.token)
        if device is None:
            raise RelayError(401, "Invalid authentication token")
        scope, record = scope_of(auth)
        house = self._core.hub.house(device.account)
        if len(house.sockets) >= self._core.limits.account_sockets:
            raise RelayError(503, "this account has too many sockets; close some")
        socket = Socket(ws, device, scope, record, self._core.limits)
        socket.is_watched = auth.app_state == "active"
        return socket

    async def _listen(self, ws: web.WebSocketResponse, socket: Socket) -> None:
        async for message in ws:
            socket.heard()
            if message.type is not WSMsgType.TEXT:
                break
            text: str = message.data
            kind = text[:1]
            if kind == packets.MESSAGE:
                try:
                    if not await self._receive(socket, packets.parse(text[1:])):
                        break
                except PacketError as error:
                    log.info("a socket is closed: %s", error)
                    break
            elif kind == packets.PING:
                socket.send(packets.PONG + text[1:])
            elif kind == packets.CLOSE:
                break
        await ws.close()

    async def _receive(self, socket: Socket, packet: Packet) -> bool:
        """False when the client says it leaves. Everything but calls is done in the order it came,
        and nothing more is read before it is."""
        match packet.kind:
            case packets.EVENT:
                name, payload = packet.data[0], packet.data[1] if len(packet.data) > 1 else None
                if name == "rpc-call":
                    self._call(socket, payload, packet.number)
                    return True
                result = await self._events.handle(socket, name, payload)
                if packet.number is not None:
                    socket.send(packets.ack(packet.number, result))
            case packets.ACK:
                socket.answered(packet.number, packet.data)
            case packets.DISCONNECT:
                return False
        return True

    def _call(self, socket: Socket, payload: Any, number: int | None) -> None:
        """A call takes as long as whoever is called; other packets do not wait for it."""

        async def call() -> None:
            result = await self._events.call(socket, payload)
            if number is not None:
                socket.send(packets.ack(number, result))

        if len(socket.calls) >= self._core.limits.socket_events:
            if number is not None:
                socket.send(packets.ack(number, failed("too many calls at once; wait for some")))
            return
        task = asyncio.get_running_loop().create_task(call())
        socket.calls.add(task)
        task.add_done_callback(socket.calls.discard)


def shapes_of(packet: Packet) -> shapes.Handshake:
    if not isinstance(packet.data, dict) or not packet.data.get("token"):
        raise RelayError(401, "Missing authentication token")
    return shaped(packet.data, shapes.Handshake)


def scope_of(auth: shapes.Handshake) -> tuple[Scope, str]:
    if auth.client_type not in SCOPES:
        raise RelayError(400, f"clientType is one of {', '.join(SCOPES)}")
    records = {"session": auth.session_id, "machine": auth.machine_id}
    what = SCOPES[auth.client_type]
    record = records.get(what) or ""
    if what and not record:
        raise RelayError(400, f"Missing {what}Id: a {what}-scoped client names its {what}")
    return cast("Scope", auth.client_type), record


async def refuse(ws: web.WebSocketResponse, reason: str) -> None:
    await ws.send_str(packets.refused(reason))
    try:
        async with asyncio.timeout(FAREWELL):
            while not ws.closed:
                await ws.receive()
    except TimeoutError:
        await ws.close()
