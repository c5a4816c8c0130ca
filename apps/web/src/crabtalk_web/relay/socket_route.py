"""The socket route: a WebSocket at /v1/updates with Engine.IO 4 and Socket.IO 5.

Only WebSockets are supported: a client that starts with polling gets the protocol's error for that.
"""

import asyncio
import logging
from collections import Counter
from typing import Any, cast

from aiohttp import WSMsgType, web

from . import packets, request_types
from .client_socket import ClientSocket, SocketScope
from .context import RelayContext
from .errors import RelayError
from .ids import new_id
from .packets import Packet, PacketError
from .request_bodies import build_json_response
from .rpc import build_rpc_error
from .socket_events import SocketEvents, convert_payload

SCOPES = {"user-scoped": "", "session-scoped": "session", "machine-scoped": "machine"}
# How long a client that is being closed may take to close the connection itself.
CLOSE_TIMEOUT = 1.0

log = logging.getLogger(__name__)


class SocketRoute:
    def __init__(self, context: RelayContext) -> None:
        self._context = context
        self._events = SocketEvents(context)
        self._unauthenticated: Counter[str] = Counter()  # by address

    async def get(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("EIO") != "4":
            return build_json_response({"code": 5, "message": "Unsupported protocol version"}, 400)
        if request.query.get("transport") != "websocket":
            return build_json_response(
                {"code": 0, "message": "Transport unknown: use websocket"}, 400
            )
        limits, address = self._context.limits, self._context.proxies.find_client(request)
        if self._context.hub.count + self._unauthenticated.total() >= limits.sockets:
            raise RelayError(503, "too many sockets are connected; try again later")
        if self._unauthenticated[address] >= limits.strangers_sockets:
            raise RelayError(
                429,
                f"at most {limits.strangers_sockets} sockets of one address may be without a token"
                " at a time; try again in a moment",
            )
        # Compression would need a window for each socket, and sealed text does not compress.
        ws = web.WebSocketResponse(max_msg_size=limits.frame, compress=False, timeout=CLOSE_TIMEOUT)
        self._unauthenticated[address] += 1
        try:
            await ws.prepare(request)
            await ws.send_str(
                packets.encode_open(
                    new_id(), limits.ping_interval, limits.ping_timeout, limits.frame
                )
            )
            socket = await self._open_socket(ws)
        finally:
            self._unauthenticated[address] -= 1
            if not self._unauthenticated[address]:
                del self._unauthenticated[address]
        if socket is not None:
            try:
                await self._read_packets(ws, socket)
            finally:
                self._context.hub.remove(socket)
        return ws

    async def _open_socket(self, ws: web.WebSocketResponse) -> ClientSocket | None:
        try:
            async with asyncio.timeout(self._context.limits.connect_timeout):
                message = await ws.receive()
        except TimeoutError:
            await ws.close()
            return None
        if message.type is not WSMsgType.TEXT:
            return None
        try:
            socket = await self._authenticate_socket(ws, message.data)
        except (PacketError, RelayError) as error:
            await refuse_socket(ws, str(error))
            return None
        # No await between the two: a device that is revoked now is found among the connected ones.
        socket.send(packets.encode_connected(new_id()))
        self._context.hub.add(socket)
        return socket

    async def _authenticate_socket(self, ws: web.WebSocketResponse, text: str) -> ClientSocket:
        if not text.startswith(packets.MESSAGE + packets.CONNECT):
            raise PacketError("the first packet has to connect")
        auth = parse_handshake(packets.parse_packet(text[1:]))
        device = await self._context.authenticator.find_device(auth.token)
        if device is None:
            raise RelayError(401, "Invalid authentication token")
        scope, record = parse_scope(auth)
        account_sockets = self._context.hub.get_account(device.account)
        if len(account_sockets.sockets) >= self._context.limits.account_sockets:
            raise RelayError(503, "this account has too many sockets; close some")
        socket = ClientSocket(ws, device, scope, record, self._context.limits)
        socket.is_watched = auth.app_state == "active"
        return socket

    async def _read_packets(self, ws: web.WebSocketResponse, socket: ClientSocket) -> None:
        async for message in ws:
            socket.mark_heard()
            if message.type is not WSMsgType.TEXT:
                break
            text: str = message.data
            kind = text[:1]
            if kind == packets.MESSAGE:
                try:
                    if not await self._handle_packet(socket, packets.parse_packet(text[1:])):
                        break
                except PacketError as error:
                    log.info("a socket is closed: %s", error)
                    break
            elif kind == packets.PING:
                socket.send(packets.PONG + text[1:])
            elif kind == packets.CLOSE:
                break
        await ws.close()

    async def _handle_packet(self, socket: ClientSocket, packet: Packet) -> bool:
        """Return False if the client disconnects. Everything but calls is handled in order, one
        packet at a time."""
        match packet.kind:
            case packets.EVENT:
                name, payload = packet.data[0], packet.data[1] if len(packet.data) > 1 else None
                if name == "rpc-call":
                    self._start_call(socket, payload, packet.number)
                    return True
                result = await self._events.handle(socket, name, payload)
                if packet.number is not None:
                    socket.send(packets.encode_ack(packet.number, result))
            case packets.ACK:
                socket.resolve_request(packet.number, packet.data)
            case packets.DISCONNECT:
                return False
        return True

    def _start_call(self, socket: ClientSocket, payload: Any, number: int | None) -> None:
        """A call takes as long as its target; other packets do not wait for it."""

        async def call() -> None:
            result = await self._events.handle_call(socket, payload)
            if number is not None:
                socket.send(packets.encode_ack(number, result))

        if len(socket.calls) >= self._context.limits.socket_events:
            if number is not None:
                socket.send(
                    packets.encode_ack(
                        number, build_rpc_error("too many calls at once; wait for some")
                    )
                )
            return
        task = asyncio.get_running_loop().create_task(call())
        socket.calls.add(task)
        task.add_done_callback(socket.calls.discard)


def parse_handshake(packet: Packet) -> request_types.Handshake:
    if not isinstance(packet.data, dict) or not packet.data.get("token"):
        raise RelayError(401, "Missing authentication token")
    return convert_payload(packet.data, request_types.Handshake)


def parse_scope(auth: request_types.Handshake) -> tuple[SocketScope, str]:
    if auth.client_type not in SCOPES:
        raise RelayError(400, f"clientType is one of {', '.join(SCOPES)}")
    records = {"session": auth.session_id, "machine": auth.machine_id}
    kind = SCOPES[auth.client_type]
    record = records.get(kind) or ""
    if kind and not record:
        raise RelayError(400, f"Missing {kind}Id: a {kind}-scoped client names its {kind}")
    return cast("SocketScope", auth.client_type), record


async def refuse_socket(ws: web.WebSocketResponse, reason: str) -> None:
    await ws.send_str(packets.encode_refused(reason))
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            while not ws.closed:
                await ws.receive()
    except TimeoutError:
        await ws.close()
