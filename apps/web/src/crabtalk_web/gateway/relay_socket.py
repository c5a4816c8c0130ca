"""The relay's socket: Socket.IO 5 over one WebSocket, as far as a gateway needs it.

Texts are a digit for the engine, then inside its messages a digit for the socket, a number if an
answer is wanted, and JSON. It does not reconnect: whoever uses it knows what to do again then.
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
# Calls that are being answered at once; more are refused. Who watches a conversation has one there.
MAX_CALLS = 256
# Questions to the relay at once; the time of an answer runs from when it was asked.
MAX_REQUESTS = 32

EventHandler = Callable[[str, Any], None]
CallHandler = Callable[[str, str], Awaitable[str | None]]


class RelaySocket:
    """As a context: connected. `hear` is told of updates and ephemerals in the order they come,
    `serve` answers a call, given its method and its sealed parameters."""

    def __init__(self, url: str, token: str, hear: EventHandler, serve: CallHandler) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._on_event = hear
        self._on_call = serve
        self._number = 0
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._calls: set[asyncio.Task[None]] = set()
        self._silence_timeout = 60.0

    async def __aenter__(self) -> "RelaySocket":
        """Raises RelayAwayError and RelayRefusedError."""
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
        for waiting in self._requests.values():
            if not waiting.done():
                waiting.set_exception(
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
        told = json.loads(opening[1:]) if opening[:1] == "0" else {}
        self._silence_timeout = (
            told.get("pingInterval", 25_000) + told.get("pingTimeout", 20_000)
        ) / 1000
        auth = {"token": self._token, "clientType": "user-scoped", "happyClient": "crabtalk-web"}
        await self._ws.send_str("40" + json.dumps(auth))
        answer = await self._ws.receive_str()
        if answer.startswith("44"):
            told = json.loads(answer[2:])
            raise RelayRefusedError(401, str(told.get("message", "refused")))
        if not answer.startswith("40"):
            raise ValueError("what answers is no Socket.IO")

    async def listen(self) -> None:
        """Until the connection ends, which raises RelayAwayError."""
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
                continue  # a packet nobody can make out; the next one may be fine

    async def _handle_packet(self, text: str) -> None:
        if text == "2":
            await self._send_text("3")
        elif text.startswith("42"):
            self._handle_event(text[2:])
        elif text.startswith("43"):
            number, data = split_packet(text[2:])
            waiting = self._requests.get(-1 if number is None else number)
            if waiting is not None and not waiting.done():
                waiting.set_result(data[0] if data else None)
        elif text.startswith("41"):
            raise RelayUnavailableError("the relay has ended the session of this socket")

    def _handle_event(self, text: str) -> None:
        number, data = split_packet(text)
        name, payload = data[0], data[1] if len(data) > 1 else None
        if name == "rpc-request" and number is not None and isinstance(payload, dict):
            if len(self._calls) >= MAX_CALLS:
                return  # the relay says by itself that nobody answered
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
        """Raises RelayAwayError. Nothing says that it was heard."""
        await self._send_text("42" + json.dumps([name, payload]))

    async def request(self, name: str, payload: Any, within: float = ANSWER_WITHIN) -> Any:
        """What the relay answers. Raises RelayAwayError, also when it does not answer in time."""
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
