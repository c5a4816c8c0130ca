"""Socket.IO 5 client over one WebSocket, as far as a gateway needs it.

A packet is a digit for the engine, then inside its messages a digit for the socket, a number if an
answer is wanted, and JSON. It does not reconnect, because the caller knows what to repeat.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp

from .errors import RelayRefusedError, RelayUnavailableError

PATH = "/v1/updates/?EIO=4&transport=websocket"
CONNECT_WITHIN = 20.0
ANSWER_WITHIN = 10.0
MAX_FRAME = 16 * 1024 * 1024
# Calls being answered at once; more are refused. Each device that watches a conversation has one
# open.
MAX_CALLS = 256
# Requests to the relay at once; the timeout of each starts when it is sent.
MAX_REQUESTS = 32

EventHandler = Callable[[str, Any], None]
CallHandler = Callable[[str, str], Awaitable[str | None]]


class RelaySocket:
    """As a context manager: connected. `on_event` gets updates and ephemerals in order, `on_call`
    answers an RPC call, given its method and its sealed parameters."""

    def __init__(self, url: str, token: str, on_event: EventHandler, on_call: CallHandler) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._on_event = on_event
        self._on_call = on_call
        self._number = 0
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._calls: set[asyncio.Task[None]] = set()
        self._silence_timeout = 60.0

    async def __aenter__(self) -> "RelaySocket":
        """Raises RelayUnavailableError and RelayRefusedError."""
        self._http = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                self._ws = await self._http.ws_connect(self._url + PATH, max_msg_size=MAX_FRAME)
                await self._handshake()
        except BaseException as error:
            await self._http.close()
            if isinstance(error, aiohttp.ClientError | TimeoutError | OSError | ValueError):
                raise RelayUnavailableError(f"no socket at {self._url}: {error}") from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        for future in self._requests.values():
            if not future.done():
                future.set_exception(
                    RelayUnavailableError("the socket was closed before the answer")
                )
        try:
            with suppress(Exception):
                async with asyncio.timeout(1):
                    await self._ws.close()
        finally:
            await self._http.close()

    async def _handshake(self) -> None:
        opening = await self._ws.receive_str()
        opening_data = json.loads(opening[1:]) if opening[:1] == "0" else {}
        self._silence_timeout = (
            opening_data.get("pingInterval", 25_000) + opening_data.get("pingTimeout", 20_000)
        ) / 1000
        auth = {"token": self._token, "clientType": "user-scoped", "happyClient": "crabtalk-web"}
        await self._ws.send_str("40" + json.dumps(auth))
        answer = await self._ws.receive_str()
        if answer.startswith("44"):
            opening_data = json.loads(answer[2:])
            raise RelayRefusedError(401, str(opening_data.get("message", "refused")))
        if not answer.startswith("40"):
            raise ValueError("what answers is no Socket.IO")

    async def listen(self) -> None:
        """Run until the connection ends, which raises RelayUnavailableError."""
        while True:
            try:
                async with asyncio.timeout(self._silence_timeout):
                    message = await self._ws.receive()
            except TimeoutError:
                raise RelayUnavailableError("the relay has gone silent") from None
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise RelayUnavailableError("the relay has closed the socket")
            try:
                await self._handle_packet(message.data)
            except (ValueError, KeyError, TypeError, IndexError):
                continue  # skip a packet that cannot be parsed

    async def _handle_packet(self, text: str) -> None:
        if text == "2":
            await self._send_text("3")
        elif text.startswith("42"):
            self._handle_event(text[2:])
        elif text.startswith("43"):
            number, data = split_packet(text[2:])
            future = self._requests.get(-1 if number is None else number)
            if future is not None and not future.done():
                future.set_result(data[0] if data else None)
        elif text.startswith("41"):
            raise RelayUnavailableError("the relay has ended the session of this socket")

    def _handle_event(self, text: str) -> None:
        number, data = split_packet(text)
        name, payload = data[0], data[1] if len(data) > 1 else None
        if name == "rpc-request" and number is not None and isinstance(payload, dict):
            if len(self._calls) >= MAX_CALLS:
                return  # the relay tells the caller that there was no answer
            method, params = str(payload.get("method")), str(payload.get("params"))
            task = asyncio.get_running_loop().create_task(self._answer_call(number, method, params))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        elif isinstance(name, str):
            self._on_event(name, payload)

    async def _answer_call(self, number: int, method: str, params: str) -> None:
        result = await self._on_call(method, params)
        with suppress(RelayUnavailableError):
            await self._send_text(f"43{number}" + json.dumps([result]))

    async def emit(self, name: str, payload: Any) -> None:
        """Raises RelayUnavailableError. Delivery is not confirmed."""
        await self._send_text("42" + json.dumps([name, payload]))

    async def request(self, name: str, payload: Any, within: float = ANSWER_WITHIN) -> Any:
        """Return the relay's answer. Raises RelayUnavailableError, also if it does not answer in
        time."""
        async with self._request_slots:
            self._number += 1
            number = self._number
            answer = self._requests[number] = asyncio.get_running_loop().create_future()
            try:
                await self._send_text(f"42{number}" + json.dumps([name, payload]))
                async with asyncio.timeout(within):
                    return await answer
            except TimeoutError:
                raise RelayUnavailableError(f"the relay did not answer {name}") from None
            finally:
                del self._requests[number]

    async def _send_text(self, text: str) -> None:
        try:
            await self._ws.send_str(text)
        except (ConnectionError, RuntimeError, aiohttp.ClientError) as error:
            raise RelayUnavailableError(f"the socket is closed: {error}") from None


def split_packet(text: str) -> tuple[int | None, list[Any]]:
    end = 0
    while end < len(text) and text[end].isdigit():
        end += 1
    data = json.loads(text[end:])
    if not isinstance(data, list):
        raise ValueError("a packet has no list")  # noqa: TRY004 - it came from a network
    return (int(text[:end]) if end else None), data
