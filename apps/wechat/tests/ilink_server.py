"""A server that speaks iLink over real HTTP, for testing the gateway.

    async with run_ilink_server() as api:
        api.add_message("hello", person="ann@im.wechat")
        await api.wait_until(lambda: api.texts_to("ann@im.wechat"))

It requires the headers, tokens and contexts that WeChat requires, and stores files encrypted.
Injected faults happen once: `api.inject_faults("sendmessage", WeChatFault(0))`.
"""

import asyncio
import base64
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.padding import PKCS7

PATIENCE = 45
TOKEN = "crab@im.bot:shell"
BOT = "crab@im.bot"
ANN, BO, EVE = "ann@im.wechat", "bo@im.wechat", "eve@im.wechat"
KEY = bytes(range(16))
# The number of answers that WeChat takes for one message.
QUOTA = 10


@dataclass(frozen=True)
class WeChatFault:
    """A status, and iLink's error; 0 cuts the connection, before or after the request was done."""

    status: int = 200
    code: int = 0
    words: str = "as told"
    is_done: bool = False
    page: bool = False
    retry_after: str = ""


@dataclass
class WeChatMessage:
    person: str
    text: str
    context: str
    client: str
    file: tuple[int, str, bytes] | None = None  # type of the item, name, data


class ILinkServer:
    def __init__(self) -> None:
        self.url = ""
        self.tokens = {TOKEN}
        self.log: list[dict[str, Any]] = []  # people's messages; a cursor is an index into it
        self.messages: list[WeChatMessage] = []
        self.files: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.cursors: list[str] = []
        self.typing: list[str] = []
        self.uins: set[str] = set()
        self.contexts: dict[str, str] = {}
        self.remaining_answers: Counter[str] = Counter()  # answers left for each context
        self.redelivers = False  # repeats messages that it has sent before
        self.is_away = False
        self.codes: list[str] = []
        self.statuses: deque[dict[str, Any]] = deque()
        self.digits: list[str] = []
        self._faults: dict[str, deque[WeChatFault]] = {}
        self._numbers = itertools.count(7_000_000_000)
        self._uploads: dict[str, dict[str, Any]] = {}
        self.changed = asyncio.Event()

    # ── People ──────────────────────────────────────────────────────────────────────────────

    def add_message(self, text: str = "", person: str = ANN, **more: Any) -> str:
        """Returns the id of the message. `more` has fields of the message in iLink."""
        number = next(self._numbers)
        context = f"ctx-{number}"
        items = [{"type": 1, "text_item": {"text": text}}] if text else []
        message = {
            "message_id": number,
            "from_user_id": person,
            "to_user_id": BOT,
            "client_id": f"phone-{number}",
            "create_time_ms": int(time.time() * 1000),
            "message_type": 1,
            "message_state": 2,
            "context_token": context,
            "item_list": items,
            **more,
        }
        if message["message_type"] == 1 and "group_id" not in more:
            self.contexts[person] = str(message["context_token"])
            self.remaining_answers[self.contexts[person]] = QUOTA
        self.log.append(message)
        self.changed.set()
        return str(number)

    def add_file(
        self, kind: int, data: bytes, person: str = ANN, text: str = "", **more: Any
    ) -> str:
        """Add a file as an item of the type `kind`."""
        where = f"file/{next(self._numbers)}+="
        self.files[where] = encrypt_data(data, KEY)
        media = {"encrypt_query_param": where, "aes_key": base64.b64encode(KEY).decode()}
        name = {2: "image_item", 3: "voice_item", 4: "file_item", 5: "video_item"}[kind]
        items: list[dict[str, Any]] = [{"type": kind, name: {"media": media, **more}}]
        if text:
            items.insert(0, {"type": 1, "text_item": {"text": text}})
        return self.add_message("", person, item_list=items)

    def messages_to(self, person: str) -> list[WeChatMessage]:
        return [message for message in self.messages if message.person == person]

    def texts_to(self, person: str = ANN) -> list[str]:
        return [message.text for message in self.messages_to(person) if message.file is None]

    def inject_faults(self, name: str, *faults: WeChatFault) -> None:
        self._faults.setdefault(name, deque()).extend(faults)

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                if not condition():
                    await self.changed.wait()

    @property
    def is_read(self) -> bool:
        """Whether the cursor is at the end of the log."""
        return bool(self.cursors) and self.cursors[-1] == self._make_cursor(len(self.log))

    # ── The service ─────────────────────────────────────────────────────────────────────────

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        self.calls[name] += 1
        faults = self._faults.get(name)
        fault = faults.popleft() if faults else None
        if self.is_away:
            fault = WeChatFault(502)
        try:
            reply: web.StreamResponse = web.Response()
            if fault is None or fault.is_done:
                reply = await self._handle_call(request, name)
            return make_fault_response(request, fault) if fault is not None else reply
        finally:
            self.changed.set()

    async def _handle_call(self, request: web.Request, name: str) -> web.StreamResponse:
        if request.path.startswith("/cdn/"):
            return await self._handle_store(request, name)
        if request.headers.get("iLink-App-Id") != "bot":
            return web.json_response({"ret": -1, "errmsg": "no app"})
        if name == "get_bot_qrcode":
            return self._qr_code(request)
        if name == "get_qrcode_status":
            return self._qr_status(request)
        if request.method != "POST" or not self._is_authorized(request):
            return web.json_response({"errcode": -14, "errmsg": "session timeout"})
        body = await request.json()
        assert body["base_info"]["channel_version"]
        match name:
            case "getupdates":
                return web.json_response(await self._updates(body["get_updates_buf"]))
            case "sendmessage":
                return web.json_response(self._send(body["msg"]))
            case "getconfig":
                return web.json_response({"ret": 0, "typing_ticket": f"t:{body['ilink_user_id']}"})
            case "sendtyping":
                assert body["typing_ticket"] == f"t:{body['ilink_user_id']}"
                self.typing.append(body["ilink_user_id"])
                return web.json_response({"ret": 0})
            case "getuploadurl":
                ticket = f"up/{next(self._numbers)}+="
                self._uploads[ticket] = body
                return web.json_response({"ret": 0, "upload_param": ticket})
        return web.json_response({}, status=404)

    def _is_authorized(self, request: web.Request) -> bool:
        uin = request.headers.get("X-WECHAT-UIN", "")
        assert 0 <= int(base64.b64decode(uin)) < 2**32
        self.uins.add(uin)
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        expected = ("ilink_bot_token", "Bearer")
        return (request.headers.get("AuthorizationType"), kind) == expected and token in self.tokens

    async def _updates(self, cursor: str) -> dict[str, Any]:
        self.cursors.append(cursor)
        position = int(cursor.removeprefix("buf-")) if cursor else 0
        # Shorter than WeChat, so that no test waits for it at its end.
        deadline = time.monotonic() + 0.5
        while len(self.log) <= position and time.monotonic() < deadline and self.tokens:
            await asyncio.sleep(0.01)
        if not self.tokens:
            return {"errcode": -14, "errmsg": "session timeout"}
        following = min(len(self.log), position + 20)
        first = max(0, position - 2) if self.redelivers else position
        messages = self.log[first:following]
        return {"ret": 0, "msgs": messages, "get_updates_buf": self._make_cursor(following)}

    def _make_cursor(self, position: int) -> str:
        return f"buf-{position}" if position else ""

    def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        person, context = message["to_user_id"], message["context_token"]
        assert (message["message_type"], message["message_state"]) == (2, 2)
        assert message["client_id"] not in {message.client for message in self.messages}
        if context != self.contexts.get(person) or self.remaining_answers[context] <= 0:
            return {"ret": -2, "errmsg": "prepare failed"}
        (item,) = message["item_list"]
        text, file = "", None
        if item["type"] == 1:
            text = item["text_item"]["text"]
            assert text
            if len(text.encode("utf-16-le")) // 2 > 4000:
                return {"ret": -5, "errmsg": "too long"}
        else:
            file = self._read_file(item)
        self.remaining_answers[context] -= 1
        self.messages.append(WeChatMessage(person, text, context, message["client_id"], file))
        return {}

    def _read_file(self, item: dict[str, Any]) -> tuple[int, str, bytes]:
        name = {2: "image_item", 4: "file_item", 5: "video_item"}[item["type"]]
        media = item[name]["media"]
        key = bytes.fromhex(base64.b64decode(media["aes_key"]).decode())
        data = decrypt_data(self.files[media["encrypt_query_param"]], key)
        return item["type"], item[name].get("file_name", ""), data

    async def _handle_store(self, request: web.Request, name: str) -> web.StreamResponse:
        where = request.query["encrypted_query_param"]
        if name == "download":
            if where not in self.files:
                return web.Response(status=404)
            return web.Response(body=self.files[where])
        upload = self._uploads.pop(where)
        data = await request.read()
        assert (len(data), request.query["filekey"]) == (upload["filesize"], upload["filekey"])
        stored_path = f"kept/{upload['filekey']}"
        self.files[stored_path] = data
        return web.Response(headers={"x-encrypted-param": stored_path})

    # ── Login ───────────────────────────────────────────────────────────────────────────────

    def queue_statuses(self, *statuses: str | dict[str, Any]) -> None:
        """Queue answers to status requests for the QR code."""
        self.statuses.extend(
            {"status": status} if isinstance(status, str) else status for status in statuses
        )

    def make_confirmed(self, token: str = TOKEN) -> dict[str, Any]:
        return {
            "status": "confirmed",
            "bot_token": token,
            "ilink_bot_id": BOT,
            "ilink_user_id": ANN,
            "baseurl": self.url,
        }

    def _qr_code(self, request: web.Request) -> web.StreamResponse:
        assert (request.method, request.query["bot_type"]) == ("GET", "3")
        self.codes.append(f"code-{len(self.codes) + 1}")
        content = f"https://wechat.example/qr?code={self.codes[-1]}"
        return web.json_response({"qrcode": self.codes[-1], "qrcode_img_content": content})

    def _qr_status(self, request: web.Request) -> web.StreamResponse:
        assert request.query["qrcode"] == self.codes[-1]
        self.digits.append(request.query.get("verify_code", ""))
        return web.json_response(self.statuses.popleft() if self.statuses else {"status": "wait"})


def make_fault_response(request: web.Request, fault: WeChatFault) -> web.StreamResponse:
    if fault.status == 0:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()
    if fault.page:
        return web.Response(status=fault.status, text="<html>Please log in.</html>")
    headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
    body = {"ret": fault.code, "errmsg": fault.words}
    return web.json_response(body, status=fault.status, headers=headers)


def make_cipher(key: bytes) -> Cipher[ECB]:
    return Cipher(AES128(key), ECB())  # noqa: S305 - WeChat's choice


def encrypt_data(data: bytes, key: bytes) -> bytes:
    padder, encryptor = PKCS7(128).padder(), make_cipher(key).encryptor()
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


def decrypt_data(data: bytes, key: bytes) -> bytes:
    unpadder, decryptor = PKCS7(128).unpadder(), make_cipher(key).decryptor()
    return unpadder.update(decryptor.update(data) + decryptor.finalize()) + unpadder.finalize()


@asynccontextmanager
async def run_ilink_server() -> AsyncIterator[ILinkServer]:
    api = ILinkServer()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        addresses: Sequence[Any] = runner.addresses
        api.url = f"http://127.0.0.1:{addresses[0][1]}"
        yield api
    finally:
        api.tokens.clear()
        await runner.cleanup()
