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

from .errors import RelayAwayError, RelayRefusedError

PATH = "/v1/updates/?EIO=4&transport=websocket"
CONNECT_WITHIN = 20.0
ANSWER_WITHIN = 10.0
FRAME = 16 * 1024 * 1024
# Calls that are being answered at once; more are refused. Who watches a conversation has one there.
CALLS = 256
# Questions to the relay at once; the time of an answer runs from when it was asked.
QUESTIONS = 32

Hear = Callable[[str, Any], None]
Serve = Callable[[str, str], Awaitable[str | None]]


class RelaySocket:
    """As a context: connected. `hear` is told of updates and ephemerals in the order they come,
    `serve` answers a call, given its method and its sealed parameters."""

    def __init__(self, url: str, token: str, hear: Hear, serve: Serve) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._hear = hear
        self._serve = serve
        self._number = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._turn = asyncio.Semaphore(QUESTIONS)
        self._calls: set[asyncio.Task[None]] = set()
        self._patience = 60.0

    async def __aenter__(self) -> "RelaySocket":
        """Raises RelayAwayError and RelayRefusedError."""
        self._http = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                self._ws = await self._http.ws_connect(self._url + PATH, max_msg_size=FRAME)
                await self._greet()
        except BaseException as error:
            await self._http.close()
            if isinstance(error, aiohttp.ClientError | TimeoutError | OSError | ValueError):
                raise RelayAwayError(f"no socket at {self._url}: {error}") from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(RelayAwayError("the socket was closed before the answer"))
        try:
            with suppress(Exception):
                async with asyncio.timeout(1):
                    await self._ws.close()
        finally:
            await self._http.close()

    async def _greet(self) -> None:
        opening = await self._ws.receive_str()
        told = json.loads(opening[1:]) if opening[:1] == "0" else {}
        self._patience = (told.get("pingInterval", 25_000) + told.get("pingTimeout", 20_000)) / 1000
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
                async with asyncio.timeout(self._patience):
                    message = await self._ws.receive()
            except TimeoutError:
                raise RelayAwayError("the relay has gone silent") from None
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise RelayAwayError("the relay has closed the socket")
            try:
                await self._take(message.data)
            except (ValueError, KeyError, TypeError, IndexError):
                continue  # a packet nobody can make out; the next one may be fine

    async def _take(self, text: str) -> None:
        if text == "2":
            await self._write("3")
        elif text.startswith("42"):
            self._event(text[2:])
        elif text.startswith("43"):
            number, data = split(text[2:])
            waiting = self._asked.get(-1 if number is None else number)
            if waiting is not None and not waiting.done():
                waiting.set_result(data[0] if data else None)
        elif text.startswith("41"):
            raise RelayAwayError("the relay has ended the session of this socket")

    def _event(self, text: str) -> None:
        number, data = split(text)
        name, payload = data[0], data[1] if len(data) > 1 else None
        if name == "rpc-request" and number is not None and isinstance(payload, dict):
            if len(self._calls) >= CALLS:
                return  # the relay says by itself that nobody answered
            method, params = str(payload.get("method")), str(payload.get("params"))
            task = asyncio.get_running_loop().create_task(self._answer(number, method, params))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        elif isinstance(name, str):
            self._hear(name, payload)

    async def _answer(self, number: int, method: str, params: str) -> None:
        result = await self._serve(method, params)
        with suppress(RelayAwayError):
            await self._write(f"43{number}" + json.dumps([result]))

    async def tell(self, name: str, payload: Any) -> None:
        """Raises RelayAwayError. Nothing says that it was heard."""
        await self._write("42" + json.dumps([name, payload]))

    async def ask(self, name: str, payload: Any, within: float = ANSWER_WITHIN) -> Any:
        """What the relay answers. Raises RelayAwayError, also when it does not answer in time."""
        async with self._turn:
            self._number += 1
            number = self._number
            answer = self._asked[number] = asyncio.get_running_loop().create_future()
            try:
                await self._write(f"42{number}" + json.dumps([name, payload]))
                async with asyncio.timeout(within):
                    return await answer
            except TimeoutError:
                raise RelayAwayError(f"the relay did not answer {name}") from None
            finally:
                del self._asked[number]

    async def _write(self, text: str) -> None:
        try:
            await self._ws.send_str(text)
        except (ConnectionError, RuntimeError, aiohttp.ClientError) as error:
            raise RelayAwayError(f"the socket is closed: {error}") from None


def split(text: str) -> tuple[int | None, list[Any]]:
    end = 0
    while end < len(text) and text[end].isdigit():
        end += 1
    data = json.loads(text[end:])
    if not isinstance(data, list):
        raise ValueError("a packet has no list")  # noqa: TRY004 - it came from a network
    return (int(text[:end]) if end else None), data
