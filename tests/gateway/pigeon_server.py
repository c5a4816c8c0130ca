"""A made-up chat service over real HTTP, for testing gateways.

    async with run_pigeon_server() as service:
        service.add_message("hello", person="7")
        await service.wait_until(lambda: service.texts_in("7"))

Injected faults happen once: `service.inject_faults("send", PigeonFault(429, seconds=0.1))`.
"""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PATIENCE = 30


@dataclass(frozen=True)
class PigeonFault:
    """An HTTP status; 0 cuts the connection, before or after the request was carried out."""

    status: int
    seconds: float = 0.0
    is_done: bool = False


@dataclass
class PigeonMessage:
    id: str
    chat: str
    text: str
    buttons: list[list[str]] = field(default_factory=list)
    reply_to: str = ""
    file: tuple[str, bytes] | None = None
    history: list[str] = field(default_factory=list)
    is_literal: bool = False

    def payload_of(self, label: str) -> str:
        return next(payload for text, payload in self.buttons if label in text)


class PigeonServer:
    def __init__(self) -> None:
        self.url = ""
        self.token = "coo"
        self.pending: dict[str, dict[str, Any]] = {}
        self.messages: list[PigeonMessage] = []
        self.files: dict[str, bytes] = {}
        self.typing: list[str] = []
        self.acknowledged: list[str] = []
        self.calls: list[str] = []
        self.times: list[tuple[str, str, float]] = []  # when each chat was changed
        self.blocked: set[str] = set()
        self.limit = 500
        self.redeliver_after = 0.3  # seconds until an update without acknowledgement is repeated
        self.is_away = False
        self._delivered_at: dict[str, float] = {}
        self._faults: dict[str, deque[PigeonFault]] = {}
        self._numbers = itertools.count(1)
        self.on_message: Callable[[PigeonMessage], None] = lambda message: None
        self.changed = asyncio.Event()

    # ── People ──────────────────────────────────────────────────────────────────────────────

    def add_message(
        self,
        text: str,
        person: str = "7",
        *,
        chat: str = "",
        name: str = "Ann",
        is_group: bool = False,
        is_to_us: bool = True,
        press: str = "",
        message_id: str = "",
        files: Sequence[tuple[str, bytes]] = (),
        update: str = "",
    ) -> str:
        """Returns the id of the update."""
        number = update or f"u{next(self._numbers)}"
        attachments = []
        for file_name, data in files:
            key = f"f{next(self._numbers)}"
            self.files[key] = data
            kind = "application/octet-stream"
            attachments.append({"id": key, "name": file_name, "size": len(data), "kind": kind})
        self.pending[number] = {
            "id": number,
            "chat": {"id": chat or person, "is_group": is_group, "title": "Shells"},
            "person": {"id": person, "name": name},
            "text": text,
            "files": attachments,
            "is_to_us": is_to_us,
            "press": press,
            "message_id": message_id or f"m-{number}",
            "at": time.time(),
        }
        self._notify()
        return number

    def press_button(
        self, message: PigeonMessage, label: str, person: str = "7", **more: Any
    ) -> str:
        payload = message.payload_of(label)
        return self.add_message("", person, press=payload, message_id=message.id, **more)

    def messages_in(self, chat: str) -> list[PigeonMessage]:
        return [message for message in self.messages if message.chat == chat]

    def texts_in(self, chat: str = "7") -> list[str]:
        return [message.text for message in self.messages_in(chat)]

    def inject_faults(self, path: str, *faults: PigeonFault) -> None:
        self._faults.setdefault(path, deque()).extend(faults)

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                if not condition():
                    await self.changed.wait()

    def _notify(self) -> None:
        self.changed.set()

    # ── The service ─────────────────────────────────────────────────────────────────────────

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.strip("/")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "who are you?"}, status=401)
        self.calls.append(path)
        faults = self._faults.get(path)
        fault = faults.popleft() if faults else None
        if self.is_away:
            fault = PigeonFault(503)
        if fault is None or fault.is_done:
            answer = await self._handle_path(path, request)
        if fault is None:
            return answer
        if fault.status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        body = {"error": f"as told: {fault.status}", "seconds": fault.seconds}
        return web.json_response(body, status=fault.status)

    async def _handle_path(self, path: str, request: web.Request) -> web.StreamResponse:
        if path.startswith("files/"):
            data = self.files.get(path.removeprefix("files/"))
            return web.Response(status=404) if data is None else web.Response(body=data)
        if path == "upload":
            query = request.query
            return self._send(
                query["chat"], query["caption"], file=(query["name"], await request.read())
            )
        body = await request.json() if request.can_read_body else {}
        match path:
            case "me":
                return web.json_response({"name": "pigeon"})
            case "updates":
                return web.json_response(await self._updates())
            case "taken":
                self.pending.pop(body["id"], None)
                self.acknowledged.append(body["id"])
                self._notify()
                return web.json_response({})
            case "send":
                return self._send(**body)
            case "edit":
                return self._edit(**body)
            case "typing":
                self.typing.append(body["chat"])
                return web.json_response({})
        return web.json_response({"error": "there is no such thing"}, status=404)

    async def _updates(self) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 0.5
        while True:
            now = time.monotonic()
            due = [
                one
                for key, one in self.pending.items()
                if now - self._delivered_at.get(key, -math.inf) >= self.redeliver_after
            ]
            if due or now > deadline:
                self._delivered_at.update({entry["id"]: now for entry in due})
                return due
            await asyncio.sleep(0.005)

    def _send(
        self,
        chat: str,
        text: str,
        buttons: Sequence[Sequence[str]] = (),
        reply_to: str = "",
        file: tuple[str, bytes] | None = None,
        literal: bool = False,
    ) -> web.Response:
        if (refusal := self._check_message(chat, text)) is not None:
            return refusal
        message = PigeonMessage(
            f"b{next(self._numbers)}", chat, text, [list(b) for b in buttons], reply_to, file
        )
        message.is_literal = literal
        message.history.append(text)
        self.messages.append(message)
        self.times.append((chat, "send", time.monotonic()))
        self.on_message(message)
        self._notify()
        return web.json_response({"id": message.id})

    def _edit(
        self,
        chat: str,
        id: str,  # noqa: A002 - the service's own name
        text: str,
        buttons: Sequence[Sequence[str]],
        literal: bool = False,
    ) -> web.Response:
        if (refusal := self._check_message(chat, text)) is not None:
            return refusal
        message = next((message for message in self.messages_in(chat) if message.id == id), None)
        if message is None:
            return web.json_response({"error": "there is no such message"}, status=404)
        message.text, message.buttons = text, [list(b) for b in buttons]
        message.is_literal = literal
        message.history.append(text)
        self.times.append((chat, "edit", time.monotonic()))
        self.on_message(message)
        self._notify()
        return web.json_response({})

    def _check_message(self, chat: str, text: str) -> web.Response | None:
        if chat in self.blocked:
            return web.json_response({"error": "you are blocked"}, status=403)
        if len(text.encode("utf-16-le")) // 2 > self.limit:
            return web.json_response({"error": "too long"}, status=413)
        return None


@asynccontextmanager
async def run_pigeon_server() -> AsyncIterator[PigeonServer]:
    service = PigeonServer()
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()
